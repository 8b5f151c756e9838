"""What tasks find in their environment beside what psconform tells them."""

from __future__ import annotations

from collections.abc import Mapping

HERE = "127.0.0.1,localhost"
"""Hosts that no proxy is asked for."""


def direct(environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps a task from asking the HTTP proxy of its user for another task: gRPC would, on loopback, too."""
    names = ("no_proxy", "NO_PROXY")
    given = next((environ[name] for name in names if environ.get(name)), "")
    return dict.fromkeys(names, ",".join(filter(None, (given, HERE))))
