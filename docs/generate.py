"""Writes events.md, checks.md and options.md from the code: ``python docs/generate.py`` (a test compares them)."""

from __future__ import annotations

import inspect
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec

from psconform.checks import all_checks
from psconform.history import events
from psconform.options import GROUPS, OPTIONS
from psconform.report.listing import LISTS
from psconform.targets.reference import DEFECTS

HERE = Path(__file__).parent
GENERATED = "<!-- written by docs/generate.py; edit the code instead -->\n\n"


def _described(hint: object) -> str:
    """The description in an annotation."""
    if get_origin(hint) is Annotated:
        for part in get_args(hint)[1:]:
            if isinstance(part, msgspec.Meta) and part.description:
                return part.description
    return ""


def _type(hint: object) -> str:
    """A type as JSON would call it."""
    names = {int: "integer", str: "string", float: "number", bool: "true/false", type(None): "null"}
    if get_origin(hint) is Annotated:
        return _type(get_args(hint)[0])
    if hint in names:
        return names[hint]  # type: ignore[index]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (list, tuple):
        inner = [_type(part) for part in parts]
        return f"list of {inner[0]}" if origin is list else f"[{', '.join(inner)}]"
    if parts:
        shown = [repr(p) if isinstance(p, str) else _type(p) for p in parts]
        return " or ".join(dict.fromkeys(shown)).replace("number or 'nan' or 'inf' or '-inf'", "number*")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(repr(choice.value) for choice in hint)
    return str(hint)


def _rows(kind: type[msgspec.Struct], names: list[str]) -> list[str]:
    hints = get_type_hints(kind, include_extras=True)
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    rows = ["| field | type | | meaning |", "|---|---|---|---|"]
    for name in names:
        must = "" if name in required else "optional"
        rows.append(f"| `{name}` | {_type(hints[name])} | {must} | {_described(hints[name])} |")
    return rows


def events_page() -> str:
    """docs/events.md."""
    common = list(events.Event.__struct_fields__)
    lines = [f"{GENERATED}# Event files, schema {events.SCHEMA}\n", inspect.getdoc(events) or "", ""]
    lines += ["## Fields of every event\n", "`kind` names the event; it may stand anywhere in the object.\n"]
    lines += _rows(events.Event, common)
    lines += ["\n`number*`: a number, or one of the strings nan, inf, -inf.\n"]
    for kind in events.EVENTS:
        own = [name for name in kind.__struct_fields__ if name not in common]
        lines += [f"## `{kind.__struct_config__.tag}`\n", inspect.getdoc(kind) or "", ""]
        lines += [*_rows(kind, own), ""] if own else []
    return "\n".join(lines).rstrip() + "\n"


def checks_page() -> str:
    """docs/checks.md."""
    lines = [f"{GENERATED}# Checks\n"]
    lines.append(
        "Each is one pure function History -> Verdict; this page is made of their docstrings. None is `valid` on an\n"
        "incomplete record, and none that crashes says more than `unknown`.\n"
    )
    for check in all_checks():
        lines += [f"## {check.name} {check.title}\n"]
        claim = f"claim `{check.dimension}`" if check.dimension else "owed by every trainer"
        lines += [f"*{' and '.join(check.updates)}; {claim}*\n", inspect.cleandoc(check.definition), ""]
    lines += ["# Seeded defects\n", "`psconform run reference --defect NAME`\n"]
    lines += ["| defect | what it does | found by | also breaks | needs |", "|---|---|---|---|---|"]
    for name, defect in DEFECTS.items():
        lines.append(f"| `{name}` | {defect.title} | {defect.found_by} | {', '.join(defect.also)} | {defect.needs} |")
    return "\n".join(lines).rstrip() + "\n"


def options_page() -> str:
    """docs/options.md."""
    lines = [f"{GENERATED}# Options of a run\n"]
    lines.append(
        "`psconform run` takes them as flags and `psconform.judge` as arguments of the same names (dashes are\n"
        "underscores). Options of many runs (`--repeat`, ...) are in `psconform run --help`.\n"
    )
    for group in GROUPS:
        options = [(name, option) for name, option in OPTIONS.items() if option.group == group]
        if not options:  # those of many runs
            continue
        lines += [f"## {group.name}\n", f"Example: `{group.example}`\n"]
        lines += ["| flag | argument | default | placeholder | meaning |", "|---|---|---|---|---|"]
        for name, option in options:
            flag = f"{option.flag} {option.metavar or ''}".strip().replace("|", " or ")
            shown = option.default not in ("", ()) and option.default is not None and option.default is not False
            default = f"`{option.default}`" if shown else ""
            told = f"`{{{option.placeholder}}}`" if option.placeholder else ""
            lines.append(f"| `{flag}` | `{name}` | {default} | {told} | {option.help} |")
        lines.append("")
    lines += ["## Which go together\n", "An option that is not listed goes with every other one.\n"]
    lines += ["| option | condition | because |", "|---|---|---|"]
    lines += [f"| {' | '.join(row.values())} |" for row in LISTS["compatibility"]()]
    lines.append("\nA placeholder is what a command in a [target file](targets.md) contains to be given the option.")
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"events.md": events_page, "checks.md": checks_page, "options.md": options_page}


def main() -> int:
    """Write all pages."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
