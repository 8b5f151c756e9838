"""S1, S3, S4, S5, S6: what a barrier promises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..history.columns import ANEW, UNUSED, Bools, Floats, Ints, Odd, Reads
from ..history.model import COUNT_TOLERANCE, FAILED, History, Worker
from ..history.weights import short_rounds, weights_of
from ..probe import COUNTS, GRADIENTS
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from .quorum import counts_rounds
from .reads import mixed_reads
from .registry import MOST, SYNC, at_most, check
from .shared_rows import are_row_means, off_sum, row_lines
from .witness import Seen, alike, all_alike, grouped, listed, others, scheduled, spans

Fault = tuple[str, int, int, int]
"""What is wrong (lacks, already has, has 2 times) in which variable with the gradient of which worker and step."""
NOT_DUE = -1
MOST_SKIPPED = 0.25
"""Share of the rounds that may be skipped."""


@check(
    "S1",
    "barrier",
    dimension="barrier",
    weakest=("none", "r-of-n"),
    updates=SYNC,
    needs=(COUNTS,),
    whole_gradients=True,
    final=True,
)
def barrier(history: History) -> Verdict:
    """S1: commit k is the reduction of exactly one gradient from each worker, computed at version k-1.

    So a worker about to compute its gradient of step s must see every gradient of the steps before s exactly once and
    none of step s or later; the final read must see all rounds to which everybody pushed. Worked interleaving:
    worker:1 pushes step 7, the server commits round 7 without waiting for worker:0, worker:1 reads for step 8 and
    lacks worker:0's step 7.

    A gradient need not be in its round if psconform poisoned it (``--poison``) and it was not accepted, if its worker
    had no data for that step (``--batches``), or if the job had gone on without that worker (``--drop-after``). A round
    that every worker was refused, and that shows nowhere, was skipped, as in mixed precision if a gradient overflows.
    If more than a quarter of the rounds were, and ``skips = "any"`` is not claimed, too little was trained to tell.

    Assumes: workers number their steps alike; each step is read before it is pushed.
    """
    first: dict[Fault, str] = {}
    times: dict[Fault, int] = {}
    for worker in history.workers:
        for index, fault, number in _off_barrier(history, worker):
            times[fault] = times.get(fault, 0) + number
            if fault not in first:
                word, variable, peer, step = fault
                seen = history.saw(worker, index, variable)
                first[fault] = f"{seen}, which {word} {history.gradient(peer, step)}"
                first[fault] += history.anew(worker, index, peer, step)
    if first:
        by_step: dict[tuple[str, int, int], list[Fault]] = {}  # those that differ in their step alone
        for fault in first:
            by_step.setdefault(fault[:3], []).append(fault)
        lines = []
        for faults in by_step.values():
            steps = sorted({step for *_, step in faults})
            more = f"; so it is with {len(steps)} of its gradients, {spans(steps)}" if len(steps) > 1 else ""
            lines.append(first[faults[0]] + others(times[faults[0]] - 1) + more)
        return violated(lines)
    for worker in history.workers:
        for step in worker.blind[:1]:
            return unknown(
                f"{worker} pushed step {step} without a read of it (probe.read), so what it had seen is not known"
            )
    read = counted(sum(len(w.reads) for w in history.workers), "read")
    several = history.layout.accumulate
    whole = history.steps - history.steps % several  # a last round with fewer may be dropped
    if not (skipped := int(history.skipped[:whole].sum())):
        return valid(read)
    said = f"{skipped} of {counted(whole, 'round' if several == 1 else 'step')} skipped: refused to every worker"
    if skipped > MOST_SKIPPED * whole and history.claims.skips != "any":
        return unknown(f'{said}; claim skips = "any" if that is meant')
    return valid(f"{read}, {said}", skipped=skipped)


def rounds_due(history: History, worker: Worker) -> Ints:
    """How many rounds each read must show, int64[R]; NOT_DUE: it says nothing of rounds.

    Read for step s: s, or the first step of its round, if several make one. After the last step, while others still
    train: nothing, no worker was released. Nor before a step is sent again, if that is the gradient of before, or that
    one shows everywhere: then no other is taken. Final: see ``History.rounds``. Where R gradients complete a round,
    steps do not tell.
    """
    reads = worker.reads
    if history.layout.quorum:
        return np.full(len(reads), NOT_DUE)
    step = reads.step - reads.step % history.layout.accumulate
    whole = reads.clock[:, :, worker.index].min(axis=1, initial=NEVER) > reads.step
    own_in = (reads.use == ANEW) & whole  # what the life before had sent has made its round
    unused = (reads.use >= UNUSED) | (own_in & (history.layout.drop_after > 0))  # others may have gone on since
    due = np.where((reads.step == history.steps) | unused, NOT_DUE, step)
    due += (own_in & ~unused) * history.layout.accumulate
    due = np.minimum(due, history.steps)  # the last round may have fewer
    if history.rounds is None:
        due[reads.final] = NOT_DUE
    else:
        due[reads.final] = np.clip(reads.clock[reads.final].max(axis=(1, 2), initial=0), *history.rounds)
    return due


def _off_barrier(history: History, worker: Worker) -> list[tuple[int, Fault, int]]:
    """(first read, what is wrong, in how many reads), in the order of the reads."""
    reads, due = worker.reads, rounds_due(history, worker)
    found: list[tuple[int, Fault, int]] = []
    excused = {epoch: history.excused_in(epoch) for epoch in np.unique(reads.epoch).tolist()}
    visible = {epoch: history.visible_in(epoch) for epoch in excused}
    least = np.zeros((len(reads), 1, history.layout.workers), np.int64)
    for epoch in visible:
        mine = reads.epoch == epoch
        least[mine, 0] = visible[epoch].T[np.maximum(due[mine], 0)]
    off = (reads.clock < least) | (reads.clock > due[:, None, None])
    rows = np.argwhere(off & (due != NOT_DUE)[:, None, None])
    if rows.size:
        clock, step = reads.clock[tuple(rows.T)], due[rows[:, 0]]
        lacks, wanted = clock < step, _wanted(visible, reads.epoch[rows[:, 0]], rows[:, 2], clock)
        keys = np.column_stack([lacks, rows[:, 1:], np.where(lacks, wanted, step)])
        faults, index, number = np.unique(keys, axis=0, return_index=True, return_counts=True)
        for fault, at, times in zip(faults.tolist(), rows[index, 0].tolist(), number.tolist(), strict=True):
            found.append((at, ("lacks" if fault[0] else "already has", *fault[1:]), times))
    for row in _due_rows(reads.odd, due):
        odd = reads.odd
        shown = np.flatnonzero(due[odd.first[row] : odd.end[row]] > odd.step[row])
        word = _off_by(float(odd.head[row]), float(odd.tail[row]))
        if word == "lacks":
            epochs = reads.epoch[odd.first[row] + shown].tolist()
            owed = [not excused[epoch][odd.peer[row], odd.step[row]] for epoch in epochs]
            shown = shown[np.array(owed, np.bool_)]
        if word and shown.size:
            fault = (word, int(odd.variable[row]), int(odd.peer[row]), int(odd.step[row]))
            found.append((int(odd.first[row] + shown[0]), fault, int(shown.size)))
    found += _late(worker, excused)
    return sorted(found, key=lambda item: item[0])


def _late(worker: Worker, excused: dict[int, Bools]) -> Iterator[tuple[int, Fault, int]]:
    """Gradients whose round went on without them, and that turn up later: they were applied to another round.

    Within an epoch what the first read after a round lacks, no later one has.
    """
    reads = worker.reads
    for epoch, away in excused.items():
        mine = np.flatnonzero(reads.epoch == epoch)
        peer, step = np.nonzero(away)
        seen = reads.shows(int(mine[-1]), peer, step) if step.size else np.zeros((0, 0), np.bool_)
        for variable, which in np.argwhere(seen).tolist():
            cell = int(variable), int(peer[which]), int(step[which])
            after = mine[reads.step[mine] > cell[2]].tolist()
            shown = [reads.count(read, *cell) != (0.0, 0.0) for read in after]
            if not all(shown):
                first = shown.index(True, shown.index(False)) if True in shown[shown.index(False) :] else 0
                yield after[first], ("only now has", *cell), sum(shown)


def _wanted(visible: dict[int, Ints], epoch: Ints, peer: Ints, clock: Ints) -> Ints:
    """By epoch, worker and clock: the first step from there on that has to show."""
    wanted = clock.copy()
    for when, worker in np.unique(np.column_stack([epoch, peer]), axis=0).tolist():
        mine = (peer == worker) & (epoch == when)
        wanted[mine] = np.searchsorted(visible[when][worker], clock[mine], side="right") - 1
    return wanted


def _due_rows(odd: Odd, due: Ints) -> Ints:
    """Rows of cells that may be due in one of their reads."""
    top = np.maximum.accumulate(due) if len(due) else due
    return np.flatnonzero(top[odd.end - 1] > odd.step) if len(odd) else np.zeros(0, np.int64)


def _off_by(head: float, tail: float) -> str:
    """In the head or tail only: torn, which is A6's business."""
    shown = [count for count in (head, tail) if count]
    most = max(shown, key=lambda count: abs(count - 1.0), default=0.0)
    return "lacks" if most == 0 else f"has {most:.4g} times" if _not_once(most) else ""


