"""What the real-data workloads train: models on one flat vector, the order of the samples, and the data itself.

One file, standard library and numpy only: a trainer loads it next to the probe. A synchronous worker ``w``::

    model, data = Softmax(), Data.load(path)
    batches = Batches(samples=len(data.train_y), workers=4, batch=16, seed=0)
    for step in range(steps):
        theta = join(pull(), model.size)                          # one array per variable
        epoch, ids = batches.of(w, step)
        gradient = data.gradient(model, theta, ids)
        push(split(gradient * np.float32(batches.weights(step)[w]), variables))

All randomness is ``numpy.random.RandomState``, whose stream is frozen (NEP 19): judge and trainer draw the same numbers
under different versions of numpy. Overflow gives inf and NaN without a warning: a trainer that diverges is to be
recorded, not stopped.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os import PathLike
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]
_QUIET: Any = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}


class Model(Protocol):
    """A loss over one flat vector ``theta``, float32[size] in a trainer."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def initial(self, seed: int) -> NDArray[np.float32]:
        """Initial parameters, float32[size]; the same for the same seed (0 to 2**32 - 1) everywhere."""

    def loss(self, theta: Vector, x: Vector | None, y: Ids | None) -> float:
        """Mean loss over the batch, computed in float64."""

    def gradient(self, theta: Vector, x: Vector | None, y: Ids | None) -> Vector:
        """Mean gradient over the batch, computed in the dtype of theta and returned in it.

        A trainer passes float32 and gets float32; the serial reference passes float64.
        """


@runtime_checkable
class Classifier(Model, Protocol):
    """A model whose loss is the mean cross-entropy in nats of ``y`` (int64[n]) given ``x`` (float32[n, features])."""

    def accuracy(self, theta: Vector, x: Vector, y: Ids) -> float:
        """Share of the samples whose class is found, 0 to 1; a sample without finite scores is not found."""


@dataclass(frozen=True)
class Softmax:
    """Softmax regression: scores = x W + b. Convex. theta = W row by row (features x classes), then b."""

    features: int = 64
    classes: int = 10

    @property
    def size(self) -> int:
        """(features + 1) x classes."""
        return (self.features + 1) * self.classes

    def initial(self, seed: int) -> NDArray[np.float32]:
        """Glorot-uniform weights and zero bias."""
        weights = _glorot(_random(seed), self.features, self.classes)
        return np.concatenate([weights, np.zeros(self.classes, np.float32)])

    def scores(self, theta: Vector, x: Vector) -> Vector:
        """Scores before the softmax, [n, classes]."""
        weights = _flat(theta, self.size)
        cut = self.features * self.classes
        result: Vector = x.astype(theta.dtype, copy=False) @ weights[:cut].reshape(self.features, self.classes)
        return result + weights[cut:]

    def loss(self, theta: Vector, x: Vector | None, y: Ids | None) -> float:
        """Mean cross-entropy, nats."""
        x, y = _batch(x, y)
        with np.errstate(**_QUIET):
            return _cross_entropy(self.scores(theta.astype(np.float64), x), y)[0]

    def gradient(self, theta: Vector, x: Vector | None, y: Ids | None) -> Vector:
        """As in `Model`."""
        x, y = _batch(x, y)
        with np.errstate(**_QUIET):
            slope = _cross_entropy(self.scores(theta, x), y)[1]
            return np.concatenate([(x.astype(theta.dtype, copy=False).T @ slope).reshape(-1), slope.sum(axis=0)])

    def accuracy(self, theta: Vector, x: Vector, y: Ids) -> float:
        """As in `Classifier`."""
        x, y = _batch(x, y)
        with np.errstate(**_QUIET):
            return _found(self.scores(theta, x), y)


