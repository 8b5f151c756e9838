"""The record of a run taken apart into events and full parameters, to be changed and written again."""

from __future__ import annotations

import base64
import json
from collections import Counter
from itertools import pairwise, product

import numpy as np

from psconform.history.manifest import Manifest

from .mutations import measured, rechained


class Record:
    """What the workers of a run recorded. A gradient is (worker, step); a cell, a variable and a gradient.

    An event has its worker, life and file beside its fields, a read the full values of all variables. ``once``: the
    answers to gradients that were sent once and accepted; ``refused``: or not. ``lasting``: where all final reads show
    one that was accepted, and sent once; ``sent_twice``: or twice, and applied once.
    """

    def __init__(self, folder):
        manifest = Manifest.read(folder)
        self.workers, self.steps, self.unit = manifest.layout.workers, manifest.workload.steps, manifest.workload.unit
        self.sync, self.quorum = manifest.layout.update == "sync", manifest.layout.quorum
        self.bound, self.aware = manifest.layout.staleness, manifest.claims.rate != "constant"
        self.delivery = manifest.claims.delivery
        self.lives, self.shards = [], []
        self.nonce = self.workers * self.steps
        for path in sorted((folder / "events").glob("worker-*.jsonl")):
            events = [json.loads(line) for line in path.read_bytes().splitlines()]
            worker, life = int(path.stem.split(".")[0].removeprefix("worker-")), events[0]["incarnation"]
            self.lives.append([{"epoch": 0, **e, "worker_": worker, "life_": life, "file_": path.name} for e in events])
            self._fill(self.lives[-1])
        own = [json.loads(line) for line in (folder / "events" / "psconform-0.jsonl").read_bytes().splitlines()]
        self.others = [event.get(name, 0) for event in own for name in ("mono_ns", "did_ns")]
        self.reads, self.finals = self.of("read", final=False), [read for read in self.of("read") if read.get("final")]
        self.sent = Counter((push["worker_"], push["step"]) for push in self.of("push"))
        acks = {out: {(a["worker_"], a["step"]): a for a in self.of("ack") if a["outcome"] == out} for out in ANSWERS}
        self.once, self.refused = ({g: a for g, a in acks[out].items() if self.sent[g] == 1} for out in ANSWERS)
        cells = product(range(len(self.shards)), acks["ok"])
        shown = [cell for cell in cells if all(self.shows(read, *cell) for read in self.finals)]
        self.lasting = [cell for cell in shown if cell[1] in self.once]
        twice = [(v, grad) for v, grad in shown if self.sent[grad] == 2]
        self.sent_twice = [(v, g) for v, g in twice if (self.finals[0]["values_"][v, self.ends(g)] == -self.unit).all()]

    def _fill(self, events):
        """Give each read the values that its compact form stands for, float32[V, slots]."""
        odd, nonces = {}, []
        for event in (event for event in events if event["kind"] == "read"):
            self.shards, nonces = event.get("shards") or self.shards, event.pop("nonce", None) or nonces
            odd |= {(v, w, s): ends for v, w, s, *ends in event.pop("odd", ())}
            values = event["values_"] = np.zeros((len(nonces), 2 * self.nonce + 1), np.float32)
            values[:, self.nonce] = nonces
            for (v, row), worker in product(enumerate(event.pop("clock")), range(self.workers)):
                for step in range(row[worker]):
                    ends = odd.get((v, worker, step), (None, None))
                    values[v, self.ends((worker, step))] = [-self.unit if end is None else end for end in ends]

    def ends(self, grad):
        """The two slots of a gradient."""
        head = grad[0] * self.steps + grad[1]
        return [head, self.nonce + 1 + head]

    def write(self, folder):
        """As event files with raw reads."""
        for events in self.lives:
            lines = []
            for number, event in enumerate(events):
                said = {key: value for key, value in event.items() if key[-1] != "_"} | {"seq": number}
                if "values_" in event:
                    said["raw"] = [base64.b64encode(row.tobytes()).decode() for row in event["values_"]]
                lines.append(json.dumps(said).encode())
            (folder / "events" / events[0]["file_"]).write_bytes(b"".join(rechained(lines, smooth=False)))
        measured(folder)

    def of(self, *kinds, final=True):
        """Events of these kinds, those of a worker in order."""
        events = [event for events in self.lives for event in events if event["kind"] in kinds]
        return [event for event in events if final or not event.get("final")]

    def shows(self, read, variable, grad):
        """Whether a read shows a gradient, whole."""
        return read["values_"][variable, self.ends(grad)].all()

    def places(self, reads):
        """Where these reads show lasting gradients: (read, variable, gradient)."""
        return [(read, *cell) for read, cell in product(reads, self.lasting) if self.shows(read, *cell)]

    def own_places(self, reads):
        """Of these, gradients of the reading worker that were acknowledged before, in that epoch."""
        found = [(p, p[0], self.once[p[2]]) for p in self.places(reads) if p[2][0] == p[0]["worker_"]]
        found = [(place, read, ack) for place, read, ack in found if read["epoch"] == ack["epoch"]]
        return [p for p, read, ack in found if (ack["life_"], ack["seq"]) < (read["life_"], read["seq"])]

    def pairs(self):
        """Reads that follow each other in one life and one epoch, final ones left out."""
        lives = [[e for e in events if e["kind"] == "read" and not e.get("final")] for events in self.lives]
        return [(one, two) for reads in lives for one, two in pairwise(reads) if one["epoch"] == two["epoch"]]

    def inner(self):
        """Every event that is neither the first nor the last: those of its life, and its place."""
        return [(events, at) for events in self.lives for at in range(1, len(events) - 1)]

    def restored(self):
        """Checkpoints that are restored, and those that are not."""
        names = {restore["name"] for restore in self.of("restore")}
        kept = self.of("checkpoint")
        return [each for each in kept if each["name"] in names], [each for each in kept if each["name"] not in names]

    def times(self, read, variable, grad, head, tail):
        """Have a read show a gradient so many times as often."""
        read["values_"][variable, self.ends(grad)] *= np.float32([head, tail])

    def drop(self, *dropped):
        """As if they had not been recorded."""
        for events in self.lives:
            events[:] = [event for event in events if all(event is not each for each in dropped)]


ANSWERS = ("ok", "failed")
