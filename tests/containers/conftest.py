"""Tests that take a Docker engine and the images: `tox -e containers` has both, or says in one line what lacks."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from psconform.errors import PsconformError
from psconform.launchers.engine import engine
from psconform.launchers.images import need, toxiproxy_image, trainer_image
from psconform.runner.session import Session

FOLDER = Path(__file__).parent
TIERS = ("nightly", "tensorflow", "engine")
SOURCE = Path(__file__).parents[1] / "socket_ps"
IMAGE = "psconform-test/socket-ps:1"
DOCKERFILE = f"""FROM {trainer_image()}
WORKDIR /app
COPY socket_ps.py /app/
ENTRYPOINT ["false"]
LABEL psconform.image= psconform.code=
"""


def pytest_sessionstart(session):
    try:
        for name in (trainer_image(), toxiproxy_image()):
            need(name, own=True)
    except PsconformError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(items):
    """All of them start processes."""
    for item in items:
        if FOLDER in item.path.parents and not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(pytest.mark.engine)


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


@pytest.fixture(scope="session")
def image():
    """Somebody's image: their program in a folder that is its working directory."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, text in (
                ("Dockerfile", DOCKERFILE.encode()),
                ("socket_ps.py", (SOURCE / "socket_ps.py").read_bytes()),
            ):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(text), 0o644
                tar.addfile(entry, io.BytesIO(text))
        file.seek(0)
        said = list(engine().build(fileobj=file, custom_context=True, tag=IMAGE, rm=True, decode=True))
    assert "Successfully built" in str(said), said
    yield IMAGE
    engine().remove_image(IMAGE)


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session