@dataclass(frozen=True)
class Mlp:
    """One hidden layer: scores = tanh(x W1 + b1) W2 + b2. Not convex. theta = W1, b1, W2, b2, each row by row."""

    features: int = 64
    hidden: int = 32
    classes: int = 10

    @property
    def size(self) -> int:
        """All weights and biases."""
        return (self.features + 1) * self.hidden + (self.hidden + 1) * self.classes

    def initial(self, seed: int) -> NDArray[np.float32]:
        """Glorot-uniform weights and zero biases."""
        random = _random(seed)
        first, second = _glorot(random, self.features, self.hidden), _glorot(random, self.hidden, self.classes)
        zeros = np.zeros(self.hidden, np.float32), np.zeros(self.classes, np.float32)
        return np.concatenate([first, zeros[0], second, zeros[1]])

    def loss(self, theta: Vector, x: Vector | None, y: Ids | None) -> float:
        """Mean cross-entropy, nats."""
        x, y = _batch(x, y)
        with np.errstate(**_QUIET):
            return _cross_entropy(self._forward(theta.astype(np.float64), x)[1], y)[0]

    def gradient(self, theta: Vector, x: Vector | None, y: Ids | None) -> Vector:
        """As in `Model`."""
        x, y = _batch(x, y)
        x = x.astype(theta.dtype, copy=False)
        with np.errstate(**_QUIET):
            active, scores = self._forward(theta, x)
            slope = _cross_entropy(scores, y)[1]
            back = (slope @ self._cut(theta)[2].T) * (1 - active * active)
            parts = [(x.T @ back).reshape(-1), back.sum(axis=0), (active.T @ slope).reshape(-1), slope.sum(axis=0)]
            return np.concatenate(parts)

    def accuracy(self, theta: Vector, x: Vector, y: Ids) -> float:
        """As in `Classifier`."""
        x, y = _batch(x, y)
        with np.errstate(**_QUIET):
            return _found(self._forward(theta, x)[1], y)

    def _cut(self, theta: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        shapes = ((self.features, self.hidden), (self.hidden,), (self.hidden, self.classes), (self.classes,))
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        first, bias, second, last = np.split(_flat(theta, self.size), ends)
        return first.reshape(shapes[0]), bias, second.reshape(shapes[2]), last

    def _forward(self, theta: Vector, x: Vector) -> tuple[Vector, Vector]:
        first, bias, second, last = self._cut(theta)
        active: Vector = np.tanh(x.astype(theta.dtype, copy=False) @ first + bias)
        return active, active @ second + last


@dataclass(frozen=True)
class Quadratic:
    """f(theta) = 1/2 sum_i h_i (theta_i - theta*_i)^2: everything about it is known in closed form.

    The curvatures h_i are geometric from ``mu`` to ``L`` (condition number L / mu); the optimum theta* is drawn from
    ``seed``, uniform in -1 to 1; f(theta*) = 0. There are no samples: ``x`` and ``y`` are ignored, and every worker's
    gradient is the same. Each coordinate is a problem of its own, so the delays of one shard say nothing about another.
    """

    size: int = 100
    mu: float = 0.01
    L: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a size below 1 or unless 0 < mu <= L."""
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not 0 < self.mu <= self.L < np.inf:
            raise ValueError(f"curvatures must be 0 < mu <= L, got mu={self.mu}, L={self.L}")

    @cached_property
    def curvature(self) -> NDArray[np.float64]:
        """h, float64[size], ascending."""
        return np.geomspace(self.mu, self.L, self.size)

    @cached_property
    def optimum(self) -> NDArray[np.float32]:
        """theta*, float32[size]."""
        # as many seeds as `initial` has: RandomState([2]) and RandomState([2, 1]) are one and the same stream
        return _random(self.seed, 2).uniform(-1, 1, self.size).astype(np.float32)

    def initial(self, seed: int) -> NDArray[np.float32]:
        """Uniform in -1 to 1."""
        return _random(seed, 1).uniform(-1, 1, self.size).astype(np.float32)

    def loss(self, theta: Vector, x: Vector | None = None, y: Ids | None = None) -> float:
        """f(theta), computed in float64."""
        with np.errstate(**_QUIET):
            return float(0.5 * self.curvature @ (_flat(theta, self.size).astype(np.float64) - self.optimum) ** 2)

    def gradient(self, theta: Vector, x: Vector | None = None, y: Ids | None = None) -> Vector:
        """h (theta - theta*), in the dtype of theta."""
        with np.errstate(**_QUIET):
            offset = _flat(theta, self.size) - self.optimum.astype(theta.dtype)
            result: Vector = self.curvature.astype(theta.dtype) * offset
            return result


def split(theta: Vector, parts: int) -> list[Vector]:
    """Cut theta[size] into ``parts`` arrays of ceil(size / parts) values, one per variable; the last are zero-padded.

    The padding has gradient zero and stays zero. Raises ValueError for fewer than one part.
    """
    slots = -(-theta.size // _at_least("parts", parts, 1))
    padded = np.zeros(slots * parts, theta.dtype)
    padded[: theta.size] = _flat(theta, theta.size)
    return [padded[i * slots : (i + 1) * slots] for i in range(parts)]


def join(parts: Sequence[Vector], size: int) -> Vector:
    """The flat vector theta[size] of which ``parts`` are the slices; ValueError if they are not what `split` makes."""
    slots = -(-size // _at_least("number of parts", len(parts), 1))
    for index, part in enumerate(parts):
        if np.shape(part) != (slots,):
            raise ValueError(f"part {index} has shape {np.shape(part)}, {size} values in {len(parts)} have ({slots},)")
    return np.concatenate(parts)[:size]


@dataclass(frozen=True)
class Batches:
    """Which samples each worker uses at each step: in an epoch every sample exactly once over all workers (R5).

    Each epoch takes a permutation of all samples drawn from (seed, epoch). Step k of the epoch uses the next
    workers x batch of it, worker 0 the first ``batch`` of these and so on; the *last* step of an epoch shares what is
    left, so its batches have ``batch`` to 2 x ``batch`` samples and differ by at most one between workers. So no batch
    is ever empty (an empty one has no mean gradient), all workers take the same number of steps (or a barrier would
    hang), and the union batch of a step depends on workers x batch only, not on how many workers share it.

    Raises ValueError for fewer samples than one step needs.
    """

    samples: int
    workers: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        _at_least("workers", self.workers, 1)
        _at_least("batch", self.batch, 1)
        _random(self.seed, 0)
        if self.samples < self.workers * self.batch:
            needed = f"{self.workers} workers with batches of {self.batch} need {self.workers * self.batch}"
            raise ValueError(f"samples must be at least one batch per worker, got {self.samples}; {needed}")

    @property
    def steps_per_epoch(self) -> int:
        """Steps of each worker in an epoch."""
        return self.samples // (self.workers * self.batch)

    def of(self, worker: int, step: int) -> tuple[int, Ids]:
        """(epoch, sample ids as read-only int64[batch]) of a worker's step; steps count on over epochs from 0."""
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker must be 0 to {self.workers - 1}, got {worker}")
        epoch, ids = self.union(step)
        sizes = self.sizes(step)
        begin = int(sizes[:worker].sum())
        return epoch, ids[begin : begin + int(sizes[worker])]

    def union(self, step: int) -> tuple[int, Ids]:
        """(epoch, sample ids) of all workers at a step, worker after worker."""
        epoch, at = divmod(_at_least("step", step, 0), self.steps_per_epoch)
        begin = at * self.workers * self.batch
        return epoch, _permutation(self.samples, self.seed, epoch)[begin : begin + int(self.sizes(step).sum())]

    def sizes(self, step: int) -> Ids:
        """Batch size of each worker at a step, int64[workers]."""
        last = self.steps_per_epoch - 1
        if _at_least("step", step, 0) % self.steps_per_epoch != last:
            return np.full(self.workers, self.batch, np.int64)
        each, more = divmod(self.samples - last * self.workers * self.batch, self.workers)
        return np.array([each + (worker < more) for worker in range(self.workers)], np.int64)

    def weights(self, step: int) -> NDArray[np.float64]:
        """Factor for each worker's mean gradient, float64[workers]: its batch size x workers / that of the union.

        The plain mean over the workers of weight x gradient is then the mean gradient of the union batch (S5, unequal
        batch sizes). All are 1 but in the last step of an epoch.
        """
        sizes = self.sizes(step)
        return np.asarray(sizes * self.workers / sizes.sum(), np.float64)


_NO_DATA = (
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    TypeError,
    EOFError,
    ValueError,
    RuntimeError,  # a member is encrypted, or packed in a way that Python does not know
    MemoryError,  # a header claims to be of an enormous array
    OverflowError,
)
MOST = 256 << 20
"""Bytes that the arrays of a data file may have together."""


@dataclass(frozen=True)
class Data:
    """Samples for training and for testing: ``x`` float32[n, features] from 0 to 1, ``y`` int64[n] classes."""

    train_x: NDArray[np.float32]
    train_y: Ids
    test_x: NDArray[np.float32]
    test_y: Ids

    @classmethod
    def load(cls, path: str | PathLike[str] | IO[bytes]) -> Data:
        """Read an .npz with these four arrays, of a path or an open file.

        Raises:
            ValueError: it is something else, or has more than MOST bytes in it; says what is wrong.
            OSError: it cannot be read.
        """
        if isinstance(path, (str, PathLike)):
            with open(path, "rb") as file:
                return cls._load(file, f"{path}: ")
        return cls._load(path)

    def gradient(self, model: Model, theta: Vector, ids: Ids) -> Vector:
        """The model's mean gradient over these samples for training, in the dtype of theta; zeros if there are none."""
        return model.gradient(theta, self.train_x[ids], self.train_y[ids]) if len(ids) else np.zeros_like(theta)

    @classmethod
    def _load(cls, file: IO[bytes], place: str = "") -> Data:
        try:
            with zipfile.ZipFile(file) as packed:
                if (size := sum(member.file_size for member in packed.infolist())) > MOST:
                    raise ValueError(f"{size} bytes are in it, {MOST} may be")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in ("train_x", "train_y", "test_x", "test_y")}
        except _NO_DATA as error:
            raise ValueError(f"{place}not a data file of psconform: {error}") from error
        for part in ("train", "test"):
            x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
            if (x.dtype, y.dtype, x.ndim) != (np.float32, np.int64, 2) or y.shape != x.shape[:1] or not len(y):
                found = f"{part}_x is {x.dtype}{list(x.shape)}, {part}_y {y.dtype}{list(y.shape)}"
                raise ValueError(f"{place}{found}; expected float32[n, features] and int64[n], n > 0")
        return cls(**arrays)


