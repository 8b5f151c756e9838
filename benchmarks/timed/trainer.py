"""The reference trainer with a stopwatch around each call of the probe; the last line of its log is the result."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from psconform.reference_impl.__main__ import main
from psconform.reference_impl.worker import Worker

from psconform.probe import Probe

spent = {"probe_s": 0.0, "loop_s": 0.0}


def timed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Add the time of each call to ``spent``."""

    @functools.wraps(call)
    def inner(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent["probe_s"] += time.perf_counter() - began

    return inner


def measured_train(self: Worker) -> None:
    """``Worker.train`` without joining and waiting: only the training loop counts."""
    self.join()
    join, self.join = self.join, lambda: None
    wait = self.probe.wait_for_all

    def stop_the_clock() -> list[str]:
        spent["loop_s"] = time.perf_counter() - began
        loop_probe = spent["probe_s"]
        absent: list[str] = wait()
        spent["probe_s"] = loop_probe
        sys.stderr.write(json.dumps({**spent, "steps": self.config.steps}) + "\n")
        return absent

    self.probe.wait_for_all = stop_the_clock
    began = time.perf_counter()
    spent["probe_s"] = 0.0
    train(self)
    self.join = join


for name in ("read", "gradient", "push", "ack"):
    setattr(Probe, name, timed(getattr(Probe, name)))
train = Worker.train
Worker.train = measured_train

if __name__ == "__main__":
    main()
