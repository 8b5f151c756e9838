"""Run by test_replication.py: where the ops of one client's step really ran, from TensorFlow's own record of it.

``python placement.py FOLDER WORKERS``: in-graph and model-parallel, one ps and all workers as servers of this process,
one step traced; prints JSON: by replication and device the [name, type] of the ops that TensorFlow placed there, and
the names of those for which it kept times.
"""

import json
import os
import socket
import sys
from pathlib import Path

from psconform.reference_impl.cluster import new_server, tf1
from psconform.reference_impl.modes.full_ps import FullConfig
from psconform.reference_impl.modes.in_graph import InGraph
from psconform.reference_impl.modes.model_parallel import ModelParallel

from psconform.layout import Task
from psconform.probe import Probe
from psconform.workloads.digits import write_data

CLIENTS = {"in-graph": InGraph, "model-parallel": ModelParallel}
FOLDER, WORKERS = Path(sys.argv[1]), int(sys.argv[2])


def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def probes(folder):
    for part in ("events", "vectors", "done"):
        (folder / part).mkdir(parents=True)
    write_data(folder)
    names = {"workload": "digits", "model": "mlp", "condition": 10.0, "seed": 1, "batch": 4, "update": "sync"}
    sizes = {"workers": WORKERS, "variables": 1, "steps": 2, "rate": 0.1, "delay": 0, "unit": 1.0, "run": "traced"}
    return [Probe({**names, **sizes}, task=f"worker:{i}", folder=str(folder)) for i in range(WORKERS)]


def traced(replication):
    """One step of this client."""
    cluster = {"ps": [f"127.0.0.1:{port()}"], "worker": [f"127.0.0.1:{port()}" for _ in range(WORKERS)]}
    servers = [new_server(cluster, Task("ps", 0))]
    servers += [new_server(cluster, Task("worker", i)) for i in range(1, WORKERS)]
    recorded = probes(FOLDER / replication)
    config = FullConfig(slots=recorded[0].slots, workers=WORKERS, steps=2)
    client = CLIENTS[replication](cluster, recorded, config)
    client.towers[0].join()
    feeds = [value for tower in client.towers for value in tower.prepare(0)] + client.together(0)
    ops = [tower.ops for tower in client.towers]
    names = [name for _, fed in ops for name in fed] + client.inputs()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True, timeout_in_ms=30_000)
    record = tf1.RunMetadata()
    client.session.run([r for rows, _ in ops for r in rows], dict(zip(names, feeds, strict=True)), options, record)
    placed, timed = {}, {}
    for graph in record.partition_graphs:
        for node in graph.node:
            placed.setdefault(node.device, []).append((node.name, node.op))
    for stats in record.step_stats.dev_stats:
        timed[stats.device] = sorted(node.node_name for node in stats.node_stats)
    servers.append(client)  # all of them live until the process ends
    return {"placed": placed, "timed": timed}, servers


def main():
    tf1.disable_eager_execution()
    found = {replication: traced(replication) for replication in CLIENTS}
    sys.stdout.write(json.dumps({replication: record for replication, (record, _) in found.items()}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