def _at_least(name: str, value: int, low: int) -> int:
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return value


def _random(*seeds: int) -> np.random.RandomState:
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must be 0 to 2**32 - 1, got {seed}")
    return np.random.RandomState(list(seeds))


@lru_cache(maxsize=8)
def _permutation(samples: int, seed: int, epoch: int) -> Ids:
    ids: Ids = _random(seed, epoch).permutation(samples).astype(np.int64)
    ids.setflags(write=False)  # shared by all callers
    return ids


def _glorot(random: np.random.RandomState, inputs: int, outputs: int) -> NDArray[np.float32]:
    """Uniform, because its draws are exact on every platform; normal ones go through the platform's log."""
    limit = (6 / (inputs + outputs)) ** 0.5
    return random.uniform(-limit, limit, inputs * outputs).astype(np.float32)


def _flat(theta: Vector, size: int) -> Vector:
    if theta.shape != (size,):
        raise ValueError(f"theta has shape {theta.shape}, this model has ({size},)")
    return theta


def _batch(x: Vector | None, y: Ids | None) -> tuple[Vector, Ids]:
    if x is None or y is None:
        raise ValueError("this model needs samples: x and y")
    if not len(y) or len(x) != len(y):
        raise ValueError(f"a batch has as many x as y, and not none, got {len(x)} and {len(y)}")
    return x, y


def _cross_entropy(scores: Vector, y: Ids) -> tuple[float, Vector]:
    """Mean cross-entropy and its gradient with respect to the scores."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(y))
    slope: Vector = np.exp(logs)
    slope[rows, y] -= 1
    return -float(logs[rows, y].mean()), slope / scores.dtype.type(len(y))


def _found(scores: Vector, y: Ids) -> float:
    return float(np.mean((scores.argmax(axis=1) == y) & np.isfinite(scores).all(axis=1)))
