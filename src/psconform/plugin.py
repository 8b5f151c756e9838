"""The pytest plugin: the ``judge`` fixture, the suites' options, and what is kept of a failing test.

Loaded by pytest through its entry point, in every project that has psconform installed; so it imports nothing heavy
and its options, markers, profiles and fixtures other than ``judge`` carry the prefix ``psconform``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .verdict import counted

if TYPE_CHECKING:
    from hypothesis import settings

    from .api import Run
    from .runner.session import Session

PROFILES = ("quick", "ci", "nightly")
LAUNCHERS = ("process", "docker")
ANYWHERE = "psconform_anywhere"
"""Marks a test of what a trainer computes, not of how its tasks start, meet, break: of containers only in nightly."""
NEEDS = "psconform_needs"
"""Marks a test that takes parts of the machine by their names in `psconform.doctor.PARTS`: skipped where one lacks."""
REQUIRE_ALL = "PSCONFORM_REQUIRE_ALL"
"""Environment variable; if it is 1, a test that lacks a part of the machine fails. For CI, which installs them all."""
LACKS = "psconform_lacks"
"""Attribute of the report of a test that was skipped for lack of a part: the part, and how to get it."""
_failed = pytest.StashKey[bool]()
_clusters = pytest.StashKey[Counter[str]]()
_left_out = pytest.StashKey[int]()
_counted = pytest.StashKey[bool]()
_undecided = pytest.StashKey[str]()


@dataclasses.dataclass
class Tally:
    """Clusters of this pytest run that were broken, and folders of those that are undecided, each with the reason.

    Of all faults of their plans, how many were observed.
    """

    runs: int = 0
    planned: int = 0
    observed: int = 0
    undecided: list[tuple[Path, str]] = dataclasses.field(default_factory=list)

    def settle(self) -> str:
        """What is wrong if more than one in a hundred is undecided (one is always allowed); else deletes those."""
        if len(self.undecided) > max(1, self.runs // 100):
            lines = [f"psconform replay {folder}: {reason}" for folder, reason in self.undecided]
            return f"{len(lines)} of {self.runs} runs are undecided:\n" + "\n".join(lines)
        for folder, _ in self.undecided:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another test keeps something there
                folder.parent.rmdir()
        return ""


tally = Tally()


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the command line chose: the target to judge, and how thoroughly."""

    target: str = "reference"
    profile: str = "quick"
    launcher: str = "process"
    image: str = ""

    @property
    def size(self) -> str:
        """How many clusters that is: containers start cold, so with them each profile is as small as the one below."""
        return self.profile if self.launcher == "process" else PROFILES[max(0, PROFILES.index(self.profile) - 1)]

    @property
    def small(self) -> bool:
        """Whether clusters are small, and only of what may depend on where tasks run: in containers, but for nightly.

        Each container loads TensorFlow by itself: 3 s of a core, which is most of what a cluster takes.
        """
        return self.launcher == "docker" and self.profile != "nightly"


