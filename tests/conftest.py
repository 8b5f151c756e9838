"""Shared by all tests of the engine."""

from __future__ import annotations

pytest_plugins = ["pytester"]


def pytest_collection_modifyitems(items):
    """The longest waits begin first, or one of two processes would be left alone with them in the end."""
    items.sort(key=lambda item: item.path.stem != "test_stock")
