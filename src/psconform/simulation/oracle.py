"""Which guarantees a simulated run kept in truth: by what was applied. It shares no code with the checks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

from ..probe import Ledger
from .cluster import Cluster, Injected
from .facts import Breach, Breaches, Column, Facts, Grad, mixed, name_of
from .recovered import completes, fencing, joining, leaving, one_cut, rollback
from .trace import HEAD, TAIL, Entry, Initialised, Read, Sent, Stated, Told


@dataclass(frozen=True)
class Truth:
    """Whether a guarantee held; if not, whether the record of the run shows that, and an example."""

    held: bool = True
    shown: bool = False
    why: str = ""


def truths(cluster: Cluster) -> dict[str, Truth]:
    """What became of each guarantee that a finished run claims."""
    facts = Facts(cluster)
    found = {}
    for name, breaches in _claimed(facts).items():
        all_of_them = sorted(breaches(facts), key=lambda breach: not breach.shown)
        found[name] = Truth(False, *all_of_them[0]) if all_of_them else Truth()
    return found


def _claimed(facts: Facts) -> dict[str, Callable[[Facts], Breaches]]:
    schedule, claims = facts.schedule, facts.claims
    judged: dict[str, Callable[[Facts], Breaches]] = {"I1": _initialised_once, "I2": _ready}
    judged |= {} if schedule.ps else {"S7": _replicas}
    injected = any(isinstance(what, Injected) for what in facts.happened)
    if schedule.local_steps > 1:
        return judged | {"C5": _averages} | ({} if injected else {"L0": completes})
    judged |= {"A6": _atomic, "A7": _monotonic} if schedule.ps else {}
    judged |= {"R1": _delivery}
    judged |= {"R2": _duplicates} if claims.delivery != "at-most-once" else {}
    if schedule.sync:
        judged |= {"S2" if schedule.quorum else "S1": _rounds, "S3": _contributors, "S4": _release, "S5": _weights}
    else:
        judged |= {"A2": _staleness, "A5": _applied_as_pushed}
        judged |= {"A1": _on_arrival} if claims.delivery != "at-most-once" else {}
        judged |= {"A3": _bounded} if claims.staleness == "bounded" else {}
        judged |= {"A4": _rate} if claims.rate == "staleness-aware" else {}
    if claims.recovery == "checkpoint":
        judged |= {"R3": rollback, "R4": one_cut, "R6": fencing, "M1": joining}
    judged |= {"M2": leaving} if facts.evicted else {}
    return judged | {"L1" if injected else "L0": completes}


def _rounds(facts: Facts) -> Breaches:
    """S1, S2: a round is so many gradients of different workers, all computed at the version before it.

    Of each worker it has those of as many steps as it adds up; the last round may have fewer.
    """
    size, full, several = facts.per_round, not facts.schedule.quorum, facts.schedule.accumulate
    in_all = facts.schedule.workers * facts.schedule.steps
    if facts.excused:
        yield from _rounds_with_gaps(facts)
        return
    for column in facts.columns:
        for index, entry in enumerate(column.entries):
            number, place = divmod(index, size)
            others = [(worker, several > 1 and step) for worker, step in column.grads[index - place : index]]
            again = (entry.worker, several > 1 and entry.step) in others
            if again or (full and entry.step // several != number):
                yield column.breach(index, f"is in round {number}")
            elif not any(len(column.shown(read)) == number * size for read in facts.bases(entry)):
                yield column.breach(index, f"is in round {number}, and was computed at another version")
        if len(column.grads) % size and not (full and len(column.grads) == in_all):
            yield column.breach(len(column.grads) - 1, "is in a round that is not complete")
        if full and facts.finished and column.live and len(column.grads) < in_all:
            yield Breach(True, f"{column}: ends with {len(column.grads)} gradients")
    for read in facts.reads if not full else ():
        for column, grads in facts.seen_by(read):
            if len(grads) != read.versions[column.ps] * size:
                yield Breach(True, f"{name_of(read)} has versions {read.versions}, {len(grads)} gradients in {column}")


def _rounds_with_gaps(facts: Facts) -> Breaches:
    """The same with a full barrier, where a round may lack a worker that was evicted from it, or is skipped by all."""
    workers = range(facts.schedule.workers)
    for column in facts.columns:
        last = max((entry.step for entry in column.entries), default=-1)
        for index, entry in enumerate(column.entries):
            earlier = column.entries[:index]
            if any(other.step > entry.step or other[:2] == entry[:2] for other in earlier):
                yield column.breach(index, f"comes after round {max(other.step for other in earlier)}")
            due = sum(1 for other in earlier if other.step < entry.step)
            if not any(len(column.shown(read)) == due for read in facts.bases(entry)):
                yield column.breach(index, "was computed at another version")
        lacks = {(worker, step) for worker in workers for step in range(last + 1)} - column.counts.keys()
        for worker, step in sorted(lacks - facts.excused):
            yield Breach(True, f"{column}: round {step} lacks worker:{worker}, and it was not said")
        if facts.finished and column.live and facts.made(last + 1) < facts.made(facts.schedule.steps):
            yield Breach(True, f"{column}: ends with round {last}")


def _contributors(facts: Facts) -> Breaches:
    """S3: a round has the same gradients in every variable; it is refused to all workers, or to none."""
    size = facts.per_round
    if not facts.schedule.quorum:
        taken = {(what.worker, what.step) for what in facts.told if what.outcome == "ok"}
        showing = set().union(*(column.counts for column in facts.columns))  # told otherwise, which is R1's
        refused = Counter((what.worker, what.step) for what in facts.told if what.outcome == "failed")
        for step in range(facts.schedule.steps):
            due = {(worker, step) for worker in range(facts.schedule.workers)} - facts.evicted
            if due & taken and any(refused[grad] == facts.tries(grad) > 0 for grad in due - taken - showing):
                yield Breach(True, f"round {step} was refused to some")
    for one, other in permutations(facts.columns, 2):
        if one.epoch != other.epoch:
            continue
        for grad in one.counts.keys() - other.counts.keys() if one.live and other.live and facts.finished else ():
            yield Breach(True, f"{other}: lacks {grad}, which {one} has")
        if max((*one.counts.values(), *other.counts.values()), default=1) > 1:
            continue  # rounds cannot be counted where a gradient is doubled, which is R2's
        if facts.excused:  # rounds have no common size
            both = min(max((step for _, step in column.grads), default=-1) for column in (one, other))
            for grad in sorted(grad for grad in one.counts.keys() - other.counts.keys() if grad[1] <= both):
                yield Breach(False, f"{other}: round {grad[1]} lacks {grad}, which {one} has")
            continue
        for begin in range(0, min(len(one.grads), len(other.grads)) - size + 1, size):
            if set(one.grads[begin : begin + size]) != set(other.grads[begin : begin + size]):
                shown = begin + size <= min(one.read, other.read)
                yield Breach(shown, f"{one} and {other} differ in round {begin // size}")


def _release(facts: Facts) -> Breaches:
    """S4: no read mixes rounds; from one step of a worker to the next there is one round more, and one version.

    A read that has the gradient of its own step, which a life before has sent, has its round, too.
    """
    yield from mixed(facts, facts.reads, lambda _: 0)
    before: dict[tuple[int, int], tuple[int, int, tuple[int, ...]]] = {}
    for read in facts.reads if not facts.schedule.quorum else ():
        rounds = max((facts.made(step + 1) for _, grads in facts.seen_by(read) for _, step in grads), default=0)
        step = _reached(facts, read)
        last, had, then = before.get((read.worker, read.epoch), (step, rounds, read.versions))
        if rounds - had != facts.made(step) - facts.made(last):
            yield Breach(True, f"{name_of(read)} shows {rounds - had} rounds more")
        since = facts.due(step) - facts.due(last)
        if any(now - earlier != since for now, earlier in zip(read.versions, then, strict=True)):
            yield Breach(facts.schedule.versions, f"{name_of(read)} has versions {read.versions} after {then}")
        before[read.worker, read.epoch] = step, rounds, read.versions


def _reached(facts: Facts, read: Read) -> int:
    """The step before which a read shows all rounds: its own, or the first of the next round."""
    several, own = facts.schedule.accumulate, (read.worker, read.step)
    if read.final or not read.life or not all(own in grads for _, grads in facts.seen_by(read)):
        return read.step
    return min(read.step - read.step % several + several, facts.schedule.steps)


def _replicas(facts: Facts) -> Breaches:
    """S7: after each exchange all replicas are the same."""
    every, first = facts.schedule.local_steps * facts.schedule.accumulate, dict[int, tuple[Read, list[object]]]()
    for read in facts.reads:
        if read.final or read.step % every == 0:
            values = [(view.log.nonce, sorted(entry[:4] for entry in view.entries)) for view in read.views]
            other, had = first.setdefault(read.step, (read, list(values)))
            if values != had:
                yield Breach(True, f"{name_of(read)} shows other parameters than {name_of(other)}")
    yield from _states(facts)


def _states(facts: Facts) -> Breaches:
    """So is what they have beside the parameters; what a later life begins with may be of before."""
    begun, first = set[tuple[int, int]](), dict[tuple[int, int], list[Entry]]()
    for what in facts.happened:
        if isinstance(what, Stated):
            begins = what.life > 0 and (what.worker, what.life) not in begun
            begun.add((what.worker, what.life))
            if not begins and what.step % facts.schedule.local_steps == 0:
                had = sorted(what.view.entries)
                if first.setdefault((what.epoch, what.step), had) != had:
                    yield Breach(True, f"worker:{what.worker} has another state than others before step {what.step}")


def _averages(facts: Facts) -> Breaches:
    """C5: since the last exchange a replica has its own gradients, whole; before it, the mean of those of all."""
    every, workers = facts.schedule.local_steps, range(facts.schedule.workers)
    for read in facts.reads:
        exchanged = read.step if read.final else read.step - read.step % every
        due = Counter((worker, step) for worker in workers for step in range(exchanged))
        due.update((read.worker, step) for step in range(exchanged, read.step))
        for column, grads in facts.seen_by(read):
            if Counter(grads) != due:
                yield Breach(True, f"{name_of(read)} shows {len(grads)} gradients in {column}, not {due.total()}")
            for entry in read.views[column.variable].entries:
                share = 1.0 if entry.step >= exchanged else 1 / len(workers)
                if abs(entry.weight - share) > 1e-6:
                    yield Breach(True, f"{name_of(read)} shows weight {entry.weight:g} in {column}, not {share:g}")


def _weights(facts: Facts) -> Breaches:
    """S5: mean or sum, as declared. A round without an evicted worker may have other weights; one of all tells."""
    everyone = range(facts.schedule.workers)
    whole = not facts.evicted or any(
        all((worker, step) in column.counts for worker in everyone)
        for column in facts.live
        for step in range(facts.schedule.steps)
        if not any((worker, step) in facts.evicted for worker in everyone)
    )
    for breach in _weighed(facts):
        yield Breach(breach.shown and whole, breach.why)
    yield from _rows(facts)


def _weighed(facts: Facts) -> Breaches:
    if weights := facts.schedule.weights:
        for column in facts.columns:
            for index, (worker, step) in enumerate(column.grads):
                total = sum(weights[other] for other, of in column.counts if of == step)
                yield from _weighs_one(column, index, weights[worker] / total)
        return
    if not facts.schedule.live or facts.schedule.reduction == "sum":
        yield from _weighs(facts, 1 / facts.per_round if facts.schedule.reduction == "mean" else 1.0)
        return
    for column in facts.columns:
        number = Counter(step for _, step in column.counts)  # workers in each round
        for index, entry in enumerate(column.entries):
            yield from _weighs_one(column, index, 1 / number[entry.step])


def _weighs(facts: Facts, declared: float) -> Breaches:
    schedule = facts.schedule
    rest = schedule.steps % schedule.accumulate  # of the last round, which may be divided by what it has
    for column in facts.columns:
        for index, entry in enumerate(column.entries):
            own = declared * schedule.accumulate / rest if rest and schedule.reduction == "mean" else declared
            short = entry.step >= schedule.steps - rest and abs(entry.weight - own) < 1e-6
            yield from _weighs_one(column, index, own if short else declared)


def _weighs_one(column: Column, index: int, declared: float) -> Breaches:
    if abs(column.entries[index].weight - declared) > 1e-6:
        yield column.breach(index, f"has weight {column.entries[index].weight:g}, not {declared:g}")


def _on_arrival(facts: Facts) -> Breaches:
    """A1: every accepted gradient is applied once, whole; each makes a version, and versions are those of gradients."""
    for column in facts.live:
        for grad in facts.accepted:
            allowed = facts.tries(grad) if facts.claims.delivery == "at-least-once" else 1
            if not 1 <= column.counts[grad] <= allowed:
                yield Breach(facts.finished, f"{column}: {grad} was applied {column.counts[grad]} times")
    if facts.claims.rate == "constant":
        yield from _weighs(facts, 1.0)
    yield from _rows(facts)
    for column in facts.columns:
        named: dict[int, Grad] = {}
        same = [other for other in facts.columns if (other.variable, other.epoch) == (column.variable, column.epoch)]
        length = max(1, *(len(other.grads) for other in same))
        for what in facts.told:
            if what.versions and what.epoch == column.epoch:
                version, grad = what.versions[column.ps], (what.worker, what.step)
                if facts.tries(grad) > 1:
                    continue  # it may be answered with a later version
                other = named.setdefault(version, grad)
                if other != grad or not 0 < version <= length:
                    shown = facts.schedule.versions and not {grad, other} & facts.resumed_with
                    yield Breach(shown, f"{column}: {grad} is version {version}")


def _taus(facts: Facts) -> Iterator[tuple[Column, int, list[int]]]:
    """By gradient, how many others were applied since it was computed; one for each read that it may be of.

    Not where versions do not count what reads show: something was lost or doubled, or an old state read.
    """
    wrong = {
        id(column.log)
        for read in facts.reads
        for column, grads in facts.seen_by(read)
        if read.versions[column.ps] != len(grads)
    }
    for column in facts.columns:
        for index, entry in enumerate(column.entries if id(column.log) not in wrong else ()):
            yield column, index, [index - len(column.shown(read)) for read in facts.bases(entry)]


def _staleness(facts: Facts) -> Breaches:
    """A2: what versions tell of the staleness of a gradient is true, and never negative."""
    claimed: dict[Grad, list[int]] = {}  # by gradient, what tau is by ps, as versions have it
    for what in facts.told:
        bases = [base for _, base in facts.sent.get((what.worker, what.step), ())]
        if len(bases) == 1 and bases[0] is not None and what.versions:
            taus = [now - 1 - then for now, then in zip(what.versions, bases[0].versions, strict=True)]
            claimed[what.worker, what.step] = taus
            if min(taus) < 0:
                yield Breach(facts.schedule.versions, f"gradient {what.step} of worker:{what.worker} has tau {taus}")
    for column, index, taus in _taus(facts):
        grad = column.grads[index]
        places = sum(other.counts[grad] for other in facts.columns if other.variable == column.variable)
        if grad in claimed and places == len(taus) == 1 and claimed[grad][column.ps] != taus[0]:
            why = column.breach(index, f"has tau {taus[0]}, not {claimed[grad][column.ps]}").why
            version = index + 1 + claimed[grad][column.ps] - taus[0]
            between = range(*sorted((index + 1, version)))  # a read that shows so many contradicts that version
            lengths = {len(grads) for read in facts.reads for other, grads in facts.seen_by(read) if other is column}
            yield Breach(facts.schedule.versions and not lengths.isdisjoint(between), why)


def _bounded(facts: Facts) -> Breaches:
    """A3: a read at clock c sees all updates up to c-s-1, and those of its worker; no worker is more than s ahead."""
    clocks = [0] * facts.schedule.workers
    bound = facts.schedule.staleness or 0
    for what in facts.happened:
        if isinstance(what, Sent):
            clocks[what.worker] = max(clocks[what.worker], what.step + 1)
        if not isinstance(what, Read) or what.final:
            continue
        if min(clocks) < what.step - bound:
            yield Breach(True, f"{name_of(what)}, when a worker had sent {min(clocks)} gradients")
        for column, grads in facts.seen_by(what):
            for worker, step in column.counts.keys() - set(grads):
                if step < what.step - (0 if worker == what.worker else bound):
                    yield Breach(True, f"{name_of(what)} lacks gradient {step} of worker:{worker} in {column}")


def _rate(facts: Facts) -> Breaches:
    """A4: the weight is 1 / max(1, tau)."""
    for column, index, taus in _taus(facts):
        weight = column.entries[index].weight
        if not any(abs(weight * max(1, tau) - 1) < 1e-6 for tau in taus):
            yield column.breach(index, f"has weight {weight:g} at tau {taus}")


def _lost(facts: Facts, *, whole: bool) -> Breaches:
    """Acknowledged gradients that a variable lacks in the end; wholly, or at one end of it."""
    for column in facts.live:
        for grad in facts.accepted if facts.claims.delivery != "at-most-once" else ():
            if not column.counts[grad] and (whole or all(grad != entry[:2] for entry in column.log.entries)):
                yield Breach(facts.finished, f"{column}: lacks {grad}")


def _rows(facts: Facts) -> Breaches:
    """What a gradient changes in a row of its own, it changes in one that all share. Weights of a round may differ."""
    ledger = Ledger(workers=facts.schedule.workers, steps=facts.schedule.steps)
    for column in facts.columns:
        lost = [entry for entry in column.entries if entry.end == HEAD | TAIL]
        gone = sum(ledger.in_shared(entry.worker, entry.step) * entry.weight for entry in lost)
        shown = facts.finished and column.live and abs(gone) > max((entry.weight for entry in lost), default=0.0) / 2
        for entry in lost:
            yield Breach(shown, f"{column}: gradient {entry.step} of worker:{entry.worker} is not in the shared row")


def _applied_as_pushed(facts: Facts) -> Breaches:
    """A5: what was acknowledged is applied; at-most-once, nothing is applied more often than it was sent."""
    yield from _lost(facts, whole=False)
    if facts.claims.delivery == "at-most-once":
        yield from _again(facts, facts.tries)


def _atomic(facts: Facts) -> Breaches:
    """A6: a read is atomic per variable; per shard, or as a snapshot, where claimed."""
    for read in facts.reads:
        for (one, here), (other, there) in permutations(facts.seen_by(read), 2):
            if one.log is other.log and (torn := (set(here) - set(there)) & other.counts.keys()):
                yield Breach(True, f"{name_of(read)} shows {sorted(torn)[0]} at one end of {one} only")
    snapshot = facts.claims.read_atomicity == "snapshot"
    yield from mixed(facts, facts.reads, lambda column: 0 if snapshot else column.ps)


def _monotonic(facts: Facts) -> Breaches:
    """A7: monotonic reads, read-my-writes, and each worker's gradients in its order."""
    before: dict[tuple[int, int], Read] = {}
    written: dict[tuple[int, int], set[Grad]] = defaultdict(set)
    became: dict[tuple[int, int], tuple[int, ...]] = {}
    for what in facts.happened:
        if isinstance(what, Told) and what.outcome == "ok":
            written[what.worker, what.epoch].add((what.worker, what.step))
            became[what.worker, what.epoch] = what.versions
        if not isinstance(what, Read):
            continue
        last = before.setdefault((key := (what.worker, what.epoch)), what)
        for column, grads in facts.seen_by(what):
            if column.end == TAIL:
                continue  # what is at one end only is torn (A6)
            if Counter(column.shown(last)) - Counter(grads):
                yield Breach(True, f"{name_of(what)} lacks in {column} what it has shown")
            own = written[key] if facts.schedule.accumulate == 1 else set()  # else it is added up first: S1
            for _, step in (own & facts.lasting[column.variable]) - set(grads):
                yield Breach(True, f"{name_of(what)} lacks its own gradient {step} in {column}")
        if any(now < then for now, then in zip(what.versions, last.versions, strict=True)):
            yield Breach(facts.schedule.versions, f"{name_of(what)} has versions {what.versions} after {last.versions}")
        if any(now < then for now, then in zip(what.versions, became.pop(key, ()), strict=False)):
            yield Breach(facts.schedule.versions, f"{name_of(what)} has versions {what.versions}, below its own")
        before[key] = what
    for column in facts.columns:
        yield from _in_order(facts, column)


