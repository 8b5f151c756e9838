"""C2: asynchronous training applies what its workers computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..history.columns import OK, UNKNOWN
from ..history.model import History
from ..models import Quadratic
from ..optimizers import clipped
from ..probe import MODEL
from ..verdict import Verdict, unknown, valid, violated
from ..workloads.rates import measured_bound
from .path import GRADIENT_ERRORS, Path, Training, largest_share, relative, training_of
from .registry import ASYNC, MOST, check

REPLAY = 2e-6
"""Relative distance of a read from the replayed updates, times sqrt(updates + 1): float32 rounding of each update."""


@check(
    "C2",
    "convergence",
    dimension="delivery",
    weakest=("none", "at-most-once"),
    updates=ASYNC,
    needs=(MODEL,),
    acked=True,
    faults="no rollback",
)
def converges(history: History) -> Verdict:
    """C2: async training applies the gradients that its workers computed, so that it converges as theory says.

    The final parameters are the initial ones minus learning rate x the sum of the accepted gradients, each computed at
    what its worker had read (and, where versions are reported, so is every read of a ps, with the gradients applied
    up to its version); with ``--clip-norm`` each is clipped. With an optimizer or a schedule the order counts: then
    versions must be reported, and each gradient is one update in their order. On the quadratic with plain SGD, the
    distance to the optimum is within the bound for the staleness of each update as it was measured (see
    `workloads.rates.measured_bound`), unless gradients are clipped. Whether the loss reached is that of serial training
    is a question for several seeds: ``psconform run --repeat N`` answers it by an equivalence test.

    Assumes: float32; a learning rate at which a gradient shows; every push answered; for the bound, versions, and no
    gradient sent again.
    """
    run = training_of(history)
    again = any((worker.pushes.attempts > 1).any() for worker in history.workers)
    if doubt := _no_sum(history, again=again) or run.doubt:
        return unknown(doubt)
    gradients, noise, taus, order = _gradients(run)
    if order is None and not run.rule.plain:
        return unknown("nobody knows the order of the updates: it needs versions, and gradients that are sent once")
    lines, largest, shows = _replayed(run, gradients, noise, order)
    if lines:
        return violated(lines, largest_deviation=largest)
    if not shows:
        problem = "no gradient moves the parameters by more than rounding does, so none would be missed"
        return unknown(f"{problem}: the learning rate is too small")
    return _rated(run, taus, order, largest, again=again)


def _rated(
    run: Training, taus: NDArray[np.int64] | None, order: NDArray[np.int64] | None, largest: float, *, again: bool
) -> Verdict:
    """The verdict on a run whose updates are those of its gradients; on the quadratic with its rate and a bound."""
    said = f"largest deviation from the updates replayed {largest:.2g}"
    if not run.in_theory:
        return valid(said, largest_deviation=largest)
    if taus is None or order is None:
        more = "gradients that are sent once" if again else "versions in reads and acknowledgements"
        return valid(f"{said}; the bound on its rate needs {more}", largest_deviation=largest)
    return _within_bound(run, taus, order, said)


def _no_sum(history: History, *, again: bool) -> str:
    """Why it is not known what the parameters are the sum of; empty if it is."""
    if again and history.claims.delivery == "at-least-once":
        return "a gradient was sent again, and may be applied again, so the sum is not known"
    if (history.outcomes == UNKNOWN).any() or ((history.outcomes == 0).any() and not history.dynamic):
        return history.incomplete or "a gradient may have been applied or not, so the sum is not known"
    for worker in history.workers:
        if (worker.pushes.read < 0).any():
            return f"{worker} pushed before it had read, so nobody knows at what its gradient was computed"
        missing = [s for s in worker.pushes.step.tolist() if (worker.index, s) not in history.samples]
        if history.data is not None and missing:
            return f"no samples recorded for the gradient of {worker}, step {missing[0]}"
    return "" if history.finals else history.no_final


def _gradients(run: Training) -> tuple[Path, Path, NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Of all accepted pushes: gradient [A, V, slots], and less the same in float32; staleness, version at apply [A, P].

    In float32 only where an optimizer may make much of little; else zero.
    """
    workload, size = run.history.workload, run.model.size
    slots, adam = -(-size // run.history.layout.ps), run.rule.optimizer == "adam"
    updates: list[Path] = []
    noise: list[Path] = []
    taus, versions = [], []
    for worker in run.history.workers:
        pushes = worker.pushes
        taken = pushes.outcome == OK
        read_at = dict(zip(pushes.step.tolist(), pushes.read.tolist(), strict=True))
        for row, step in zip(np.flatnonzero(taken).tolist(), pushes.step[taken].tolist(), strict=True):
            read = read_at[max(0, step - workload.delay)]
            theta = run.theta(worker, read)
            exact = _gradient(run, worker.index, step, theta)
            rounded = _gradient(run, worker.index, step, theta.astype(np.float32)) if adam else exact
            for found, gradient in ((updates, exact), (noise, exact - rounded)):
                padded = np.zeros(slots * run.history.layout.holders)
                padded[:size] = gradient
                found.append(padded.reshape(-1, slots))
            told = worker.reads.versions
            # a gradient sent again may be answered with the version of that moment, not of its apply
            if (
                told is not None
                and pushes.attempts[row] == 1
                and pushes.width[row] == told.shape[1] == run.history.layout.ps
            ):
                versions.append(pushes.versions[row][: told.shape[1]])  # one that told of more made them all longer
                taus.append(versions[-1] - 1 - told[read])
    known = len(versions) == len(updates)
    return (
        np.array(updates),
        np.array(noise),
        np.array(taus) if known else None,
        np.array(versions) if known else None,
    )


def _gradient(run: Training, worker: int, step: int, theta: Any) -> Path:
    """The gradient of one worker at a step, in the dtype of theta [size], clipped if that is asked for."""
    data, clip = run.history.data, run.history.layout.clip_norm
    if data is None:
        return clipped(run.model.gradient(theta, None, None), clip)
    ids = np.array(run.history.samples[worker, step], np.int64)
    return clipped(data.gradient(run.model, theta, ids), clip)


def _replayed(
    run: Training, gradients: Path, noise: Path, order: NDArray[np.int64] | None
) -> tuple[list[str], float, bool]:
    """Compare the final reads, and with versions all others, with the initial parameters less the gradients.

    Returns what is off, the largest deviation, and whether any one gradient would show if it were missing.
    """
    history, largest, lines, shows = run.history, 0.0, list[str](), False
    slots = gradients.shape[2]
    start = np.zeros(slots * history.layout.holders)
    start[: run.model.size] = run.start
    start = start.reshape(-1, slots)
    for shard in range(history.layout.holders):
        applied, unsure, first = gradients[:, shard], noise[:, shard], 0
        if order is not None:
            by_version = np.argsort(order[:, shard], kind="stable")
            applied, unsure, first = applied[by_version], unsure[by_version], int(order[by_version[0], shard]) - 1
        path, roundings = _applied(run, start[shard], applied, unsure, first)
        allowed = REPLAY * np.sqrt(len(path)) + roundings
        shows = shows or largest_share(path, 1) > allowed
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
                if off > allowed and len(lines) < MOST:
                    lines.append(
                        f"{history.where(worker, index)} read ps:{shard} {off:.2g} off the initial parameters less the "
                        f"{at} gradients applied before"
                    )
    return lines, largest, shows


def _applied(run: Training, start: Path, gradients: Path, noise: Path, first: int) -> tuple[Path, float]:
    """The parameters of a ps before and after each of these updates, and what float32 may make of them.

    Shapes: start [slots], gradients and noise [A, slots], the parameters [A + 1, slots]; ``first`` is the number of
    updates before them. Rounding is as a share of the parameters, beyond that of each update: Adam turns a gradient
    near zero into a step of full size, so of one that is all rounding nobody can say where it goes.
    """
    rule = run.rule
    if rule.plain:
        return np.concatenate([start[None], start - np.cumsum(rule.learning_rate * gradients, axis=0)]), 0.0
    path, moments, unsure = [start], rule.begin(len(start)), 0.0
    for number, (gradient, off) in enumerate(zip(gradients, noise, strict=True), start=first):
        if off.any():
            changes = [rule.update(moments, g, number)[0] for g in (gradient, gradient - off)]
            unsure += relative(changes[0] - changes[1], path[-1])
        change, moments = rule.update(moments, gradient, number)
        path.append(path[-1] - change)
    return np.array(path), GRADIENT_ERRORS * unsure


def _within_bound(run: Training, taus: NDArray[np.int64], order: NDArray[np.int64], said: str) -> Verdict:
    """The distance from the optimum, and the bound for the staleness of each update, [A, P], as it was measured."""
    model, history = run.model, run.history
    assert isinstance(model, Quadratic)
    updates, slots = len(taus), -(-model.size // history.layout.holders)
    bound = np.concatenate(
        [
            measured_bound(
                model,
                start=run.start,
                learning_rate=history.workload.learning_rate,
                delays=taus[np.argsort(order[:, shard], kind="stable"), shard],
                coordinates=slice(shard * slots, min((shard + 1) * slots, model.size)),
            )
            for shard in range(history.layout.holders)
        ]
    )
    lines = []
    reached, first = 0.0, float(np.linalg.norm(run.start - model.optimum))
    for worker, index in history.finals:
        off = np.abs(run.theta(worker, index) - model.optimum)
        reached = float(np.linalg.norm(off))
        for at in np.flatnonzero(~(off <= bound))[:1]:
            lines.append(
                f"{worker} in its final read is {off[at]:.3g} from the optimum in coordinate {at}; {updates} updates "
                f"with gradients as old as these leave no more than {bound[at]:.3g}"
            )
    with np.errstate(over="ignore"):
        theory = float(np.linalg.norm(bound) / first) ** (1 / updates)
    measured, oldest = (reached / first) ** (1 / updates), int(taus.max())
    stats = {"rate": measured, "staleness": oldest, **({"bound": theory} if np.isfinite(theory) else {})}
    said += (
        f"; distance x {measured:.5f} per update, the bound for gradients as old as these (mean {taus.mean():.1f}, at "
        f"most {oldest}) is {theory:.5f}" + ("" if theory < 1 else ", which promises nothing")
    )
    return violated(lines, **stats) if lines else valid(said, **stats)
