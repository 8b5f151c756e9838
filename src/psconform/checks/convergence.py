"""C1, C2: that a run which trains a model trains as its update rule says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..history.columns import FAILED, OK
from ..history.model import History, Worker
from ..models import Batches, Model, Quadratic, join
from ..trained import batches_of, model_of
from ..verdict import Verdict, not_judged, unknown, valid, violated
from ..workloads.rates import delayed_bound, rate_delayed
from ..workloads.serial import STEP_ERROR, delayed_sgd, drift_tolerance, union_gradient
from .witness import MOST

Path = NDArray[np.float64]
NUDGE = 1e-6
GRADIENT_ERRORS = 10.0
"""A trainer's gradient may be off by so many times what one in numpy is: it adds in another order."""
AMPLIFIED = 10.0
"""Training that makes a nudge of the initial parameters grow by more than this says nothing by its path."""
REPLAY = 2e-6
"""Relative distance of a read from the replayed updates, times sqrt(updates + 1): float32 rounding of each update."""


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

    def theta(self, worker: Worker, index: int) -> Path:
        """The parameters of one read, float64[size]."""
        return np.asarray(join(list(worker.reads.values[index]), self.model.size), np.float64)


def training_of(history: History) -> Training:
    """What ``history`` trains."""
    return Training(history, model_of(history.spec), batches_of(history.spec, history.data))


def follows_serial(history: History) -> Verdict:
    """C1: sync training is serial SGD on the union batch, within floating-point tolerance, step by step.

    Every read must be one step of serial SGD (float64, mean gradient over all workers' batches) from the read
    before, within 1e-6 of the parameters' norm (more where a large learning rate makes more of the rounding of the
    gradient itself, measured by computing it in float32, too), and start at the initial parameters; the whole path
    must stay within 5e-7 sqrt(step + 1) of the serial one, unless training itself is unstable: then the path of any
    two runs drifts apart, as a nudge of the initial parameters shows, and only the steps are judged. A gradient
    taken ``--delay`` steps late is late in the serial run, too.

    Assumes: float32; the samples that psconform deals out (R5 judges that they were used).
    """
    if history.claims.reduction == "none":
        return not_judged("needs a claim: reduction is none")
    if (history.outcomes == FAILED).any():
        return unknown("a gradient was refused, so its round is none of serial SGD")
    run = training_of(history)
    rounds = history.steps
    path = serial_path(run, run.start, rounds)
    tolerance = drift_tolerance(rounds)
    stable = is_stable(run, path)
    largest = local = 0.0
    lines: list[str] = []
    for worker in history.workers:
        found = by_round(run, worker)
        errors = _step_errors(run, found)
        for step in sorted(found):
            off, wrong = relative(found[step] - path[step], path[step]), errors.get(step, 0.0)
            if step:
                largest, local = max(largest, off), max(local, wrong)
            if wrong > STEP_ERROR and wrong > (allowed := _step_allowed(run, found, step)):
                lines.append(
                    f"{worker} at step {step} is not one step of serial SGD from what it read at step {step - 1}: off "
                    f"by {wrong:.2g} of the parameters' norm, allowed {allowed:.1g}"
                )
            elif off > tolerance[step] and (stable or step == 0) and len(lines) < MOST:
                what = "the initial parameters" if step == 0 else "serial SGD"
                lines.append(f"{worker} at step {step} is {off:.2g} off {what}, allowed {tolerance[step]:.2g}")
    if lines:
        return violated(lines, largest_deviation=largest)
    if not any(worker.reads.final.any() for worker in history.workers):
        return unknown(history.no_final)
    said = f"largest deviation from serial SGD {largest:.2g}" if stable else "training is unstable, so the path drifts"
    said += f", of a single step {local:.2g}{_rate(run)}"
    return valid(said, largest_deviation=largest, largest_step_error=local)


