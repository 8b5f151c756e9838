"""Shared by all tests of the engine."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester", "tests.proxied"]
settings.register_profile("untimed", deadline=None)  # how long an example takes is the machine's
settings.load_profile("untimed")


def pytest_collection_modifyitems(items):
    """The longest waits begin first, or one of two processes would be left alone with them in the end."""
    items.sort(key=lambda item: item.path.stem != "test_stock")
