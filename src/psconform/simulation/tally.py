"""Many simulated runs, judged by the checks: how many verdicts of which kind there are, and which runs are accused."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..launchers.local import scratch_folder
from ..runner.verdicts import Judged, judge_folder
from ..verdict import Status
from .record import simulate
from .schedule import draw

CHUNK = 20
"""Runs that a process is given at a time."""
CONFIDENCE = 0.95
"""Of the bound that is stated."""
WRITING = threading.Lock()
"""Held by the thread that writes into the folder of this process."""


@dataclass
class Tally:
    """What came of runs with these seeds: verdicts by guarantee and status, and what was not as it should be."""

    runs: int = 0
    verdicts: Counter[tuple[str, Status]] = field(default_factory=Counter)
    titles: dict[str, str] = field(default_factory=dict)
    accused: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)  # seed, guarantees that are violated
    unknown: Counter[str] = field(default_factory=Counter)  # runs by reason
    undecided: int = 0  # runs with an unknown verdict, and none violated

    def add(self, other: Tally) -> None:
        """Put the runs of another one to these."""
        self.runs += other.runs
        self.verdicts.update(other.verdicts)
        self.titles |= other.titles
        self.accused += other.accused
        self.unknown.update(other.unknown)
        self.undecided += other.undecided

    def judged(self, seed: int, judged: Judged) -> None:
        """Count one run."""
        self.runs += 1
        for verdict in judged.verdicts:
            self.verdicts[verdict.guarantee, verdict.status] += 1
            self.titles[verdict.guarantee] = verdict.title
        if violated := judged.names("violated"):
            self.accused.append((seed, tuple(violated)))
        self.undecided += judged.exit_code == 2
        self.unknown.update({verdict.reason for verdict in judged.verdicts if verdict.status == "unknown"})

    def number(self, status: Status) -> int:
        """How many verdicts there are of this kind."""
        return sum(count for (_, each), count in self.verdicts.items() if each == status)

    @property
    def accused_at_most(self) -> float | None:
        """If none was accused: with CONFIDENCE, no larger share of such runs is (Clopper and Pearson, one-sided)."""
        return None if self.accused or not self.runs else 1 - (1 - CONFIDENCE) ** (1 / self.runs)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        rows: dict[str, dict[str, int]] = {}
        for (guarantee, status), count in sorted(self.verdicts.items()):
            rows.setdefault(guarantee, {})[status] = count
        accused = [{"seed": seed, "violated": list(names)} for seed, names in self.accused]
        about = {"runs": self.runs, "undecided": self.undecided, "unknown": dict(self.unknown)}
        return {**about, "accused": accused, "accused_at_most": self.accused_at_most, "verdicts": rows}

    @property
    def exit_code(self) -> int:
        """1: a run was violated; 2: a verdict is unknown; else 0."""
        return 1 if self.accused else 2 if self.number("unknown") else 0


def judge_seeds(seeds: Iterable[int], scratch: Path, *, mode: str = "", faults: bool = True) -> Tally:
    """Simulate and judge a run for each seed, in this folder; nothing of them stays."""
    tally, folder = Tally(), scratch / f"run-{os.getpid()}"
    for seed in seeds:
        with WRITING:
            simulate(draw(seed, mode=mode, faults=faults), folder)
            tally.judged(seed, judge_folder(folder))
            shutil.rmtree(folder)
    return tally


def judge_many(seeds: range, *, mode: str = "", faults: bool = True) -> Iterator[Tally]:
    """The same, on all CPUs; yields what there is so far.

    A thread has the pool: Ctrl-C and SIGTERM interrupt the main one, and inside of the pool a lock would stay locked.
    """
    tally, parts, over = Tally(), SimpleQueue[Tally | BaseException | None](), threading.Event()
    chunks = (seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))

    def hand_out(scratch: Path) -> None:
        judge = partial(judge_seeds, scratch=scratch, mode=mode, faults=faults)
        try:
            with ProcessPoolExecutor(os.cpu_count(), initializer=_begin, initargs=(scratch,)) as pool:
                for part in pool.map(judge, chunks):
                    if over.is_set():
                        pool.shutdown(cancel_futures=True)
                        break
                    parts.put(part)
            parts.put(None)
        except BaseException as error:  # of a process that judges
            parts.put(error)

    with scratch_folder() as scratch:
        pool = threading.Thread(target=hand_out, args=(scratch,))
        try:
            pool.start()
            while (part := parts.get()) is not None:
                if isinstance(part, BaseException):
                    raise part
                tally.add(part)
                yield tally
        finally:
            over.set()
            if pool.ident is not None:
                pool.join()


def _begin(scratch: Path) -> None:
    """Ctrl-C is for the process that started this one; should that be killed, this one ends, and nothing stays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_ends_with_parent, args=(scratch,), daemon=True).start()


def _ends_with_parent(scratch: Path) -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    WRITING.acquire()  # for good: this process writes no more, and the last one of the pool deletes all that is left
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)