def _rate(run: Training) -> str:
    """On the quadratic: how fast it came nearer to the optimum, and how fast it must at least, in the long run."""
    model, history = run.model, run.history
    if not isinstance(model, Quadratic):
        return ""
    workload = history.workload
    ends = [np.linalg.norm(run.theta(worker, index) - model.optimum) for worker, index in history.finals]
    measured = (max(ends) / np.linalg.norm(run.start - model.optimum)) ** (1 / history.steps)
    rate, delay = workload.learning_rate, workload.delay
    theory = max(rate_delayed(curvature=float(h), learning_rate=rate, delay=delay) for h in model.curvature[[0, -1]])
    return f"; distance x {measured:.5f} per round, in theory at most {theory:.5f} in the long run"


def serial_path(run: Training, start: Path, steps: int) -> Path:
    workload = run.history.workload
    return delayed_sgd(
        run.model,
        run.history.data,
        run.batches,
        start=start,
        steps=steps,
        learning_rate=workload.learning_rate,
        delay=workload.delay,
    )


def is_stable(run: Training, path: Path) -> bool:
    """A nudge of the initial parameters does not grow."""
    direction = np.where(np.arange(run.model.size) % 2 == 0, 1.0, -1.0)
    nudge = NUDGE * max(float(np.linalg.norm(run.start)), 1e-30) / np.sqrt(run.model.size) * direction
    other = serial_path(run, run.start + nudge, len(path) - 1)
    apart = np.linalg.norm(other - path, axis=1) / np.linalg.norm(nudge)
    return bool(np.isfinite(apart).all() and (apart <= AMPLIFIED).all())


def by_round(run: Training, worker: Worker) -> dict[int, Path]:
    """The parameters that a worker read at each round; after the last one only once all are done."""
    reads, steps = worker.reads, run.history.steps
    found: dict[int, Path] = {}
    for index in sorted(reads.values):
        step = int(reads.step[index])
        if step < steps or reads.final[index]:
            found[steps if reads.final[index] else step] = run.theta(worker, index)
    return found


def _step_errors(run: Training, found: dict[int, Path]) -> dict[int, float]:
    """By round: how far it is from one serial step after the round before, relative to the parameters."""
    return {step: relative(off, found[step - 1]) for step, off in step_residuals(run, found).items()}


def _step_allowed(run: Training, found: dict[int, Path], step: int) -> float:
    """What `_step_errors` may be: where a gradient in float32 is uncertain, so is a step of the trainer."""
    workload, theta = run.history.workload, found[max(0, step - 1 - run.history.workload.delay)]
    exact, rounded = (
        union_gradient(run.model, run.history.data, run.batches, theta=at, step=step - 1)
        for at in (theta, theta.astype(np.float32))
    )
    noise = relative(workload.learning_rate * (rounded - exact), found[step - 1])
    return STEP_ERROR + (GRADIENT_ERRORS * noise if np.isfinite(noise) else 0.0)


def step_residuals(run: Training, found: dict[int, Path]) -> dict[int, Path]:
    """By round: what it has beyond one serial step after the round before, float64[size]."""
    workload, residuals = run.history.workload, {}
    for step, now in found.items():
        before, late = found.get(step - 1), found.get(max(0, step - 1 - workload.delay))
        if before is not None and late is not None:
            gradient = union_gradient(run.model, run.history.data, run.batches, theta=late, step=step - 1)
            residuals[step] = now - (before - workload.learning_rate * gradient)
    return residuals