chosen = Choice()
"""Set while pytest is configured, before any test module is imported."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all with a prefix."""
    group = parser.getgroup("psconform", "psconform: conformance of distributed training")
    group.addoption(
        "--psconform-target",
        metavar="FILE",
        default="reference",
        help="the target that the psconform suites judge: 'reference' (default) or the path of a target.toml",
    )
    group.addoption(
        "--psconform-profile",
        choices=PROFILES,
        default="quick",
        help="how many clusters the psconform suites start: quick (default), ci, nightly",
    )
    group.addoption(
        "--psconform-launcher",
        choices=LAUNCHERS,
        default="process",
        help="where tasks run: process (default), or docker: each in a container of its own",
    )
    group.addoption(
        "--psconform-image",
        metavar="IMAGE",
        default="",
        help="with docker: what tasks run in; default: the trainer's own, psconform images build",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Remember the choice and register the marker."""
    global chosen  # noqa: PLW0603  (test modules read it when they are imported)
    target = str(config.getoption("--psconform-target"))
    if target != "reference":
        target = str((config.invocation_params.dir / target).resolve())
    profile, launcher, image = (
        str(config.getoption(f"--psconform-{name}")) for name in ("profile", "launcher", "image")
    )
    chosen = Choice(target, profile, launcher, image)
    config.addinivalue_line("markers", "psconform: a test that starts real clusters and judges them")
    config.addinivalue_line("markers", f"{ANYWHERE}: what it judges is the same wherever tasks run")
    config.addinivalue_line(
        "markers", f"{NEEDS}(part, ...): is skipped on a machine that lacks a part (docker, faketime, fuse, toxiproxy)"
    )
    if target != "reference":
        _check_target(target)
    if launcher == "docker":
        _check_engine(image)
    elif image:
        raise pytest.UsageError("--psconform-image is for --psconform-launcher docker")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is the same wherever tasks run; how many that are is said at the end."""
    out = [item for item in items if chosen.small and item.get_closest_marker(ANYWHERE)]
    if out:
        config.hook.pytest_deselected(items=out)
        config.stash[_left_out] = len(out)
        items[:] = [item for item in items if item not in set(out)]


class Lacking(pytest.skip.Exception):  # type: ignore[misc, name-defined]
    """Skips a test for lack of a part of the machine."""

    __module__, __qualname__ = "builtins", "Skipped"  # as pytest shows its own: SKIPPED needs fuse: ...

    def __init__(self, part: str, advice: str) -> None:
        super().__init__(f"needs {advice}", _use_item_location=True)
        self.part, self.advice = part, advice


def need(*parts: str) -> None:
    """Skip the test that runs if this machine lacks one of these parts; fail it if all are required."""
    from .doctor import PARTS, lacking

    for part in parts:
        if part not in PARTS:
            pytest.fail(f"{NEEDS}: there is no part {part!r}; valid: {', '.join(sorted(PARTS))}", pytrace=False)
        if advice := lacking(part):
            if os.environ.get(REQUIRE_ALL) == "1":
                pytest.fail(f"{REQUIRE_ALL}=1, and this machine lacks {advice}", pytrace=False)
            raise Lacking(part, advice)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test starts something."""
    for marker in item.iter_markers(NEEDS):
        need(*marker.args)


def _check_target(target: str) -> None:
    from .errors import BadInput
    from .targets.lookup import find_target

    try:
        find_target(target)
    except BadInput as error:
        raise pytest.UsageError(f"--psconform-target: {error}") from None


def _check_engine(image: str) -> None:
    """One line that says what lacks, rather than as many failures as there are tests."""
    from .errors import PsconformError
    from .launchers.images import need, trainer_image

    try:
        need(image or trainer_image(), own=not image)
    except PsconformError as error:
        raise pytest.UsageError(f"--psconform-launcher docker: {error}") from None


def suite_settings(*, quick: int, ci: int, nightly: int) -> settings:
    """Hypothesis settings for a test that starts that many clusters, by profile; half as many where they are `small`.

    quick and ci draw the same examples every time and do not shrink (each example is a cluster, and a failing one
    prints the command that repeats it); nightly draws afresh and shrinks.
    """
    from hypothesis import HealthCheck, Phase, settings

    count = {"quick": quick, "ci": ci, "nightly": nightly}[chosen.size]
    count = (count + 1) // 2 if chosen.small else count
    thorough = chosen.profile == "nightly"
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=not thorough,
        print_blob=thorough,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if thorough else [])],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(scope="session")
def psconform_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Warm processes shared by all tests of this pytest run."""
    from .runner.session import Session

    with Session() as session:
        yield session
        request.config.stash[_clusters] = session.clusters


@pytest.fixture
def judge(request: pytest.FixtureRequest, psconform_session: Session) -> Iterator[Callable[..., Run]]:
    """``psconform.judge`` with warm processes.

    Runs go to ``psconform-runs/`` where pytest was started; those of a failing test stay, all others are deleted.
    """
    from .api import judge as run_and_judge

    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name)[:60].strip("-")
    runs = request.config.invocation_params.dir / "psconform-runs"
    base = runs / f"{name}-{os.urandom(2).hex()}"
    folders: list[Path] = []

    def run(target: str | Path | None = None, **options: Any) -> Run:
        out = Path(options.pop("out", None) or base / f"run-{len(folders)}")
        folders.append(out)
        options = {"launcher": chosen.launcher, "image": chosen.image, **options}
        return run_and_judge(chosen.target if target is None else target, out=out, session=psconform_session, **options)

    yield run
    if request.node.stash.get(_failed, False):
        kept = [f"psconform check {folder}" for folder in folders if (folder / "manifest.json").exists()]
        request.node.add_report_section("teardown", "psconform: runs kept, look at them with", "\n".join(kept))
        return
    shutil.rmtree(base, ignore_errors=True)
    with contextlib.suppress(OSError):  # another test keeps something there, or there never was anything
        runs.rmdir()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of several processes (pytest-xdist) each hands on what it has counted; the first of them judges it."""
    config = session.config
    if (output := getattr(config, "workeroutput", None)) is not None:
        clusters = config.stash.get(_clusters, Counter[str]())
        counts = [dict(clusters), config.stash.get(_left_out, 0)]
        undecided = [[str(folder), reason] for folder, reason in tally.undecided]
        output["psconform"] = [*counts, tally.runs, tally.planned, tally.observed, undecided]
    elif _counted in config.stash and (problem := tally.settle()):
        config.stash[_undecided] = problem
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of several processes has ended."""
    if (said := (getattr(node, "workeroutput", None) or {}).get("psconform")) is None:
        return
    clusters, left_out, runs, planned, observed, undecided = said
    stash = node.config.stash
    stash[_counted] = True
    stash[_clusters] = stash.get(_clusters, Counter()) + Counter(clusters)
    stash[_left_out] = left_out  # all of them collect the same
    tally.runs += runs
    tally.planned += planned
    tally.observed += observed
    tally.undecided += [(Path(folder), reason) for folder, reason in undecided]


