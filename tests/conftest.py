"""Shared by all tests of the engine: their tiers, and where the time went.

*pure* (no marker): starts no process, which is enforced. *engine*: processes, none of which loads TensorFlow.
*tensorflow*: parts of the reference trainer, and a dozen clusters of it, always the same. *nightly*: all others, for
`tox -e nightly`.
The slowest tier that a test or its module is marked with is the test's.
"""

from __future__ import annotations

import _posixsubprocess
import os
import platform
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from psconform.doctor import PARTS, lacking
from psconform.plugin import NEEDS
from psconform.probe import Probe

pytest_plugins = ["pytester", "tests.proxied"]
settings.register_profile("untimed", deadline=None)  # how long an example takes is the machine's
settings.load_profile("untimed")

TIERS = {
    "nightly": "takes long: only in tox -e nightly",
    "tensorflow": "loads TensorFlow: parts of the reference trainer, a dozen clusters of it",
    "engine": "starts processes, none of which loads TensorFlow",
}
"""Slowest first."""
PURE = "pure"
STARTS = (
    (subprocess, "Popen"),
    (_posixsubprocess, "fork_exec"),  # of multiprocessing
    *((os, name) for name in ("fork", "posix_spawn", "posix_spawnp", "system")),
)
LOAD_TENSORFLOW = set()
"""Modules of tests that load it when they are imported."""
HERE = Path(__file__).parent


def pytest_configure(config):
    for name, about in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {about}")


def tier_of(item):
    """Empty for tests of the suites: pytest loads this file for them, too, where it is started in a checkout."""
    if not item.path.is_relative_to(HERE):
        return ""
    return next((name for name in TIERS if item.get_closest_marker(name)), PURE)


def pytest_collection_modifyitems(items):
    """The slowest begin first, or one of several processes would be left alone with them in the end."""
    order = [*TIERS, PURE, ""]
    items.sort(key=lambda item: order.index(tier_of(item)))


@pytest.fixture(autouse=True)
def ctrl_c():
    """SIGINT ends what a test starts: a shell has what it starts in the background, tests too, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def only_the_tensorflow_tier_loads_tensorflow(request):
    """It takes seconds and a gigabyte; a process that has it already cannot tell."""
    there = "tensorflow" in sys.modules
    yield
    loads = (not there and "tensorflow" in sys.modules) or request.node.path in LOAD_TENSORFLOW
    if tier_of(request.node) in (PURE, "engine") and loads:
        pytest.fail("mark what loads TensorFlow with its tier: tensorflow")


@pytest.fixture
def probe(tmp_path):
    """A worker that is alone, with four steps, and records into ``tmp_path``."""
    for part in ("events", "vectors", "done"):
        (tmp_path / part).mkdir()
    spec = {"run": "r", "workers": 1, "steps": 4, "unit": 840.0, "wait_s": 1}
    made = Probe(spec, task="worker:0", folder=str(tmp_path))
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A module may load it when it is imported, and then all that come after it find it there."""
    there = "tensorflow" in sys.modules
    report = yield
    if not there and "tensorflow" in sys.modules and isinstance(collector, pytest.Module):
        LOAD_TENSORFLOW.add(collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A pure test, and the fixtures that it is the first to use, cannot start a process."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if tier_of(item) == PURE:
            for part in (part for marker in item.iter_markers(NEEDS) for part in marker.args if part in PARTS):
                lacking(part)  # which may take a process; the answer is kept

            def refused(*_, **__):
                pytest.fail("a pure test starts no process: mark it engine, or tensorflow or nightly if it is slower")

            platform.processor()  # asks `uname -p` once in a process, whichever test comes first

            for module, name in STARTS:
                monkeypatch.setattr(module, name, refused)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    report.tier = tier_of(item)
    return report


def pytest_terminal_summary(terminalreporter):
    """Seconds of all tests, by tier and module; several processes at once, so together more than it took."""
    reports = [r for kind in terminalreporter.stats.values() for r in kind if getattr(r, "tier", "")]
    tiers, tests, modules = Counter(), Counter(), Counter()
    for report in reports:
        module = Path(report.nodeid.partition("::")[0]).stem
        tiers[report.tier] += report.duration
        modules[report.tier, module] += report.duration
        tests[report.tier] += report.when == "call"
    if not reports:
        return
    terminalreporter.section("time by tier, and its slowest modules")
    for tier, seconds in tiers.most_common():
        slowest = [(s, module) for (of, module), s in modules.most_common() if of == tier][:6]
        parts = ", ".join(f"{module} {s:.0f}" for s, module in slowest)
        terminalreporter.write_line(f"{tier:<10} {tests[tier]:5} tests {seconds:6.0f} s: {parts}")
