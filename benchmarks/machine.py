"""What figures in docs/ have to say about where they come from."""

from __future__ import annotations

import os
import platform
import textwrap
import time
from importlib import metadata
from pathlib import Path

import psutil


def machine() -> str:
    """Processor, cores, memory, system, and the load before anything was started."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    gib = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    cpu = models[0] if models else platform.machine()
    return f"{cpu}, {os.cpu_count()} cores, {gib:.0f} GiB, {platform.system()} (load {load:.1f})"


def paragraph(*sentences: str) -> str:
    """Sentences as one wrapped paragraph of Markdown, an empty line after it."""
    return textwrap.fill(" ".join(sentences), width=118, break_long_words=False, break_on_hyphens=False) + "\n"


def versions() -> str:
    """psconform, Python, TensorFlow, numpy."""
    found = [f"Python {platform.python_version()}"]
    for name in ("psconform", "tensorflow", "tensorflow-cpu", "numpy"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def today() -> str:
    """The date, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
