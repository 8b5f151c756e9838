"""What the oracle says of recovery: of rollbacks, of workers that come back, and whether training ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from .cluster import Injected
from .facts import Breach, Breaches, Column, Facts, Grad, mixed, name_of
from .trace import Entry, Evicted, Kept, Read, Restored, Sent, Stated


def _restores(facts: Facts) -> Iterator[tuple[Restored, str, list[Column]]]:
    """Each restore, the newest checkpoint at that time, and what was served after it."""
    newest = ""
    for what in facts.happened:
        if isinstance(what, Kept):
            newest = what.name
        if isinstance(what, Restored):
            yield what, newest, [column for column in facts.columns if column.epoch == what.epoch]


def _kept(facts: Facts, column: Column, name: str) -> list[Entry]:
    """What a checkpoint has of a variable."""
    kept = facts.cluster.kept.get(name)
    return kept[column.ps][column.variable % facts.schedule.variables].entries if kept else []


def _begins_as(facts: Facts, column: Column, name: str) -> bool:
    return column.log.entries[: column.log.start] == _kept(facts, column, name)


def _seen_apart(facts: Facts, column: Column, had: Set[Grad]) -> bool:
    """Whether the first read of a worker after the restore shows less than that, or more of its own gradients."""
    return any(had - set(column.shown(read)) or own - had for read, own in _firsts(facts, column))


def _firsts(facts: Facts, column: Column) -> Iterator[tuple[Read, set[Grad]]]:
    """The first read of each worker after the restore, and its own gradients in it that it had not sent again."""
    for read in facts.first_reads:
        if read.epoch == column.epoch and read.views[column.variable].log is column.log:
            before = facts.happened[: next(at for at, what in enumerate(facts.happened) if what is read)]
            again = {(what.worker, what.step) for what in before if isinstance(what, Sent) and what.epoch == read.epoch}
            yield read, {grad for grad in column.shown(read) if grad[0] == read.worker} - again


def rollback(facts: Facts) -> Breaches:
    """R3: a rollback ends at the newest durable checkpoint; nothing goes back silently."""
    declared = {0}
    for what, newest, columns in _restores(facts):
        declared.add(what.epoch)
        if what.name != newest:
            yield Breach(True, f"worker:{what.worker} restored {what.name}, and {newest} is newer")
        for column in columns:
            if not _begins_as(facts, column, newest):
                yield Breach(what.name != newest, f"{column} does not begin as {newest}")
    latest: dict[tuple[int, int, int], tuple[Read, list[Grad]]] = {}
    for read in facts.reads:
        holder = -1 if facts.schedule.ps else read.worker
        for column, grads in facts.seen_by(read):
            before, had = latest.get((column.variable, read.epoch, holder), (read, []))
            if set(had) - set(grads) and before.views[column.variable].log is not column.log:
                own = before.worker == read.worker
                yield Breach(own, f"{name_of(read)} lacks in {column} what {name_of(before)} has shown")
            latest[column.variable, read.epoch, holder] = read, grads
    for column in facts.columns:
        if column.epoch not in declared:
            yield Breach(False, f"{column}: no restore is declared")


def one_cut(facts: Facts) -> Breaches:
    """R4: all variables come from the checkpoint that the restore names, and that has what its clock says."""
    clocks = {what.name: what.clock for what in facts.happened if isinstance(what, Kept)}
    for what, _, columns in _restores(facts):
        for column in columns:
            kept = _kept(facts, column, what.name)
            had = Counter((entry.worker, entry.step) for entry in kept if entry.end & column.end)
            clock = enumerate(clocks[what.name][column.ps] if what.name in clocks else ())
            said = Counter((worker, step) for worker, steps in clock for step in range(steps))
            apart = _seen_apart(facts, column, had.keys())
            wrong = apart or not _begins_as(facts, column, what.name)
            if wrong or had - said or (said - had).keys() - facts.excused:
                shown = apart or _seen_apart(facts, column, said.keys() - facts.excused)
                yield Breach(shown, f"{column} does not begin as {what.name}")
        yield from _other_state(facts, what)


def _other_state(facts: Facts, what: Restored) -> Breaches:
    """A worker goes on with another state beside the parameters than there is in the checkpoint."""
    states, begun = [stated for stated in facts.happened if isinstance(stated, Stated)], set[int]()
    for state in (state for state in states if state.epoch == what.epoch and facts.cluster.kept.get(what.name)):
        if state.worker not in begun:
            begun.add(state.worker)
            had = sorted(facts.cluster.kept[what.name][0][-1].entries)
            shown = any(
                (other.worker, other.step) == (state.worker, state.step) for other in states[: states.index(state)]
            )
            if sorted(state.view.entries) != had:
                yield Breach(shown, f"worker:{state.worker} has another state than in {what.name}")


def fencing(facts: Facts) -> Breaches:
    """R6: no gradient that was computed before a rollback is applied after it."""
    restored = {what.epoch: what.name for what, _, _ in _restores(facts)}
    for column in facts.columns:
        had = {(entry.worker, entry.step) for entry in _kept(facts, column, restored.get(column.epoch, ""))}
        for index, entry in enumerate(column.entries[column.start :], column.start):
            if entry.epoch is not None and entry.epoch < column.epoch:
                shown = any(column.grads[index] in own - had for _, own in _firsts(facts, column))
                yield Breach(shown, column.breach(index, f"was computed in epoch {entry.epoch}").why)


def joining(facts: Facts) -> Breaches:
    """M1: a worker that was started again reads committed state before it pushes, for that step."""
    for (worker, step), sent in facts.sent.items():
        for what, read in sent:
            if not what.life:
                continue
            if read is None or (read.life, read.step) != (what.life, step):
                yield Breach(True, f"worker:{worker} sent gradient {step}, and had not read for it")
            elif facts.schedule.sync:
                yield from mixed(facts, [read], lambda _: 0)
                for column, grads in facts.seen_by(read):
                    if any(
                        other <= max(step for _, step in grads)
                        for _, other in column.counts.keys() - set(grads)
                        if grads
                    ):
                        yield Breach(True, f"{name_of(read)} shows half a round in {column}")


def leaving(facts: Facts) -> Breaches:
    """M2: a worker is waited for as long as declared, from when another one has sent that step."""
    sent: dict[tuple[int, int], float] = {}
    for now, what in facts.cluster.trace.happened:
        if isinstance(what, Sent):
            sent.setdefault((what.epoch, what.step), now)
        if isinstance(what, Evicted):
            waited = now - sent.get((what.epoch, what.step), now)
            if waited < facts.schedule.drop_after:
                yield Breach(True, f"round {what.step} is made without worker:{what.absent} after {waited:.2f} s")


def completes(facts: Facts) -> Breaches:
    """L0, L1: every worker came to its end, and took all its steps."""
    if any(what.fault.lasts_s is None for what in facts.happened if isinstance(what, Injected)):
        return  # nothing is owed after a fault that is not healed
    if not facts.finished:
        yield Breach(True, "training did not end")
    owe_steps = facts.finished and not facts.schedule.quorum and not facts.schedule.work
    for worker in range(facts.schedule.workers) if owe_steps else ():
        owed = (step for step in range(facts.schedule.steps) if (worker, step) not in facts.evicted)
        missing = [step for step in owed if not facts.tries((worker, step))]
        if missing:
            yield Breach(True, f"worker:{worker} never sent gradient {missing[0]}")
