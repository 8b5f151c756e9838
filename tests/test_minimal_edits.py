"""One edit of the record of a valid run flips the verdicts that GUARANTEES.md names, and no other.

Runs are simulated, what they recorded is taken apart, one thing in it is changed, and the product reads and judges what
was written again. Each edit is a row of a table that is written from the definitions, without a look at the checks:
what it must violate, and what it may. What a run does not claim is left out of both.
"""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise, product
from random import Random

import pytest

from psconform.errors import Malformed
from psconform.probe import Ledger
from psconform.runner.verdicts import judge_folder
from psconform.simulation.record import simulate
from psconform.simulation.schedule import MODES, draw

from .taken_apart import Record
from .tiers import first

VALID, UNDECIDED, EITHER = "valid", "undecided", "either"
A_RUN = 4
"""Edits of each run."""
EDITS = {}


@dataclass(frozen=True)
class Edit:
    """A row. ``at``: where in a record it can be made; ``change`` makes it, and may return what else it must violate.

    ``A|B``: at least one of these. ``A?``: unknown or not judged will do. ``rest``: what all others are, but L0 to L3;
    undecided where the record is not trusted any more. ``refused``: it is not even read.
    """

    at: object
    change: object
    must: str = ""
    may: str = ""
    rest: str = VALID
    refused: bool = False


def row(name, at, change, must="", may="", **more):
    EDITS[name] = Edit(at, change, must, may, **more)


# What all reads show of one gradient, or a single read.


def everywhere(run, variable, grad, head, tail):
    for read in run.of("read"):
        run.times(read, variable, grad, head, tail)


def lost(run, random, variable, grad):
    everywhere(run, variable, grad, 0, 0)
    return "S3" * (len(run.shards) > 1 and run.delivery != "at-most-once")


def doubled(run, random, variable, grad):
    everywhere(run, variable, grad, 2, 2)
    again = {"exactly-once": "R1 R2 A1", "at-least-once": "R2 A1", "at-most-once": "R1"}[run.delivery]
    full = run.finals[0]["values_"][variable, run.ends(grad)] == -2 * run.unit
    return again * bool(full.all() and run.sent[grad] == 1)  # else it may be allowed, or a weight


def half(run, random, variable, grad):
    everywhere(run, variable, grad, *random.choice([(1, 0), (0, 1)]))


def not_in_the_row(run, random, variable, grad):
    """That all gradients share."""
    ledger = Ledger(workers=run.workers, steps=run.steps)
    for read in run.of("read"):
        values, share = read["values_"][variable], ledger.in_shared(*grad)
        weight = -float(values[run.ends(grad)][0]) / run.unit
        if weight:
            due = -next(ledger.sums(values)) / run.unit
            read["shared"] = [[due - weight * share, due] if v == variable else None for v in range(len(run.shards))]
    # in async one may be lost among the rounding of all, if no read was made in time; so may a small one
    return "S5" * bool(run.sync and abs(weight * share) > 0.4)


def torn(run, random, read, variable, grad):
    run.times(read, variable, grad, *random.choice([(1, 0), (0, 1)]))


def hidden(run, random, read, variable, grad):
    run.times(read, variable, grad, 0, 0)
    others = {shard for v, shard in enumerate(run.shards) if v != variable and run.shows(read, v, grad)}
    mixed = others if run.sync else others & {run.shards[variable]}
    return "S1 S2" + " S4" * bool(others) + " A6" * bool(mixed)


def shown_early(run, random, read, variable, grad):
    read["values_"][variable, run.ends(grad)] = run.finals[0]["values_"][variable, run.ends(grad)]
    return "S4 A6" * (len(run.shards) > 1)


def other_nonce(run, random, read, variable):
    read["values_"][variable, run.nonce] += 1


def no_nonce(run, random, read, variable):
    read["values_"][variable, run.nonce] = 0


def seen_before(run):
    return [(two, *cell) for one, two in run.pairs() for _, *cell in run.places([one])]


def not_yet_sent(run):
    places = [(r, v, grad) for r, (v, grad) in product(run.reads, run.lasting) if grad == (r["worker_"], r["step"])]
    return [place for place in places if run.sync and not run.shows(*place)]


