"""What a seeded defect is: what it needs to show, and which checks it concerns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .layout import NAMED, Layout


@dataclass(frozen=True)
class Defect:
    """One deliberate bug; ``code`` names the class that has it, `module.Class` in reference_impl/defects.

    ``meant`` is the guarantee whose check must call it violated (``meant_async`` in async, if that is another one);
    ``also`` are the others whose own definition it breaks. No other check may call it violated.

    It shows with at least so many ``workers``, ``ps``, ``steps`` of each worker and ``gradients`` of all workers, on
    this ``workload`` and with this ``compression`` and, in ``mode``, these other options
    of ``psconform run``; ``all_reduce``: in a layout without ps; ``gpus``: with so many, real or not, for each worker.

    One of recovery needs tasks that are killed as in ``kill`` and come back after ``restart_after`` (if that is not
    empty), a checkpoint every ``checkpoint_every`` steps (0: whatever is usual), and shows a hang after ``patience_s``
    seconds (0: the usual time); with a straggler as in ``slow``, training lasts until a task is back. One of NaN needs
    a gradient that is poisoned, as in ``poison``, one of leaving a worker that runs out of data, as in ``batches``.

    One of the network or of the disk needs what is in ``faults``: entries of a fault plan, as TOML writes them on one
    line. With ``kill``, too, it shows with either.
    """

    code: str
    title: str
    meant: str
    also: tuple[str, ...] = ()
    updates: tuple[str, ...] = ("sync", "async")
    workers: int = 1
    ps: int = 1
    steps: int = 1
    gradients: int = 1
    workload: str = "ledger"
    compression: str = "none"
    meant_async: str = ""
    mode: Mapping[str, Any] = field(default_factory=dict)
    all_reduce: bool = False
    gpus: int = 0
    kill: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    poison: tuple[str, ...] = ()
    batches: str = ""
    slow: str = ""
    restart_after: str = ""
    checkpoint_every: int = 0
    patience_s: float = 0.0

    def meant_in(self, update: str) -> str:
        """The guarantee that must be called violated in this update mode."""
        return self.meant_async if self.meant_async and update == "async" else self.meant

    @property
    def recovers(self) -> bool:
        """It is one of a trainer that recovers, and shows when something breaks."""
        return bool(self.kill or self.faults)

    @property
    def plan(self) -> str:
        """The fault plan that shows it, as ``--faults`` takes it; empty if that is not what it needs."""
        return f"fault = [{', '.join(f'{{{entry}}}' for entry in self.faults)}]" if self.faults else ""

    @property
    def found_by(self) -> str:
        """The check that must find it, in words."""
        return self.meant + (f" ({self.meant_async} in async)" if self.meant_async else "")

    @property
    def needs(self) -> str:
        """What it takes to show it, in words."""
        text = f"{' or '.join(self.updates)}, ps{'=0' if self.all_reduce else f'>={self.ps}'}, worker>={self.workers}"
        text += f", gpus>={self.gpus}" if self.gpus else ""
        text += f", worker x steps>={self.gradients}" if self.gradients > 1 else ""
        text += f", {self.workload}" if self.workload != "ledger" else ""
        text += f", {self.compression}" if self.compression != "none" else ""
        text += "".join(f", --{name.replace('_', '-')} {value}" for name, value in self.mode.items())
        text += "".join(f", --kill {fault}" for fault in self.kill)
        text += f"{' or' if self.kill else ','} --faults '{self.plan}'" if self.faults else ""
        text += f", --restart-after {self.restart_after}" if self.restart_after else ""
        text += "".join(f", --poison {fault}" for fault in self.poison)
        text += f", --batches {self.batches}" if self.batches else ""
        text += f", --slow {self.slow}" if self.slow else ""
        return text + (f", --checkpoint-every {self.checkpoint_every}" if self.checkpoint_every else "")

    @property
    def concerns(self) -> frozenset[str]:
        """All guarantees that may be called violated."""
        return frozenset(filter(None, (self.meant, self.meant_async, *self.also)))

    @property
    def options(self) -> dict[str, Any]:
        """What a run must be given for it to show, besides its size."""
        options = self.beside
        options |= {"kill": list(self.kill)} if self.kill else {"faults": self.plan} if self.faults else {}
        return options | ({"restart_after": self.restart_after} if self.restart_after else {})

    @property
    def network_options(self) -> dict[str, Any]:
        """The same where it is to show by its faults of the network."""
        return {**self.beside, "faults": self.plan}

    @property
    def beside(self) -> dict[str, Any]:
        """The same without the faults that strike from outside."""
        options = {"workload": self.workload, "compression": self.compression, **self.mode}
        options |= {"emulate_gpus": True} if self.gpus else {}
        options |= {"poison": list(self.poison)} if self.poison else {}
        options |= {"batches": self.batches} if self.batches else {}
        options |= {"slow": [self.slow]} if self.slow else {}
        options |= {"checkpoint_every": self.checkpoint_every} if self.checkpoint_every else {}
        return options | ({"patience_s": self.patience_s} if self.patience_s else {})

    @property
    def layout(self) -> str:
        """The default layout, or as much more than it as this takes."""
        usual = Layout.parse(NAMED["all-reduce" if self.all_reduce else "default"])
        return Layout(ps=max(usual.ps, self.ps), workers=max(usual.workers, self.workers), gpus=self.gpus).text
