"""Images are built once: then the engine has them, or the cache has what takes minutes."""

import io
import os
import tarfile

import pytest

from psconform.faults.toxiproxy_install import need_program
from psconform.launchers import image_cache, images
from psconform.launchers.engine import engine

NAME = f"{images.LIBRARIES}-of-a-test:{os.getpid()}"


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A small image that is made of ``k``, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            entry = tarfile.TarInfo("text")
            entry.size = 100_000
            tar.addfile(entry, io.BytesIO(bytes(range(250)) * 400))
        name, tag = NAME.split(":")
        labels = [f"LABEL {images.MADE_LABEL}=k"]
        engine().import_image_from_data(file.getvalue(), repository=name, tag=tag, changes=labels)
    yield NAME
    if engine().images(name=NAME):
        engine().remove_image(NAME)


def test_what_the_engine_has_is_not_built_again():
    said = []
    built = images.build(toxiproxy=need_program(), say=said.append)
    assert not said
    assert {image.name for image in built} == {images.trainer_image(), images.toxiproxy_image()}


def test_an_engine_that_has_lost_an_image_has_it_from_the_cache(small):
    said = []
    with image_cache.alone(said.append):
        images._to_cache("libraries", "c0", [small], said.append)
        engine().remove_image(small)
        assert not images._from_cache("libraries", "c1", small, said.append)
        assert images._from_cache("libraries", "c0", small, said.append) is False, "it is made of something else"
        assert not image_cache.path_of("libraries", "c0").exists()
        images._to_cache("libraries", "k", [small], said.append)
        engine().remove_image(small)
        assert images._from_cache("libraries", "k", small, said.append)
    assert images._is_built(small, "k")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"no archive", lambda data: b""])
def test_a_damaged_archive_is_deleted_and_in_nobodys_way(small, damage):
    said = []
    with image_cache.alone(said.append):
        images._to_cache("libraries", "k", [small], said.append)
        engine().remove_image(small)
        path = image_cache.path_of("libraries", "k")
        path.write_bytes(damage(path.read_bytes()))
        assert not images._from_cache("libraries", "k", small, said.append)
    assert said[-1] == "it is damaged"
    assert not path.exists()
    assert not engine().images(name=small)