def nonces(run):
    return product(run.of("read"), range(len(run.shards)))


HIDDEN = "S4 A2? A3 A4? A6 R3 R4 M1"
TORN = "S1 S2 A2? A3 A4? A7 R4 R7 M1"
# Not here, for the checks do not see them yet, against the definitions: other weights, and gradients shown before they
# are sent, in async (A6, R1).
row("lost", lambda run: run.lasting * (run.delivery != "at-most-once"), lost, "R1 S1 S2 A1 A5", "A2? A3 A4? A7 R4 M1")
row("lost_at_most_once", lambda run: run.lasting * (run.delivery == "at-most-once"), lost, "", "A2? A7")
row("doubled", lambda run: run.lasting, doubled, "S1 S2 A4?", "R1 R2 S5 A1 A2? A5")  # S5: it is alone in a round
row("as_often_as_sent", lambda run: run.sent_twice * (run.delivery == "at-least-once"), doubled, "", "A2?")
row("not_in_the_row", lambda run: run.lasting, not_in_the_row, "", "S5 A1")
row("half", lambda run: run.lasting, half, "R1 A1", TORN + " S3 S5 A5 A6")
row("torn", lambda run: run.places(run.reads), torn, "A6", TORN + " S4 R3")
row("torn_in_the_end", lambda run: run.places(run.finals), torn, "A6", TORN + " A1")
row(
    "other_weight", lambda run: run.places(run.reads) * run.sync, lambda run, _, *p: run.times(*p, 1.5, 1.5), "S5", "S2"
)
row("hidden_own", lambda run: run.own_places(run.reads), hidden, "A7", HIDDEN)
row("hidden_seen", seen_before, hidden, "A7", HIDDEN)
row("hidden_in_the_end", lambda run: run.own_places(run.finals), hidden, "A7", HIDDEN, rest=EITHER)  # they disagree
row("shown_early", not_yet_sent, shown_early, "S1 S2", "S4 A6 A7 R1 R3")
row("other_nonce", nonces, other_nonce, "I1", "I2 A6 A7 R3 R4 R7")
row("no_nonce", nonces, no_nonce, "I2", "I1 A6 A7 R3 R4 R7")


# Events that are lost.


def drop(run, random, event, *others):
    run.drop(event, *others)


def reads_of_several(run):
    """Not the only one of a worker."""
    made = Counter(read["worker_"] for read in run.reads)
    return [(read,) for read in run.reads if made[read["worker_"]] > 1]


def first_reads(run):
    """Of a worker in an epoch, after a rollback."""
    return zip({(read["worker_"], read["epoch"]): read for read in reversed(run.reads) if read["epoch"]}.values())


def pushed_and_answered(run):
    """In sync, not in the last step."""
    grads = [grad for v, grad in run.lasting if not v and grad[1] < run.steps - run.sync]
    return [[e for e in run.of("push", "ack") if (e["worker_"], e["step"]) == grad] for grad in grads]


def resumed(run):
    done = {event["file_"] for event in run.of("done")}
    return [(event,) for event in run.of("resume") if event["file_"] not in done]


def drop_restore(run, random, restore):
    mine = [[read for read in run.of("read") if read["worker_"] == worker] for worker in range(run.workers)]
    pairs = [pair for reads in mine for pair in pairwise(reads) if pair[1]["epoch"] == restore["epoch"]]
    run.drop(restore)
    return "R3?" * any((two["values_"] == 0)[one["values_"] != 0].any() for one, two in pairs)


