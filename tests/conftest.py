"""Shared by all tests of the engine."""

from __future__ import annotations

pytest_plugins = ["pytester"]
