"""Each example of docs/shapes.md is judged as its comment says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from psconform.runner.verdicts import judge_folder

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^(?:BUG=(?P<bug>[\w-]+) )?psconform (?P<words>run [^#\n]*?) *(?:# (?P<violated>[\w ]+))?$", re.M)
EXAMPLES = list(LINE.finditer((ROOT / "docs" / "shapes.md").read_text(encoding="utf-8")))
pytestmark = [pytest.mark.engine, pytest.mark.nightly]


def test_there_are_examples():
    assert len(EXAMPLES) >= 16


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0].partition("psconform run ")[2])
def test_an_example_is_judged_as_it_says(tmp_path, example):
    words = [sys.executable, "-m", "psconform", *shlex.split(example["words"]), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "BUG": example["bug"] or ""}
    done = subprocess.run(words, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    violated = (example["violated"] or "").split()
    assert judge_folder(tmp_path / "run").names("violated") == violated, done.stdout
    assert done.returncode == bool(violated), done.stdout
