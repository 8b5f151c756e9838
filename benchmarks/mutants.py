"""Whether the fast tests would notice a mistake: mutants of psconform, drawn by a seed, and the test that finds each.

``python benchmarks/mutants.py`` draws 60 small changes of the checks, the history, the probe, the fault scheduler and
the keeper, runs the tests that cover each of them in a copy of the checkout, and prints a table; ``--write
docs/mutants.md`` writes it. ``--area completion`` draws them all from the rules of what a run gets, however it ends
(docs/verdicts.md). A mutant is found if a test fails (or does not end) with it, does so again, and passes
without it. It resumes: results are lines of a file. A mutant that was found counts as long as its file and the test are
the same, one that survived as long as sources and tests are. Exit code 1 if fewer than 9 of 10 were found, 2 if results
are missing (--budget, --share, --only, Ctrl-C), else 0.

Neither mutmut nor cosmic-ray does this: mutmut sees no code in child processes and draws nothing, cosmic-ray changes
the checkout itself and runs one and the same command for each mutant.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import random
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from detection import append, share
from machine import machine, paragraph, today, versions
from mutation.coverage_map import PRODUCT, CoverageMap, coverage_map, digest, shared_files
from mutation.sandbox import Sandbox, sandbox
from mutation.sites import Mutation, mutations
from rich.console import Console

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).parent / ".mutants"
NOTES = Path(__file__).parent / "mutation" / "notes.toml"
FAST = "not tensorflow and not nightly"
"""The tiers that start no TensorFlow cluster."""
COUNT, LEAST = 60, 9 / 10
FIRST, REST = 40, 500
"""Tests are run in batches: the first is small, for most mutants are found by one of the fastest."""


@dataclass(frozen=True)
class Area:
    """Files to change, or what has these names in one, and how many of 60 mutants are of them; 0: none, but --area."""

    share: int
    files: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)


COMPLETION = {
    "src/psconform/checks/liveness.py": (
        "WENT_ON GANG completes _in_full no_hang _after_healing _by_an_error _unrelated _concerns _names_error JUST_NS"
    ),
    "src/psconform/checks/registry.py": "judge_history violated_for_good _judge _guarded _untrained _doubt",
    "src/psconform/history/build.py": "_last_words _faults _gaps _due _silent _stops _covered _ends",
    "src/psconform/history/model.py": (
        "incomplete failed cut no_final disturbed injected struck straight lost sent_once lasting rollbacks astray left"
    ),
    "src/psconform/history/reasons.py": "FaultMissed TaskFailed EndedEarly how_it_ended",
    "src/psconform/history/logs.py": "SURVIVED LINES LONGEST last_error _traceback _kept",
    "src/psconform/history/slips.py": "lost_sends slips_of Slipped",
    "src/psconform/runner/calibrate.py": "finished _but_for_one",
    "src/psconform/runner/execute.py": (
        "execute watch _follow _given_up _violated_for_good _check_started _all_closed _patience end _note _cause "
        "_grown _comes_up _oom_kills"
    ),
    "src/psconform/runner/fault_scheduler.py": (
        "pending attempted lasting timed starting killed reported _reacted went_on returns record_attempts missing"
    ),
    "src/psconform/runner/verdicts.py": "exit_code coverage _plain",
    "src/psconform/verdict.py": "Coverage exit_code",
}
"""The rules of docs/verdicts.md, by file: completion, coverage, disturbance, and runs that stopped early."""

AREAS = {
    "checks": Area(24, ("src/psconform/checks/*.py",)),
    "history": Area(14, ("src/psconform/history/*.py",)),
    "probe": Area(10, ("src/psconform/probe.py",)),
    "fault scheduler": Area(6, ("src/psconform/runner/fault_scheduler.py", "src/psconform/runner/fault_setup.py")),
    "keeper": Area(6, ("src/psconform/launchers/keeper.py",)),
    "completion": Area(0, tuple(COMPLETION), COMPLETION),
}

Result = dict[str, Any]
"""One line of the store."""


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file, whose hash says of which text."""

    area: str
    file: str
    hash: str
    before: str
    after: str
    mutation: Mutation

    @property
    def key(self) -> str:
        """What a result is filed under."""
        mutation = self.mutation
        return f"{self.file} {self.hash} {mutation.start}-{mutation.end} {mutation.text}"

    @property
    def change(self) -> str:
        """The line before and after."""
        return f"{self.before} -> {self.after}"

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file.removeprefix('src/psconform/')}:{self.mutation.line}"


