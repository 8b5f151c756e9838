"""Generated pages say what the code says; what the README shows can be run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from psconform.targets.toml import load_target

ROOT = Path(__file__).parent.parent
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
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
