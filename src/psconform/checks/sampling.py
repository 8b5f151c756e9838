"""R5: which samples are used in an epoch, as psconform dealt them out or as the trainer draws them itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from ..history.model import FAILED, History
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
    take the same one in it. Two epochs of a worker have different orders, unless samples are not shuffled at all:
    a sampler whose ``set_epoch`` is not called repeats itself.

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
    if 2 * dealt >= len(used):
        lines = list(at_most(_not_as_dealt(history, batches, used)))
        epochs = -(-history.steps // batches.steps_per_epoch)
        return violated(lines) if lines else valid(f"{counted(epochs, 'epoch')} of {batches.samples} samples")
    tried = [list(at_most(_own(history, batches, used, share))) for share in _shares(history, batches, used)]
    lines = min(tried, key=len)
    return violated(lines) if lines else valid(f"drawn by the trainer from {batches.samples}")


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


def _shares(history: History, batches: Batches, used: Used) -> list[list[int]]:
    """How many samples each worker has in an epoch, as far as it can be: of what is left over, some drop batches."""
    workers, samples = history.layout.workers, batches.samples
    if history.claims.sampling == "exactly-once":
        return [[len(range(worker, samples, workers)) for worker in range(workers)]]
    if history.claims.sampling == "padded":
        return [[-(-samples // workers)] * workers]
    least = samples // workers
    size = max(1, *map(len, used.values()))
    return [[least] * workers, [max(1, least // size * size)] * workers]


def _own(history: History, batches: Batches, used: Used, share: Sequence[int]) -> Iterator[str]:
    """What is wrong with samples that the trainer draws itself, if an epoch of each worker has so many."""
    workers = range(history.layout.workers)
    steps = [sorted(step for worker, step in used if worker == w) for w in workers]
    ids = [np.concatenate([np.zeros(0, np.int64), *(used[w, step] for step in steps[w])]) for w in workers]
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
        yield from _in_epoch(history, batches, f"epoch {epoch}", counted_in, np.concatenate(taken) if whole else None)
    for (epoch, before), (_, after) in pairwise(enumerate(parts)):
        for w in workers:
            one, two = ids[w][before[w]], ids[w][after[w]]
            number = min(len(one), len(two))
            same = number >= ALIKE and np.array_equal(one[:number], two[:number])
            if same and (np.diff(one[:number]) < 0).any():
                again = f"takes its samples in the order of epoch {epoch} again"
                yield f"epoch {epoch + 1}: worker:{w} {again}, {number} of them: is the sampler told of a new epoch?"


def _in_epoch(
    history: History, batches: Batches, name: str, taken: Sequence[Ids], whole: Ids | None
) -> Iterator[str]:
    """What is wrong in an epoch in which workers use these samples; all of them, also refused ones, if it is whole."""
    workers = history.layout.workers
    spare = -batches.samples % workers if history.claims.sampling == "padded" else 0
    times = np.bincount(np.concatenate(taken), minlength=batches.samples)
    if int(np.maximum(times - 1, 0).sum()) > spare:
        for w, ids in enumerate(taken):
            if len(again := np.flatnonzero(np.bincount(ids, minlength=batches.samples) > 1)):
                yield f"{name}: worker:{w} uses {_named(again)} more than once"
        for one, two in combinations(range(workers), 2):
            if len(both := np.intersect1d(taken[one], taken[two])):
                yield f"{name}: worker:{one} and worker:{two} both use {_named(both)}"
    if whole is not None and history.claims.sampling != "drop-last":
        never = np.setdiff1d(np.arange(batches.samples), whole)
        if len(never):
            yield f"{name}: {_named(never)} {'is' if len(never) == 1 else 'are'} never used"


def _named(samples: Ids) -> str:
    """``samples 3, 5 and 7 more``."""
    names = [str(i) for i in samples[:NAMED].tolist()]
    more = [f"{len(samples) - NAMED} more"] if len(samples) > NAMED else []
    return f"sample{'s' * (len(samples) > 1)} {listed([*names, *more])}"
