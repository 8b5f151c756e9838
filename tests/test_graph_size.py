"""A graph holds none of the state: every worker sends its graph to a ps that is new, however large its shard is."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tensorflow
SLOTS = 1_000_000  # 4 MB
MOST = 500_000  # bytes; these graphs have some 100,000
CASES = [
    *((kind, {"update": update}) for kind in ("Shard", "RecoverableShard") for update in ("sync", "async")),
    *(("Shard", {"update": update, "decay": 0.1}) for update in ("sync", "async")),
    ("Shard", {"update": "async", "rate": "staleness-aware"}),
    *(("OptimizingShard", {"update": update, "optimizer": "adam"}) for update in ("sync", "async")),
    *(("RecoverableOptimizingShard", {"update": update, "optimizer": "momentum"}) for update in ("sync", "async")),
]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_the_graph_of_a_large_shard_is_small(kind, options):
    import tensorflow as tf
    from psconform.reference_impl import optimizers, recoverable, shard

    config = shard.ShardConfig(slots=SLOTS, workers=2, **options)
    placeholder, graph = tf.compat.v1.placeholder, tf.Graph()
    with graph.as_default():
        made = {**vars(shard), **vars(recoverable), **vars(optimizers)}[kind](0, config)
        made.push(made.message(placeholder(tf.float32, made.blank(1).shape), 1), 1, pull=True)
        made.read(1)
        if isinstance(made, recoverable.RecoverableShard):
            made.restore(placeholder(tf.float32, made.shape))
        else:
            made.initialise(placeholder(tf.float32, [SLOTS]))
    assert graph.as_graph_def().ByteSize() < MOST
