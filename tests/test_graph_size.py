"""A graph holds none of the state: every worker sends its graph to a ps that is new, however large its shard is."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tensorflow
SLOTS = 1_000_000  # 4 MB
MOST = 500_000  # bytes; these graphs have some 100,000
CASES = [
    *((kind, {"update": update}) for kind in ("FullShard", "RecoverableShard") for update in ("sync", "async")),
    *(("FullShard", {"update": update, "decay": 0.1}) for update in ("sync", "async")),
    ("FullShard", {"update": "async", "rate": "staleness-aware"}),
    *(("FullShard", {"update": update, "optimizer": "adam"}) for update in ("sync", "async")),
    *(("RecoverableShard", {"update": update, "optimizer": "momentum"}) for update in ("sync", "async")),
]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_the_graph_of_a_large_shard_is_small(kind, options):
    import tensorflow as tf
    from psconform.reference_impl.modes import full_ps
    from psconform.reference_impl.recovery import recoverable_ps

    config = full_ps.FullConfig(slots=SLOTS, workers=2, **options)
    placeholder, graph = tf.compat.v1.placeholder, tf.Graph()
    with graph.as_default():
        made = {**vars(full_ps), **vars(recoverable_ps)}[kind](0, config)
        made.push(placeholder(tf.float32, made.blank(1).shape), 1, pull=True)
        made.read(1)
        if isinstance(made, recoverable_ps.RecoverableShard):
            made.restore(placeholder(tf.float32, made.shape))
        else:
            made.initialise(placeholder(tf.float32, [SLOTS]))
    assert graph.as_graph_def().ByteSize() < MOST