def targets_of(root: Path) -> dict[str, list[str]]:
    """The files of each area; raises SystemExit if an area has lost its files."""
    found = {}
    for name, area in AREAS.items():
        paths = [path for pattern in area.files for path in sorted(root.glob(pattern))]
        if not paths:
            raise SystemExit(f"no file of {name}: {', '.join(area.files)}")
        found[name] = [path.relative_to(root).as_posix() for path in paths]
    return found


def shares(count: int, area: str = "") -> dict[str, int]:
    """How many mutants of each area, by largest remainders; or all of one."""
    if area:
        return {area: count}
    whole = sum(area.share for area in AREAS.values())
    exact = {name: count * area.share / whole for name, area in AREAS.items()}
    found = {name: int(number) for name, number in exact.items()}
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[: count - sum(found.values())]:
        found[name] += 1
    return found


def candidates(root: Path, area: str, files: list[str], seed: int) -> list[Mutant]:
    """Mutants of an area in the order of the draw: a place is drawn first, then what becomes of it; one for a line."""
    generator = random.Random(f"{area}:{seed}")
    places: dict[tuple[str, int, int, str], list[Mutation]] = {}
    texts = {file: (root / file).read_text(encoding="utf-8") for file in files}
    for file, text in texts.items():
        lines_of = named(text, AREAS[area].names.get(file, "").split())
        for mutation in (each for each in mutations(text) if not lines_of or each.line in lines_of):
            places.setdefault((file, mutation.start, mutation.end, mutation.operator), []).append(mutation)
    order = list(places)
    generator.shuffle(order)
    lines, found = set(), []
    for place in order:
        mutation, file = generator.choice(places[place]), place[0]
        if (file, mutation.line) not in lines:
            lines.add((file, mutation.line))
            hashed = hashlib.sha256(texts[file].encode()).hexdigest()[:12]
            found.append(Mutant(area, file, hashed, *mutation.change(texts[file]), mutation))
    return found


def named(text: str, names: list[str]) -> set[int]:
    """The lines of these functions, classes and constants of a source; raises SystemExit if it has one no more."""
    found: dict[str, set[int]] = {name: set() for name in names}
    for node in ast.walk(ast.parse(text)):
        targets = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        for name in found.keys() & {getattr(node, "name", ""), *targets}:
            found[name] |= {*range(node.lineno, node.end_lineno + 1)}  # type: ignore[attr-defined]
    if lost := [name for name, lines in found.items() if not lines]:
        raise SystemExit(f"there is no {', '.join(lost)} any more")
    return set().union(*found.values())


def mutated(root: Path, mutant: Mutant) -> str:
    """The file with the mutation."""
    return mutant.mutation.apply((root / mutant.file).read_text(encoding="utf-8"))


def draw(
    root: Path, targets: dict[str, list[str]], *, seed: int, count: int, box: Sandbox, area: str = ""
) -> list[Mutant]:
    """The mutants of this seed, or of one area; for one that cannot be imported another is drawn. Kept in a file."""
    key = digest(root, [file for files in targets.values() for file in files])
    path = KEPT / f"drawn-{key}-{seed}-{count}{area and f'-{area}'}.json"
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [Mutant(**{**mutant, "mutation": Mutation(**mutant["mutation"])}) for mutant in stored]
    found: list[Mutant] = []
    for name, number in shares(count, area).items():
        mine: list[Mutant] = []
        for mutant in candidates(root, name, targets[name], seed):
            if len(mine) == number:
                break
            if imports(root, mutant, box):
                mine.append(mutant)
        found += sorted(mine, key=lambda mutant: (mutant.file, mutant.mutation.start))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(mutant) for mutant in found]), encoding="utf-8")
    return found


