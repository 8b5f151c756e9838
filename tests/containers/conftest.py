"""Tests that take a Docker engine and the images: `tox -e docker` has both, or says in one line what lacks."""

import os
import subprocess
import sys

import pytest

from psconform.errors import PsconformError
from psconform.launchers.engine import engine
from psconform.launchers.images import need, toxiproxy_image, trainer_image


def pytest_sessionstart(session):
    try:
        for name in (trainer_image(), toxiproxy_image()):
            need(name, own=True)
    except PsconformError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def left_behind():
    """What of psconform's is there now: containers, running or not, and networks."""

    def look():
        api, filters = engine(), {"label": "psconform.owner"}
        containers = {said["Names"][0] for said in api.containers(all=True, filters=filters)}
        return containers | {said["Name"] for said in api.networks(filters=filters)}

    before = look()
    yield lambda: look() - before
    assert look() <= before


@pytest.fixture
def psconform(tmp_path):
    """Starts psconform as a process; it is killed after the test if it still runs."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "psconform.cli", *arguments]
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
