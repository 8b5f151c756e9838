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


def _variant(folder, old, new, *, of=EXAMPLE):
    """The example, or a variant of it, with one piece of text replaced."""
    source = (of / "train.py").read_text(encoding="utf-8")
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


RESUMES = """    if first > 0:  # psconform: this worker was started again
        probe.resume(first)  # psconform
"""


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_worker_that_goes_on_and_does_not_say_where_is_not_accused(judge, tmp_path, update):
    target = _variant(tmp_path, RESUMES, "")
    run = judge(target, layout="ps=2,worker=3", update=update, steps=60, kill=["worker:1@35"])
    assert run.valid, run.explain()


def test_an_initialisation_that_was_refused_is_not_one(judge, tmp_path):
    told = "        if all(taken):  # psconform: not if this worker was started again\n    "
    run = judge(_variant(tmp_path, told, ""), layout="ps=2,worker=3", steps=60, kill=["worker:0@20"])
    events = (run.folder / "events" / "worker-0.1.jsonl").read_text(encoding="utf-8")
    assert '"kind":"init"' in events
    assert run.valid, run.explain()


def test_of_a_worker_that_begins_again_the_cause_is_named_once(judge, tmp_path):
    target = _variant(tmp_path, "    first = min(server.next_step(worker) for server in servers)\n", "    first = 0\n")
    _variant(tmp_path, "            if step == self.taken[worker]:\n", "            if True:\n", of=tmp_path)
    run = judge(target, layout="ps=2,worker=3", update="async", steps=40, kill=["worker:1@20"])
    (line,) = run.verdicts["R1"].witness
    begins = "the gradients of worker:1, steps 0 to 19, (ok) were applied 2 times to ps:0 and ps:1 (20 gradients): "
    assert line.startswith(f"{begins}worker:1 came back and began again at step 0 ")


def test_each_line_that_names_the_probe_is_marked():
    source = (EXAMPLE / "train.py").read_text(encoding="utf-8")
    assert [line for line in source.splitlines() if "probe" in line.lower() and "# psconform" not in line] == []
