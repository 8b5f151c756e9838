"""S7, C5: what replicas that exchange gradients, or average themselves, owe each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..history.columns import UNUSED, Floats, Ints
from ..history.model import COUNT_TOLERANCE, History, Worker
from ..history.records import State
from ..probe import SHARED_TOLERANCE
from ..verdict import Verdict, counted, unknown, valid, violated
from .registry import SYNC, at_most, check


@check("S7", "replicas equal", updates=SYNC, needs=(), through="replicas", local_steps="any")
def replicas_equal(history: History) -> Verdict:
    """S7: after each round all replicas hold the same parameters.

    A worker's reads before the gradient of step s show its replica after round s; those of different workers must show
    the same gradients, equally often, the same in the slot that all gradients share, and the same initial parameters,
    and so must the final reads. Where full values
    are recorded (all reads of a model, the final ones of others) they must be exactly equal: all replicas apply the
    same reduced gradients to the same parameters. With ``--local-steps`` that holds after each exchange.

    So must, with the claim ``state = "replicated"``, what they have beside the parameters (``probe.state``).

    Under faults only reads of one cluster epoch (``probe.epoch``) are compared, and not the first one of a worker that
    was started again: until its first round it may have what it was started with.

    Assumes: workers number their steps alike; a final read of each.
    """
    if len(history.workers) < 2:
        return valid("one replica")
    first, compared = history.workers[0], 0
    lines: list[str] = []
    for other in history.workers[1:]:
        pairs = _same_round(history, first, other)
        compared += len(pairs)
        lines += at_most(_different(history, first, other, pairs))
    if history.claims.state == "replicated":
        lines += at_most(_states_apart(history))
    if lines:
        return violated(lines)
    if any(not worker.reads.final.any() for worker in history.workers):
        return unknown(history.no_final)
    if history.claims.state == "replicated" and len({state.worker for state in history.states}) < 2:
        return unknown('state = "replicated" is claimed, and no two workers recorded any (probe.state)')
    return (
        valid(f"{counted(compared, 'read')} compared with those of {first}")
        if compared
        else unknown("no round was read twice")
    )


def _states_apart(history: History) -> Iterator[str]:
    """What two replicas have beside the parameters at one step, and should have alike."""
    first: dict[tuple[int, int, str], State] = {}
    begun = {(s.worker, s.life, s.name): s for s in reversed(history.states) if s.life}
    exchanged = (state for state in history.states if state.step % history.layout.local_steps == 0)
    settled = [state for state in exchanged if begun.get((state.worker, state.life, state.name)) is not state]
    last = {(s.worker, s.epoch, s.step, s.name): s for s in settled}
    for state in last.values():
        other = first.setdefault((state.epoch, state.step, state.name), state)
        if other.digest != state.digest:
            yield (
                f"worker:{other.worker} and worker:{state.worker} differ before round {state.step} in {state.name}: "
                f"{other.text(state)}, and {state.text(other)}"
            )


def _same_round(history: History, first: Worker, other: Worker) -> list[tuple[int, int]]:
    """Reads of two workers that must show the same: at equal steps right after an exchange, and the final ones."""
    mine, its = (
        list(zip(worker.reads.epoch.tolist(), _rounds(history, worker).tolist(), strict=True))
        for worker in (first, other)
    )
    at = {round_: read for read, round_ in reversed(list(enumerate(mine))) if round_[1] >= 0}
    return [(at[round_], read) for read, round_ in enumerate(its) if round_ in at]


def _rounds(history: History, worker: Worker) -> Ints:
    """After which step each read was made, int64[R]; -1: not right after an exchange. The final ones come last."""
    reads = worker.reads
    due = (reads.step < history.steps) & (reads.use < UNUSED)
    due[np.flatnonzero(np.diff(reads.life, prepend=0))] = False
    steps = np.where(due & (reads.step % history.layout.local_steps == 0), reads.step, -1)
    return np.asarray(np.where(reads.final, history.steps, steps))


def _different(history: History, first: Worker, other: Worker, pairs: list[tuple[int, int]]) -> Iterator[str]:
    a, b = first.reads, other.reads
    odd = (a.tally(a.odd) > 0, b.tally(b.odd) > 0)
    for mine, its in pairs:
        where = f"{first} and {other} differ {_when(history, other, its)}"
        for variable, peer in np.argwhere(a.clock[mine] != b.clock[its]).tolist()[:1]:
            yield (
                f"{where}: {a.clock[mine, variable, peer]} and {b.clock[its, variable, peer]} gradients of "
                f"worker:{peer} in {history.variable(variable)}"
            )
            break
        else:
            if (a.nonce[mine] != b.nonce[its]).any():
                yield f"{where}: initial parameters with nonce {a.nonce[mine].tolist()} and {b.nonce[its].tolist()}"
            elif (odd[0][mine] or odd[1][its]) and (cell := _odd_apart(history, first, mine, other, its)):
                yield f"{where}: {cell}"
            elif row := _rows_apart(history, first, mine, other, its):
                yield f"{where}: {row}"
            elif mine in a.values and its in b.values and not np.array_equal(a.values[mine], b.values[its]):
                apart = np.abs(a.values[mine] - b.values[its])
                at = np.unravel_index(int(np.nanargmax(apart)), apart.shape)
                yield f"{where}: by {apart[at]:.3g} in slot {at[1]} of {history.variable(at[0])}"


def _odd_apart(history: History, first: Worker, mine: int, other: Worker, its: int) -> str:
    """A cell that two reads with the same clocks show differently; empty if there is none."""
    found = [
        {
            (int(v), int(p), int(s)): (float(h), float(t))
            for v, p, s, h, t in zip(rows.variable, rows.peer, rows.step, rows.head, rows.tail, strict=True)
        }
        for rows in (first.reads.odd.at(mine), other.reads.odd.at(its))
    ]
    for cell in sorted(found[0].keys() | found[1].keys()):
        one, two = (seen.get(cell, (1.0, 1.0)) for seen in found)
        if repr(one) != repr(two):  # NaN differs from itself
            variable, peer, step = cell
            return f"{history.gradient(peer, step)}, {_times(one)} and {_times(two)} in {history.variable(variable)}"
    return ""


def _rows_apart(history: History, first: Worker, mine: int, other: Worker, its: int) -> str:
    """How the slot that all gradients share differs, where all else is the same; empty if it does not."""
    both = [reads.shared.get(read) for reads, read in ((first.reads, mine), (other.reads, its))]
    if all(told is None for told in both):
        return ""  # it holds the sum of the gradients
    least = SHARED_TOLERANCE * max(1.0, *(float(np.abs(told).max()) for told in both if told is not None))
    one, two = (np.zeros(history.variables) if told is None else told[:, 0] - told[:, 1] for told in both)
    for variable in np.flatnonzero(np.abs(one - two) > least).tolist():
        return (
            f"a row that all gradients change, {one[variable]:.4g} and {two[variable]:.4g} gradients off their sum in "
            f"{history.variable(variable)}"
        )
    return ""


def _when(history: History, worker: Worker, read: int) -> str:
    return "in the final reads" if worker.reads.final[read] else f"after round {worker.reads.step[read]}"


@check(
    "C5",
    "local steps",
    dimension="reduction",
    updates=SYNC,
    through="replicas",
    local_steps="several",
    faults="no rollback",
)
def local_steps(history: History) -> Verdict:
    """C5: H local steps, then one exchange, equal the declared averaging.

    Between two exchanges a replica has taken its own gradients in full and nobody else's; the exchange makes the
    average of all replicas of it, so that each gradient then counts 1/N, everywhere. So before step s a worker must see
    every gradient of the steps before the last exchange exactly once (in units of 1/N), its own since then N times, the
    others' since then not at all; the final read, after a last exchange, all of them once.

    Assumes: exchanges after each H steps and after the last step; each step is read before it is taken.
    """
    lines: list[str] = []
    for worker in history.workers:
        lines += at_most(_off_average(history, worker))
    if lines:
        return violated(lines)
    for worker in history.workers:
        for step in worker.blind[:1]:
            return unknown(f"{worker} took step {step} without a read of it (probe.read), so what it had is not known")
    if any(not worker.reads.final.any() for worker in history.workers):
        return unknown(history.no_final)
    exchanges = -(-history.steps // history.layout.local_steps)
    return valid(f"{exchanges} exchanges of {history.layout.workers} replicas")


def _off_average(history: History, worker: Worker) -> Iterator[str]:
    reads, own, number = worker.reads, worker.index, float(history.layout.workers)
    judged = np.flatnonzero(reads.final | ((reads.step < history.steps) & (reads.use < UNUSED)))
    for read in judged.tolist():
        final = bool(reads.final[read])
        step = history.steps if final else int(reads.step[read])
        exchanged = step if final else step - step % history.layout.local_steps
        due = np.full(history.layout.workers, exchanged)
        due[own] = step
        for variable, peer in np.argwhere(reads.clock[read] != due).tolist()[:1]:
            yield (
                f"{history.saw(worker, read, variable)} with {reads.clock[read, variable, peer]} gradients of "
                f"worker:{peer}, expected {due[peer]}: the last exchange was after step {exchanged}"
            )
        rows = reads.odd.at(read)
        local = (rows.peer == own) & (rows.step >= exchanged)
        expected: Floats = np.where(local, number, 1.0)
        off = (np.abs(rows.head - expected) > COUNT_TOLERANCE * expected) | (
            np.abs(rows.tail - expected) > COUNT_TOLERANCE * expected
        )
        wrong = np.flatnonzero(~np.isfinite(rows.head + rows.tail) | off)
        for row in wrong[:1].tolist():
            yield (
                f"{history.saw(worker, read, int(rows.variable[row]))} with "
                f"{history.gradient(int(rows.peer[row]), int(rows.step[row]))}, "
                f"{_times((float(rows.head[row]), float(rows.tail[row])))}, expected {expected[row]:.4g} times"
            )
        if number > 1 and not final and np.count_nonzero(local) < reads.clock.shape[1] * (step - exchanged):
            yield f"{history.where(worker, read)} shows its own steps since the last exchange, averaged already"


def _times(counts: tuple[float, float]) -> str:
    head, tail = counts
    return f"{head:.4g} times" if repr(head) == repr(tail) else f"{head:.4g} times at the head, {tail:.4g} at the tail"