def is_one_of_several(config: pytest.Config) -> bool:
    """Other processes (pytest-xdist) run other tests meanwhile."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know whether their test failed, and the summary what it lacked."""
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    if call.excinfo is not None and isinstance(lack := call.excinfo.value, Lacking):
        # of simple types: pytest-xdist sends reports as JSON
        vars(report)[LACKS] = [lack.part, lack.advice]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many real clusters were started."""
    if problem := config.stash.get(_undecided, ""):
        terminalreporter.write_line(problem, red=True)
    if clusters := config.stash.get(_clusters, Counter()):
        count = counted(clusters.total(), "real cluster")
        of = [f"{number} of {name}" if len(clusters) > 1 else name for name, number in sorted(clusters.items())]
        where = "" if chosen.launcher == "process" else ", in containers"
        terminalreporter.write_line(f"psconform: {count} started ({', '.join(of)}; {chosen.profile}{where})")
    if tally.planned:
        terminalreporter.write_line(f"psconform: {tally.observed} of {tally.planned} faults were observed")
    kept = sorted((config.invocation_params.dir / "psconform-runs").glob("undecided-*"))
    if kept:
        terminalreporter.write_line(
            f"psconform: {len(kept)} undecided runs are kept, the first is: psconform replay {kept[0]}"
        )
    lacks = [vars(report)[LACKS] for report in terminalreporter.getreports("skipped") if LACKS in vars(report)]
    if lacks:
        counts = Counter(part for part, _ in lacks)
        advice = dict(lacks)
        parts = "; ".join(f"{count} for lack of {part} ({advice[part]})" for part, count in sorted(counts.items()))
        terminalreporter.write_line(f"psconform: {len(lacks)} tests were skipped: {parts}")
    if left_out := config.stash.get(_left_out, 0):
        terminalreporter.write_line(
            f"psconform: {left_out} tests are left to local processes and nightly (the same wherever tasks run)"
        )
