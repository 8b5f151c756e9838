"""Record the runs of ``tests/data/recorded`` anew: ``python -m tests.recorded``.

`test_recorded` judges these run folders of real clusters in seconds, where clusters take half an hour. They hold what
today's judge says of them. When a check changes on purpose, the test shows which verdicts change with it; look at them,
and write what the judge now says with ``python -m tests.recorded --judge``: no cluster is run, and the difference is
one line for each guarantee.

Record anew what a change makes old: a new defect, workload, mode or kind of fault (the test then names the case that
lacks; recorded_cases.py declares them), other events or another manifest, a reference trainer that works otherwise.

    python -m tests.recorded                                  # everything, about half an hour
    python -m tests.recorded --only 'fault-*' --only early-commit-sync
    python -m tests.recorded --missing                        # what has none yet
    python -m tests.recorded --compare --only 'no-fence-*'    # run, print the difference, write nothing
    python -m tests.recorded --judge                          # judge the archives, write what that gives

It takes ``psconform[all]``; faults of links take Toxiproxy (which is set up), of disks FUSE, of clocks libfaketime, and
kinds that only containers have (``--launcher docker``) an engine and ``psconform images build``. `psconform doctor`
says what is missing; what cannot be recorded here is said and left as it is.

Each case is run until it shows what it is for, at most ``--tries`` times with other seeds: the check that is meant
for a defect finds it, and none that the defect does not concern; of a healthy run everything is valid, and with
``--compare`` all that was valid before. A healthy run that is accused is not tried again. The difference in verdicts to
the run before is printed, and how many runs showed something else first. Exit code 1 if a case did not show that, or
with PSCONFORM_REQUIRE_ALL=1 could not be run; a race may show another set of the checks that a defect also concerns,
which is printed and is no failure.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from psconform.api import judge
from psconform.doctor import lacking
from psconform.errors import BadInput, PsconformError
from psconform.launchers.images import need, trainer_image
from psconform.plugin import REQUIRE_ALL
from psconform.runner.session import Session
from psconform.runner.verdicts import Judged, judge_folder
from psconform.targets.reference import DEFECTS

from .parts import parts_of
from .recorded_cases import CASES, Case
from .recorded_runs import (
    LARGEST,
    RECORDED,
    Scrubber,
    differences,
    dumped,
    expectation,
    expected_of,
    leaks,
    names,
    pack,
    scrubbed_copy,
    unpack,
)

TRIES = 4


class Unfit(Exception):
    """A run does not show what its case is for, or cannot be kept."""


class Accused(Unfit):
    """A check accuses a run in which nothing is wrong that it is meant for: another seed makes that no better."""


def lacks(case: Case) -> str:
    """What this machine lacks to run it; empty if nothing."""
    if case.launcher == "docker":
        try:
            need(trainer_image(), own=True)
        except PsconformError as error:
            return str(error).partition(". ")[0]
        return ""
    return next((why for part in parts_of(case.options) if (why := lacking(part))), "")


def objections(case: Case, judged: Judged) -> Iterator[str]:
    """Why a run does not show what its case is for; raises Accused if that is no matter of chance."""
    by_status: dict[str, set[str]] = {}
    for verdict in judged.verdicts:
        by_status.setdefault(verdict.status, set()).add(verdict.guarantee)
    violated, unknown = by_status.get("violated", set()), by_status.get("unknown", set())
    if case.defect:
        defect, update = DEFECTS[case.defect], judged.manifest.layout.update
        if defect.meant_in(update) not in violated:
            yield f"{defect.meant_in(update)} is not violated"
        violated -= defect.concerns
        unknown = set()
    if violated:
        raise Accused(", ".join(f"{name} is violated" for name in sorted(violated)))
    yield from (f"{name} is unknown" for name in sorted(unknown))
    yield from () if case.defect else judged.history.gaps
    missed = set(case.kinds) - {fault.kind for fault in judged.history.faults} - {"out-of-data"}
    yield from (f"fault {kind} is not in it" for kind in sorted(missed))


def recorded(case: Case, seed: int, *, session: Session, folder: Path) -> dict[str, Any]:
    """Run it once, into an archive in ``folder``; returns the expectation.

    Raises:
        Unfit: it does not show what it is for, or cannot be kept.
        PsconformError: the cluster could not be started.
    """
    run, copy, archive = folder / "run", folder / "copy", folder / f"{case.name}.tar.xz"
    judge(out=run, seed=seed, session=session, **case.options)
    before = judge_folder(run)
    if found := list(objections(case, before)):
        raise Unfit("; ".join(found))
    scrubber = scrubbed_copy(run, copy)
    if found := list(leaks(copy)):
        raise Unfit(f"would tell of this machine: {', '.join(found[:5])}")
    pack(copy, archive)
    if (size := archive.stat().st_size) > LARGEST:
        raise Unfit(f"takes {size} bytes, more than {LARGEST}: fewer steps or tasks")
    unpacked = folder / "unpacked"
    unpack(archive, unpacked)
    after = judge_folder(unpacked)
    _same(before, after, scrubber)
    return {"recorded": {"seed": seed}, **expectation(after)}


def _same(before: Judged, after: Judged, scrubber: Scrubber) -> None:
    """Raises Unfit where judging the scrubbed run gives anything else than judging the run."""
    for old, new in zip(before.verdicts, after.verdicts, strict=True):
        told, kept = ([v.status, v.claimed, v.reason, *v.witness, repr(v.stats)] for v in (old, new))
        told = [scrubber.text(text) for text in told]
        if told != kept:
            raise Unfit(f"{old.guarantee} is judged otherwise once scrubbed: {told} -> {kept}")
    if before.anomalies != after.anomalies:
        raise Unfit(f"other anomalies once scrubbed: {before.anomalies} -> {after.anomalies}")


def no_more_valid(case: Case, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Guarantees of a healthy run that were valid and are not; those of a defect may be undone by its race."""
    return [] if case.defect else sorted(set(before["valid"]) - set(after["valid"]))


