"""Generated pages say what the code says; what the README shows can be run."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

from psconform.targets.toml import load_target

ROOT = Path(__file__).parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
assert spec is not None
assert spec.loader is not None
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_generated_page_is_up_to_date(name):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == generate.PAGES[name](), "python docs/generate.py"


def test_every_field_is_described():
    assert not re.findall(r"^\| `\w+` \|.*\|\s+\|$", generate.events_page(), re.MULTILINE)


def test_example_target_in_the_docs_loads(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "targets.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "target.toml").write_text(example, encoding="utf-8")
    assert load_target(tmp_path / "target.toml").name == "my-trainer"


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ARCHITECTURE, *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("page", [ARCHITECTURE, *DECISIONS], ids=lambda page: page.stem)
def test_paths_that_are_named_exist(page):
    """Files and folders in backticks, as `runner/plan.py`, `chaos/` or `faults/*_faults.py`."""
    for path in re.findall(r"`([\w.*-][\w./*-]*(?:\.py|/))`", page.read_text(encoding="utf-8")):
        found = [*ROOT.glob(path), *(ROOT / "src" / "psconform").glob(path)]
        assert found, f"{page.name} names {path}, which is neither in the repository nor in src/psconform"


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_has_its_parts_and_is_in_the_index(page):
    text = page.read_text(encoding="utf-8")
    number, title = re.match(r"# (\d+)\. (.+)\n", text).groups()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    index = page.with_name("README.md").read_text(encoding="utf-8")
    assert f"{number}. [{title}]({page.name})\n" in index
    assert page.name.startswith(f"{int(number):04}-")


def test_no_two_modules_of_psconform_share_a_name():
    names = Counter(
        path.name for path in (ROOT / "src" / "psconform").rglob("*.py") if "reference_impl" not in path.parts
    )
    assert [name for name, count in names.items() if count > 1 and not name.startswith("__")] == []


REFERENCE = ROOT / "reference_impl"
CORE = ("__main__.py", "arguments.py", "cluster.py", "ps.py", "worker.py")
TREES = {path.relative_to(REFERENCE).as_posix(): ast.parse(path.read_text("utf-8")) for path in REFERENCE.rglob("*.py")}


def names_of(tree):
    """Functions, classes, and `Class.member` for methods and for attributes that its methods set."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef):
                    yield f"{node.name}.{part.name}"
                elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    yield f"{node.name}.{part.attr}"


def test_the_walk_through_the_reference_trainer_names_what_there_is():
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    known = {name for tree in TREES.values() for name in names_of(tree)} | set(TREES)
    known |= {f"{folder}/" for folder in ("reference_impl", "modes", "recovery", "defects")}
    known |= {"TF_CONFIG", "step", "applied", "total"}
    named = {name for name in re.findall(r"`([^`]+)`", page) if not name.startswith(("-", "psconform "))}
    assert named - known == set()
    assert {name for name in named if name.endswith(".py")} >= set(CORE)


def test_the_core_of_the_reference_trainer_is_small_and_knows_of_no_mode():
    assert sum(len((REFERENCE / name).read_text("utf-8").splitlines()) for name in CORE) <= 800
    for name in ("cluster.py", "ps.py", "worker.py"):
        imported = {node.module for node in ast.walk(TREES[name]) if isinstance(node, ast.ImportFrom) and node.level}
        assert imported <= {"cluster", "ps"}, name


def test_no_healthy_class_of_the_reference_trainer_has_more_than_two_levels_above_it():
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for name, tree in TREES.items()
        if not name.startswith("defects/")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }

    def levels(name):
        return max((1 + levels(base) for base in bases[name] if base in bases), default=0)

    assert {name for name in bases if levels(name) > 2} == set()
