"""What goes into the images: exact versions that fit what psconform asks for, and all code that tasks run."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from psconform.errors import BadInput, PsconformError
from psconform.launchers import images
from psconform.launchers.engine import engine, socket_path


def pins(name):
    lines = (images.docker_folder() / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-gpu.txt"])
def test_what_is_pinned_is_what_psconform_asks_for(name):
    wanted = [Requirement(text) for text in metadata.requires("psconform")]
    given = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins(name).items()}
    given |= {"tensorflow": given["tensorflow-cpu"]} if "tensorflow-cpu" in given else {}
    for requirement in wanted:
        if requirement.name in given:
            assert requirement.specifier.contains(given[requirement.name]), requirement
    assert "pyroute2" in given


@pytest.mark.parametrize(
    ("step", "elapsed_s", "rest"),
    [
        ("Step 1/9 : FROM base", 2.0, ""),
        ("Step 4/9 : RUN pip install", 30.0, " (about 60 s left)"),
        ("Step 9/9 : LABEL x", 80.0, " (about 10 s left)"),
    ],
)
def test_a_build_says_how_long_it_still_takes(step, elapsed_s, rest):
    assert images._rest(step, elapsed_s) == rest


@pytest.mark.engine
def test_the_stamp_covers_all_code_that_runs_in_the_image():
    code = (
        "import json, pkgutil, importlib, sys, psconform.trained\n"
        "import psconform.faults.iptables, psconform.faults.pod_agent\n"
        "import psconform.reference_impl as r\n"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(r.__path__, f'{r.__name__}.')]\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('psconform.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = {name for name in json.loads(done.stdout) if not name.startswith(images.TRAINER_CODE)}
    stamped = {f"psconform.{name}" for name in images.WORDS} | {
        f"psconform.faults.{name}" for name in images.HELPER_CODE
    }
    assert loaded - {"psconform.faults"} == stamped


@pytest.mark.engine
def test_the_wheel_that_goes_in_is_of_this_code(tmp_path):
    images._own_wheel(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("psconform/probe.py", "psconform/faults/pod_agent.py", "psconform/reference_impl/__main__.py"):
        assert names.count(name) == 1


def test_without_an_engine_there_is_one_line_that_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    engine.cache_clear()
    with pytest.raises(PsconformError, match=r"docker: there is no .*docker.sock, .*; fix: unset DOCKER_HOST"):
        engine()
    monkeypatch.setenv("DOCKER_HOST", "tcp://example.com:2375")
    with pytest.raises(PsconformError, match=r"DOCKER_HOST is tcp://example\.com:2375"):
        socket_path()
    engine.cache_clear()


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"cannot be read \(Is a directory\)"):
        images.load(tmp_path)
    with pytest.raises(BadInput, match="is not there"):
        images.load(tmp_path / "none")
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "cut").write_bytes(gzip.compress(bytes(range(256)) * 80)[:100])
    for name in ("text", "cut"):
        with pytest.raises(BadInput, match=f"{name}: is no archive of images"):
            images.load(tmp_path / name)


@pytest.mark.parametrize("path", ["/", "", "."])
def test_a_folder_is_no_file_for_images(path):
    with pytest.raises(BadInput, match="FILE: is a folder: name the file to be written"):
        images.save(Path(path))


def test_what_the_compose_file_mounts_comes_with_the_package():
    """By the wheel: an installed psconform has the files that are beside compose.yaml."""
    said = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = said["tool"]["setuptools"]["package-data"]["psconform.docker"]
    folder = images.docker_folder()
    for name in re.findall(r'"\./([^:]+):', (folder / "compose.yaml").read_text(encoding="utf-8")):
        assert (folder / name).is_file()
        assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_the_base_is_an_argument_and_nothing_is_fetched():
    bases = {"libraries.Dockerfile": images.SLIM, "Dockerfile": images.LIBRARIES, "toxiproxy.Dockerfile": images.SLIM}
    for name, base in bases.items():
        text = (images.docker_folder() / name).read_text()
        assert f"ARG BASE={base}\n" in text
        assert re.findall(r"^FROM (\S+)", text, re.M) == ["${BASE}"] * text.count("\nFROM ")
        assert "--no-index" in text or "pip" not in text
        assert 'psconform.made-of="${MADE_OF}"' in text
        if name != "libraries.Dockerfile":
            assert "USER 10001:10001" in text
            assert "HEALTHCHECK" in text


class OneBase:
    """An engine that has a base and nothing else."""

    def images(self, name):
        return [{"Id": "sha256:1"}] if name == images.SLIM else []


def keys(gpu=False, base=images.SLIM):
    return (
        images._libraries_key(base, gpu=gpu),
        images._trainer_key(base, gpu=gpu),
        images._toxiproxy_key(base, Path(__file__)),
    )


def test_a_key_changes_with_what_an_image_is_made_of_and_with_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setattr(images, "engine", OneBase)
    folder = tmp_path / "docker"
    shutil.copytree(images.docker_folder(), folder)
    monkeypatch.setattr(images, "docker_folder", lambda: folder)
    libraries, trainer, toxiproxy = keys()
    monkeypatch.setattr(images, "code_stamp", lambda: "another")
    assert (keys()[0], keys()[2]) == (libraries, toxiproxy), "of psconform's own code the trainer's image alone is made"
    assert (changed := keys()[1]) != trainer
    (folder / "requirements.txt").write_text("numpy==1\n")
    assert keys()[0] != libraries
    assert keys()[1] != changed
    assert keys()[2] == toxiproxy
    assert len({keys()[0], keys(gpu=True)[0], keys(base=images.DEBIAN)[0]}) == 3
    of_debian = keys(base=images.DEBIAN)
    monkeypatch.setenv("PSCONFORM_SUITE", "trixie")
    assert all(was != now for was, now in zip(of_debian, keys(base=images.DEBIAN), strict=True))
