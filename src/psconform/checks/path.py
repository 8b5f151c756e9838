"""A run that trains a model, beside serial training: its path, and how far each of its steps is off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..history.columns import FIRST, LOOK, Bools
from ..history.model import History, Worker
from ..models import Batches, Ids, Model, Quadratic, Vector, join
from ..optimizers import COSINE_PERIOD, HALVE_EVERY, WARM_UP, clipped
from ..trained import batches_of, model_of
from ..workloads.serial import STEP_ERROR, Rule, serial_training, union_gradient

Path = NDArray[np.float64]
NUDGE = 1e-6
GRADIENT_ERRORS = 10.0
"""A trainer's gradient may be off by so many times what one in numpy is: it adds in another order."""
AMPLIFIED = 10.0
"""Training that makes a nudge of the initial parameters grow by more than this says nothing by its path."""
NAMES = {"sgd": "SGD", "momentum": "SGD with momentum", "adam": "Adam"}
RATES = {
    "constant": "",
    "halving": f", halved every {HALVE_EVERY} rounds",
    "warm-up": f", warmed up for {WARM_UP} rounds",
    "cosine": f", along a cosine of {COSINE_PERIOD} rounds",
}


@dataclass(frozen=True)
class Training:
    """A run that trains a model: what it trains, on what, from where."""

    history: History
    model: Model
    batches: Batches | None

    @property
    def start(self) -> Path:
        """Initial parameters, float64[size]."""
        return np.asarray(self.model.initial(self.history.workload.seed), np.float64)

    @property
    def rule(self) -> Rule:
        """What an update does with a gradient."""
        layout, rate = self.history.layout, self.history.workload.learning_rate
        return Rule(learning_rate=rate, optimizer=layout.optimizer, schedule=layout.schedule)

    @property
    def serial(self) -> str:
        """Serial training, in words."""
        several, clip = self.history.layout.accumulate, self.history.layout.clip_norm
        more = f" with {several} gradients of each worker in a round" if several > 1 else ""
        more += f", clipped to norm {clip:g} {self.history.layout.clip_when} the average" if clip else ""
        return f"serial {NAMES[self.rule.optimizer]}{RATES[self.rule.schedule]}{more}"

    @property
    def in_theory(self) -> bool:
        """Its rate is known in closed form: plain SGD on the quadratic, with gradients that are not clipped."""
        return isinstance(self.model, Quadratic) and self.rule.plain and not self.history.layout.clip_norm

    def theta(self, worker: Worker, index: int) -> Path:
        """The parameters of one read, float64[size]."""
        return np.asarray(join(list(worker.reads.values[index]), self.model.size), np.float64)

    @cached_property
    def idle(self) -> Bools:
        """Steps that change nothing, bool[K]: their round was skipped, or they do not complete it."""
        history, several, step = self.history, self.history.layout.accumulate, np.arange(self.history.steps)
        refused = np.logical_and.reduceat(history.skipped, step[::several])
        completes = (step % several == several - 1) | (step == history.steps - 1)
        return np.asarray(~completes | refused[step // several])

    def gradient(self, theta: Vector, step: int) -> Path:
        """What the round that a step completes makes of its gradients, float64[size]: their mean over its steps.

        With fewer of them, in the end or because some were refused, it is divided as usual.
        """
        several, skipped = self.history.layout.accumulate, self.history.skipped
        steps = range(step - step % several, step + 1)
        taken = [each for each in steps if not skipped[each]] or steps
        mean = np.asarray(np.sum([self._of_step(theta, each) for each in taken], axis=0) / several)
        return clipped(mean, self.history.layout.clip_norm)  # after clipping before the average, that changes nothing

    def _of_step(self, theta: Vector, step: int) -> Path:
        """The mean of the gradients of a step, float64[size]: in general the mean over the union batch.

        Of workers that have chosen samples themselves it is the mean of their gradients, each the mean over its
        samples; weighted, if they have said what each counts.
        """
        data, layout = self.history.data, self.history.layout
        parts = [] if self.doubt else self._parts(step)
        if not parts or data is None:  # without samples the gradients of all workers are the same
            return np.asarray(union_gradient(self.model, data, self.batches)(theta, step))
        norm = layout.clip_norm if layout.clip_when == "before" else 0.0
        found = [share * clipped(factor * data.gradient(self.model, theta, ids), norm) for ids, factor, share in parts]
        return np.asarray(np.sum(found, axis=0))

    @cached_property
    def doubt(self) -> str:
        """Why the samples of some gradient are not known; empty if they are, or all are those dealt out."""
        history, batches = self.history, self.batches
        if batches is None or not history.samples:
            return ""
        own = any(not np.array_equal(ids, batches.of(*grad)[1]) for grad, ids in history.samples.items())
        for worker in history.workers if own else ():
            for step in worker.pushes.step.tolist():
                ids = history.samples.get((worker.index, step))
                what = f"the gradient of {worker}, step {step}"
                if ids is None:
                    return f"no samples recorded for {what}"
                if max(ids, default=0) >= batches.samples:
                    return f"sample {max(ids)} of {what} is none of the {batches.samples}"
                if (worker.index, step) in history.resampled:
                    return f"{what} was sent with other samples each time, so those of the applied one are not known"
        return ""

    def _parts(self, step: int) -> list[tuple[Ids, float, float]]:
        """Of each worker the samples of a step, by what it multiplies their gradient, and the share that this has.

        None: all are those dealt out, and their mean is the one over the union batch.
        """
        history, batches = self.history, self.batches
        if batches is None:
            return []
        dealt = [batches.of(worker, step)[1] for worker in range(history.layout.workers)]
        used = [np.array(history.samples.get((w, step), ids), np.int64) for w, ids in enumerate(dealt)]
        own = [not np.array_equal(mine, ids) for mine, ids in zip(used, dealt, strict=True)]
        if history.claims.reduction == "weighted":
            weighs = np.nan_to_num(history.weighs[:, step])
            shares = (weighs / max(weighs.sum(), 1e-30)).tolist()
            return [(ids, 1.0, share) for ids, share in zip(used, shares, strict=True)]
        if not any(own) and not history.layout.clip_norm:
            return []
        each = np.where(own, 1.0, batches.weights(step))  # as `Trained.gradients` weighs them
        return [(ids, float(factor), 1 / len(own)) for ids, factor in zip(used, each, strict=True)]


def training_of(history: History) -> Training:
    """What ``history`` trains."""
    return Training(history, model_of(history.spec), batches_of(history.spec, history.data))


def serial_path(run: Training, start: Path, steps: int) -> Path:
    """Parameters of serial training before each step and after the last, float64[steps + 1, size]."""
    delay = run.history.workload.delay
    idle = frozenset(np.flatnonzero(run.idle).tolist())
    return serial_training(
        run.model,
        run.gradient,
        start=start,
        steps=steps,
        rule=run.rule,
        delay=delay,
        skipped=idle,
    )


def largest_share(path: Path, among: int) -> float:
    """The most that one of ``among`` gradients of a step moves the parameters by, as a share of their norm.

    Of a path of serial training, float64[steps + 1, size]; 0 if there is none.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        moved = np.linalg.norm(np.diff(path, axis=0), axis=1) / np.linalg.norm(path[:-1], axis=1)
    return float(np.nanmax(moved, initial=0.0)) / among


def is_stable(run: Training, path: Path) -> bool:
    """A nudge of the initial parameters does not grow."""
    direction = np.where(np.arange(run.model.size) % 2 == 0, 1.0, -1.0)
    nudge = NUDGE * max(float(np.linalg.norm(run.start)), 1e-30) / np.sqrt(run.model.size) * direction
    other = serial_path(run, run.start + nudge, len(path) - 1)
    apart = np.linalg.norm(other - path, axis=1) / np.linalg.norm(nudge)
    return bool(np.isfinite(apart).all() and (apart <= AMPLIFIED).all())


def by_round(run: Training, worker: Worker) -> dict[int, Path]:
    """The parameters that a worker read at each round; after the last one only once all are done."""
    return {step: run.theta(worker, index) for index, step in rounds_of(run, worker)}


def rounds_of(run: Training, worker: Worker) -> Iterator[tuple[int, int]]:
    """Reads with values and their rounds, in the order of the record."""
    reads, steps = worker.reads, run.history.steps
    for index in sorted(reads.values):
        step = int(reads.step[index])
        once_more = reads.use[index] != FIRST and reads.epoch[index] == reads.epoch[max(index - 1, 0)]
        none = once_more or reads.use[index] == LOOK
        if (step < steps or reads.final[index]) and not none:  # of a step that is sent again, the first one counts
            yield index, steps if reads.final[index] else step


@dataclass(frozen=True)
class Step:
    """A read and the serial step to it from what its worker had read before.

    ``off`` is how far it is from that, as a share of the parameters' norm, zero of a read with none before it;
    ``wrong``: more than rounding explains, that is more than ``allowed``. ``moments`` are those of this round,
    [moments, size]; None: not known.
    """

    index: int
    step: int
    theta: Path
    off: float = 0.0
    allowed: float = STEP_ERROR
    moments: Path | None = None

    @property
    def wrong(self) -> bool:
        """It is not that step."""
        return self.off > self.allowed


def steps_of(run: Training, worker: Worker) -> Iterator[Step]:
    """Every read of a worker, judged by one serial step from the last read of the round before.

    What was read in an earlier epoch counts, too: where a rollback takes nothing back for good, a round is the same
    round whoever was killed meanwhile. A last round with fewer gradients (``--accumulate``) may be divided by their
    number, or by that of all. Moments are those of the gradients where the worker stood; where it has not read
    the round before they are not known, and with them nothing after it is judged.
    """
    rule, delay, idle, steps = run.rule, run.history.workload.delay, run.idle, run.history.steps
    fewer = (steps % run.history.layout.accumulate) / run.history.layout.accumulate
    thetas: dict[int, Path] = {}
    moments = {0: rule.begin(run.model.size)}
    expected: dict[int, tuple[Path, Path, Path]] = {}  # by round: what it should be, and of what gradient it is made
    for index, step in rounds_of(run, worker):
        theta = run.theta(worker, index)
        before, late, kept = thetas.get(step - 1), thetas.get(max(0, step - 1 - delay)), moments.get(step - 1)
        if step == 0:
            start = run.start
            yield Step(index, step, theta, relative(theta - start, start), STEP_ERROR, moments[0])
        elif before is None or late is None or kept is None:
            moments.pop(step, None)
            if rule.optimizer == "sgd":
                moments[step] = moments[0]
            yield Step(index, step, theta, moments=moments.get(step))
        else:
            if step not in expected:
                gradient = run.gradient(late, step - 1)
                change, moments[step] = rule.update(kept, gradient, step - 1 - int(idle[: step - 1].sum()))
                if idle[step - 1]:
                    change, moments[step] = np.zeros_like(change), kept
                expected[step] = before - change, gradient, late
            off, allowed = relative(theta - expected[step][0], before), STEP_ERROR
            if fewer and step == steps and not idle[step - 1]:
                change, _ = rule.update(kept, expected[step][1] / fewer, step - 1 - int(idle[: step - 1].sum()))
                off = min(off, relative(theta - (before - change), before))
            if off > STEP_ERROR:
                allowed += GRADIENT_ERRORS * _noise(run, expected[step][1], late, kept, step - 1) / _norm(before)
            yield Step(index, step, theta, off, allowed, moments[step])
        thetas[step] = theta
        expected.pop(step + 1, None)


def _noise(run: Training, exact: Path, theta: Path, moments: Path, step: int) -> float:
    """How uncertain an update is where a gradient in float32 is: the Euclidean norm of the difference."""
    rounded = run.gradient(np.asarray(theta, np.float32), step)
    change, other = (run.rule.update(moments, gradient, step)[0] for gradient in (exact, rounded))
    size = _norm(other - change)
    return size if np.isfinite(size) else 0.0


def _norm(vector: Path) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(vector))


def step_residuals(run: Training, found: dict[int, Path]) -> dict[int, Path]:
    """By round: what it has beyond one step of serial SGD after the round before, float64[size]."""
    workload, residuals = run.history.workload, {}
    for step, now in found.items():
        before, late = found.get(step - 1), found.get(max(0, step - 1 - workload.delay))
        if before is not None and late is not None:
            residuals[step] = now - (before - workload.learning_rate * run.gradient(late, step - 1))
    return residuals


def relative(difference: Path, reference: Path) -> float:
    """Size of a difference as a share of what it is a difference of; NaN counts as inf."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        size = float(np.linalg.norm(difference) / np.linalg.norm(reference))
    return size if np.isfinite(size) else float("inf") if difference.any() else 0.0
