"""The report on the terminal: what can be acted on comes first, nothing is said twice, no word is broken."""

from __future__ import annotations

import pytest
from rich.text import Text

from psconform.report.progress_bar import states_of
from psconform.report.text import explain, table, wrapped
from psconform.runner.progress import Progress
from psconform.runner.verdicts import judge_folder
from psconform.verdict import counted

from . import bugs
from .simulate import Trainer


class Unclaimed(Trainer):
    """It promises nothing about delivery."""

    level = ("delivery", "none")


@pytest.fixture
def violated(tmp_path):
    return bugs.Dropped(shards=(0, 1), steps=6).judge(tmp_path / "run")


def test_the_verdict_comes_first_and_then_what_is_violated(violated):
    first, heading, blank, *rows = explain(violated).splitlines()
    assert first.startswith(f"VIOLATED: {len(violated.names('violated'))} violated, ")
    assert " on ps=" in heading
    assert blank == ""
    words = [row.split() for row in rows if row.startswith("  ") and row[2:3].isupper()]
    found = [next(word for word in row if word in ("violated", "unknown", "valid")) for row in words]
    assert found == sorted(found, key=("violated", "unknown", "valid").index)
    assert {"violated", "valid"} <= set(found)


def test_what_was_not_judged_is_one_line_and_more_on_demand(violated):
    short, long = explain(violated), explain(violated, verbose=True)
    assert f"  {len(violated.names('not judged'))} not judged (-v lists why)\n" in short
    assert "not judged:" not in short
    assert "  not judged: S2 (needs --quorum)\n" in long
    assert "(-v lists why)" not in long


def test_a_claim_that_is_missing_is_the_line_to_write(tmp_path):
    judged = Unclaimed().judge(tmp_path / "run")
    assert "judged, write" not in explain(judged)  # only a target file can claim it
    judged.manifest.source = "/somewhere/target.toml"
    assert '  to have R1, R2 judged, write delivery = "exactly-once" under [claims.sync]\n' in explain(judged)


def test_an_incomplete_record_is_told_once(tmp_path):
    folder = Trainer(steps=6).run(tmp_path / "run")
    record = folder / "events" / "worker-1.jsonl"
    record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:-3]))
    judged = judge_folder(folder)
    text = explain(judged)
    gap = judged.history.gaps[0]
    assert text.count(gap) == 1
    assert f"  unknown for that reason: {', '.join(judged.names('unknown'))}\n" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_terminal_lines_break_between_words(violated, width):
    whole = table(violated)
    found = wrapped(whole, width)
    assert found.plain.split() == whole.plain.split()
    for line in found.plain.splitlines():
        assert len(line) <= width or len(line.split()) == 1
    assert any(span.style == "bold red" for span in found.spans)


def test_a_long_word_is_left_whole_and_what_goes_on_is_set_in():
    path = "/a/long/path" * 10
    found = wrapped(Text(f"  one two {path} three four five six seven eight nine ten eleven twelve"), 40).plain
    assert path in found
    first, *others = found.splitlines()
    assert first.startswith("  one two")
    assert all(line.startswith("      ") for line in others)


def test_singular_and_plural():
    assert [counted(n, "read") for n in (0, 1, 2)] == ["0 reads", "1 read", "2 reads"]
    tasks = {"ps:0": "running", "worker:0": "ended", "worker:1": "running", "worker:2": "running"}
    assert states_of(Progress(tasks, 0, 0, None)) == "1 ps running, 1 worker ended, 2 workers running"
    assert states_of(Progress({"ps:0": "running"}, 0, 0, None, what="calibration")) == "calibration: 1 ps running"
