"""Tests that take a part of the machine: what becomes of them where it is missing, or is no part at all."""

from __future__ import annotations

import pytest

TEST = """
import pytest

@pytest.mark.psconform_needs("PART")
def test_it():
    pass
"""


@pytest.fixture
def without_an_engine(monkeypatch):
    """Where nothing listens."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.delenv("PSCONFORM_REQUIRE_ALL", raising=False)


@pytest.mark.engine
@pytest.mark.usefixtures("without_an_engine")
def test_a_missing_part_skips_and_is_counted(pytester):
    pytester.makepyfile(TEST.replace("PART", "docker"))
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*1 for lack of docker*"])
    assert "needs docker: there is no /nowhere/docker.sock, so --launcher docker cannot be used; fix: " in str(
        result.stdout
    )


@pytest.mark.engine
@pytest.mark.usefixtures("without_an_engine")
def test_where_all_parts_are_required_it_fails(pytester, monkeypatch):
    monkeypatch.setenv("PSCONFORM_REQUIRE_ALL", "1")
    pytester.makepyfile(TEST.replace("PART", "docker"))
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*PSCONFORM_REQUIRE_ALL=1, and this machine lacks docker: *"])


@pytest.mark.engine
@pytest.mark.usefixtures("without_an_engine")
def test_what_is_no_part_is_an_error_that_names_those_that_are(pytester):
    pytester.makepyfile(TEST.replace("PART", "fuze"))
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*psconform_needs: there is no part 'fuze'; valid: docker, faketime, fuse, toxiproxy*"]
    )
