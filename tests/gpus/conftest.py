"""Tests that take real GPUs: `tox -e gpu` runs them, or says in one line what lacks."""

import pytest

from psconform.launchers.gpus import gpus

LEAST = 2


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu)


def pytest_sessionstart(session):
    found = gpus()
    if len(found) < LEAST:
        raise pytest.UsageError(f"tests of GPUs need {LEAST} of them, and this machine shows {len(found)} (nvidia-smi)")