def _in_order(facts: Facts, column: Column) -> Breaches:
    answered = {(what.worker, what.step) for what in facts.told if what.outcome == "ok"}
    lengths = {len(column.shown(read)) for read in facts.reads for view in read.views if view.log is column.log}
    for late, (worker, step) in enumerate(column.grads):
        early = next((n for n, grad in enumerate(column.grads[:late]) if grad[0] == worker and grad[1] > step), None)
        if early is not None and (worker, step) not in column.grads[:late]:
            seen = any(early < length <= late for length in lengths) and facts.tries((worker, step)) == 1
            why = f"{column}: gradient {step} of worker:{worker} comes after {column.grads[early][1]}"
            yield Breach(seen and (worker, step) in answered, why)


def _initialised_once(facts: Facts) -> Breaches:
    """I1: a variable is initialised once."""
    for one, other in permutations(facts.columns, 2):
        if one.variable == other.variable and one.log.nonce != other.log.nonce:
            shown = facts.is_read(one) and facts.is_read(other)
            yield Breach(shown, f"{one} begins with {one.log.nonce}, and in epoch {other.epoch} with {other.log.nonce}")
    for what in [what for what in facts.happened if isinstance(what, Initialised)][1:]:
        if not what.life:  # what a worker says after it was started again, the servers may have refused
            yield Breach(True, f"worker:{what.worker} initialised again")