NOT_KNOWN = "A1? A2? R1? R2? S2?"
"""What became of a gradient is not: it may count, or not."""
ELSEWHERE = "S1? S2 A2? A3? A4 M1"
"""A gradient was computed at an older read, as far as is recorded."""
# Not here: a push of the last step of sync (S4 finds a version too many, though versions went up by one).
row("drop_ack", lambda run: zip(run.once.values()), drop, "", NOT_KNOWN)
row("drop_unknown", lambda run: [(ack,) for ack in run.of("ack") if ack["outcome"] == "unknown"], drop)
row("drop_push", lambda run: [pair[:1] for pair in pushed_and_answered(run)], drop, refused=True)
row("drop_push_and_ack", pushed_and_answered, drop, "R1", "L0 L1 S1 A1 A5", rest=EITHER)  # it lacks a step, then
row("drop_read", reads_of_several, drop, "", ELSEWHERE)
row("drop_first_read", first_reads, drop, "", ELSEWHERE)
row("drop_final_read", lambda run: zip(run.finals), drop, rest=UNDECIDED)
row("drop_end", lambda run: zip(run.of("end")), drop, rest=UNDECIDED)
row("drop_done", lambda run: zip(run.of("done")), drop)  # those that read in the end say so, too
row("drop_resume", resumed, drop)
row("drop_restored", lambda run: zip(run.restored()[0]), drop, "R3?", "R4? R6? R7?")
row("drop_other_checkpoint", lambda run: zip(run.restored()[1]), drop)
row("drop_restore", lambda run: zip(run.of("restore")), drop_restore, "", "R3? R4? R6? R7?")


# Events that are doubled, or in another order, or at another time.


def again(run, random, one, two, events, at):
    events.insert(at, copy.deepcopy(one))


def swap(run, random, one, two, events, at):
    one["mono_ns"], two["mono_ns"] = two["mono_ns"], one["mono_ns"]
    events[at : at + 2] = two, one


def swap_times(run, random, one, two):
    one["mono_ns"], two["mono_ns"] = two["mono_ns"], one["mono_ns"]


def shift(run, random, events, low, high):
    now = random.randrange(low + 1, high)
    for event in events:
        event["mono_ns"] = now


def of_kinds(*kinds):
    """Events of these kinds, with the next one."""
    return lambda run: [(e[n], e[n + 1], e, n) for e, n in run.inner() if e[n]["kind"] in kinds]


def in_turn(one, other):
    """An event and the next one, of these kinds, but for a final read."""
    return lambda run: [pair for pair in of_kinds(one)(run) if pair[1]["kind"] == other and not pair[1].get("final")]


def alike(run):
    """What two workers did one after the other, both the same."""
    pairs = pairwise(sorted((event for events in run.lives for event in events), key=lambda event: event["mono_ns"]))
    pairs = [(one, two) for one, two in pairs if one["kind"] == two["kind"] in ("push", "ack", "read")]
    return [(one, two) for one, two in pairs if one["worker_"] != two["worker_"]]


def alone(run):
    """Events, and the times of those before and after them in the whole run."""
    times = sorted([*run.others, *(event["mono_ns"] for events in run.lives for event in events)])
    near = {at: (low, high) for low, at, high in zip(times, times[1:], times[2:], strict=False) if low < at < high}
    found = [([events[at]], *near.get(events[at]["mono_ns"], (0, 0))) for events, at in run.inner()]
    return [(event, low, high) for event, low, high in found if high - low > 2]


def read_by_others(run):
    """Pushes, and times between a read of another worker that shows them and their answer; not where clocks count."""
    reads = [(r, grad) for r, v, grad in run.places(run.of("read")) if not v and grad[0] != r["worker_"]]
    pushes = [(push, answer["mono_ns"]) for push, answer, *_ in of_kinds("push")(run) if run.bound is None]
    pairs = [(*p, r["mono_ns"]) for p, (r, grad) in product(pushes, reads) if (p[0]["worker_"], p[0]["step"]) == grad]
    return [([push], low, high) for push, high, low in pairs if push["mono_ns"] < low < high - 1]


def reads_of_others(run):
    """Reads with the answer before them, and times before the push of a gradient that they show."""
    sent, found = {(push["worker_"], push["step"]): push["mono_ns"] for push in run.of("push")}, []
    for read, _, events, at in of_kinds("read")(run):
        if not read.get("final") and run.bound is None:
            begin = next((n for n in range(at - 1, 0, -1) if events[n]["kind"] != "ack"), 0)
            low, causes = events[begin]["mono_ns"], [sent[grad] for _, _, grad in run.places([read])]
            found += [(events[begin + 1 : at + 1], low, high) for high in causes if low + 1 < high < read["mono_ns"]]
    return found


