"""A name is declared once: no file but the one that declares it spells a kind of fault, a check or a seeded defect."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from psconform.checks import all_checks
from psconform.faults.kinds import Kind, kinds
from psconform.targets.reference import DEFECTS

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/psconform", "reference_impl", "conformance", "chaos")
SOURCE, CATALOG = "src/psconform/", "reference_impl/defects/catalog.py"
OPTION, CLAIM, FIELD, TOXIC = "an option of a run", "a dimension or level of claims", "a field of a record", "a toxic"
SHOWN = "what a workload shows"
ORACLE = "src/psconform/simulation/oracle.py"
"""It has a definition of each guarantee of its own, which is what it is for."""
ELSEWHERE: dict[str, dict[str, tuple[str, ...]]] = {
    "barrier": {
        CLAIM: (
            "claims.py",
            "checks/quorum.py",
            "checks/serial_sgd.py",
            "targets/target.py",
            "targets/toml.py",
        )
    },
    "clock": {FIELD: ("history/columns.py", "history/incarnations.py", "probe.py")},
    "compression": {
        OPTION: (
            "options.py",
            "compatibility.py",
            "defect.py",
            "probe.py",
            "reference_impl/arguments.py",
            "runner/folder.py",
            "targets/reference.py",
            "targets/target.py",
        ),
        CLAIM: ("claims.py",),
    },
    "delay": {
        OPTION: ("compatibility.py", "reference_impl/modes/model_parallel.py", "runner/plan.py", "trained.py"),
        "an attribute of a toxic": ("faults/proxy_faults.py",),
    },
    "delivery": {CLAIM: ("claims.py", "checks/asynchronous.py", "checks/convergence.py")},
    "full": {CLAIM: ("claims.py", "checks/leaving.py", "checks/quorum.py")},
    "kill": {
        OPTION: (
            "compatibility.py",
            "defect.py",
            "conformance/test_leaving.py",
            "conformance/test_recovery.py",
        )
    },
    "latency": {TOXIC: ("faults/link_injector.py", "faults/proxies.py")},
    "loss": {"what training makes smaller": ("report/text.py", "runner/figures.py")},
    "order": {SHOWN: ("probe.py",)},
    "poison": {
        OPTION: ("compatibility.py", "defect.py", "runner/plan.py"),
        "an event": ("history/events.py", "probe.py", "runner/fault_setup.py"),
        "a field of spec.json": ("runner/folder.py",),
    },
    "r-of-n": {CLAIM: ("claims.py", "checks/serial_sgd.py", "checks/synchronous.py", "targets/target.py")},
    "rate": {
        OPTION: (CATALOG, "compatibility.py", "options.py", "probe.py", "trained.py", "conformance/test_modes.py"),
        CLAIM: ("claims.py", "checks/staleness.py", "targets/target.py"),
        "a request to the helper of a pod": ("faults/iptables.py",),
        "an attribute of a toxic": ("faults/proxy_faults.py",),
        "a figure of a verdict": ("checks/convergence.py",),
    },
    "reduction": {
        OPTION: ("reference_impl/arguments.py", "compatibility.py", "options.py", "targets/target.py"),
        CLAIM: ("claims.py", "checks/replicas.py", "targets/toml.py"),
    },
    "replication": {
        OPTION: (
            CATALOG,
            "compatibility.py",
            "options.py",
            "targets/reference.py",
            "targets/target.py",
            "conformance/test_workloads.py",
        )
    },
    "samples": {SHOWN: ("probe.py",), "an event": ("history/events.py",)},
    "staleness": {
        OPTION: (
            CATALOG,
            "reference_impl/arguments.py",
            "compatibility.py",
            "options.py",
            "targets/reference.py",
            "targets/target.py",
            "conformance/test_modes.py",
        ),
        CLAIM: ("claims.py",),
        "a figure of a verdict": ("checks/convergence.py",),
    },
    "stop": {"a request to the keeper": ("launchers/keeper.py",)},
    "straggler": {"an anomaly": ("anomalies.py",)},
    "truncate": {"an operation of a file system": ("faults/fuse_server.py",)},
}
"""Names that are also words for something else: what, and in which files (of the product, where no folder is named)."""


def declared() -> dict[str, set[str]]:
    """By name, the files that declare it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, module in sys.modules.items():
        if name.startswith("psconform.faults.") and name.endswith("_faults"):
            for value in vars(module).values():
                if isinstance(value, Kind):
                    found[value.name].add(path_of(module))
    for check in all_checks():
        found[check.title].add(path_of(inspect.getmodule(check.judge)))
        found[check.name] |= {path_of(inspect.getmodule(check.judge)), CATALOG}  # which says what must find a defect
    for name in DEFECTS:
        found[name].add(CATALOG)
    return found


def path_of(module) -> str:
    """Where it is in the repository, wherever the wheel with it was installed."""
    return f"src/{module.__name__.replace('.', '/')}.py"


def literals(path: Path) -> dict[str, int]:
    """String literals of a file, with the line of the first; parts of f-strings are none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    found: dict[str, int] = {}
    for node in strings:
        if id(node) not in parts:
            found.setdefault(node.value, node.lineno)
    return found


def path_at(place: str) -> str:
    return place if place.startswith(FOLDERS) else SOURCE + place


def test_a_name_is_spelled_where_it_is_declared_alone():
    names = declared()
    known = {name: {path_at(place) for places in what.values() for place in places} for name, what in ELSEWHERE.items()}
    found, met = [], set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place == ORACLE:
                continue
            for text, line in literals(path).items():
                if text in names and place not in names[text]:
                    met.add((text, place))
                    if place not in known.get(text, ()):
                        found.append(f"{place}:{line} spells {text!r}")
    assert not found
    assert not {(name, place) for name, places in known.items() for place in places} - met, "no word is listed in vain"


@pytest.mark.parametrize("names", [kinds(), DEFECTS, [check.name for check in all_checks()]])
def test_all_names_are_looked_for(names):
    assert names
    assert set(names) <= set(declared())
