"""A picture of one training run: loss, step times and staleness, drawn from plain numbers with matplotlib."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checks.staleness import taus_of
from ..errors import BadInput
from ..files import write
from ..parts import MATPLOTLIB, Missing
from ..runner.figures import step_times_ms
from ..runner.verdicts import Judged

SUFFIXES = (".png", ".svg")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito's palette, which colour-blind readers can tell apart (without its yellow, too pale for a line)."""
DASHES = ("-", "--", ":", "-.")
REFERENCE = "serial"
"""The curve of this name is what the others are compared with: drawn in black, wide and last in the legend."""
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "grid.color": "#DDDDDD",
    "legend.loc": "upper right",  # "best" takes long, and warns of it on a busy machine
    "svg.fonttype": "none",  # text stays text: searchable, and the file small
    "svg.hashsalt": "psconform",  # the same bytes every time
}


def draw(
    path: Path,
    *,
    title: str,
    losses: Mapping[str, Sequence[float]],
    step_times_ms: Mapping[str, Sequence[float]],
    staleness: Sequence[int],
) -> None:
    """Save one figure as PNG or SVG, by the suffix of ``path``; empty parts are left out.

    Args:
        path: where to; its folder exists.
        title: above the figure.
        losses: loss before each step, by worker, and of serial training as ``serial``; drawn over the steps. What is
            not finite leaves a gap, and a cross where the curve breaks off.
        step_times_ms: milliseconds of each step, by worker; a box from the first to the third quartile with the
            median, whiskers to the 5th and 95th percentile, and the slowest step as a dot. Logarithmic past a factor
            of 50.
        staleness: updates between read and apply, one number per update (A2); a bar for each number, and the mean.

    Raises:
        BadInput: another suffix, nothing to draw, or the file cannot be written.
        Missing: there is no matplotlib.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"picture {path.name}", "unknown suffix", value=path.suffix, choices=SUFFIXES)
    losses = {name: values for name, values in losses.items() if len(values)}
    step_times_ms = {name: values for name, values in step_times_ms.items() if len(values)}
    parts = [part for part in (losses, step_times_ms, staleness) if len(part)]
    if not parts:
        raise BadInput(f"picture {path.name}", "there is nothing to draw: no losses, step times or staleness")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Missing(MATPLOTLIB, str(error)) from error
    with matplotlib.rc_context(_STYLE):
        # not through pyplot: no global state, and no window whatever the backend of the user's settings
        figure = Figure(figsize=(4.6 * len(parts) + 0.6, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = iter(figure.subplots(1, len(parts), squeeze=False)[0])
        figure.suptitle(_plain(title), fontsize=12)
        if losses:
            _losses(next(axes), losses)
        if step_times_ms:
            _step_times(next(axes), step_times_ms)
        if len(staleness):
            _staleness(next(axes), staleness)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        try:
            picture = io.BytesIO()
            figure.savefig(picture, dpi=150, format=path.suffix[1:].lower(), metadata=metadata)
            write(path, picture.getvalue())
        except OSError as error:
            raise BadInput(f"picture {path}", f"cannot be written: {error.strerror or error}") from error


def plot_run(judged: Judged, path: Path) -> None:
    """The picture of a judged run: losses if it trained a model, step times, staleness; raises BadInput as `draw`."""
    manifest, history = judged.manifest, judged.history
    times = {str(worker): step_times_ms(worker.pushes, worker.reads.at)[0].tolist() for worker in history.workers}
    taus = [taus_of(history, worker) for worker in history.workers] if manifest.layout.update == "async" else []
    draw(
        path,
        title=f"{manifest.target} on {manifest.layout.text}, {manifest.layout.update}, {manifest.workload.name}",
        losses=judged.curves.losses if judged.curves is not None else {},
        step_times_ms=times,
        staleness=[int(tau) for found in taus if found is not None for tau in found.ravel()],
    )


def _losses(axes: Any, losses: Mapping[str, Sequence[float]]) -> None:
    import numpy as np

    workers = [name for name in losses if name != REFERENCE]
    for index, name in enumerate([*workers, *(name for name in losses if name == REFERENCE)]):
        values = np.array(losses[name], np.float64)
        finite = np.isfinite(values)
        if name == REFERENCE:
            look: dict[str, Any] = {"color": "black", "linewidth": 1.8, "zorder": 3}
        else:
            look = {"color": COLOURS[index % len(COLOURS)], "linewidth": 1.1, "alpha": 0.9}
            look["linestyle"] = DASHES[index // len(COLOURS) % len(DASHES)]
        if len(values) == 1:
            look["marker"] = "o"
        axes.plot(np.where(finite, values, np.nan), label=_plain(name), **look)
        breaks = np.flatnonzero(finite[:-1] & ~finite[1:])
        axes.plot(breaks, values[breaks], "x", color=look["color"], markersize=8, zorder=4)
    shown = np.concatenate([np.asarray(values, np.float64) for values in losses.values()])
    shown = shown[np.isfinite(shown)]
    if shown.size and shown.min() > 0:
        _logarithmic(axes)
    axes.set(xlabel="step of the worker", ylabel="loss on the training set", title="Loss")
    if len(losses) <= 12:
        axes.legend(fontsize=8, framealpha=0.8)


def _step_times(axes: Any, step_times_ms: Mapping[str, Sequence[float]]) -> None:
    boxes = axes.boxplot(
        list(step_times_ms.values()),
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        widths=0.6,
        medianprops={"color": "black", "linewidth": 1.5},
    )
    for index, box in enumerate(boxes["boxes"]):
        box.set(facecolor=COLOURS[index % len(COLOURS)], alpha=0.7)
    slowest = [max(values) for values in step_times_ms.values()]
    axes.plot(range(1, len(slowest) + 1), slowest, "o", color="black", markersize=4, label="slowest step")
    fastest = min(min(values) for values in step_times_ms.values())
    if fastest > 0 and max(slowest) > 50 * fastest:
        _logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)
    crowded = len(step_times_ms) > 4
    names = [_plain(name) for name in step_times_ms]
    axes.set_xticks(range(1, len(names) + 1), names, rotation=60 if crowded else 0, fontsize=8 if crowded else 9)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="time per step (ms)", title="Step times")
    axes.legend(fontsize=8, framealpha=0.8)


def _staleness(axes: Any, staleness: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = Counter(int(value) for value in staleness)
    mean = sum(int(value) for value in staleness) / len(staleness)
    heights = [100 * count / len(staleness) for count in counts.values()]
    axes.bar(list(counts), heights, width=0.85, color=COLOURS[0], alpha=0.85)
    axes.axvline(mean, color=COLOURS[5], linestyle="--", linewidth=1.6, label=f"mean {mean:.2f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(min(0, *counts) - 0.6, max(4, *counts) + 0.6)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="staleness (updates between read and apply)", ylabel="share of updates (%)", title="Staleness")
    axes.legend(fontsize=8, framealpha=0.8)


def _logarithmic(axes: Any) -> None:
    """Ticks at 1, 2, 5 times a power of ten, or at powers alone over a wide range; numbers written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _plain(text: str) -> str:
    """Dollar signs would start mathematics."""
    return text.replace("$", r"\$")