def _ready(facts: Facts) -> Breaches:
    """I2: no read, and no gradient, before a variable is initialised."""
    for column in facts.columns:
        if not column.log.nonce and (column.entries or facts.is_read(column)):
            yield Breach(facts.is_read(column), f"{column} is not initialised")


def _delivery(facts: Facts) -> Breaches:
    """R1: a gradient is applied as often as the delivery class says."""
    refused = Counter((what.worker, what.step) for what in facts.told if what.outcome == "failed")
    answers = {(what.worker, what.step, what.epoch, what.outcome) for what in facts.told}
    taken = {(what.worker, what.step) for what in facts.told if what.outcome == "ok"}
    for column in facts.columns:
        for index, grad in enumerate(column.grads):
            if grad not in facts.sent:
                yield column.breach(index, "was never sent")
            if (*grad, column.entries[index].epoch, "failed") in answers and grad not in taken:
                breach = column.breach(index, "was refused")
                sure = refused[grad] == facts.tries(grad)  # else the attempt without an answer may have been applied
                yield Breach(breach.shown and sure, breach.why)
        for worker, step in {entry[:2] for entry in column.log.entries} - column.counts.keys():
            yield Breach(facts.finished and column.live, f"{column}: half of gradient {step} of worker:{worker}")
    if facts.claims.delivery != "at-least-once":
        yield from _again(facts, lambda _: 1)
    if facts.claims.delivery != "at-most-once":
        yield from _lost(facts, whole=True)
        yield from _never_done(facts)


