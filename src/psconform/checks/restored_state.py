"""R4: everything comes back from one cut; on a model, what is beside its parameters, so that training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..history.model import FAILED, NEVER, History, Worker
from ..history.records import State
from ..history.rollbacks import Rollback
from ..optimizers import MOMENTS
from ..probe import COUNTS, MODEL
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .path import Step, Training, relative, steps_of, training_of
from .recovery import restored_cut, restores, unrecorded
from .registry import at_most, check

EXPLAINED = 0.01
"""What is left of a deviation that is explained, as a share of it."""


@dataclass(frozen=True)
class Resumed:
    """The reads of a worker after a rollback, up to the first that is not one serial step from the round before."""

    back: Rollback
    worker: Worker
    reads: list[Step]

    @property
    def begun(self) -> int:
        """The round that was restored."""
        return self.reads[0].step


@check("R4", "one cut", dimension="recovery", weakest=("none", "partial"), needs=(COUNTS, MODEL))
def one_cut(history: History) -> Verdict:
    """R4: all that a rollback brings back comes from one checkpoint, or the Target declares partial recovery.

    On a ledger: all shards. In its first read after a rollback a worker sees of its own gradients exactly those in the
    checkpoint, in every variable (but for those that it has pushed in that epoch before it read), and of the others'
    at least those; exactly-once, none with another weight than in the epoch in which the checkpoint was made.

    On a model (sync): the optimizer's moments, the number of updates and with it the learning rate, and the samples,
    too, for training goes on from the restored round by the same serial steps as C1 judges. The first read that does
    not is R4's if it is of the restored round, or the next one (with an optimizer or a schedule), or if a lost part of
    the state explains all reads up to it; what goes wrong later for another reason, or went wrong before the
    rollback, is C1's.

    In sync also what workers record beside the parameters (``probe.state``): where a worker goes on, it is what it was
    before that step.

    Assumes: a restore that names a recorded checkpoint, and that psconform knows the ps of each variable; on a model
    what C1 assumes.
    """
    verdict = restored_cut(history) if history.workload.is_ledger else _went_on(history)
    lines = list(at_most(_not_as_before(history))) if history.layout.update == "sync" else []
    return violated([*verdict.witness, *lines]) if lines else verdict


def _not_as_before(history: History) -> Iterator[str]:
    """What a worker has beside the parameters at the step at which it goes on, if that is none of what it had there.

    It has gone on when it says so (``probe.resume``), and had it in the epoch that the checkpoint was made in.
    """
    for back in restores(history):
        assert back.checkpoint is not None
        epoch, begun = back.restore.epoch, set()
        resumed = {m.task.index: m.at for m in history.marks if m.kind == "resume" and m.epoch == epoch}
        before: dict[tuple[int, int, str], list[State]] = {}
        for state in (state for state in history.states if state.epoch == back.checkpoint.epoch):
            before.setdefault((state.worker, state.step, state.name), []).append(state)
        for state in (state for state in history.states if state.epoch == epoch):
            known = before.get((state.worker, state.step, state.name), [])
            if state.at < resumed.get(state.worker, NEVER) or (state.worker, state.name) in begun:
                continue
            begun.add((state.worker, state.name))
            if known and all(other.digest != state.digest for other in known):
                whose = f"worker:{state.worker} has {state.name} with {state.text(known[-1])} before step {state.step}"
                yield f"{back.text}; {whose}, and had it with {known[-1].text(state)} there"


def _went_on(history: History) -> Verdict:
    backs, reason = restores(history), unrecorded(history)
    if lacks := _lacks(history) or ("" if backs or reason else "a rollback: a ps that is killed, and a checkpoint"):
        return not_judged(f"needs {lacks}")
    if ((history.outcomes == FAILED) & ~history.skipped).any():
        return unknown("a gradient was refused, so training is not serial training from there on")
    run = training_of(history)
    steps = [(worker, list(steps_of(run, worker))) for worker in history.workers]
    wrong = min((int(w.reads.epoch[s.index]) for w, found in steps for s in found if s.wrong), default=None)
    lines, looked = [], 0
    for back in backs:
        epoch = back.restore.epoch
        if wrong is not None and wrong < epoch:
            continue  # before it, and so it goes on to be
        known = {s.step for w, found in steps for s in found if w.reads.epoch[s.index] < epoch}
        for worker, found in steps:
            reads = [step for step in found if worker.reads.epoch[step.index] == epoch]
            looked += bool(reads)
            first = next((number for number, step in enumerate(reads) if step.wrong), None)
            if first is not None and (why := _why(run, Resumed(back, worker, reads[: first + 1]), known)):
                lines.append(why)
    if lines:
        return violated(lines)
    if reason:
        return unknown(reason)
    if not looked:
        return unknown("training was not serial before the rollback (C1)" if wrong is not None else "no read after it")
    return valid(f"{len(backs)} rollback{'s' * (len(backs) != 1)}, {run.serial} went on")


def _lacks(history: History) -> str:
    """What it takes for serial training to be what is promised; empty: nothing."""
    if history.layout.update != "sync":
        return "--update sync, or --workload ledger or dense-ledger"
    if history.claims.reduction == "none":
        return "a claim: reduction is none"
    return "--delay 0: who comes back has not seen older parameters" if history.workload.delay else ""


def _why(run: Training, found: Resumed, known: set[int]) -> str:
    """What did not come back; empty: it is no matter of the rollback. ``known`` are the rounds read before it."""
    step, begun = found.reads[-1], found.begun
    where = (
        f"{found.back.text}; {run.history.where(found.worker, step.index)} read what is {step.off:.2g} of the "
        f"parameters' norm off one step of {run.serial}, allowed {step.allowed:.1g}, and is the first to: "
    )
    if step.step == begun:
        return f"{where}the parameters of that round did not come back" if begun in known else ""
    lost, restarted = bool(MOMENTS[run.rule.optimizer]), not run.rule.plain
    for moments, counter, what in (
        (lost, False, "the optimizer's moments"),
        (False, restarted, "the number of updates"),
        (lost, restarted, "the optimizer's moments and the number of updates"),
    ):
        if (moments or counter) and begun and _explains(run, found, moments=moments, counter=counter):
            return f"{where}{what} did not come back with the parameters but began at zero"
    return (
        f"{where}optimizer state did not come back with the parameters" if restarted and step.step == begun + 1 else ""
    )


def _explains(run: Training, found: Resumed, *, moments: bool, counter: bool) -> bool:
    """All these reads are what training gives whose moments, or number of updates, were zero in the restored round."""
    last, begun = found.reads[-1], found.begun
    state = run.rule.begin(run.model.size) if moments else found.reads[0].moments
    thetas = {step.step: step.theta for step in found.reads}
    for step in range(begun, last.step):
        if state is None or step not in thetas or step + 1 not in thetas:
            return False
        number = int((~run.idle[begun if counter else 0 : step]).sum())
        change, after = run.rule.update(state, run.gradient(thetas[step], step), number)
        if run.idle[step]:
            change, after = np.zeros_like(change), state
        state = after
        off = relative(thetas[step + 1] - (thetas[step] - change), thetas[step])
        if off > max(last.allowed, EXPLAINED * last.off):
            return False
    return True
