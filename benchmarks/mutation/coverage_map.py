"""Which tests run which lines, in any process; kept in a file for as long as sources and tests are the same."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from .sandbox import Sandbox

CHUNK = 12
"""Test files that are traced at a time: what has been traced is kept if the rest is interrupted."""
PRODUCT = ("src", "reference_impl", "conformance", "chaos", "docker", "pyproject.toml")
TIMES, PLUS_S = 10.0, 10.0
"""A test that takes so many times as long as without a mutation, and so many seconds more, does not end."""


def digest(root: Path, names: Iterable[str]) -> str:
    """Hash over files and folders of Python of a checkout."""
    found = hashlib.sha256()
    for name in names:
        top = root / name
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            if path.is_file():
                found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def test_files(root: Path) -> list[str]:
    """Where pytest would look for tests, relative to the checkout."""
    options = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    apart = set(options.get("norecursedirs", ()))
    paths = (path.relative_to(root) for path in sorted((root / "tests").rglob("test_*.py")))
    return [path.as_posix() for path in paths if not apart & set(path.parts)]


def shared_files(root: Path) -> list[str]:
    """Files below tests/ that any test may use: helpers and data."""
    paths = (path for path in (root / "tests").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sorted({path.relative_to(root).as_posix() for path in paths}.difference(test_files(root)))


@dataclass
class CoverageMap:
    """Of each test file: its hash, and of each of its tests the outcome, the time, and the lines of each target."""

    code: str
    marker: str
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    imported: dict[str, list[int]] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)

    @property
    def tests(self) -> dict[str, dict[str, Any]]:
        """All tests that pass without a mutation."""
        every = (test for file in self.files.values() for test in file["tests"])
        return {test["id"]: test for test in every if test["outcome"] == "passed" and test["id"] not in self._broken}

    @property
    def failed(self) -> list[str]:
        """Those that fail without one: they can find nothing."""
        every = [test for file in self.files.values() for test in file["tests"]]
        return sorted({test["id"] for test in every if test["outcome"] == "failed"} | self._broken)

    def leave_out(self, test: str) -> None:
        """A test that has failed without a mutation, too."""
        self._broken.add(test)

    def limits(self, names: Iterable[str]) -> dict[str, float]:
        """How long each of these tests may take."""
        tests = self.tests
        return {name: PLUS_S + TIMES * float(tests[name]["seconds"]) for name in names}

    def covering(self, target: str, first: int, last: int) -> list[str]:
        """Tests that run any of these lines, the fastest first.

        A line that runs when its module is imported is run by no test, and seen by all that run anything else in it.
        """
        span = set(range(first, last + 1))
        found = {name for name, test in self.tests.items() if span & set(test["lines"].get(target, ()))}
        if span & set(self.imported.get(target, ())):
            found |= set(self.touching(target))
        return self._fastest(found)

    def touching(self, target: str) -> list[str]:
        """Tests that run anything in the module, the fastest first."""
        at_import = set(self.imported.get(target, ()))
        return self._fastest(
            name for name, test in self.tests.items() if set(test["lines"].get(target, ())) - at_import
        )

    def _fastest(self, names: Iterable[str]) -> list[str]:
        tests = self.tests
        return sorted(names, key=lambda name: (tests[name]["seconds"], name))


def load(path: Path, *, code: str, marker: str) -> CoverageMap:
    """What is known of this code and these tests."""
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if (stored["code"], stored["marker"]) == (code, marker):
            return CoverageMap(code, marker, stored["files"], stored["imported"])
    return CoverageMap(code, marker)


def save(path: Path, found: CoverageMap) -> None:
    """As a whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {"code": found.code, "marker": found.marker, "files": found.files, "imported": found.imported}
    path.with_suffix(".new").write_text(json.dumps(stored), encoding="utf-8")
    path.with_suffix(".new").replace(path)


def coverage_map(
    path: Path, sandbox: Sandbox, targets: list[str], *, marker: str, jobs: int, console: Console
) -> CoverageMap:
    """Read the map, and trace the test files that it does not have."""
    tree = sandbox.tree
    every = test_files(tree)
    code = " ".join([digest(tree, [*PRODUCT, *shared_files(tree)]), *targets])
    found = load(path, code=code, marker=marker)
    hashes = {name: digest(tree, [name]) for name in every}
    found.files = {name: file for name, file in found.files.items() if hashes.get(name) == file["hash"]}
    todo = [name for name in every if name not in found.files]
    for begin in range(0, len(todo), CHUNK):
        console.print(f"tracing tests: {begin} of {len(todo)} files are done")
        chunk = todo[begin : begin + CHUNK]
        tests = sandbox.trace(targets, chunk, marker, jobs=jobs)
        for test in tests:
            if not test["id"]:
                for target, lines in test["lines"].items():
                    found.imported[target] = sorted({*found.imported.get(target, ()), *lines})
            elif test["outcome"] == "failed":  # perhaps for being traced: that takes time
                again = sandbox.run({test["id"]: PLUS_S + TIMES * test["seconds"]})
                test["outcome"] = "passed" if again.fine else "failed"
        for name in chunk:
            mine = [test for test in tests if test["id"].partition("::")[0] == name]
            found.files[name] = {"hash": hashes[name], "tests": mine}
        save(path, found)
    return found
