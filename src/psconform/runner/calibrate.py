"""Calibration: what one gradient, applied once, leaves in a slot of a target that we know nothing about.

One worker trains three steps with gradients of 1, 4 and 16 times the unit; plain SGD leaves the same learning rate
times each of them. What does not is not a ledger, and is refused with the likely cause.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, PsconformError
from ..history.events import End, Push, Read, Update
from ..history.events import Slip as SlipEvent
from ..history.manifest import Manifest
from ..history.reader import EventFile, read_events
from ..history.reasons import Decided, NoEnd, NoProgress, TaskFailed
from ..history.slips import slips_of
from ..layout import Task
from ..probe import UNIT

SCALES = (1.0, 4.0, 16.0)
STEPS = len(SCALES)
RELATIVE = 1e-4
"""Relative difference up to which two learning rates count as equal."""


class NotLinear(BadInput):
    """The target's update is not plain SGD, so its parameters are no ledger."""


def finished(folder: Path, manifest: Manifest) -> bool:
    """Whether every task of a calibration run ended as declared, and every worker took the steps that it had to."""
    if any(isinstance(reason, TaskFailed | NoProgress | Decided | NoEnd) for reason in manifest.reasons):
        return False
    steps = [
        {event.step for event in file.events if isinstance(event, Push | Update)}
        for task in manifest.layout.worker_tasks
        if (file := _record(folder, manifest, task)) is not None
    ]
    free = manifest.dynamic_work or manifest.layout.quorum > 0  # a worker may take fewer
    return all(len(each) >= (0 if free else STEPS) for each in steps)


def _record(folder: Path, manifest: Manifest, task: Task) -> EventFile | None:
    path = folder / "events" / f"{task.slug}.jsonl"
    return read_events(path, run=manifest.run, name=str(task)) if path.exists() else None


def learning_rate(folder: Path, manifest: Manifest) -> float:
    """The effective learning rate of a finished calibration run.

    Raises:
        PsconformError: the run recorded no reads (the trainer failed, or does not use the probe).
        NotLinear: the update is not linear; names the likely cause.
    """
    file, workers = _record(folder, manifest, Task("worker", 0)), manifest.layout.workers
    try:
        reads = [
            _values(event, workers=workers)
            for event in (file.events if file else ())
            if isinstance(event, Read) and event.raw
        ]
    except ValueError as error:  # a client in another language may write anything
        raise PsconformError(f"calibration of target {manifest.target}: a raw read is no float32 ({error})") from None
    if not reads or (file is not None and not file.ended):
        slips = slips_of(Task("worker", 0), file.of(SlipEvent)) if file else []
        unread = (
            "the trainer recorded no read: does it call probe.read?"
            if file
            else "the trainer wrote no events: does it use the probe?"
        )
        why = "; ".join(map(str, (*manifest.reasons, *slips))) or unread
        raise BadInput(f"target {manifest.target}", f"its calibration run failed: {why}", hint=f"See {folder / 'logs'}")
    shares = _shares(folder, manifest)
    for read in (read for read in reads if read.shape[1:] == (2 * STEPS + 1,)):
        read[:, :STEPS] /= shares
        read[:, STEPS + 1 :] /= shares
    return rate_from(reads, target=manifest.target)


