"""The plugin of the pytest that runs in a sandbox: which tests, in which order, for how long; what came of each.

It appends JSON lines to ``--mutants-report``: ``{"begun": id}`` and ``{"ended": id, "outcome": ..., "seconds": ...}``.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .recorder import SIZE, TRACE, Recorder, prepare

WATCHDOG = "watchdog"
"""The file beside the report that is written if a test does not end."""
OUTSIDE_S = 300.0
"""How long pytest may take to collect, and after the last test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options are the sandbox's."""
    parser.addoption("--mutants-report", type=Path)
    parser.addoption("--mutants-wanted", type=Path, help="JSON: tests in order, each with its limit in seconds")


def pytest_configure(config: pytest.Config) -> None:
    """The controller of xdist runs no test."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    if config.getoption("--mutants-report"):
        config.pluginmanager.register(Selector(config))


class Selector:
    """One pytest process. Its watchdog is a thread in C: it ends the process whatever the test holds or catches."""

    def __init__(self, config: pytest.Config) -> None:
        self.report: Path = config.getoption("--mutants-report")
        path: Path | None = config.getoption("--mutants-wanted")
        self.wanted: dict[str, float] | None = json.loads(path.read_text(encoding="utf-8")) if path else None
        self.number = 0
        self.watchdog = self.report.with_name(WATCHDOG).open("w", encoding="utf-8")  # standard error is captured
        self.now = self.recorder = None
        if TRACE in os.environ:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "only")
            folder = Path(os.environ[TRACE]).parent / worker
            self.now = prepare(folder)
            os.environ[TRACE] = str(folder)  # of all that tests start
            self.recorder = Recorder(folder)
            self.recorder.start()
        self._watch(OUTSIDE_S)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Only those that are wanted, in that order."""
        if self.wanted is None:
            self._say(collected=[item.nodeid for item in items])
            return
        order = {name: number for number, name in enumerate(self.wanted)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Tell the recorder and the watchdog which test it is."""
        self.number += 1
        self.outcome, self.seconds = "passed", 0.0
        self._say(begun=item.nodeid, number=self.number)
        self._mark(self.number)
        if self.recorder:
            self.recorder.start()  # again: one that raises is dropped, and a test may have had os fail
        if self.wanted is not None:
            self._watch(self.wanted[item.nodeid])
        try:
            return (yield)
        finally:
            self._watch(OUTSIDE_S)
            self._mark(0)
            self._say(ended=item.nodeid, outcome=self.outcome, seconds=round(self.seconds, 3))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has failed if any of its phases has."""
        self.seconds += report.duration
        if report.outcome != "passed" and self.outcome != "failed":
            self.outcome = report.outcome

    def _mark(self, number: int) -> None:
        if self.now is not None:
            self.now[:SIZE] = number.to_bytes(SIZE, "little")

    def _watch(self, seconds: float) -> None:
        if self.wanted is not None:
            faulthandler.dump_traceback_later(seconds, exit=True, file=self.watchdog)

    def _say(self, **message: Any) -> None:
        with self.report.open("a", encoding="utf-8") as file:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "only")
            file.write(json.dumps({"worker": worker, **message}) + "\n")