def relative(difference: Path, reference: Path) -> float:
    """Size of a difference as a share of what it is a difference of; NaN counts as inf."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        size = float(np.linalg.norm(difference) / np.linalg.norm(reference))
    return size if np.isfinite(size) else float("inf") if difference.any() else 0.0


def converges(history: History) -> Verdict:
    """C2: async training applies the gradients that its workers computed, so that it converges as theory says.

    The final parameters are the initial ones minus learning rate x the sum of the accepted gradients, each computed at
    what its worker had read (and, where versions are reported, so is every read of a ps, with the gradients applied
    up to its version). On the quadratic, the distance to the optimum is within the bound that holds for any delays up
    to the largest staleness measured, if one does (see `workloads.rates.delayed_bound`). Whether the loss reached is
    that of serial training is a question for several seeds: ``psconform run --repeat N`` answers it by an equivalence
    test.

    Assumes: float32; every push answered; for the bound, versions, and no gradient sent again.
    """
    run = training_of(history)
    again = any((worker.pushes.attempts > 1).any() for worker in history.workers)
    if doubt := _no_sum(history, again=again):
        return unknown(doubt)
    gradients, taus, order = _gradients(run)
    lines, largest = _replayed(run, gradients, order)
    if lines:
        return violated(lines, largest_deviation=largest)
    said = f"largest deviation from the updates replayed {largest:.2g}"
    if not isinstance(run.model, Quadratic):
        return valid(said, largest_deviation=largest)
    if taus is None:
        more = "gradients that are sent once" if again else "versions in reads and acknowledgements"
        return valid(f"{said}; the bound on its rate needs {more}", largest_deviation=largest)
    return _within_bound(run, int(taus.max()), said)


def _no_sum(history: History, *, again: bool) -> str:
    """Why nobody knows what the parameters are the sum of; empty if they do."""
    if again and history.claims.delivery == "at-least-once":
        return "a gradient was sent again, and may be applied again: nobody knows the sum"
    if (history.outcomes == 0).any() or (history.outcomes > OK).any():
        return history.incomplete or "a gradient was not accepted: nobody knows the sum"
    return "" if history.finals else history.no_final


def _gradients(run: Training) -> tuple[Path, NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Of all accepted pushes: learning rate x gradient [A, V, slots]; staleness [A, P] and version at apply [A, P]."""
    workload, size = run.history.workload, run.model.size
    slots = -(-size // run.history.layout.ps)
    updates, taus, versions = [], [], []
    for worker in run.history.workers:
        pushes = worker.pushes
        read_at = dict(zip(pushes.step.tolist(), pushes.read.tolist(), strict=True))
        for row, step in enumerate(pushes.step.tolist()):
            read = read_at[max(0, step - workload.delay)]
            theta = run.theta(worker, read)
            if run.history.data is None:
                gradient = run.model.gradient(theta, None, None)
            else:
                ids = np.array(run.history.samples[worker.index, step], np.int64)
                gradient = run.model.gradient(theta, run.history.data.train_x[ids], run.history.data.train_y[ids])
            padded = np.zeros(slots * run.history.layout.holders)
            padded[:size] = workload.learning_rate * gradient
            updates.append(padded.reshape(-1, slots))
            told = worker.reads.versions
            # a gradient sent again may be answered with the version of that moment, not of its apply
            if (
                told is not None
                and pushes.attempts[row] == 1
                and pushes.width[row] == told.shape[1] == run.history.layout.ps
            ):
                versions.append(pushes.versions[row])
                taus.append(pushes.versions[row] - 1 - told[read])
    known = len(versions) == len(updates)
    return np.array(updates), np.array(taus) if known else None, np.array(versions) if known else None


def _replayed(run: Training, gradients: Path, order: NDArray[np.int64] | None) -> tuple[list[str], float]:
    """Compare the final reads, and with versions all others, with the initial parameters less the gradients."""
    history, largest, lines = run.history, 0.0, list[str]()
    slots = gradients.shape[2]
    start = np.zeros(slots * history.layout.holders)
    start[: run.model.size] = run.start
    start = start.reshape(-1, slots)
    for shard in range(history.layout.holders):
        applied, first = gradients[:, shard], 0
        if order is not None:
            by_version = np.argsort(order[:, shard], kind="stable")
            applied, first = applied[by_version], int(order[by_version[0], shard]) - 1
        path = np.concatenate([start[None, shard], start[shard] - np.cumsum(applied, axis=0)])
        for worker in history.workers:
            reads = worker.reads
            for index in sorted(reads.values):
                at = len(path) - 1
                if not reads.final[index]:
                    if order is None or reads.versions is None:
                        continue
                    at = int(reads.versions[index, shard]) - first
                seen = np.asarray(reads.values[index][shard], np.float64)
                off = relative(seen - path[at], path[at]) if 0 <= at < len(path) else float("inf")
                largest = max(largest, off)
                if off > REPLAY * np.sqrt(len(path)) and len(lines) < MOST:
                    lines.append(
                        f"{history.where(worker, index)} read ps:{shard} {off:.2g} off the initial parameters less the "
                        f"{at} gradients applied before"
                    )
    return lines, largest


def _within_bound(run: Training, delay: int, said: str) -> Verdict:
    model, history = run.model, run.history
    assert isinstance(model, Quadratic)
    updates = int((history.outcomes == OK).sum())
    rate = history.workload.learning_rate
    try:
        bound = delayed_bound(model, start=run.start, learning_rate=rate, max_delay=delay, updates=updates)[-1]
    except ValueError as error:
        return valid(f"{said}; {error}")
    lines = []
    reached, first = 0.0, float(np.linalg.norm(run.start - model.optimum))
    for worker, index in history.finals:
        off = np.abs(run.theta(worker, index) - model.optimum)
        reached = float(np.linalg.norm(off))
        for at in np.flatnonzero(~(off <= bound))[:1]:
            lines.append(
                f"{worker} in its final read is {off[at]:.3g} from the optimum in coordinate {at}; no order of "
                f"{updates} updates, at most {delay} old, leaves more than {bound[at]:.3g}"
            )
    measured, theory = (reached / first) ** (1 / updates), float(np.linalg.norm(bound) / first) ** (1 / updates)
    stats = {"rate": measured, "bound": theory, "staleness": delay}
    said += f"; distance x {measured:.5f} per update, the bound for staleness {delay} is {theory:.5f}"
    return violated(lines, **stats) if lines else valid(said, **stats)


def samples_once(history: History) -> Verdict:
    """R5: each sample is used once per epoch, over all workers.

    Judged on the sample ids that workers record with their gradients: in every epoch that was trained to its end each
    sample shows exactly once, in one that was not, at most once.

    Assumes: the trainer uses ``probe.gradients``, which records the samples.
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
    lines: list[str] = []
    epochs = -(-history.steps // batches.steps_per_epoch)
    for epoch in range(epochs):
        first, end = epoch * batches.steps_per_epoch, min((epoch + 1) * batches.steps_per_epoch, history.steps)
        used = [(w, s) for w, s in sorted(history.samples) if first <= s < end]
        ids = np.array([i for key in used for i in history.samples[key]], np.int64)
        outside = np.unique(ids[ids >= len(data.train_y)])
        lines += [f"epoch {epoch}: sample {i} is none of the {len(data.train_y)}" for i in outside]
        times = np.bincount(ids[ids < len(data.train_y)], minlength=len(data.train_y))
        for sample in np.flatnonzero(times > 1).tolist():
            where = ", ".join(f"worker:{w} step {s}" for w, s in used for i in history.samples[w, s] if i == sample)
            lines.append(f"epoch {epoch}: sample {sample} was used {times[sample]} times: {where}")
        whole = end - first == batches.steps_per_epoch and len(used) == (end - first) * history.layout.workers
        if whole:
            dealt = {int(i): f"worker:{w}, step {s}" for w, s in used for i in batches.of(w, s)[1]}
            for sample in np.flatnonzero(times == 0).tolist():
                lines.append(f"epoch {epoch}: sample {sample}, dealt to {dealt[sample]}, was never used")
    return violated(lines) if lines else valid(f"{epochs} epoch(s) of {len(data.train_y)} samples")
