"""Model-parallel training: one model, cut over the workers. Activations travel between them, and gradients back.

Each worker computes with its own slice of the parameters, a part of the hidden units (`Mlp`), of the features
(`Softmax`) or of the coordinates (`Quadratic`). Worker 0 adds up what they found and computes the loss of all samples
of the step; TensorFlow's own gradients go back to the workers whose slices they belong to. A worker pushes the gradient
of its slice, zero elsewhere, times the number of workers: their mean is then the gradient of the whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from psconform.models import Mlp, Model, Quadratic, Softmax
from psconform.probe import Probe

from ..cluster import Tensor, tf, tf1
from ..worker import Values
from .in_graph import InGraph, Tower


class Slice:
    """One worker's slice: its inputs and gradients are made by the client, for they belong to one graph.

    ``theta`` and ``gradients`` are one float32[slots] per shard, the parameters fed and the gradient found.
    """

    def __init__(self, probe: Probe, *, theta: list[Tensor], gradients: list[Tensor]) -> None:
        self.theta, self.gradients = theta, gradients
        self._old: deque[Values] = deque(maxlen=int(probe.trained.spec["delay"]) + 1)

    def messages(self, tower: Tower, tails: list[Tensor]) -> list[Tensor]:
        """What this tower sends to each shard; ``tails`` are what follows the gradient in a message."""
        weight = tower.shards[0].weight() * tower.config.learning_rate
        scale = np.float32(tower.config.workers * tower.probe.trained.rate * weight)
        return [tf.concat([gradient * scale, tail], 0) for gradient, tail in zip(self.gradients, tails, strict=True)]

    def at(self, values: Values) -> Values:
        """The values that gradients are taken at (``--delay``)."""
        self._old.append(values)
        return self._old[0]


class ModelParallel(InGraph):
    """The client of a model that is cut over all workers."""

    def _towers(self, probes: Sequence[Probe]) -> Sequence[Tower]:
        trained, slots = probes[0].trained, self.config.slots
        self._probes, self._data = probes, trained.data
        self._samples: list[Tensor] = []
        thetas: list[list[Tensor]] = []
        for index in range(self.config.workers):
            with self.device(index):
                thetas.append([tf1.placeholder(tf.float32, [slots]) for _ in self.shards])
        if self._data is not None:
            with self.device(0):
                features = self._data.train_x.shape[1]
                self._samples = [tf1.placeholder(tf.float32, [None, features]), tf1.placeholder(tf.int64, [None])]
        gradients = self.gradients(trained.model, thetas)
        return [
            Tower(probe, self.config, self.shards, Slice(probe, theta=theta, gradients=gradient))
            for probe, theta, gradient in zip(probes, thetas, gradients, strict=True)
        ]

    def device(self, index: int) -> Any:
        """Where a slice lives."""
        return tf.device(f"/job:worker/task:{index}/device:CPU:0")

    def inputs(self) -> list[Tensor]:
        """Features float32[n, features] and classes int64[n] of the samples of all workers."""
        return self._samples

    def together(self, step: int) -> list[Any]:
        if self._data is None:
            return []
        ids = np.concatenate([self.dealt(probe, step) for probe in self._probes])
        return [self._data.train_x[ids], self._data.train_y[ids]]

    def dealt(self, probe: Probe, step: int) -> list[int]:
        """Ids of one worker's share of the samples."""
        return probe.samples(step) or []

    def gradients(self, model: Model, thetas: list[list[Tensor]]) -> list[list[Tensor]]:
        """Of each worker's parameters, float32[slots] per shard: the gradient of its slice, zero elsewhere."""
        parts = self.parts(model, thetas)
        found = self.derive(self.loss(model, parts, thetas), [theta for mine in thetas for theta in mine])
        each = len(self.shards)
        return [found[i * each : (i + 1) * each] for i in range(len(thetas))]

    def parts(self, model: Model, thetas: list[list[Tensor]]) -> list[Tensor]:
        """What each worker contributes: scores float32[n, classes], or of `Quadratic` a share of the loss."""
        whole = {Mlp: "hidden", Softmax: "features", Quadratic: "size"}[type(model)]
        cuts = np.linspace(0, getattr(model, whole), len(thetas) + 1).astype(int).tolist()
        found = []
        for index, mine in enumerate(thetas):
            with self.device(index):
                found.append(_part(model, tf.concat(mine, 0)[: model.size], self._samples, *cuts[index : index + 2]))
        return found

    def loss(self, model: Model, parts: list[Tensor], thetas: list[list[Tensor]]) -> Tensor:
        """The loss of all samples of the step, on worker 0, which holds the biases of the scores, too."""
        with self.device(0):
            total = tf.add_n(parts)
            if isinstance(model, Quadratic):
                return total
            bias = tf.concat(thetas[0], 0)[model.size - model.classes : model.size]  # type: ignore[attr-defined]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self._samples[1], logits=total + bias)
            return tf.reduce_mean(losses)

    def derive(self, loss: Tensor, thetas: list[Tensor]) -> list[Tensor]:
        """Gradients with respect to these, each op on the device of the op that it belongs to."""
        found: list[Tensor] = tf1.gradients(loss, thetas, colocate_gradients_with_ops=True)
        return found


def _part(model: Model, theta: Tensor, samples: list[Tensor], low: int, high: int) -> Tensor:
    """What the slice from ``low`` to ``high`` of the model contributes."""
    if isinstance(model, Quadratic):
        away = theta[low:high] - model.optimum[low:high]
        return tf.reduce_sum(away * away * model.curvature[low:high].astype(np.float32)) / 2
    x = samples[0]
    if isinstance(model, Softmax):
        weights = tf.reshape(theta[: model.features * model.classes], [model.features, model.classes])
        return x[:, low:high] @ weights[low:high]
    assert isinstance(model, Mlp)
    end, width = model.features * model.hidden, model.hidden
    first, bias = tf.reshape(theta[:end], [model.features, width]), theta[end : end + width]
    second = tf.reshape(theta[end + width : end + width + width * model.classes], [width, model.classes])
    return tf.tanh(x @ first[:, low:high] + bias[low:high]) @ second[low:high]
