"""The picture of a run: drawn from plain numbers, the same every time, and clear about what it cannot do."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from psconform.errors import BadInput
from psconform.parts import Missing
from psconform.report.plot import draw

pytestmark = pytest.mark.engine  # Matplotlib starts fc-list when it is used for the first time on a machine

WHOLE = {
    "losses": {"worker:0": [2.3, 1.2, 0.7], "worker:1": [2.4, 1.1, 0.8], "serial": [2.3, 1.15, 0.75]},
    "step_times_ms": {"worker:0": [1.5, 1.7, 1.6], "worker:1": [3.0, 3.1, 90.0]},
    "staleness": [0, 1, 1, 2, 1],
}
EMPTY = {"losses": {}, "step_times_ms": {}, "staleness": []}


def words(path):
    return set(re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8")))


def test_png_and_svg_by_suffix(tmp_path):
    draw(tmp_path / "run.PNG", title="a run", **WHOLE)
    assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")
    draw(tmp_path / "run.svg", title="a run", **WHOLE)
    assert "<svg" in (tmp_path / "run.svg").read_text(encoding="utf-8")


def test_what_a_link_names_is_not_drawn_over(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "plot.svg").symlink_to("precious")
    draw(tmp_path / "plot.svg", title="a run", **WHOLE)
    assert (tmp_path / "precious").read_text() == "mine"
    assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_every_axis_and_curve_is_labelled_with_its_unit(tmp_path):
    draw(tmp_path / "run.svg", title="costs $5 & $6", **WHOLE)
    shown = words(tmp_path / "run.svg")
    assert {"costs $5 &amp; $6", "worker:0", "worker:1", "serial", "slowest step", "mean 1.00"} <= shown
    assert {"step of the worker", "loss on the training set", "time per step (ms)"} <= shown
    assert {"staleness (updates between read and apply)", "share of updates (%)"} <= shown


@pytest.mark.parametrize(
    ("part", "title"), [("losses", "Loss"), ("step_times_ms", "Step times"), ("staleness", "Staleness")]
)
def test_empty_parts_are_left_out(part, title, tmp_path):
    draw(tmp_path / "run.svg", title="one part", **EMPTY | {part: WHOLE[part]})
    assert words(tmp_path / "run.svg") & {"Loss", "Step times", "Staleness"} == {title}


def test_a_worker_without_values_is_left_out(tmp_path):
    draw(tmp_path / "run.svg", title="t", **EMPTY | {"losses": {"worker:0": [1.0, 0.5], "worker:1": []}})
    assert "worker:0" in words(tmp_path / "run.svg")
    assert "worker:1" not in words(tmp_path / "run.svg")


def test_same_numbers_same_bytes(tmp_path):
    for suffix in ("png", "svg"):
        first, second = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
        draw(first, title="t", **WHOLE)
        draw(second, title="t", **WHOLE)
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "losses",
    [[2.0, 9e37, math.inf, math.nan], [math.nan] * 3, [0.0, -1.0, 0.0], [1.0], [0.0], np.zeros(3, np.float32)],
    ids=["diverged", "all nan", "not positive", "one step", "zero", "array"],
)
def test_odd_curves_are_drawn_without_warnings(losses, tmp_path):
    """Warnings are errors in these tests."""
    draw(tmp_path / "run.png", title="odd", **EMPTY | {"losses": {"worker:0": losses}})
    assert (tmp_path / "run.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("times", "staleness"),
    [([0.0], [7] * 5), ([0.0, 5000.0], [0]), ([1e-3, 1e6], [-1, 2]), (np.array([1.0, 2.0]), np.array([3, 400]))],
)
def test_odd_times_and_staleness_are_drawn_without_warnings(times, staleness, tmp_path):
    many = {f"worker:{w}": times for w in range(14)}
    draw(tmp_path / "run.png", title="odd", losses=many, step_times_ms=many, staleness=staleness)
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_a_busy_machine_is_no_reason_for_a_warning(tmp_path, monkeypatch):
    """matplotlib warns if it has looked for the best place of a legend for a second: here every look takes five."""
    clock = itertools.count(step=5.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    draw(tmp_path / "run.png", title="slow", **WHOLE)
    assert (tmp_path / "run.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["run.pdf", "run", "run.jpeg", "run.sgv"])
def test_other_suffixes_are_refused_naming_the_valid_ones(name, tmp_path):
    with pytest.raises(BadInput, match=rf"{name}: unknown suffix, got '.*'; valid: \.png, \.svg"):
        draw(tmp_path / name, title="t", **WHOLE)
    assert not list(tmp_path.iterdir())


def test_nothing_to_draw_and_no_such_folder_are_refused(tmp_path):
    with pytest.raises(BadInput, match="nothing to draw"):
        draw(tmp_path / "run.png", title="t", **EMPTY)
    with pytest.raises(BadInput, match="cannot be written: No such file"):
        draw(tmp_path / "absent" / "run.png", title="t", **WHOLE)


def test_without_matplotlib_the_command_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Missing, match=r"matplotlib: .*, so psconform plot cannot .* -m pip install 'matplotlib>="):
        draw(tmp_path / "run.png", title="t", **WHOLE)


def test_importing_it_does_not_import_matplotlib():
    code = "import sys, psconform.report.plot; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
