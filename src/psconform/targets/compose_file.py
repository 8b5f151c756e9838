"""A Compose file, read by whichever Compose this machine has, and what of it only psconform reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import BadInput, PsconformError

READ_S = 60
LEAST_MEMORY = 6 << 20
"""The engine refuses a task less memory than this."""
LEAST_CPUS = 0.01
"""The kernel shares out no less than a millisecond of each period."""
HINT = "the Compose plugin of Docker (docker compose), or Debian's docker-compose: apt-get install docker-compose"


@cache
def compose() -> tuple[tuple[str, ...], str]:
    """The Compose of this machine, as the words of a command, and its version; two empty ones: there is none."""
    for words in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(words[0]) is None:
            continue
        done = _run([*words, "version", "--short"])
        if done is not None and done.returncode == 0:
            return words, done.stdout.strip()
    return (), ""


def resolve(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """What a Compose file says once its variables, anchors and extensions are put in.

    Raises:
        BadInput: it is not there, or Compose refuses it, in whose words.
        PsconformError: there is no Compose, or no PyYAML.
    """
    if not path.is_file():
        raise BadInput("TARGET", "there is no such Compose file", value=str(path))
    words, _ = compose()
    if not words:
        raise PsconformError(f"{path} takes a Compose to be read: {HINT}")
    # the plugin prints YAML that any parser takes; JSON only it can print
    done = _run([*words, "-f", str(path.resolve()), "config"], variables)
    if done is None or done.returncode:
        said = " ".join((done.stderr if done is not None else "it did not end").split())
        raise BadInput(str(path), f"is refused by {' '.join(words)}: {said[:400]}")
    return _table(done.stdout, place=str(path))


def read_extension(path: Path, name: str) -> dict[str, Any]:
    """A table of the file that Compose leaves alone (``x-...``); empty: there is none."""
    said = _table(path.read_text(encoding="utf-8-sig"), place=str(path)).get(name) or {}
    if not isinstance(said, dict):
        raise BadInput(f"{path}: {name}", "must be a table", value=said)
    return said


def parse_size(given: Any, *, place: str) -> int:
    """Bytes, of a number or of ``512m``, ``1gb``; raises BadInput."""
    if isinstance(given, int):
        return given
    from docker.errors import DockerException
    from docker.utils import parse_bytes

    try:
        return int(parse_bytes(str(given)))
    except DockerException:
        raise BadInput(place, "is no size in bytes, such as 512m", value=given) from None


def _run(words: list[str], variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str] | None:
    env = {**os.environ, **(variables or {})}
    try:
        return subprocess.run(
            words, env=env, capture_output=True, text=True, errors="replace", timeout=READ_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _table(text: str, *, place: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise PsconformError("Compose files need PyYAML: pip install 'psconform[docker]'") from None
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(place, f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(said, dict):
        raise BadInput(place, "is no Compose file")
    return said
