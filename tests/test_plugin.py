"""The pytest plugin in somebody else's project: the fixture, the options, what is kept of a failing test."""

from __future__ import annotations

from pathlib import Path

import pytest

TARGET = Path(__file__).parent / "socket_ps" / "target.toml"
DROPS = TARGET.with_name("target_drop.toml")
pytestmark = pytest.mark.engine


def test_a_passing_test_leaves_nothing_behind_and_a_failing_one_its_run_and_how_to_look_at_it(pytester):
    pytester.makepyfile(f"""
import psconform

def test_it(judge):
    run = judge({str(TARGET)!r}, layout="ps=1,worker=2", update="async", steps=5)
    assert run.valid, run.explain()
    assert (run.folder / "verdicts.json").exists()

def test_that_fails(judge):
    run = judge({str(DROPS)!r}, layout="ps=1,worker=2", update="async", steps=5)
    assert run.valid, run.explain()
""")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*R1*violated*", "*psconform check *", "psconform: 4 real clusters started (2 of socket-ps, 2 of *; quick)"]
    )
    (kept,) = (pytester.path / "psconform-runs").iterdir()
    assert kept.name.startswith("test_that_fails-")
    assert (kept / "run-0" / "manifest.json").exists()


def test_suite_judges_the_target_of_the_option(pytester):
    result = pytester.runpytest_subprocess(
        *("--pyargs", "psconform.suites.conformance", "-p", "no:cacheprovider"),
        *("--psconform-target", str(DROPS), "-k", "contention"),
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*run again:*psconform run*target_drop.toml*"])


def test_bad_target_is_one_clear_error(pytester):
    result = pytester.runpytest_subprocess("--psconform-target", "nowhere.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --psconform-target: *nowhere.toml: cannot be read*"])


def test_options_have_a_prefix(pytester):
    result = pytester.runpytest_subprocess("--help")
    ours = [line.split()[0] for line in result.outlines if line.strip().startswith("--psconform")]
    names = ["target", "profile", "launcher", "image"]
    assert [option.partition("=")[0] for option in ours] == [f"--psconform-{name}" for name in names]


@pytest.mark.parametrize(
    ("launcher", "profile", "left"), [("docker", "ci", 1), ("docker", "nightly", 2), ("process", "ci", 2)]
)
def test_in_containers_what_is_the_same_anywhere_is_left_to_nightly_and_that_is_said(pytester, launcher, profile, left):
    pytester.makeconftest("import psconform.plugin as p\np._check_engine = lambda image: None")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.psconform_anywhere
        def test_of_what_is_computed():
            pass

        def test_of_how_it_breaks():
            pass
        """
    )
    options = ("--psconform-launcher", launcher, "--psconform-profile", profile)
    result = pytester.runpytest_subprocess("--strict-markers", *options)
    result.assert_outcomes(passed=left, deselected=2 - left)
    said = "1 tests are left to local processes and nightly" in result.stdout.str()
    assert said is (left == 1)
