"""Drawn plans on drawn layouts: whatever breaks, what is claimed holds, on a ledger and in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from psconform.faults.fault import Fault
from psconform.faults.fault_generator import draw
from psconform.faults.kinds import drawn_kinds
from psconform.faults.proxy_faults import STALL
from psconform.layout import Layout
from psconform.plugin import chosen, suite_settings
from psconform.targets.lookup import find_target

from .survive import STEPS, Judge, anywhere, available, lacking, must_survive, survives, trains

TARGET = find_target(chosen.target)
MOST = 2 if chosen.small else 3


@dataclass(frozen=True)
class Broken:
    """A cluster, and what breaks in it."""

    layout: Layout
    seed: int
    checkpoint_every: int
    faults: tuple[Fault, ...]


@st.composite
def broken(draws: st.DrawFn, update: str) -> Broken:
    """One to three faults of whatever kinds this target can be broken by: of more, one may hide another's effect."""
    layout = Layout(ps=draws(st.integers(1, MOST)), workers=draws(st.integers(2, MOST)), update=update)
    layout = TARGET.nearest(layout)
    faults = draw(
        draws(st.randoms(use_true_random=False)),
        drawn_kinds(containers=True) if chosen.launcher == "docker" else available(drawn_kinds()),
        layout=layout,
        steps=STEPS,
        phases=TARGET.phases,
        shared=TARGET.shared,
        sent=TARGET.push_alone and not lacking(STALL.name),
        least=1,
        most=3,
    )
    return Broken(layout, draws(st.integers(0, 2**31 - 1)), draws(st.integers(3, 15)), faults)


def run(judge: Judge, folder: Path, example: Broken, *, update: str, workload: str = "ledger") -> None:
    """Judge one."""
    must_survive(
        judge,
        example.faults,
        folder=folder,
        layout=example.layout.text,
        update=update,
        workload=workload,
        seed=example.seed,
        checkpoint_every=example.checkpoint_every,
    )


@survives("sync")
@suite_settings(quick=3, ci=9, nightly=200)
@given(example=broken("sync"))
def test_sync(judge: Judge, tmp_path: Path, example: Broken) -> None:
    """A round half in, a release half out."""
    run(judge, tmp_path, example, update="sync")


@survives("async")
@suite_settings(quick=3, ci=9, nightly=200)
@given(example=broken("async"))
def test_async(judge: Judge, tmp_path: Path, example: Broken) -> None:
    """Each gradient by itself."""
    run(judge, tmp_path, example, update="async")


@anywhere
@survives("sync")
@trains("digits")
@suite_settings(quick=1, ci=4, nightly=60)
@given(example=broken("sync"))
def test_sync_trains_as_serial_training_does(judge: Judge, tmp_path: Path, example: Broken) -> None:
    """C1, R5: the path of serial training, each sample once, however often a part of it was taken back."""
    run(judge, tmp_path, example, update="sync", workload="digits")
