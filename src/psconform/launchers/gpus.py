"""GPUs of this machine: which there are, and what a layout that needs some lacks."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

TOOL = "nvidia-smi"
RUNTIME = "nvidia"
TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"


def gpus() -> tuple[str, ...]:
    """Names of the GPUs that the driver shows (nvidia-smi), by number; none where it does not answer."""
    tool = shutil.which(TOOL)
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()


def lacking(need: int, *, info: dict[str, Any] | None = None) -> str:
    """What is missing for a layout that needs so many GPUs; empty: nothing.

    ``info`` is what the Docker engine says of itself (``APIClient.info``), if tasks are containers: it must have the
    NVIDIA runtime, or find devices by the Container Device Interface.
    """
    found = gpus()
    missing = []
    if len(found) < need:
        seen = f"{len(found)} of them" if found else "none" if shutil.which(TOOL) else f"none: there is no {TOOL}"
        missing.append(f"this machine shows {seen}")
    if info is not None and RUNTIME not in (info.get("Runtimes") or {}) and not info.get("DiscoveredDevices"):
        runtimes = ", ".join(sorted(info.get("Runtimes") or {})) or "none"
        missing.append(f"the Docker engine has no NVIDIA runtime (but {runtimes}): {TOOLKIT}")
    return "; ".join(missing)