# Not here: with a bound on staleness, times at which a worker was further ahead than that (A3 looks at no clock).
row("again_sent_or_answered", of_kinds("push", "ack"), again, refused=True)
row("again_read_or_said", of_kinds("read", "checkpoint", "resume", "restore", "done"), again)
row("again_initialised", of_kinds("init"), again, "I1")
row("swap_push_ack", in_turn("push", "ack"), swap, refused=True)
row("swap_read_push", in_turn("read", "push"), swap, "", ELSEWHERE)
row("swap_ack_read", in_turn("ack", "read"), swap)
row("swap_of_two_workers", alike, swap_times)
row("nudged", alone, shift)
row("push_after_effect", read_by_others, shift, "S6")
row("read_before_cause", reads_of_others, shift, "S6")


# What is said of gradients, versions and checkpoints.


def said(key, value):
    def change(run, random, event, *_):
        event[key] = value

    return change


def versioned(run):
    """Not with a full barrier."""
    acks = [ack for ack in run.once.values() if ack.get("versions") and (run.quorum or not run.sync)]
    return [(ack, ps) for ack in acks for ps in range(len(ack["versions"]))]


def ack_version(run, random, ack, ps):
    events = next(events for events in run.lives if events[0]["file_"] == ack["file_"])
    read = [event for event in events if event["kind"] == "read" and event["seq"] < ack["seq"]][-1]
    tau, by = ack["versions"][ps] - 1 - read["versions"][ps], random.choice((1, -1))
    ack["versions"][ps] += by
    straight = len(run.once) == len(run.of("push")) and not run.of("resume")
    # A4? if a read contradicts the acknowledgement (A7), tau is not known
    return f"{'A1' * straight} {'A2' * (tau + by < 0)} {'A4?' * (max(1, tau) != max(1, tau + by))}"


def read_version(run, random, before, read):
    ps = random.randrange(len(read["versions"]))
    read["versions"][ps] += random.choice((1, -1))
    mixed = run.sync and (not run.quorum or len(read["versions"]) > 1)
    return f"{'S4' * mixed} {'A7' * (read['versions'][ps] < before['versions'][ps])}"


def read_since(run):
    """Checkpoints that are restored, with a worker that has read since. Of a skipped round they hold nothing."""
    if any(ack["outcome"] == "failed" for ack in run.of("ack")):
        return []
    pairs = product(run.restored()[0], run.of("restore"))
    pairs = [(kept, restore["epoch"]) for kept, restore in pairs if kept["name"] == restore["name"]]
    return [(kept, read["worker_"]) for kept, epoch in pairs for read in run.reads if read["epoch"] == epoch]


def other_clock(run, random, kept, worker=0):
    clock = random.choice(kept["clock"])
    clock[worker] += random.choice((1, -1)) if clock[worker] else 1


def restored_older(run, random, restore, kept):
    restore["name"] = kept["name"]


def older(run):
    pairs = product(run.of("restore"), run.of("checkpoint"))
    return [(restore, kept) for restore, kept in pairs if int(kept["name"][11:]) < int(restore["name"][11:])]


def refused(run):
    """Acknowledgements of gradients that were refused; of a queue none, for "ok" may mean that its piece is done."""
    return [] if any("work" in push for push in run.of("push")) else zip(run.refused.values())


# Not here: versions in acknowledgements with a full barrier (S1, S4 do not look at them).
row(
    "ok_to_failed",  # of a killed worker another answer may be missing
    lambda run: [(run.once[g],) for _, g in run.lasting if run.once[g]["file_"] in {e["file_"] for e in run.of("end")}],
    said("outcome", "failed"),
    "R1 S2",
    "S1 S3 S5 A1 A2? A5",
)
row("ok_to_unknown", lambda run: zip(run.once.values()), said("outcome", "unknown"), "", NOT_KNOWN)
row("failed_to_ok", refused, said("outcome", "ok"), "R1", "S1 S2 S3 S4")
row("ack_version", versioned, ack_version, "S2", "S4 A1 A2 A3 A4 A7")
row(
    "read_version",
    lambda run: [pair for pair in run.pairs() if pair[1].get("versions")],
    read_version,
    "S2",
    "S1 S4 A1 A2 A3 A4 A6 A7",
)
row("restored_clock", read_since, other_clock, "R3|R4|R6|R7", "R3 R4 R6 R7 M1")
row("other_clock", lambda run: zip(run.restored()[1]), other_clock)
row("restored_older", older, restored_older, "R3", "R4 R6 R7 M1")
row("restored_unknown", lambda run: zip(run.of("restore")), said("name", "of-old"), "R3?", "R4? R6? R7?")