def _not_once(count: float) -> bool:
    """Two, three, ... times: not a weight, which is S5's business, but one gradient too many."""
    return round(count) not in (0, 1) and abs(count - round(count)) <= COUNT_TOLERANCE


@check("S3", "one contributor set", dimension="barrier", updates=SYNC, needs=(GRADIENTS,), whole_gradients=True)
def one_contributor_set(history: History) -> Verdict:
    """S3: commit k has the same contributors for every variable and shard.

    Judged on the final reads: a gradient that one variable shows and another never shows was dropped on one shard
    only. With what weight it is there is S5's business. So is a round of all workers that some were refused, and others
    were not: what makes one skip it (an overflow, say) must be known to all.

    Assumes: a final read. With one variable there is nothing to differ, and it holds.
    """
    if not history.finals:
        return unknown(history.no_final)
    applied = history.last.contributed  # [V, W, K]
    differs = np.any(applied, axis=0) != np.all(applied, axis=0)  # [W, K]
    readers = ", ".join(dict.fromkeys(str(worker) for worker, _ in history.finals))
    found: list[tuple[int, int, str, tuple[str]]] = []
    for peer, step in np.argwhere(differs).tolist():
        has = listed(history.variable(v) for v in np.flatnonzero(applied[:, peer, step]))
        lacks = listed(history.variable(v) for v in np.flatnonzero(~applied[:, peer, step]))
        found.append((peer, step, lacks, (has,)))
    lines = []
    for group in grouped(found):
        # steps are not rounds where some are late
        where = "" if history.layout.quorum else f"{spans(group.steps, 'round')}: "
        line = f"{where}{group.gradients}, {group.are} in {group.said[0]} and not in {group.where}{group.number}"
        lines.append(f"{line} (final reads of {readers})")
    lines += at_most(_refused_to_some(history))
    rounds = history.layout.rounds(history.steps)
    return violated(lines) if lines else valid(f"{counted(history.variables, 'variable')}, {counted(rounds, 'round')}")