def _duplicates(facts: Facts) -> Breaches:
    """R2: a gradient that was sent n times is applied up to n times at-least-once, else once."""
    yield from _again(facts, facts.tries if facts.claims.delivery == "at-least-once" else lambda _: 1)


def _never_done(facts: Facts) -> Breaches:
    """A piece of the work that the run ended without; shown if a worker has ended that could have done it."""
    numbers = set().union(*facts.pieces.values())
    took = Counter(worker for worker, _ in facts.sent)
    idle = any(took[worker] < facts.schedule.steps for worker in facts.cluster.finished)
    for column in facts.live if facts.finished and numbers else ():
        done = set().union(*(facts.pieces.get(grad, ()) for grad in column.counts))
        for piece in sorted({*facts.schedule.work} - done):
            yield Breach(idle, f"{column}: lacks piece {piece} of the work")


def _done_again(facts: Facts) -> Breaches:
    """Two gradients of one piece were applied; not of those that may be of another piece."""
    for column in facts.columns:
        had: dict[int, Grad] = {}
        for index, grad in enumerate(column.grads):
            pieces = facts.pieces.get(grad, ())
            for piece in pieces if len(pieces) == 1 else ():
                if had.setdefault(piece, grad) != grad:
                    yield column.breach(index, f"is of piece {piece} of the work, as {had[piece]} is")


def _again(facts: Facts, allowed: Callable[[Grad], int]) -> Breaches:
    if facts.claims.delivery == "exactly-once":
        yield from _done_again(facts)
    for column in facts.columns:
        for index, grad in enumerate(column.grads):
            if column.grads[:index].count(grad) >= max(1, allowed(grad)):
                yield column.breach(index, "was applied again")
