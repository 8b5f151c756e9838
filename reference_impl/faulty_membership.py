"""Workers that leave and a job that goes on without them, with bugs: one subclass each."""

from __future__ import annotations

from typing import Any

from .membership import LEAST_PATIENCE_S, DroppingChief
from .recoverable import Look
from .trainer import Values, Worker


class LeavesTheRound(Worker):
    """Out of data it is done, and the others wait for it in their next round (tensorflow#20342)."""

    def run_dry(self, values: Values) -> None:
        del values


class DataAgain(Worker):
    """Out of data it begins again, and goes on to the last step."""

    def train(self) -> None:
        self.probe.due[self.index] = self.config.steps
        super().train()


class DropsEarly(DroppingChief):
    """Goes on without a worker as soon as it has to wait for it, and looks who has not come as often as it can."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.round_patience_s = LEAST_PATIENCE_S

    def patience_s(self) -> float:
        return 0.0


class NeverTakenBack(DroppingChief):
    """Goes on without a worker for good."""

    def gone(self, looks: list[Look]) -> set[int]:
        return super().gone(looks) | self.out
