"""Generated pages say what the code says; what the README shows can be run."""

from __future__ import annotations

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