def _refused_to_some(history: History) -> Iterator[str]:
    """Rounds of all workers that some of them were refused, and others not; R1 names those that show all the same."""
    refused = (history.outcomes == FAILED) & ~history.excused & ~history.last.contributed.any(axis=0)
    some = refused.any(axis=0) & history.accepted.any(axis=0) & (history.layout.quorum == 0)
    for step in np.flatnonzero(some).tolist():
        to, took = (
            listed(f"worker:{n}" for n in np.flatnonzero(which[:, step])) for which in (refused, history.accepted)
        )
        yield f"round {step} was refused to {to}, and not to {took}"


@check("S4", "release together", dimension="barrier", updates=SYNC, needs=(GRADIENTS,), whole_gradients=True)
def release_together(history: History) -> Verdict:
    """S4: no read mixes versions of different rounds across shards; versions go up by one.

    A read is mixed if one variable shows a gradient that another does not show yet but has in the end. Between reads
    of successive steps a worker must see exactly that many rounds more. Version counters, where the target reports
    them, must say the same; counters that never do count something else (gradients, say) and
    are left out. Where a rollback is between two reads (``probe.epoch``), they are not compared. An early release that
    nobody reads is invisible. Where R gradients complete a round, steps are not
    rounds: there only reads that mix versions are judged, and how versions go up is S2's business.

    Assumes: a final read, to tell late (this check) from lost (S1, S3, R1).
    """
    counters = _count_rounds(history)
    found = [one for worker in history.workers for one in at_most(_mixed_rounds(history, worker, counters=counters))]
    if found:
        return violated(alike(found))
    if not history.finals:
        return unknown(history.no_final)
    return valid("" if counters else "version counters left out: they do not count rounds")