def _shares(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """What each gradient of the first worker makes of its update, float32[STEPS]."""
    if manifest.layout.update != "sync" or not manifest.claims.averages:
        return np.ones(STEPS, np.float32)
    files = [_record(folder, manifest, task) for task in manifest.layout.worker_tasks]
    weighs = np.ones((len(files), STEPS))
    for number, file in enumerate(files if manifest.claims.reduction == "weighted" else ()):
        pushed: list[Push | Update] = [*file.of(Push), *file.of(Update)] if file else []
        for event in (event for event in pushed if event.step < STEPS and event.weight):
            weighs[number, event.step] = event.weight
    return np.asarray(weighs[0] / weighs.sum(axis=0), np.float32)


def is_distinct(folder: Path, manifest: Manifest) -> bool:
    """Whether each variable got the gradient that ``probe.gradients`` had made for it."""
    files = [_record(folder, manifest, task) for task in manifest.layout.worker_tasks]
    return all(file is not None and any(end.each for end in file.of(End)) for file in files)


def rate_from(reads: list[NDArray[np.float32]], *, target: str) -> float:
    """Judge the reads, float32[V, slots] each, in order, the last one after the last step.

    Raises:
        NotLinear: with the likely cause.
    """

    def refuse(cause: str) -> NotLinear:
        return NotLinear(f"target {target}", f"is not plain SGD: {cause}", hint="Only linear updates make a ledger")

    if any(read.shape != reads[-1].shape for read in reads) or reads[-1].shape[1:] != (2 * STEPS + 1,):
        raise refuse("the parameters change shape between reads")
    if len(reads) > 1 and reads[0][:, STEPS - 1].any():  # read before the first step
        raise refuse("the parameters do not start at zero: initialise every variable with probe.initial()")
    last = reads[-1].astype(np.float64)
    if not np.isfinite(last).all():
        raise refuse("the parameters are not finite")
    heads, tails = last[:, :STEPS], last[:, STEPS + 1 :]
    if not heads.any() and not tails.any():
        raise refuse(
            "no gradient ever reached the parameters (does the trainer push what probe.gradients returns, and do reads "
            "show what was applied, not an older copy?)"
        )
    if not np.allclose(heads, tails, rtol=RELATIVE, atol=0):
        raise refuse("a gradient changed only a part of a variable")
    _still(reads, refuse)
    rates = -heads / (UNIT * np.array(SCALES))
    shown = rates[heads != 0]
    if (shown < 0).all():
        raise refuse("the parameters move along the gradient, not against it (gradient ascent?)")
    if np.allclose(shown, shown[0], rtol=RELATIVE, atol=0):
        return float(np.median(shown))
    if (rate := _but_for_one(rates)) is not None:
        return rate
    if all(np.allclose(row, row[0], rtol=RELATIVE, atol=0) for row in rates):
        raise refuse(f"variables have different learning rates: {np.round(rates[:, 0], 6).tolist()}")
    # a cap on gradients shows in the last two, or from the first on; a rate that falls with time leaves them growing
    capped = np.isclose(rates[:, 0], rates[:, 1], rtol=RELATIVE) | (-heads[:, 2] <= -heads[:, 1] * (1 + RELATIVE))
    if (np.diff(rates, axis=1) <= RELATIVE * rates[:, :1]).all() and capped.all():
        raise refuse(
            "larger gradients count for less: gradient clipping, normalisation or an adaptive optimizer "
            f"(rates {np.round(rates[0], 6).tolist()} for gradients of {', '.join(f'{s * UNIT:g}' for s in SCALES)})"
        )
    raise refuse(f"the learning rate changes from step to step (a schedule?): {np.round(rates[0], 6).tolist()}")


def _but_for_one(rates: NDArray[np.float64]) -> float | None:
    """The rate of all gradients but one, which was lost or applied twice; None: it is not so.

    The run that follows tells whether that happens to others. ``rates``: float64[V, STEPS].
    """
    usual = float(np.median(rates))
    times = rates / usual if usual > 0 else np.zeros_like(rates)
    whole = np.allclose(times, np.rint(times), rtol=RELATIVE, atol=RELATIVE) and (times >= 0).all()
    lost_or_doubled = whole and (times <= 2 + RELATIVE).all()
    return usual if lost_or_doubled and (np.rint(times) != 1).sum(axis=1).max(initial=0) == 1 else None


def _still(reads: list[NDArray[np.float32]], refuse: Callable[[str], NotLinear]) -> None:
    """Once written, a slot must stay as it is: momentum lets it grow, weight decay shrink."""
    for earlier, later in pairwise(reads):
        for slot in range(STEPS):
            was, now = np.abs(earlier[:, slot].astype(np.float64)), np.abs(later[:, slot].astype(np.float64))
            if not was.any() or np.allclose(was, now, rtol=RELATIVE, atol=0):
                continue
            if (now > was).any():
                raise refuse("a gradient goes on acting in later steps: momentum, or an adaptive optimizer like Adam")
            raise refuse("parameters shrink by themselves: weight decay or L2 regularisation")
    nonces = np.array([read[:, STEPS] for read in reads], np.float64)
    if not np.allclose(nonces, nonces[0], rtol=RELATIVE, atol=0) and np.abs(nonces[0]).all():
        raise refuse("parameters without a gradient change: weight decay, or a second initialisation")


def _values(event: Read, *, workers: int) -> NDArray[np.float32]:
    """The slots of the first worker, and the nonce, float32[V, 2 x STEPS + 1]."""
    values = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in event.raw or ()], np.float32)
    half = workers * STEPS
    if workers == 1 or values.shape[1:] != (2 * half + 1,):
        return values
    return np.concatenate([values[:, :STEPS], values[:, half : half + 1 + STEPS]], axis=1)