def imports(root: Path, mutant: Mutant, box: Sandbox) -> bool:
    """Whether its module compiles and can be imported."""
    text = mutated(root, mutant)
    try:
        compile(text, mutant.file, "exec")
    except SyntaxError:
        return False
    box.write(mutant.file, text)
    try:
        return box.imports(mutant.file.removeprefix("src/").removesuffix(".py").replace("/", "."))
    finally:
        box.write(mutant.file, (root / mutant.file).read_text(encoding="utf-8"))


def judge(root: Path, mutant: Mutant, tests: list[str], *, box: Sandbox, known: CoverageMap) -> Result:
    """Run these tests with the mutant until one finds it."""
    began, count = time.monotonic(), len(tests)
    texts = {True: mutated(root, mutant), False: (root / mutant.file).read_text(encoding="utf-8")}
    limits = known.limits(tests)
    result: Result = {"found_by": "", "how": "", "output": "", "flaky": []}
    size = FIRST
    try:
        while tests:
            box.write(mutant.file, texts[True])
            batch = {test: limits[test] for test in tests[:size]}
            outcome = box.run(batch)
            if outcome.fine:
                tests, size = tests[size:], REST
                continue
            suspect = {outcome.stopped: limits[outcome.stopped]} if outcome.stopped else batch
            again = not box.run(suspect).fine
            box.write(mutant.file, texts[False])
            if without := box.run(suspect).fine and again:
                by = outcome.stopped or next(iter(batch))
                result |= {"found_by": by, "how": outcome.how, "output": outcome.output[-4000:]}
                break
            result["flaky"] += list(suspect)
            if not without and again:
                for test in suspect:
                    known.leave_out(test)
            tests = [test for test in tests if test not in outcome.passed and test not in suspect]
    finally:
        box.write(mutant.file, texts[False])
    return result | {"tests": count, "seconds": round(time.monotonic() - began, 1)}


@dataclass(frozen=True)
class Suite:
    """The tests that are to find the mutants: a marker expression, in this checkout or in another."""

    name: str
    marker: str
    tests: Path | None

    @property
    def root(self) -> Path:
        """Of the checkout that has the tests."""
        return self.tests or ROOT

    @property
    def hash(self) -> str:
        """Of sources and tests."""
        return digest(ROOT, PRODUCT) + digest(self.root, ["tests"])

    def holds(self, result: Result) -> bool:
        """Whether a result is still so."""
        if result["found_by"]:
            return bool(result["test_hash"] == self.hash_of(result["found_by"]))
        return bool(result["code"] == self.hash)

    def hash_of(self, test: str) -> str:
        """Of the file of a test, and of what the tests share."""
        return digest(self.root, [test.partition("::")[0], *shared_files(self.root)])


def load(store: Path, name: str) -> dict[str, Result]:
    """Results of a suite by mutant; the last one counts."""
    text = store.read_text(encoding="utf-8") if store.exists() else ""
    results = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {result["mutant"]: result for result in results if result["suite"] == name}


def holding(store: Path, suite: Suite) -> dict[str, Result]:
    """Those of its results that still hold."""
    return {key: result for key, result in load(store, suite.name).items() if suite.holds(result)}


