"""What a ps takes for finite: every number that is, however large, in sync and async."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
SLOTS, WORKERS = 40, 2


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize(
    ("value", "sound"), [(1.0, True), (3e38, True), (-3e38, True), (np.nan, False), (np.inf, False)]
)
def test_only_what_is_not_finite_is_refused(monkeypatch, update, value, sound):
    from psconform.reference_impl.cluster import tf, tf1
    from psconform.reference_impl.modes import full_ps

    monkeypatch.setattr(full_ps.FullShard, "device", lambda _: tf.device("/device:CPU:0"))  # a ps in this process
    config = full_ps.FullConfig(slots=SLOTS, workers=WORKERS, update=update, reduction="sum")
    gradient = np.zeros(SLOTS, np.float32)
    gradient[: SLOTS // 2] = value
    with tf.Graph().as_default():
        of_ps = full_ps.FullShard(0, config)
        initialise = of_ps.initialise(tf.zeros([SLOTS]))
        sent = tf1.placeholder(tf.float32, [len(of_ps.blank(0))])
        pushes = [of_ps.push(sent, worker, pull=True) for worker in range(WORKERS)]
        with tf1.Session() as session:
            session.run(initialise)
            for worker, amount in enumerate([np.zeros(SLOTS, np.float32), gradient]):
                message = of_ps.blank(worker)
                of_ps.write(message, amount, 0, worker)  # the second one waits for the version after both
                row = session.run(pushes[worker], {sent: message})
    assert of_ps.refused(row, 1) == (not sound)
    assert of_ps.refused(row, 0) == 0
    assert row[-3:].tolist() == [1, 1, 2]  # it counts as a step in any case
    assert (of_ps.theta(row) == (-gradient if sound else 0)).all()
