"""R5: which samples are used in an epoch, as psconform dealt them out or as the trainer draws them itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from ..history.model import FAILED, OK, History
from ..models import Batches, Ids
from ..probe import SAMPLES
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from .path import training_of
from .registry import at_most, check
from .witness import listed

ALIKE = 8
"""Samples in the same order by which an epoch is known again; by chance that happens in none."""
NAMED = 5
"""Samples of one kind that a line names."""

Used = dict[tuple[int, int], Ids]
"""Samples by worker and step."""


@check("R5", "samples", dimension="sampling", weakest=("with-replacement",), needs=(SAMPLES,), reads=1)
def samples_once(history: History) -> Verdict:
    """R5: in an epoch each sample is used as often as declared, over all workers.

    exactly-once: once. padded: so many are used again that all workers have equally many (torch's
    ``DistributedSampler``). drop-last: none is used twice, and what is left over is not used. with-replacement: nothing
    is promised.

    Judged on the ids that workers record with their gradients, but for those of gradients that were refused. Of the
    samples that psconform deals out (``probe.samples``) each worker must take those that it is dealt. A trainer that
    draws samples itself has an epoch for every n samples of a worker, where n is its share of all, and no two workers
    take the same one in it; shares may be equal, or what workers take until the first sample is used again. Where the
    samples of refused gradients are used again, they are of no epoch. Two epochs of a worker have different orders,
    unless samples are not shuffled at all: a sampler whose ``set_epoch`` is not called repeats itself.

    Assumes: ``probe.gradients``, which records the samples, for each gradient.
    """
    data, batches = history.data, training_of(history).batches
    if data is None or batches is None:
        return not_judged("needs samples")
    unrecorded = [
        f"{worker}, step {step}"
        for worker in history.workers
        for step in worker.pushes.step.tolist()
        if (worker.index, step) not in history.samples
    ]
    if unrecorded:
        return unknown(f"no samples recorded for {len(unrecorded)} gradients: {unrecorded[0]}")
    used = {grad: np.array(ids, np.int64) for grad, ids in sorted(history.samples.items())}
    outside = sorted({int(i) for ids in used.values() for i in ids[ids >= batches.samples]})
    if outside:
        return violated(f"sample {i} is none of the {batches.samples}" for i in outside)
    dealt = sum(np.array_equal(ids, batches.of(*grad)[1]) for grad, ids in used.items())
    if 2 * dealt >= len(used) and (not history.dynamic or dealt == len(used)):
        lines = list(at_most(_not_as_dealt(history, batches, used)))
        epochs = -(-history.steps // batches.steps_per_epoch)
        return violated(lines) if lines else valid(f"{counted(epochs, 'epoch')} of {batches.samples} samples")
    return _drawn(history, batches, used)


def _drawn(history: History, batches: Batches, used: Used) -> Verdict:
    """The verdict on samples that the trainer draws itself."""
    if history.resampled:
        worker, step = min(history.resampled)
        return unknown(f"the gradient of worker:{worker}, step {step}, was sent with other samples each time")
    accepted = {grad: ids for grad, ids in used.items() if history.outcomes[grad] != FAILED}
    drawn = [used] if len(accepted) == len(used) else [used, accepted]  # what was refused is used again, or it is not
    tried = [(each, kind) for each in drawn for kind in _kinds(history, batches, each)]
    wrong = [list(at_most(_own(history, batches, each, kind))) for each, kind in tried]
    lines = min(wrong, key=len)
    fitting = [pair for pair, found in zip(tried, wrong, strict=True) if len(found) == len(lines)]
    lines += next(filter(None, (list(at_most(_same_order(*pair))) for pair in fitting)), [])
    if (
        history.claims.delivery != "at-least-once"
        and not history.rollbacks
        and (taken := list(at_most(_taken_again(history))))
    ):
        return violated(taken)
    if lines and history.dynamic:
        return unknown("work is dealt out as workers ask for it, so none has a share of an epoch")
    return violated(lines) if lines else valid(f"drawn by the trainer from {batches.samples}")


def _taken_again(history: History) -> Iterator[str]:
    """Pieces of work of which several gradients were accepted."""
    by: dict[int, list[tuple[int, int]]] = {}
    for grad, pieces in sorted(history.work.items()):
        if len(pieces) == 1 and history.outcomes[grad] == OK:
            by.setdefault(pieces[0], []).append(grad)
    for piece, grads in sorted(by.items()):
        if len(grads) > 1:
            whose = listed(history.gradient(*grad) for grad in grads)
            yield f"piece {piece} of the work was accepted {counted(len(grads), 'time')}: {whose}"


def _not_as_dealt(history: History, batches: Batches, used: Used) -> Iterator[str]:
    """Of samples that psconform dealt out: those that were used again, or never."""
    for epoch in range(-(-history.steps // batches.steps_per_epoch)):
        first, end = epoch * batches.steps_per_epoch, min((epoch + 1) * batches.steps_per_epoch, history.steps)
        mine = {grad: ids for grad, ids in used.items() if first <= grad[1] < end and history.outcomes[grad] != FAILED}
        ids = np.concatenate([np.zeros(0, np.int64), *mine.values()])
        times = np.bincount(ids, minlength=batches.samples)
        for sample in np.flatnonzero(times > 1).tolist():
            where = ", ".join(f"worker:{w} step {s}" for (w, s), ids in mine.items() for i in ids if i == sample)
            yield f"epoch {epoch}: sample {sample} was used {times[sample]} times: {where}"
        for (worker, step), ids in mine.items():
            for sample in np.setdiff1d(batches.of(worker, step)[1], ids).tolist():
                if not times[sample]:
                    yield f"epoch {epoch}: sample {sample}, dealt to worker:{worker}, step {step}, was never used"


@dataclass(frozen=True)
class _Epoch:
    """How many samples each worker has in an epoch; how many more than there are, and whether some may be left out."""

    share: Sequence[int]
    spare: int = 0
    drops: bool = False


def _kinds(history: History, batches: Batches, used: Used) -> list[_Epoch]:
    """What an epoch may be, as it is declared: samplers and loaders pad and drop each in its own way."""
    workers, samples = history.layout.workers, batches.samples
    size = max(1, *map(len, used.values()))
    least, most = samples // workers, -(-samples // workers)
    streams = _streams(workers, used)
    own = [np.unique(ids) for ids in streams]
    apart = sum(map(len, own)) == len(np.unique(np.concatenate(own)))  # each has a part of its own
    if history.claims.sampling == "padded":
        even = -(-samples // (workers * size)) * size
        return [_Epoch([share] * workers, share * workers - samples) for share in (most, even)]
    if history.claims.sampling == "drop-last":
        shares = [[share] * workers for share in (least, least // size * size)]
        shares += [[len(ids) // size * size for ids in own]] if apart else []
        return [_Epoch([max(1, one) for one in share], drops=True) for share in shares]
    found = [_Epoch([len(range(worker, samples, workers)) for worker in range(workers)])]
    found.append(_Epoch([least] * (workers - 1) + [samples - least * (workers - 1)]))  # the last has the rest
    if len(np.unique(together := np.concatenate(streams))) == len(together):
        found.append(_Epoch([len(ids) + 1 for ids in streams]))  # none has ended
    if apart:
        found.append(_Epoch([_first_again(ids) for ids in streams]))
    splits = (_split(workers, samples, used, within=within) for within in (False, True))
    return found + [_Epoch(share) for share in splits if share]


def _streams(workers: int, used: Used) -> list[Ids]:
    """All samples that each worker uses, in the order of its steps."""
    none = np.zeros(0, np.int64)
    return [np.concatenate([none, *(ids for (w, _), ids in used.items() if w == worker)]) for worker in range(workers)]


def _first_again(ids: Ids) -> int:
    """After how many samples a worker uses one again; one more than there are, if it uses none again."""
    first = np.unique(ids, return_index=True)[1]
    again = np.setdiff1d(np.arange(len(ids)), first)
    return int(again[0]) if len(again) else len(ids) + 1


def _split(workers: int, samples: int, used: Used, *, within: bool) -> list[int] | None:
    """How many samples each worker has in the first epoch, however they are split; None if none has all of them once.

    For a worker it ends before a batch with a sample that some worker has used before; or ``within`` that batch.
    """
    share, begins, seen = [0] * workers, set[int](), np.zeros(samples, np.bool_)
    for (worker, _), ids in sorted(used.items(), key=lambda item: item[0][::-1]):
        if worker in begins:
            continue
        again = np.flatnonzero(seen[ids])
        number = len(ids) if not len(again) else int(again[0]) if within else 0
        seen[ids[:number]] = True
        share[worker] += number
        if number < len(ids):
            begins.add(worker)
    return share if seen.all() and sum(share) == samples and all(share) else None


def _own(history: History, batches: Batches, used: Used, kind: _Epoch) -> Iterator[str]:
    """What is wrong with samples that the trainer draws itself, if an epoch is of this kind."""
    workers, share = range(history.layout.workers), kind.share
    steps = [sorted(step for worker, step in used if worker == w) for w in workers]
    ids = _streams(len(workers), used)
    refused = [
        np.repeat([history.outcomes[w, step] == FAILED for step in steps[w]], [len(used[w, step]) for step in steps[w]])
        for w in workers
    ]
    epochs = max((-(-len(ids[w]) // share[w]) for w in workers), default=0)
    parts = [[slice(epoch * share[w], (epoch + 1) * share[w]) for w in workers] for epoch in range(epochs)]
    for epoch, part in enumerate(parts):
        taken = [ids[w][part[w]] for w in workers]
        counted_in = [ids[w][part[w]][~refused[w][part[w]].astype(bool)] for w in workers]
        whole = all(len(taken[w]) == share[w] for w in workers)
        complete = np.concatenate(taken) if whole and not kind.drops else None
        yield from _in_epoch(batches, f"epoch {epoch}", counted_in, complete, spare=kind.spare)


def _same_order(used: Used, kind: _Epoch) -> Iterator[str]:
    """Epochs of a worker in the order of the one before."""
    for worker, share in enumerate(kind.share):
        ids = np.concatenate([np.zeros(0, np.int64), *(each for (w, _), each in used.items() if w == worker)])
        parts = [ids[at : at + share] for at in range(0, len(ids), share)]
        for epoch, (one, two) in enumerate(pairwise(parts)):
            number = min(len(one), len(two))
            same = number >= ALIKE and np.array_equal(one[:number], two[:number])
            down = int((np.diff(one[:number]) < 0).sum())
            if same and 1 < down < number - 2:  # else samples are not shuffled at all, up to where they wrap around
                again = f"takes its samples in the order of epoch {epoch} again, {number} of them"
                yield f"epoch {epoch + 1}: worker:{worker} {again}: is the sampler told of a new epoch?"


def _in_epoch(batches: Batches, name: str, taken: Sequence[Ids], whole: Ids | None, *, spare: int) -> Iterator[str]:
    """What is wrong in an epoch in which workers use these samples.

    ``whole``: all of them, also refused ones, if none may be missing; so many as ``spare`` may be used again.
    """
    workers = len(taken)
    times = np.bincount(np.concatenate(taken), minlength=batches.samples)
    if int(np.maximum(times - 1, 0).sum()) > spare:
        for w, ids in enumerate(taken):
            if len(again := np.flatnonzero(np.bincount(ids, minlength=batches.samples) > 1)):
                yield f"{name}: worker:{w} uses {_named(again)} more than once"
        for one, two in combinations(range(workers), 2):
            if len(both := np.intersect1d(taken[one], taken[two])):
                yield f"{name}: worker:{one} and worker:{two} both use {_named(both)}"
    if whole is not None:
        never = np.setdiff1d(np.arange(batches.samples), whole)
        if len(never):
            yield f"{name}: {_named(never)} {'is' if len(never) == 1 else 'are'} never used"


def _named(samples: Ids) -> str:
    """``samples 3, 5 and 7 more``."""
    names = [str(i) for i in samples[:NAMED].tolist()]
    more = [f"{len(samples) - NAMED} more"] if len(samples) > NAMED else []
    return f"sample{'s' * (len(samples) > 1)} {listed([*names, *more])}"
