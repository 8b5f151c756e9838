"""Run by test_replication.py: where the ops of one client's step really ran, from TensorFlow's own record of it.

``python placement.py FOLDER WORKLOAD REPLICATION WORKERS``: one ps and all workers as servers of this process, one step
traced; prints JSON: by device the types of the ops that TensorFlow placed there, and those for which it kept times.
"""

import json
import os
import socket
import sys
from pathlib import Path

import tensorflow as tf
from psconform.reference_impl import trainer
from psconform.reference_impl.defects import client_type
from psconform.reference_impl.shard import ShardConfig, tf1

from psconform.layout import Task
from psconform.probe import Probe
from psconform.workloads.digits import write_data

FOLDER, WORKLOAD, REPLICATION, WORKERS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])


def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def probes():
    for part in ("events", "vectors", "done"):
        (FOLDER / part).mkdir()
    write_data(FOLDER)
    names = {"workload": WORKLOAD, "model": "mlp", "condition": 10.0, "seed": 1, "batch": 4, "update": "sync"}
    sizes = {"workers": WORKERS, "variables": 1, "steps": 2, "rate": 0.1, "delay": 0, "unit": 1.0, "run": "traced"}
    return [Probe({**names, **sizes}, task=f"worker:{i}", folder=str(FOLDER)) for i in range(WORKERS)]


def main():
    tf1.disable_eager_execution()
    cluster = {"ps": [f"127.0.0.1:{port()}"], "worker": [f"127.0.0.1:{port()}" for _ in range(WORKERS)]}
    servers = [trainer.new_server(cluster, Task("ps", 0))]
    servers += [trainer.new_server(cluster, Task("worker", i)) for i in range(1, WORKERS)]
    recorded = probes()
    config = ShardConfig(slots=recorded[0].slots, workers=WORKERS, steps=2)
    client = client_type("", REPLICATION)(cluster, recorded, config)
    client.towers[0].join()
    feeds = [value for tower in client.towers for value in tower.prepare(0)] + client.together(0)
    ops = [tower.ops for tower in client.towers]
    names = [name for _, fed in ops for name in fed] + client.inputs()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True, timeout_in_ms=30_000)
    traced = tf1.RunMetadata()
    client.session.run([r for rows, _ in ops for r in rows], dict(zip(names, feeds, strict=True)), options, traced)
    placed, timed = {}, {}
    for graph in traced.partition_graphs:
        for node in graph.node:
            placed.setdefault(node.device, []).append((node.name, node.op))
    for stats in traced.step_stats.dev_stats:
        timed[stats.device] = sorted(node.node_name for node in stats.node_stats)
    sys.stdout.write(json.dumps({"placed": placed, "timed": timed}) + "\n")
    sys.stdout.flush()
    del servers
    os._exit(0)


if __name__ == "__main__":
    assert tf is not None
    main()
