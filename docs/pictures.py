"""The pictures of docs/terminal.md: each command in a terminal of tmux, 60 and 120 columns wide, drawn as SVG.

``python docs/pictures.py``, with psconform and tmux on PATH, from the checkout.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
COMMANDS = {
    "valid": "psconform run examples/first/target.toml --steps 50 --kill worker:1@35",
    "violated": "psconform run --defect lose-shard-update --seed 7",
    "unknown": "psconform run examples/first/target.toml --steps 5000 --max-run 1MiB",
}
WIDTHS = (60, 120)
LINES = 200
WAIT_S = 300


def shown(command: str, width: int) -> str:
    """What a terminal of this width shows when the command has ended, with its colours as escape sequences."""
    session = f"psconform-pictures-{width}"
    done = f"{session}-done"
    with tempfile.TemporaryDirectory() as folder:
        run = f"cd {shlex.quote(str(ROOT))} && {command} --out {folder}/run 2>/dev/null"
        line = f"{run}; tmux wait-for -S {done}; sleep {WAIT_S}"
        size = ["-x", str(width), "-y", str(LINES)]
        subprocess.run(["tmux", "new-session", "-d", "-s", session, *size, line], check=True)
        try:
            subprocess.run(["tmux", "wait-for", done], check=True, timeout=WAIT_S)
            capture = ["tmux", "capture-pane", "-p", "-e", "-t", session]
            text = subprocess.run(capture, check=True, capture_output=True, text=True).stdout
        finally:
            subprocess.run(["tmux", "kill-session", "-t", session], check=True)
        return text.replace(folder, "psconform-runs").replace(f"{ROOT}/", "").rstrip()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, command in COMMANDS.items():
        for width in WIDTHS:
            console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
            console.print(Text(f"$ {command}"))
            console.print(Text.from_ansi(shown(command, width)))
            console.save_svg(
                str(PICTURES / f"{name}-{width}.svg"), title=f"{width} columns", unique_id=f"{name}{width}"
            )


if __name__ == "__main__":
    main()