def measure(
    mutants: list[Mutant],
    todo: list[Mutant],
    *,
    suite: Suite,
    box: Sandbox,
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Judge these mutants, and store what became of each."""
    targets = list(dict.fromkeys(file for files in targets_of(ROOT).values() for file in files))
    path = KEPT / f"lines-{hashlib.sha256(suite.name.encode()).hexdigest()[:8]}.json"
    known = coverage_map(path, box, targets, marker=suite.marker, jobs=options.jobs, console=console)
    if known.failed:
        console.print(f"left out, for they fail without a mutant: {', '.join(known.failed)}")
    deadline = time.monotonic() + options.budget
    for mutant in todo:
        if time.monotonic() > deadline:
            console.print("the budget is spent")
            break
        tests = known.covering(mutant.file, mutant.mutation.first, mutant.mutation.last)
        covered = len(tests)
        if options.net:
            tests += [test for test in known.touching(mutant.file) if test not in set(tests)]
        result = judge(ROOT, mutant, tests, box=box, known=known) | {"covered": covered, "net": options.net}
        result |= {"mutant": mutant.key, "suite": suite.name, "code": suite.hash, "date": today()}
        result["test_hash"] = suite.hash_of(result["found_by"]) if result["found_by"] else ""
        append(options.store, result)
        console.print(f"{mutants.index(mutant) + 1}  {mutant.place}  {mutant.change}")
        console.print(f"    {said(result)}  ({result['tests']} tests, {result['seconds']} s)")
        if options.only:
            console.print(result["output"])


def _missing(result: Result | None, net: bool) -> bool:
    """Nothing is known; or it survived, and more tests are to look for it now."""
    return result is None or (net and not result["found_by"] and not result["net"])


def shown(name: str) -> str:
    """A suite, as a heading says it."""
    return "the fast tests" if name == FAST else name


def said(result: Result | None) -> str:
    """What became of a mutant."""
    if result is None:
        return "not run"
    if not result["found_by"]:
        return "**survived**" if result["covered"] else "**survived**: no test runs it"
    test = str(result["found_by"]).removeprefix("tests/")
    return test if result["how"] == "failed" else f"{test} ({result['how']})"


def table(mutants: list[Mutant], results: list[dict[str, Result]], names: list[str]) -> str:
    """One line for each mutant, a column for each suite."""
    lines = ["| # | place | change | " + " | ".join(names) + " |", "|---:|---|---|" + "---|" * len(names)]
    for number, mutant in enumerate(mutants, start=1):
        before, after = (_code(text) for text in (mutant.before, mutant.after))
        cells = [said(found.get(mutant.key)).replace("|", "\\|") for found in results]
        lines.append(f"| {number} | {mutant.place} | {before} → {after} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Of a table; a line that was blanked is an empty cell of code."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text or ' '}`"


def summary(mutants: list[Mutant], results: list[dict[str, Result]], names: list[str]) -> str:
    """How many of each area were found."""
    lines = ["| area | mutants | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(names)]
    for area in (*AREAS, ""):
        mine = [mutant for mutant in mutants if area in ("", mutant.area)]
        cells = [str(found_of(mine, found)) for found in results]
        if not mine:
            continue
        lines.append(f"| {area or '**all**'} | {len(mine)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def found_of(mutants: list[Mutant], results: dict[str, Result]) -> int:
    """How many were found."""
    return sum(bool(results.get(mutant.key, {}).get("found_by")) for mutant in mutants)


def noted(mutant: Mutant, notes: dict[str, str]) -> str:
    """What was done about a mutant that nothing found at first; empty if that is not so."""
    return notes.get(f"{mutant.file}: {mutant.change}", "")


def survivors(mutants: list[Mutant], results: dict[str, Result], notes: dict[str, str]) -> str:
    """Those that nothing found, each with its note."""
    lines = []
    for number, mutant in enumerate(mutants, start=1):
        result = results.get(mutant.key)
        note = noted(mutant, notes)
        if (result and not result["found_by"]) or note:
            lines.append(f"* {number}, {mutant.place}, {_code(mutant.before)} → {_code(mutant.after)}: {note or '...'}")
    return "\n".join(lines or ["None."]) + "\n"


def page(mutants: list[Mutant], results: list[dict[str, Result]], names: list[str], *, seed: int) -> str:
    """docs/mutants.md."""
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8")) if NOTES.exists() else {}
    judged = [sum(mutant.key in found for mutant in mutants) for found in results]
    late = sum(bool(noted(mutant, notes) and results[0].get(mutant.key, {}).get("found_by")) for mutant in mutants)
    taken = sum(results[0][mutant.key]["seconds"] for mutant in mutants if mutant.key in results[0])
    parts = [
        "<!-- written by benchmarks/mutants.py --write -->\n",
        "# Mutants: would a test notice?\n",
        paragraph(
            f"{len(mutants)} small changes of psconform's own code, drawn with seed {seed}; each is made in a copy of",
            "the checkout, and the tests that run its lines, in whatever process, are run there, the fastest first.",
            "*Found* is a mutant with which a test fails or does not end, twice, while it passes without.",
        ),
        paragraph(
            f"{found_of(mutants, results[0]) - late} of them were found when they were drawn, {late} by tests added",
            "since: other seeds say more about the tests now ([testing](testing.md)).",
        ),
        summary(mutants, results, [f"found by {shown(name)}" for name in names]),
        *(
            f"With {shown(name)} {number} of {len(mutants)} have been run.\n"
            for name, number in zip(names, judged, strict=True)
            if number < len(mutants)
        ),
        "## Those that no test found at first, and what was done about them\n",
        survivors(mutants, results[0], notes),
        "## All\n",
        table(mutants, results, [f"found by, of {shown(name)}" for name in names]),
        paragraph(f"{machine()}; {versions()}; {today()}; {taken / 60:.0f} minutes of tests with mutants."),
    ]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Judge what is missing, print the tables; 0 if enough was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--count", type=int, default=COUNT, help=f"mutants (default {COUNT})")
    parser.add_argument("--area", default="", choices=AREAS, help="all of one area (default: of all but completion)")
    parser.add_argument("--suite", default=FAST, metavar="EXPR", help=f"tests: pytest -m EXPR (default {FAST!r})")
    parser.add_argument("--tests", type=Path, metavar="CHECKOUT", help="take the tests of this checkout")
    parser.add_argument("--name", help="file results under this name (default: EXPR)")
    parser.add_argument("--beside", metavar="NAME", action="append", default=[], help="a column with these results")
    parser.add_argument("--net", action="store_true", help="then all tests that run anything in the file, too")
    parser.add_argument("--only", type=int, metavar="N", help="this mutant, also if it is stored, with pytest's output")
    parser.add_argument("--list", action="store_true", help="only draw")
    parser.add_argument("--jobs", type=int, default=1, help="processes that trace tests, once (default 1)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="start none after so long")
    parser.add_argument("--share", type=share, metavar="K/N", default=slice(None), help="every N-th, from the K-th on")
    parser.add_argument("--store", type=Path, default=KEPT / "results.jsonl", help="file of results")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/mutants.md")
    options = parser.parse_args(arguments)
    if not 1 <= (options.only or 1) <= options.count:
        parser.error("--only is a number of the table")
    name = options.name or options.suite or "all"
    suite = Suite(name, options.suite, options.tests.resolve() if options.tests else None)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    mutants: list[Mutant] = []
    try:
        with sandbox(ROOT, tests=suite.tests) as box:
            of = targets_of(ROOT)
            mutants = draw(ROOT, of, seed=options.seed, count=options.count, box=box, area=options.area)
            known = {} if options.only else holding(options.store, suite)  # --only asks for it, whatever is known
            chosen = mutants[options.share] if options.only is None else [mutants[options.only - 1]]
            todo = [mutant for mutant in chosen if _missing(known.get(mutant.key), options.net)]
            if todo and not options.list:
                console.print(f"{len(chosen)} mutants, {len(chosen) - len(todo)} of them in {options.store}")
                measure(mutants, todo, suite=suite, box=box, options=options, console=console)
    except KeyboardInterrupt:
        console.print("interrupted; what has finished is stored")
    results = holding(options.store, suite)
    names = [suite.name, *options.beside]
    columns = [results, *(load(options.store, other) for other in options.beside)]
    sys.stdout.write(table(mutants, columns, names) + "\n" + summary(mutants, columns, names))
    if options.write:
        options.write.write_text(page(mutants, columns, names, seed=options.seed), encoding="utf-8")
    if any(mutant.key not in results for mutant in mutants) or not mutants:
        return 2
    return 0 if found_of(mutants, results) >= LEAST * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
