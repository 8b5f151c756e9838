"""What a ps takes for finite: every number that is, however large, in a small gradient and in a large one."""

from __future__ import annotations

import numpy as np
import pytest
from psconform.reference_impl import shard

SLOTS, WORKERS = 40, 2


@pytest.mark.parametrize("small", [0, shard.SMALL])
@pytest.mark.parametrize(
    ("value", "sound"), [(1.0, True), (3e38, True), (-3e38, True), (np.nan, False), (np.inf, False)]
)
def test_only_what_is_not_finite_is_refused(monkeypatch, small, value, sound):
    monkeypatch.setattr(shard, "SMALL", small)
    with shard.tf.Graph().as_default():
        of_ps = shard.Shard(0, shard.ShardConfig(slots=SLOTS, workers=WORKERS))
        message = of_ps.blank(1)
        message[: SLOTS // 2] = value
        taken = of_ps.sound(shard.tf.constant(message), 1)
        pruned = shard.tf1.ConfigProto(graph_options=shard.tf1.GraphOptions(place_pruned_graph=True))
        with shard.tf1.Session(config=pruned) as session:
            row = session.run(taken)
    assert of_ps.refused(-row, 1) == (not sound)
    assert -row[-1] == 1  # it counts as a step in any case
    if sound:
        assert (row == message[: len(row)]).all()
    else:
        assert not row[:SLOTS].any()
