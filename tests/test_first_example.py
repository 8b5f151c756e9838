"""examples/first: a small trainer to copy from, which is valid, and what its README says of it without its barrier."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "first"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.engine


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("kill", [[], ["worker:1@35"]], ids=["good-day", "killed"])
def test_it_is_valid(judge, update, kill):
    run = judge(EXAMPLE / "target.toml", layout="ps=2,worker=3", update=update, steps=60, kill=kill)
    assert run.valid, run.explain()


def test_a_worker_killed_between_two_pushes_reads_one_round(judge):
    run = judge(EXAMPLE / "target.toml", layout="ps=2,worker=3", steps=60, kill=["worker:1@sent:35"])
    assert run.valid, run.explain()


def _variant(folder, old, new):
    """The example with one piece of text replaced."""
    source = (EXAMPLE / "train.py").read_text(encoding="utf-8")
    assert source.count(old) == 1
    (folder / "train.py").write_text(source.replace(old, new), encoding="utf-8")
    (folder / "target.toml").write_text((EXAMPLE / "target.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return folder / "target.toml"


def test_without_a_worker_it_ends_with_an_error_that_says_so(judge, tmp_path):
    target = _variant(tmp_path, "PATIENCE = 30.0", "PATIENCE = 3.0")
    run = judge(target, layout="ps=2,worker=3", steps=60, kill=["worker:1@35"], restart_after="never")
    assert run.valid, run.explain()
    assert run.verdicts["L1"].status == "valid"


def test_without_its_barrier_it_is_violated_as_its_readme_says(judge, tmp_path):
    (barrier,) = re.findall(r"^self\.wait\(.*\n", README, re.MULTILINE)
    run = judge(_variant(tmp_path, " " * 12 + barrier, ""), layout="ps=2,worker=3", steps=100, seed=1)
    quoted = set(re.findall(r"^  ([A-Z]\d) .* violated ", README, re.MULTILINE))
    assert quoted
    assert quoted <= set(run.violated), run.explain()
    assert run.verdicts["R1"].status == "valid"  # every gradient is applied, only in the wrong round


def test_each_line_that_names_the_probe_is_marked():
    source = (EXAMPLE / "train.py").read_text(encoding="utf-8")
    assert [line for line in source.splitlines() if "probe" in line.lower() and "# psconform" not in line] == []
