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
IMAGE = f"psconform-test/socket-ps:{os.getpid()}"
"""Of this process: another may run these tests, too."""
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
def owners():
    """Process ids of psconforms of this test: this process, and those that it starts."""
    return {os.getpid()}


@pytest.fixture
def left_behind(owners):
    """What of theirs is there now: containers, running or not, and networks. Others may use the engine meanwhile."""

    def look():
        api, filters = engine(), {"label": "psconform.owner"}
        there = {said["Names"][0]: said["Labels"] for said in api.containers(all=True, filters=filters)}
        there |= {said["Name"]: said["Labels"] for said in api.networks(filters=filters)}
        return {name for name, labels in there.items() if int(labels["psconform.owner"].partition(":")[0]) in owners}

    before = look()
    yield lambda: look() - before
    assert look() <= before


@pytest.fixture
def psconform(tmp_path, owners):
    """Starts psconform as a process; it is killed after the test if it still runs."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "psconform.cli", *arguments]
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        started.append(process)
        owners.add(process.pid)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def target(tmp_path):
    """Writes the target file of a small trainer that its image has; returns its path."""

    def write(image=""):
        text = (SOURCE / "target.toml").read_text(encoding="utf-8").replace("{here}/socket_ps.py", "socket_ps.py")
        path = tmp_path / "target.toml"
        path.write_text(f'image = "{image}"\n{text}' if image else text, encoding="utf-8")
        return path

    return write


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
