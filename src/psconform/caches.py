"""Where psconform keeps what it has set up once for all projects: Toxiproxy, images."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of psconform in the user's cache folder; maybe there is none yet."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "psconform"
