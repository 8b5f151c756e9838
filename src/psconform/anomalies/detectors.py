"""All detectors, and the rules that hold for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..history.model import History
from .anomaly import Anomaly
from .diverging import diverging
from .nonfinite import non_finite
from .slow_worker import stragglers
from .stalled import stalled

Losses = Mapping[str, Sequence[float]]
DETECTORS: dict[str, Callable[[History, Losses], list[Anomaly]]] = {
    "non-finite": lambda history, _: non_finite(history),
    "stalled": lambda history, _: stalled(history),
    "straggler": lambda history, _: stragglers(history),
    "diverging": diverging,
}
"""By the kind of anomaly that they report."""


def find_anomalies(history: History, losses: Losses | None = None) -> tuple[Anomaly, ...]:
    """What all detectors report, by the time since when; never raises.

    Args:
        history: the run.
        losses: by worker, the loss before each step, where a model is trained.
    """
    found: list[Anomaly] = []
    for kind, detector in DETECTORS.items():
        try:
            found += detector(history, losses or {})
        except Exception as error:  # a crashed detector must not cost the verdicts, nor look as if all were well
            text = f"the detector crashed: {type(error).__name__}: {error}"
            found.append(Anomaly(kind=kind, task="psconform:0", step=None, since_s=0.0, text=text))
    return tuple(sorted(found, key=lambda anomaly: anomaly.since_s))