def _mixed_rounds(history: History, worker: Worker, *, counters: bool) -> Iterator[Seen]:
    reads, due = worker.reads, rounds_due(history, worker)
    judged = (due != NOT_DUE) | (history.layout.quorum > 0)
    said = np.zeros(len(reads), np.bool_)
    if counters and reads.versions is not None:
        versions = _in_step(history, reads)
        said = versions.min(axis=1, initial=2**60) != versions.max(axis=1, initial=-(2**60))
    mixed = mixed_reads(history, worker, range(history.variables), only=judged)
    for index in np.flatnonzero(judged & (said | np.isin(np.arange(len(reads)), list(mixed)))).tolist():
        where = history.where(worker, index)
        if said[index] and reads.versions is not None:
            yield index, (worker.index,), f"{where} read the shards at versions {reads.versions[index].tolist()}"
        if index in mixed:
            variable, peer, step = mixed[index].cell
            seen_in = mixed[index].seen_in
            yield (
                index,
                (worker.index, seen_in, variable),
                f"{where} read {history.gradient(peer, step)}, in {history.variable(seen_in)} but not yet in "
                f"{history.variable(variable)}",
            )
    yield from _rounds_up(history, worker, due, counters=counters)


def _in_step(history: History, reads: Reads) -> Ints:
    """The versions of each read; after a rollback, from which each ps may count anew, from its first read on."""
    assert reads.versions is not None
    versions = reads.versions.copy()
    for epoch in np.unique(reads.epoch[reads.epoch > _first_epoch(history)]).tolist():
        mine = reads.epoch == epoch
        versions[mine] -= versions[np.argmax(mine)]
    return versions


def _first_epoch(history: History) -> int:
    return min((int(worker.reads.epoch.min()) for worker in history.workers if len(worker.reads)), default=0)