# Their verdicts.


def recorded(seed, folder):
    """What a run of this seed recorded, and its verdicts."""
    schedule = draw(seed, mode=MODES[seed % len(MODES)], faults=seed % 3 > 0)
    if schedule.weights:  # edits count in gradients that count alike; test_weighted.py changes weights
        schedule = replace(schedule, weights=(), reduction="mean")
    simulate(schedule, folder)
    return Record(folder), {verdict.guarantee: verdict.status for verdict in judge_folder(folder).verdicts}


def misjudged(seed, name, run, before, folder):
    """What is wrong with the verdicts after this edit; None: it cannot be made in this run."""
    row, run, random = EDITS[name], copy.deepcopy(run), Random(f"{name} {seed}")
    if not (sites := list(row.at(run))):
        return None
    must = f"{row.must} {row.change(run, random, *random.choice(sites)) or ''}".split()
    run.write(folder)
    try:
        after = judge_folder(folder).verdicts
    except Malformed as refused:
        return "" if row.refused else f"refused: {refused}"
    if row.refused:
        return "not refused"
    now = {verdict.guarantee: verdict.status for verdict in after if before[verdict.guarantee] == "valid"}
    named = {each.strip("?") for names in must for each in names.split("|")} | {*row.may.split()}
    wrong = []
    for guarantee, status in now.items():
        if status == "violated":
            fits = guarantee in named
        else:
            undecided = guarantee in named or f"{guarantee}?" in named or guarantee[0] == "L" or row.rest == EITHER
            fits = undecided or (status == "valid") == (row.rest == VALID)
        wrong += [] if fits else [f"{guarantee} is {status}"]
    for names in must:
        due = {each: now[each.strip("?")] for each in names.split("|") if each.strip("?") in now}
        if due and not any(status == "violated" or ("?" in each and status != "valid") for each, status in due.items()):
            wrong.append(f"of {names} none is violated")
    return ", ".join(wrong)


def judge_edits(seeds, folder):
    """Make in each run the edits that were made least so far; what is misjudged."""
    made, wrong = Counter(), []
    for seed in seeds:
        run, before = recorded(seed, folder / "run")
        left = 0 if {"violated", "unknown"} & {*before.values()} else A_RUN
        for name in sorted(EDITS, key=made.__getitem__):
            if left and (what := misjudged(seed, name, run, before, folder / "run")) is not None:
                made[name] += 1
                left -= 1
                wrong += [f"seed {seed}, {name}: {what}"] if what else []
        shutil.rmtree(folder / "run")
    return made, wrong


@pytest.mark.parametrize("begin", first(range(0, 75, 15), 2))
def test_an_edit_flips_what_it_should(tmp_path, begin):
    _, wrong = judge_edits(range(begin, begin + 15), tmp_path)
    assert not wrong


@pytest.mark.nightly
@pytest.mark.parametrize("begin", range(1000, 1750, 150))
def test_each_of_many_edits_flips_what_it_should(tmp_path, begin):
    _, wrong = judge_edits(range(begin, begin + 150), tmp_path)
    assert not wrong


def test_each_edit_can_be_made(tmp_path):
    left = {*EDITS}
    for seed in range(1000, 1750):
        run, _ = recorded(seed, tmp_path / "run")
        left -= {name for name in left if list(EDITS[name].at(run))}
        shutil.rmtree(tmp_path / "run")
        if not left:
            break
    assert not left


def test_what_is_taken_apart_and_not_changed_is_judged_alike(tmp_path):
    for seed in range(10):
        run, before = recorded(seed, tmp_path / str(seed))
        run.write(tmp_path / str(seed))
        assert before == {verdict.guarantee: verdict.status for verdict in judge_folder(tmp_path / str(seed)).verdicts}