def chosen(only: Sequence[str], *, missing: bool) -> list[Case]:
    """The cases to record, those in containers last."""
    found = [case for case in CASES.values() if not only or any(fnmatch.fnmatch(case.name, like) for like in only)]
    there = set(names()) if missing else set()
    return sorted((case for case in found if case.name not in there), key=lambda case: case.launcher != "process")


def record(case: Case, *, session: Session, tries: int, into: Path | None, show: Any) -> bool:
    """Record one case, or without ``into`` only compare it, and print the difference; False if it does not show what it
    is for.
    """
    began = time.monotonic()
    old = expected_of(case.name) if (RECORDED / f"{case.name}.json").is_file() else None
    for number in range(tries):
        seed = len(case.name) + 100 * number
        with tempfile.TemporaryDirectory(prefix="psconform-recorded-") as temporary:
            folder = Path(temporary)
            try:
                expected = recorded(case, seed, session=session, folder=folder)
                if old is not None and into is None and (lost := no_more_valid(case, old, expected)):
                    raise Unfit(", ".join(f"{name} was valid" for name in lost))
            except (BadInput, Accused) as why:  # whatever the seed
                show(f"{case.name}: seed {seed}: {why}")
                return False
            except (Unfit, PsconformError) as why:
                show(f"{case.name}: seed {seed}: {why}")
                continue
            size = (folder / f"{case.name}.tar.xz").stat().st_size
            again = f", at try {number + 1}" if number else ""
            new = ", new" if old is None else ""
            show(f"{case.name}: {size} bytes, {time.monotonic() - began:.1f} s{again}{new}")
            for line in differences(old, expected) if old is not None else ():
                show(f"  {line}")
            if into is not None:
                into.mkdir(parents=True, exist_ok=True)
                for path in folder.glob("*.xz"):
                    shutil.copyfile(path, into / path.name)  # of the digits always the same bytes
                (into / f"{case.name}.json").write_text(dumped(expected), encoding="utf-8")
            return True
    return False


def judged_anew(only: Sequence[str], *, show: Any) -> None:
    """Write what the judge now says of the archives that are there."""
    for name in names():
        if only and not any(fnmatch.fnmatch(name, like) for like in only):
            continue
        old = expected_of(name)
        with tempfile.TemporaryDirectory() as temporary:
            unpack(RECORDED / f"{name}.tar.xz", Path(temporary))
            new = {"recorded": old["recorded"], **expectation(judge_folder(Path(temporary)))}
        if new != old:
            show("\n  ".join([f"{name}:", *(differences(old, new) or ["the same verdicts, other evidence"])]))
            (RECORDED / f"{name}.json").write_text(dumped(new), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see above."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="cases to record; * stands for any")
    parser.add_argument("--missing", action="store_true", help="only what has no recorded run yet")
    parser.add_argument("--tries", type=int, default=TRIES, help="runs of a case until it shows what it is for")
    parser.add_argument("--out", type=Path, default=RECORDED, help="where to write")
    parser.add_argument("--compare", action="store_true", help="print the difference in verdicts, write nothing")
    parser.add_argument("--judge", action="store_true", help="run nothing: write what the judge now says of them")
    given = parser.parse_args(arguments)
    if given.judge and given.compare:
        parser.error("--judge writes, --compare does not: give one of them")
    if not chosen(given.only, missing=False):
        parser.error(f"no case is called {' or '.join(given.only)}; tests/recorded_cases.py declares them")

    def show(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    if given.judge:
        judged_anew(given.only, show=show)
        return 0
    unfit, left_out = [], []
    with Session() as session:
        for case in chosen(given.only, missing=given.missing):
            if why := lacks(case):
                left_out.append(f"{case.name}: not recorded here: {why}")
                continue
            into = None if given.compare else given.out
            if not record(case, session=session, tries=given.tries, into=into, show=show):
                unfit.append(case.name)
    for line in left_out:
        show(line)
    show(
        f"{len(unfit)} case(s) did not show what they are for: {', '.join(unfit)}"
        if unfit
        else f"all that were run are as they must be; {len(left_out)} could not be run"
    )
    required = os.environ.get(REQUIRE_ALL) == "1"
    return 1 if unfit or (required and left_out) else 0


if __name__ == "__main__":
    sys.exit(main())
