"""Mutants of the model: how many schedules it takes until the checks accuse each, and of what.

    python benchmarks/model_mutants.py                  # all, as the table of docs/detection-model.md
    python benchmarks/model_mutants.py no-dedupe ...    # some, with the report of the first run that is accused

A mutant is one edit of the source of a state machine in src/psconform/simulation/: an old text, which is there once,
and a new one. One of the guarantees that it breaks must be violated first; some break none, and docs/model.md says why.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import types
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder
from psconform.simulation import cluster, replica, server, worker
from psconform.simulation.cluster import Cluster, Parts
from psconform.simulation.record import Recorded
from psconform.simulation.schedule import REPLICAS, draw

MOST = 2000
"""Schedules after which a mutant counts as not found."""


@dataclass(frozen=True)
class Mutant:
    """One edit. ``mode``: schedules of this mode alone; empty: of all."""

    name: str
    machine: str
    old: str
    new: str
    breaks: str
    mode: str = ""


HOMES = {"Server": server, "Worker": worker, "Replica": replica, "Cluster": cluster}
"""The machines, and the modules that they are in."""

AR, LOCAL = REPLICAS

MUTANTS = (
    # A server and a gradient.
    Mutant(
        "no-dedupe", "server", "if self.rules.once and push.step <", "if False and push.step <", "R1 R2 A1", "async"
    ),
    Mutant(
        "dedupe-one-too-many",
        "server",
        "push.step < self.applied[push.worker]:\n            return OK, self.at",
        "push.step <= self.applied[push.worker]:\n            return OK, self.at",
        "R1 A1 A5",
        "async",
    ),
    Mutant(
        "any-epoch",
        "server",
        "return self.ready and epoch == self.epoch",
        "return self.ready",
        "R1 R2 R3 R4 R6 A1 A7 S1 S4",
    ),
    Mutant(
        "rate-of-one-more",
        "server",
        "self.version - push.seen) if",
        "self.version - push.seen + 1) if",
        "A4",
        "staleness-aware",
    ),
    Mutant(
        "rate-for-those-that-want-none", "server", "if self.rules.aware else", "if not self.rules.aware else", "A1 A4"
    ),
    Mutant(
        "rate-of-one-less",
        "server",
        "self.version - push.seen) if",
        "self.version - push.seen - 1) if",
        "A4",
        "staleness-aware",
    ),
    Mutant(
        "version-before-apply",
        "server",
        "self.version += 1\n        self.at[push.worker] = self.version\n        return OK, self.version",
        "self.at[push.worker] = self.version\n        self.version += 1\n        return OK, self.at[push.worker]",
        "A1 A2 A7",
        "async",
    ),
    Mutant(
        "version-of-now",
        "server",
        "            return OK, self.at[push.worker]",
        "            return OK, self.version",
        "A1 A2",
        "async",
    ),
    Mutant(
        "version-of-the-next",
        "server",
        "self.at[push.worker] = self.version\n        return OK, self.version",
        "self.at[push.worker] = self.version\n        return OK, self.version + 1",
        "A1 A2 A7",
        "async",
    ),
    Mutant(
        "shared-row-overwritten",
        "server",
        "log.add(push.worker, push.step, weight, epoch=push.epoch)",
        "log.add(push.worker, push.step, weight, 3 if push.worker else 7, epoch=push.epoch)",
        "S5 A1",
    ),
    Mutant(
        "shared-row-now-and-then",
        "server",
        "log.add(push.worker, push.step, weight, epoch=push.epoch)",
        "log.add(push.worker, push.step, weight, 3 if push.step % 5 == 2 else 7, epoch=push.epoch)",
        "S5 A1",
    ),
    Mutant("half-weight", "server", "if self.rules.aware else 1.0)", "if self.rules.aware else 0.5)", "A1", "async"),
    Mutant(
        "applied-after-answer",
        "server",
        "self.applied[push.worker] = push.step + 1",
        "self.applied[push.worker] = push.step",
        "R1 R2 A1 A3 L0 L1",
    ),
    Mutant(
        "first-variable-alone",
        "server",
        "for log in self.logs:\n                log.add",
        "for log in self.logs[:1]:\n                log.add",
        "R1 A1 S1 S3",
    ),
    Mutant(
        "head-alone",
        "server",
        "log.add(push.worker, push.step, weight, epoch",
        "log.add(push.worker, push.step, weight, 1, epoch",
        "A6 A1 S1 R1",
    ),
    Mutant(
        "another-slot",
        "server",
        "log.add(push.worker, push.step, weight, epoch",
        "log.add(push.worker, max(0, push.step - 1), weight, epoch",
        "R1 A1 S1",
    ),
    Mutant(
        "another-worker",
        "server",
        "log.add(push.worker, push.step, weight, epoch",
        "log.add(0, push.step, weight, epoch",
        "R1 A1 S1",
    ),
    Mutant(
        "sign",
        "server",
        "log.add(push.worker, push.step, weight, epoch",
        "log.add(push.worker, push.step, -weight, epoch",
        "R1 A1 S1 S5",
    ),
    # Work that a queue deals out.
    Mutant(
        "forgets-the-piece-of-a-dead-worker",
        "server",
        "self.out.get(one, 0.0) <= now), None)\n        if piece is None:\n            return WAIT if len(self.done",
        "one not in self.out), None)\n        if piece is None:\n            return WAIT if len(self.out",
        "R1",
        "async",
    ),
    Mutant(
        "piece-done-twice",
        "server",
        "if self.rules.once and push.work in self.done",
        "if False and push.work in self.done",
        "R1 R2",
        "async",
    ),
    Mutant(
        "refused-as-if-applied",
        "server",
        "in self.refused:\n            return LATE",
        "in self.refused:\n            return OK",
        "R1 A1 A5",
        "async",
    ),
    # Rounds.
    Mutant(
        "late-by-one-is-taken",
        "server",
        "if push.seen < self.version:",
        "if push.seen < self.version - 1:",
        "S2 R1",
        "quorum",
    ),
    Mutant(
        "late-is-told-taken",
        "server",
        "return OK if taken and push.seen not in self.rules.skipped else LATE, push.seen + 1",
        "return OK, push.seen + 1",
        "S2 R1",
        "quorum",
    ),
    Mutant(
        "taken-is-told-late",
        "server",
        "return OK if taken and push.seen not in self.rules.skipped else LATE, push.seen + 1",
        "return LATE, push.seen + 1",
        "S1 S2 R1",
    ),
    Mutant(
        "one-too-few",
        "server",
        "len(self.offered.keys() | self.evicted) == self.rules.per_round",
        "len(self.offered) >= max(1, self.rules.per_round - 1)",
        "S1 S2 S5",
    ),
    Mutant(
        "one-too-many",
        "server",
        "len(self.offered.keys() | self.evicted) == self.rules.per_round",
        "len(self.offered) == self.rules.per_round + 1",
        "L0 L1",
    ),
    Mutant(
        "by-number-of-calls",
        "server",
        "self.offered[push.worker] = push\n",
        "self.offered[len(self.offered)] = push\n",
        "S1 S2 R1",
    ),
    Mutant(
        "round-not-cleared",
        "server",
        "self.offered, self.evicted = {}, set()\n        self.rounds",
        "self.rounds",
        "S1 S2 A7 R1 L0 L1",
    ),
    Mutant(
        "one-round-behind",
        "server",
        "for members in rounds[self.version :]:",
        "for members in rounds[self.version : -1]:",
        "S4 A6 S1 L0 L1",
    ),
    Mutant(
        "a-round-again",
        "server",
        "for members in rounds[self.version :]:",
        "for members in rounds[max(0, self.version - 1) :]:",
        "R1 R2 S1 S2 L0 L1",
    ),
    Mutant(
        "without-the-chief",
        "server",
        "for member in members))\n\n    def commit",
        "for member in members if member.worker))\n\n    def commit",
        "S1 S3 S2 R1 S5",
    ),
    Mutant(
        "share-of-all",
        "server",
        "if self.rules.live else self.rules.per_round",
        "if self.rules.live else self.rules.workers",
        "S5",
        "quorum",
    ),
    Mutant(
        "sum-for-mean",
        "server",
        "if self.rules.mean else 1.0",
        "if not self.rules.mean else 1.0",
        "S5",
    ),
    Mutant(
        "two-versions-a-round",
        "server",
        "self.rounds += (members,)\n        self.version += 1",
        "self.rounds += (members, ())\n        self.version += 2",
        "S4 S2 S1 L0 L1",
    ),
    # Reads.
    Mutant("no-barrier", "server", "return self.version >= pull.until and (", "return (", "S1 S2 A7 R1 L0 L1"),
    Mutant(
        "barrier-one-early",
        "server",
        "self.version >= pull.until and",
        "self.version >= pull.until - 1 and",
        "S1 S2 A7 R1 L0 L1",
    ),
    Mutant("no-bound", "server", "(pull.bound <= 0 or min(self.applied) >= pull.bound)", "True", "A3", "bounded"),
    Mutant("bound-by-the-fastest", "server", "min(self.applied) >=", "max(self.applied) >=", "A3", "bounded"),
    Mutant(
        "bound-one-more",
        "server",
        "min(self.applied) >= pull.bound",
        "min(self.applied) >= pull.bound - 1",
        "A3",
        "bounded",
    ),
    Mutant(
        "an-update-behind",
        "server",
        "tuple(log.view() for log in self.logs), self.version, self.rounds",
        "tuple(View(log, max(0, len(log.entries) - 1)) for log in self.logs), self.version, self.rounds",
        "S1 A7 A1 R1 A2",
    ),
    Mutant(
        "second-variable-behind",
        "server",
        "tuple(log.view() for log in self.logs), self.version, self.rounds",
        "tuple(log.view()._replace(length=max(0, len(log.entries) - bool(n))) for n, log in enumerate(self.logs)), "
        "self.version, self.rounds",
        "A6 S1 A7 R1 A1",
    ),
    Mutant(
        "version-one-more",
        "server",
        "for log in self.logs), self.version, self.rounds",
        "for log in self.logs), self.version + 1, self.rounds",
        "A2 A4 S4 S1 L0 L1",
    ),
    Mutant(
        "reads-of-any-epoch",
        "server",
        "if not self.serves(pull.epoch):\n            return REFUSED\n        self.follow",
        "self.follow",
        "R3 A7 R4 M1",
    ),
    # The beginning, checkpoints, recovery.
    Mutant(
        "checkpoint-of-the-live-state",
        "server",
        "logs = tuple(log.copy() for log in self.logs)",
        "logs = tuple(self.logs)",
        "R1 R2 R4 S1 A1 R3",
    ),
    Mutant(
        "checkpoint-counts-nothing",
        "server",
        "return Cut(logs, self.version, tuple(self.applied)",
        "return Cut(logs, self.version, (0,) * self.rules.workers",
        "R1 R2 A1 R4 R3",
        "async",
    ),
    Mutant(
        "round-outlives-a-fence",
        "server",
        "self.ready, self.offered, self.evicted, self.left = epoch, False, {}, set(), {}",
        "self.ready, self.evicted = epoch, False, set()",
        "S1 R1 R6 L1",
    ),
    Mutant(
        "serves-behind-the-fence",
        "server",
        "self.fence, self.ready, self.offered",
        "self.fence, _, self.offered",
        "R3 R4 R6 A7 R1 S1 L0 L1",
    ),
    Mutant(
        "version-not-restored",
        "server",
        "self.version, self.rounds = cut.version, cut.rounds",
        "self.rounds = cut.rounds",
        "S1 S4 R1 R4 L1",
        "sync",
    ),
    Mutant(
        "the-failed-shard-alone",
        "server",
        "self.logs = [log.copy() for log in cut.logs]",
        "self.logs = self.logs or [log.copy() for log in cut.logs]",
        "R1 R2 R4 R3 S1 A1 M1",
    ),
    Mutant(
        "counters-not-restored",
        "server",
        "self.applied, self.at = list(cut.applied), list(cut.at)",
        "self.at = list(cut.at)",
        "R1 A1 R4 A5",
    ),
    Mutant(
        "restored-state-is-the-checkpoint",
        "server",
        "self.logs = [log.copy() for log in cut.logs]",
        "self.logs = list(cut.logs)",
        "R1 R2 R4 A1 S1",
    ),
    # A worker.
    Mutant(
        "reads-before-its-round",
        "worker",
        "views, versions = yield from self.pull(became[0])",
        "views, versions = yield from self.pull(became[0] - 1)",
        "S1 S2 A7 R1 L0 L1",
    ),
    Mutant("begins-anew", "worker", "if self.life:\n", "if False:\n", "S1 R1 I1 M1 A7 L1 L0"),
    Mutant(
        "comes-back-to-its-own-step",
        "worker",
        "            if habits.sync and habits.full:\n                self.step = versions[0] * habits.accumulate",
        "            if False:\n                self.step = versions[0] * habits.accumulate",
        "S1 S4",
        "sync",
    ),
    Mutant(
        "comes-back-blind",
        "worker",
        "self._read(views, versions)\n            yield from self.add",
        "if self.began or not self.life:\n                self._read(views, versions)\n"
        "            self.began = True\n            yield from self.add",
        "M1",
        "async",
    ),
    Mutant(
        "skips-a-step",
        "worker",
        "self.step = states[0].version if self.habits.sync else applied",
        "self.step = states[0].version if self.habits.sync else applied + 1",
        "R1 L0 L1 A1 A5 R4",
        "async",
    ),
    Mutant(
        "goes-on-from-the-fastest-shard",
        "worker",
        "applied = min(state",
        "applied = max(state",
        "R1 A1 A5 R4 A6",
        "async",
    ),
    Mutant("stays-in-its-epoch", "worker", "self.epoch = states[0].epoch\n", "pass\n", "L1"),
    Mutant("oldest-checkpoint", "cluster", "self._kept[-1]", "self._kept[0]", "R3 R4"),
    Mutant(
        "restores-initial-values",
        "cluster",
        '- 1}", self._kept[-1]',
        '- 1}", [replace(cut, logs=tuple(type(log)(7) for log in cut.logs)) for cut in self._kept[-1]]',
        "I1 R3 R4 R1",
    ),
    Mutant("last-but-one-checkpoint", "cluster", "self._kept[-1]", "self._kept[-2:][0]", "R3 R4"),
    Mutant(
        "restores-in-silence",
        "worker",
        "self.trace.tell(self.world.now, Restored(self.index, epoch, name))\n",
        "pass\n",
        "R3",
    ),
    Mutant("one-epoch-for-ever", "cluster", "self._epochs += 1\n", "self._epochs = 1\n", "A7 R3 L1"),
    Mutant(
        "stale-by-the-first-ps",
        "worker",
        "for server, version in zip(self.servers, seen, strict=True)\n        }\n        try",
        "for server, version in zip(self.servers, seen[:1] * len(seen), strict=True)\n        }\n        try",
        "A4",
        "staleness-aware",
    ),
    Mutant(
        "says-ok-without-an-answer",
        "worker",
        'self._told("unknown", ())\n            raise',
        'self._told("ok", ())\n            raise',
        "S1 S3 R1",
    ),
    Mutant(
        "dedupe-by-the-first-worker",
        "server",
        "push.step < self.applied[push.worker]",
        "push.step < self.applied[0]",
        "R1 A1 A5",
        "async",
    ),
    Mutant("gate-not-closed", "server", "self.gate, self.gates = self.gate or [], number", "self.gates = number", ""),
    Mutant("gate-loses-what-waits", "server", "        for message in waited:\n            self.on(message)\n", "", ""),
    # Evictions.
    Mutant("evicts-at-once", "worker", "if self.world.now < until:", "if False:", "M2", "sync"),
    Mutant(
        "evicts-in-silence",
        "worker",
        "self.trace.tell(self.world.now, Evicted(self.index, self.epoch, self.step, worker))",
        "pass",
        "S1 S3 R1 M2",
        "sync",
    ),
    Mutant(
        "evicts-for-ever",
        "server",
        "self.offered, self.evicted = {}, set()\n        self.rounds",
        "self.offered = {}\n        self.rounds",
        "S1 S3 R1 M2",
        "sync",
    ),
    # What a round without a worker is divided by.
    Mutant("live-is-all", "server", "len(members) if self.rules.live else", "len(members) if False else", "S5", "sync"),
    Mutant(
        "live-at-every-other-round",
        "server",
        "len(members) if self.rules.live else",
        "len(members) if self.rules.live and self.version % 2 else",
        "S5",
        "sync",
    ),
    Mutant(
        "live-and-the-evicted",
        "server",
        "len(members) if self.rules.live else",
        "2 * self.rules.per_round - len(members) if self.rules.live else",
        "S5",
        "sync",
    ),
    # Weighted means.
    Mutant("weights-ignored", "server", "if self.rules.weights:", "if False:", "S5", "sync"),
    Mutant(
        "weighs-as-the-first",
        "server",
        "return self.rules.weights[push.worker] / sum(",
        "return self.rules.weights[members[0].worker] / sum(",
        "S5",
        "sync",
    ),
    Mutant(
        "weights-over-their-number",
        "server",
        "/ sum(self.rules.weights[member.worker] for member in members)",
        "/ len(members)",
        "S5",
        "sync",
    ),
    # Rounds that are skipped.
    Mutant(
        "skips-on-one-shard",
        "server",
        "if self.version not in self.rules.skipped:",
        'if self.version not in self.rules.skipped or self.name != "ps:0":',
        "S1 S3 R1",
        "sync",
    ),
    Mutant(
        "skips-and-says-ok",
        "server",
        "return LATE if push.seen in self.rules.skipped else OK",
        "return OK",
        "S1 R1",
        "sync",
    ),
    Mutant("skips-nothing", "server", "if self.version not in self.rules.skipped:", "if True:", "S1 R1", "sync"),
    Mutant(
        "refuses-the-chief-alone",
        "server",
        "return LATE if push.seen in self.rules.skipped else OK",
        "return LATE if push.seen in self.rules.skipped and push.worker == 0 else OK",
        "S1 S3 R1",
        "sync",
    ),
    Mutant(
        "skipped-is-told-taken",
        "server",
        "return OK if taken and push.seen not in self.rules.skipped else LATE,",
        "return OK if taken else LATE,",
        "S1 S3 R1",
        "sync",
    ),
    # A replica, and its rounds.
    Mutant(
        "own-initial-values", "replica", "self.logs or tuple(Log(nonce)", "tuple(Log(nonce + self.index)", "S7 I1", AR
    ),
    Mutant(
        "without-its-own",
        "replica",
        "shares = self.shares[number]",
        "shares = {name: share for name, share in self.shares[number].items() if name != self.name}",
        "S7 S1 S5 R1",
        AR,
    ),
    Mutant(
        "does-not-wait-for-all",
        "replica",
        "<= len(self.peers):",
        "< len(self.peers):",
        "S7 S1 S5 R1",
        AR,
    ),
    Mutant(
        "share-of-another-round",
        "replica",
        "setdefault(message.body.round, {})",
        "setdefault(len(self.shares), {})",
        "S7 S1 S4 R1 L0 L1",
        AR,
    ),
    Mutant("sum-of-replicas", "replica", "if self.cluster.schedule.rules.mean", "if False", "S5 C5"),
    Mutant("mean-of-the-others", "replica", "(len(shares) *", "(len(self.peers) *", "S5 C5"),
    Mutant(
        "round-on-top-of-local-steps",
        "replica",
        "base if self.logs is base else tuple(log.copy() for log in base)",
        "self.logs",
        "C5 S7",
        LOCAL,
    ),
    Mutant("local-steps-at-a-share", "replica", "self.step, 1.0)", "self.step, 0.5)", "C5", LOCAL),
    Mutant(
        "no-last-exchange",
        "replica",
        " or self.step + 1 == self.habits.steps:",
        ":",
        "C5 S7",
        LOCAL,
    ),
    Mutant("exchange-too-late", "replica", "(self.step + 1) % every == 0", "self.step % every == 0", "C5 S7", LOCAL),
    Mutant(
        "forgets-a-local-step", "replica", "tuple(local), self.life)", "tuple(local[1:]), self.life)", "C5 S7", LOCAL
    ),
    # A job of replicas that is restarted.
    Mutant(
        "only-the-chief-restores",
        "replica",
        "log.copy() for log in cut.logs), cut.version",
        "log if self.index == 0 else Log(log.nonce) for log in cut.logs), cut.version",
        "S7 R4",
        AR,
    ),
    Mutant("goes-on-one-step-too-late", "replica", "cut.version\n", "cut.version + 1\n", "S1 S4 R1 R4", AR),
    Mutant(
        "job-goes-on-from-the-oldest",
        "replica",
        "name, (cut,) = self.cluster.newest",
        "name, (cut,) = self.cluster.newest[0], self.cluster._kept[0]",
        "R4",
        AR,
    ),
    Mutant(
        "checkpoint-goes-on", "replica", "Cut(tuple(log.copy() for log in self.logs)", "Cut(self.logs", "R4 S1 S7", AR
    ),
    Mutant("clock-of-the-next-step", "replica", "applied = (self.step,)", "applied = (self.step + 1,)", "R4", AR),
    Mutant("no-new-epoch", "replica", "self.cluster.new_epoch(), cut", "0, cut", "R3 L1", AR),
    Mutant(
        "state-begins-anew",
        "replica",
        "log.copy() for log in cut.logs), cut.version",
        "log.copy() if n < self.variables else Log(0) for n, log in enumerate(cut.logs)), cut.version",
        "R4",
        AR,
    ),
    Mutant(
        "state-of-its-own-gradients",
        "replica",
        "log.add(int(name",
        "name != self.name and log in self.logs[self.variables :] or log.add(int(name",
        "S7",
    ),
    # A replica that is started again alone.
    Mutant(
        "hands-over-no-state",
        "replica",
        "Handed(self.step, tuple(log.copy() for log in self.logs)",
        "Handed(self.step, tuple(log.copy() if log.nonce else Log(0) for log in self.logs)",
        "S7",
        AR,
    ),
    Mutant(
        "joins-with-initial-values",
        "replica",
        "        for handed in answers.values():",
        "        self.logs = tuple(Log(log.nonce) for log in self.logs)\n        for handed in answers.values():",
        "S1 S7 R3 M1",
        AR,
    ),
    Mutant(
        "joins-one-round-too-late",
        "replica",
        "return Handed(self.step,",
        "return Handed(self.step + 1,",
        "S1 R1 L1",
        AR,
    ),
    Mutant(
        "joins-and-redoes-a-round",
        "replica",
        "                    self.step += 1\n        self.trace",
        "                    self.step += 1\n        self.step = max(0, self.step - 1)\n        self.trace",
        "S1 R1 R2 L1",
        AR,
    ),
    Mutant(
        "hands-over-no-shared-row",
        "replica",
        "Handed(self.step, tuple(log.copy() for log in self.logs)",
        "Handed(self.step, tuple(Log(log.nonce, [e._replace(end=3) for e in log.entries]) for log in self.logs)",
        "S5",
        AR,
    ),
    Mutant(
        "hands-over-half",
        "replica",
        "Handed(self.step, tuple(log.copy() for log in self.logs)",
        "Handed(self.step, tuple(Log(log.nonce, [e._replace(end=1) for e in log.entries]) for log in self.logs)",
        "S1 R1 R3 S7",
        AR,
    ),
    Mutant(
        "hands-over-what-goes-on",
        "replica",
        "Handed(self.step, tuple(log.copy() for log in self.logs)",
        "Handed(self.step, self.logs",
        "S1 R1 R2 S7",
        AR,
    ),
    Mutant(
        "hands-over-no-open-shares",
        "replica",
        "for number, held in self.shares.items()}",
        "for number, held in ()}",
        "L1",
        AR,
    ),
    Mutant(
        "a-life-is-another-replica",
        "replica",
        "[message.source] = message.body\n        self.world",
        '[" " * message.body.life + message.source] = message.body\n        self.world',
        "S1 S5 S7 R1 R2",
        AR,
    ),
    Mutant(
        "leaves-who-is-behind",
        "replica",
        "range(self.step - 1, self.step + 2)",
        "range(self.step, self.step + 2)",
        "L1",
        AR,
    ),
    Mutant("computes-a-torn-share-anew", "replica", "if number == self.step:", "if False:", "R3", AR),
    Mutant("applies-a-torn-round-anew", "replica", "                    self.step += 1\n", "", "S1 R1 R2", AR),
    # Gradients that are added up.
    Mutant("not-divided-by-their-number", "server", "(number * self.rules.accumulate)", "number", "S5", "sync"),
    Mutant(
        "goes-on-from-the-last-sum",
        "worker",
        "self.step % self.habits.accumulate + 1)",
        "self.step % self.habits.accumulate + 1 + (self.step % self.habits.accumulate and self.step > 3))",
        "S1 R1 R2",
        "sync",
    ),
    Mutant("brings-the-last-alone", "worker", "self.step % self.habits.accumulate + 1)", "1)", "S1 R1", "sync"),
    Mutant(
        "completes-a-step-early",
        "worker",
        "(self.step + 1) % several",
        "(self.step + 2) % several",
        "S1 R1 S4 L0",
        "sync",
    ),
    Mutant(
        "replicas-divide-by-workers",
        "replica",
        "(len(shares) * self.cluster.schedule.accumulate)",
        "len(shares)",
        "S5",
        AR,
    ),
    Mutant(
        "replica-brings-the-last-alone",
        "replica",
        "tuple(local), self.life)",
        "tuple(local[-1:]), self.life)",
        "S1 R1 S4",
        AR,
    ),
    Mutant(
        "one-replica-forgets-its-first",
        "replica",
        "tuple(local), self.life)",
        "tuple(local[self.index and len(local) > 1 :]), self.life)",
        "S1 R1 S4 S7",
        AR,
    ),
)


def mutated(mutant: Mutant) -> tuple[type[Cluster], Parts]:
    """The machines of a run with this edit.

    Raises:
        ValueError: its old text is not there once.
    """
    original = import_module(f"psconform.simulation.{mutant.machine}")
    source = Path(str(original.__file__)).read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its old text is {source.count(mutant.old)} times in {mutant.machine}.py")
    module = types.ModuleType(f"{original.__name__}_{mutant.name.replace('-', '_')}")
    module.__package__ = original.__package__
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source.replace(mutant.old, mutant.new), module.__name__, "exec"), module.__dict__)
    for name, value in vars(original).items():  # what tasks exchange stays of one type
        if isinstance(value, type) and name not in HOMES:
            setattr(module, name, value)
    made = {
        name: getattr(module if name.lower() == mutant.machine else original_of, name)
        for name, original_of in HOMES.items()
    }
    return made["Cluster"], Parts(server=made["Server"], worker=made["Worker"], replica=made["Replica"])


@dataclass(frozen=True)
class Found:
    """The first schedule of a mutant that is accused (0: none), of what, and in how many before it a task crashed."""

    mutant: Mutant
    runs: int = 0
    violated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    crashes: int = 0
    report: str = ""

    @property
    def right(self) -> bool:
        """It is accused of something that it breaks, or that is unknown; if it breaks nothing, of nothing."""
        breaks, named = {*self.mutant.breaks.split()}, {*(self.violated or self.unknown)}
        if self.crashes:  # of a real task, that would be seen
            named.add("L1")
        return bool(breaks & named) if breaks else not self.violated


def search(mutant: Mutant, most: int = MOST) -> Found:
    """Simulate one schedule after another until one is accused."""
    made, parts = mutated(mutant)
    crashes, unknown = 0, dict[str, None]()
    with tempfile.TemporaryDirectory(prefix="psconform-mutant-") as scratch:
        for seed in range(most):
            folder = Path(scratch) / str(seed)
            trace = Recorded(folder, draw(seed, mode=mutant.mode))
            run = made(trace.schedule, trace, parts)
            try:
                run.run()
            except Exception:  # a task of the mutant has crashed: nothing that a real run would not notice
                crashes += 1
                continue
            trace.finish(run)
            judged = judge_folder(folder)
            if violated := judged.names("violated"):
                return Found(mutant, seed + 1, tuple(violated), tuple(unknown), crashes, explain(judged))
            unknown |= dict.fromkeys(judged.names("unknown"))
            shutil.rmtree(folder)
    return Found(mutant, unknown=tuple(unknown), crashes=crashes)


def main() -> None:
    """Print the table, or the reports of some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; default: all")
    parser.add_argument("--most", type=int, default=MOST, help=f"schedules for each (default {MOST})")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # slips of mutants
    chosen = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(partial(search, most=given.most), chosen))
    lines = ["| mutant | schedules | violated | breaks |", "|---|---:|---|---|"]
    for one in found:
        word = f"{one.runs}" if one.runs else f"none of {given.most}"
        word += f" ({one.crashes} crashed)" if one.crashes else ""
        named = ", ".join(one.violated) or (f"{', '.join(one.unknown)} unknown" if one.unknown else "")
        lines.append(f"| `{one.mutant.name}` | {word} | {named} | {one.mutant.breaks or 'nothing'} |")
    lines += [one.report for one in found if given.names]
    wrong = [one.mutant.name for one in found if not one.right]
    not_right = f"; not: {', '.join(wrong)}" if wrong else ""
    lines.append(f"\n{len(found) - len(wrong)} of {len(found)} as they should be{not_right}\n")
    sys.stdout.write("\n".join(lines))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