def _count_rounds(history: History) -> bool:
    """Versions go up by one per round at least somewhere, so they are meant as a count of rounds."""
    if history.layout.quorum:
        return counts_rounds(history)
    if not history.counted:
        return False
    told = False
    for worker in history.workers:
        several, reads, named = history.layout.accumulate, worker.reads, worker.reads.versions
        if named is not None:
            first = (reads.step % several == 0) & (~reads.final | (history.steps % several == 0))  # after whole rounds
            if len({*reads.step[first].tolist()}) < 2:
                first |= reads.final  # there is but one round
            steps, versions = np.diff(-(-reads.step[first] // several)), np.diff(named.max(axis=1, initial=0)[first])
            if (versions == steps)[steps > 0].any():
                return True
            told = told or bool((steps > 0).any())
    return not told


def _rounds_up(history: History, worker: Worker, due: Ints, *, counters: bool) -> Iterator[Seen]:
    reads = worker.reads
    rounds = reads.clock.max(axis=(1, 2), initial=0)
    released, skipped = np.flatnonzero(due != NOT_DUE), history.skipped
    several = history.layout.accumulate
    steps, seen = np.diff(due[released]), np.diff(rounds[released])
    versions = np.diff(-(-due[released] // several))
    same = np.diff(reads.epoch[released]) == 0  # a rollback takes rounds back
    named = _named_rounds(reads) if counters else None
    made = np.where(skipped, 0, np.arange(1, history.steps + 1))
    made = np.maximum.accumulate(np.concatenate([[0], made]))[due[released]]  # the last round that changed anything
    whole = np.cumprod(np.concatenate([[True], history.last.ever.all(axis=(0, 1)) | skipped]))  # all before this one
    off = (seen != np.diff(made)) & (whole[np.clip(due[released][1:], 0, history.steps)] != 0)
    told = np.zeros(len(steps), np.bool_)
    if named is not None:  # what is skipped may count, or not
        number = -(-np.concatenate([[0], np.cumsum(skipped)]) // several)
        least = versions - np.diff(number[due[released]])
        most = versions + (number[-1] - number[due[released][1:]]) * reads.final[released][1:]
        told = (np.diff(named[released]) < least) | (np.diff(named[released]) > most)
    for at in np.flatnonzero((off | told) & same).tolist():
        before, index = int(released[at]), int(released[at + 1])
        where = history.where(worker, index)
        if told[at] and named is not None:
            expected = named[before] + versions[at]
            since = f"its read of version {named[before]}, at step {due[before]}"
            yield index, (worker.index, "version"), f"{where} came after {since}: version {expected} was due"
        else:
            yield (
                index,
                (worker.index, "rounds"),
                f"{where} shows {counted(int(rounds[index]), 'round' if several == 1 else 'gradient')}"
                f"{' of a worker' if several > 1 else ''}, and its read before {rounds[before]}: "
                f"{rounds[before] + steps[at]} were due",
            )


def _named_rounds(reads: Reads) -> Ints | None:
    return None if reads.versions is None else np.asarray(reads.versions.max(axis=1, initial=0))


REDUCED = {"mean": "mean", "sum": "sum", "weighted": "weighted mean"}


@check("S5", "reduction", dimension="reduction", updates=SYNC)
def reduction(history: History) -> Verdict:
    """S5: mean or sum as declared: every gradient of a round has the declared weight, 1/N or 1 (1/R where R gradients
    complete a round, 1/(N A) where each worker brings A; a last round with fewer may be divided by what it has).

    Weighted: the share of its weight (``probe.push(step, weight=n)``) in those of its round; the rest of this is in
    such shares. A weight that (nearly) all gradients share is named; so is a single gradient with a weight that is no
    whole number of applications (whole numbers are duplicates, R1). Where each variable gets the gradient that
    ``probe.gradients`` made for it, a gradient that reaches another variable has another weight there, and is named.
    A weight that all gradients of a step share, and that changes from step to step, is a learning rate that changes: it
    is named, and no gradient is called applied again for it. Where it grows to a whole number R1 and R2 are unknown.
    A round in which a gradient was refused, or none was due, may be the mean of the others. A row that all workers
    change, as one of an embedding, must hold the sum of what each of them makes of it, and is not divided otherwise.

    What a round without some of the workers is divided by, once they have no data left (``--batches``) or were evicted
    (``--drop-after``), is declared (claims ``divisor``): ``initial``, all workers, or ``live``, those that are in it;
    else it may be either, by one rule for the whole run (torch's ``Join`` has both: ``divide_by_initial_world_size``).

    Assumes: some gradient was applied. With one worker the mean is the sum, and both hold.
    """
    evicts = history.layout.drop_after > 0 and history.disturbed
    if not any(worker.reads.clock[-1].any() for worker in history.workers if len(worker.reads)):
        return unknown("no read shows any gradient")
    weighted = history.claims.reduction == "weighted"
    if (lacks := history.untold or history.indistinct) or ((evicts or weighted) and not history.finals):
        return unknown(lacks or history.no_final)
    if history.unweighted:
        return violated([all_alike(history)])
    number, lines = history.layout.per_round, [*scheduled(history), *at_most(_divided(history))]
    lines += at_most(_misweighted(history))
    of = "workers" if history.layout.accumulate == 1 else "gradients"
    in_rows = off_sum(history, lambda worker, shown: _gradients_due(history, worker, shown))
    whole = _whole_rounds(history) if evicts else np.ones(history.steps, np.bool_)
    if not whole.any() and not lines and not in_rows:
        return not_judged("needs a round with the gradients of all workers")
    # else the weight that most share is that of rounds without a worker
    shared = not lines and (not evicts or bool(history.last.plain[:, :, whole].any()))
    if shared and history.scale != 1.0:
        lines.append(
            f"every gradient was applied {history.scale:.4g} times the declared "
            f"{REDUCED[history.layout.reduction]} over {number} {of}"
            + ("" if are_row_means(history, in_rows) else _guess(history))
        )
    unit = 1.0 if shared else history.scale
    short: Bools = np.asarray(history.excused.any(axis=0)) | ~whole
    if weighted:  # shares are of the gradients that are in a round, so a missing worker does not matter
        short = np.asarray((history.outcomes == FAILED).any(axis=0))
        short[[poison.step for poison in history.poisons]] = True
    mixed: dict[tuple[int, int, int], int] = {}  # worker, step and variable: the variable that it was made for
    for worker in history.workers:
        odd = worker.reads.odd
        head, tail = odd.head * unit, odd.tail * unit
        parts = np.array([_part(head), _part(tail)]) & ~short[odd.step]
        for row in np.flatnonzero(parts.any(axis=0)).tolist():
            count = float(head[row] if parts[0, row] else tail[row])
            variable, peer, step = int(odd.variable[row]), int(odd.peer[row]), int(odd.step[row])
            if (meant := history.made_for(variable, count)) is not None:
                mixed[peer, step, variable] = meant
                continue
            lines.append(
                f"{history.where(worker, int(odd.first[row]))} read {history.variable(variable)} with "
                f"{history.gradient(peer, step)}, at {count:.4g} times its weight"
            )
    lines = [*_mixed_up(history, mixed), *lines, *row_lines(history, in_rows)]
    if lines:
        return violated(lines)
    whose = {"initial": "of all workers", "live": "of those in it"}.get(history.divisor)
    return valid(f"a round without some workers is the mean {whose}" if whose else "")


def _misweighted(history: History) -> Iterator[str]:
    """Gradients of a weighted mean whose shares are others than those that they should have."""
    wrong = np.ones((1, 1, 1)) if history.misweighted is None else history.misweighted
    for step, worker, variable in np.argwhere(wrong.transpose(2, 1, 0) != 1).tolist():
        times = wrong[variable, worker, step]
        yield f"{history.variable(variable)} has {history.gradient(worker, step)}, at {times:.4g} times its weight"


def _gradients_due(history: History, worker: Worker, shown: Ints) -> Ints:
    """How many gradients each read must show; where R complete a round, a read of whole rounds is right as it is."""
    if quorum := history.layout.quorum:
        if history.claims.read_atomicity == "none":
            return np.full(len(shown), NOT_DUE)
        return np.where(shown % quorum == 0, shown, NOT_DUE)
    return rounds_due(history, worker) * history.layout.workers


def _mixed_up(history: History, meant: dict[tuple[int, int, int], int]) -> Iterator[str]:
    """Gradients that reached another variable than that which they were made for."""
    found = [(w, k, history.variable(v), (history.variable(other),)) for (w, k, v), other in sorted(meant.items())]
    for group in grouped(found):
        yield f"{group.gradients}, that {group.were} made for {group.said[0]} {group.were} applied to {group.where}"


def _divided(history: History) -> Iterator[str]:
    """Rounds without some of the workers that are divided by another number than they should be."""
    declared, found = history.claims.divisor, history.divisor
    if found in ("initial", "live") and declared not in ("any", found):
        words = {"initial": "all workers (initial)", "live": "those in it (live)"}
        yield f"a round without some workers is the mean of {words[found]}; declared is {words[declared]}"
    if found != "mixed":
        return
    short = short_rounds(history)
    weights, total = weights_of(history, short), history.layout.workers
    there = history.last.ever.all(axis=0).sum(axis=0)
    first: dict[str, int] = {}
    wrong: dict[tuple[int, str], list[int]] = {}  # by number of gradients, and weight: steps
    for step in np.flatnonzero(short).tolist():
        of, weight = int(there[step]), float(weights[step])
        known = {"initial": 1.0, "live": total / of}
        rule = next((name for name, right in known.items() if abs(weight / right - 1) <= COUNT_TOLERANCE), "")
        first.setdefault(rule, step)
        if not rule:
            wrong.setdefault((of, f"{weight:.4g}"), []).append(step)
    for (of, said), steps in wrong.items():
        each = f"each at {said} times its weight in a round of all" if said != "inf" else "of different weights"
        by = f"divided by {total} it would be 1, by {of} it would be {total / of:.4g}"
        yield f"{spans(steps, 'round')}: {counted(of, 'gradient')} of {total}, {each}; {by}"
    if first.keys() == {"initial", "live"}:
        yield (
            f"round {first['live']} is the mean of the workers in it, round {first['initial']} of all {total}: "
            "there is no one rule"
        )


def _whole_rounds(history: History) -> Bools:
    """bool[K]: rounds that have the gradients of all workers in the end, and that no epoch made without one."""
    whole = np.array(history.last.ever.all(axis=(0, 1)))
    whole[[absence.step for absence in history.absences]] = False
    return whole


def _part(counts: Floats) -> Bools:
    """No whole number of applications."""
    finite = np.where(np.isfinite(counts), counts, 0.0)
    return np.asarray(np.abs(finite - np.rint(finite)) > COUNT_TOLERANCE)


def _guess(history: History) -> str:
    if history.layout.reduction == "weighted":
        return ""
    number = history.layout.per_round
    declared_mean = history.layout.reduction == "mean"
    weight = history.scale / number if declared_mean else history.scale
    if declared_mean and abs(weight - 1) < COUNT_TOLERANCE:
        return ": a sum, not a mean"
    if weight > 0 and abs(1 / weight - round(1 / weight)) < COUNT_TOLERANCE:
        return f": a mean over {round(1 / weight)}" + ("" if declared_mean else ", not a sum")
    return ""


NEVER = np.iinfo(np.int64).max


@check("S6", "straggler", dimension="barrier", weakest=("none", "r-of-n"), updates=SYNC, needs=(), faults="none")
def waits_for_slowest(history: History) -> Verdict:
    """S6: a round takes at least as long as its slowest required worker.

    Under a full barrier every worker is required: no worker reads for step k+1 before the last worker has sent its
    gradient of step k. Judged by the clock alone (CLOCK_MONOTONIC, which all processes of one boot share), whatever
    parameters and versions say: a push is recorded before it is sent and a read after it was answered.

    Assumes: all workers under one boot of one machine, else it is not judged.
    """
    if not history.one_clock:
        return not_judged("needs all workers on one machine: clocks of several cannot be compared")
    if len(history.workers) < history.layout.workers:
        return unknown(history.incomplete or "a worker kept no record")
    sent = np.full((history.layout.workers, history.steps), NEVER, np.int64)
    for worker in history.workers:
        sent[worker.index, worker.pushes.step] = worker.pushes.at
    sent[:, history.excused.any(axis=0)] = NEVER  # a round that went on without a worker does not wait for it
    last = sent.max(axis=0)  # of each round; NEVER if the push of a worker is not in the record
    found: list[Seen] = []
    for worker in history.workers:
        reads = worker.reads
        begins = reads.step % history.layout.accumulate == 0
        released = np.flatnonzero((reads.step > 0) & (reads.step < history.steps) & begins)
        before = last[reads.step[released] - 1]
        for index in released[(before != NEVER) & (reads.at[released] < before)][:MOST].tolist():
            step = int(reads.step[index]) - 1
            slowest = int(np.argmax(sent[:, step]))
            early = (last[step] - reads.at[index]) / 1e6
            line = f"{early:.2f} ms before worker:{slowest} sent its gradient of step {step}"
            found.append((index, (worker.index, slowest), f"{history.where(worker, index)} read {line}"))
    if found:
        return violated(alike(found))
    times, slowest_ms = _rounds(sent[:, history.layout.accumulate - 1 :: history.layout.accumulate])
    if not len(times):
        return valid("one round")
    stats = {"round_ms": round(float(np.median(times)), 3), "spread_ms": round(float(np.median(slowest_ms)), 3)}
    said = f"median round {stats['round_ms']:.1f} ms, last worker {stats['spread_ms']:.1f} ms after the first"
    return valid(said, **stats)


def _rounds(sent: Ints) -> tuple[Floats, Floats]:
    """Milliseconds from one round's last push to the next one's, and from a round's first push to its last."""
    whole = sent[:, (sent != NEVER).all(axis=0)]
    return np.diff(whole.max(axis=0)) / 1e6, (whole.max(axis=0) - whole.min(axis=0))[1:] / 1e6
