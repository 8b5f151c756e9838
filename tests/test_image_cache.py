"""Archives of images: whole or not there, the last two of each kind, and never in the way of a build."""

import fcntl
import gzip
import os

import pytest

from psconform.errors import PsconformError
from psconform.launchers import image_cache


@pytest.fixture(autouse=True)
def said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lines = []
    with image_cache.alone(lines.append):
        yield lines


def names():
    return sorted(path.name for path in image_cache.folder().iterdir())


def kept(kind, key):
    with image_cache.kept(kind, key) as file:
        return file and gzip.decompress(file.read())


def test_what_is_kept_is_found_by_its_key(said):
    image_cache.keep("base", "a1", [b"one", b"two"], say=said.append)
    assert kept("base", "a1") == b"onetwo"
    assert kept("base", "a2") is None
    assert kept("libraries", "a1") is None
    image_cache.drop("base", "a1")
    assert kept("base", "a1") is None
    assert not said


def test_of_each_kind_the_two_that_were_used_last_are_kept(said):
    for number, (kind, key) in enumerate((("base", "a1"), ("base", "a2"), ("libraries", "b1"))):
        image_cache.keep(kind, key, [b"x"], say=said.append)
        os.utime(image_cache.path_of(kind, key), (number, number))
    (image_cache.folder() / "base-notes.txt").write_text("of somebody")
    kept("base", "a1")
    image_cache.keep("base", "a3", [b"x"], say=said.append)
    assert names() == ["base-a1.tar.gz", "base-a3.tar.gz", "base-notes.txt", "libraries-b1.tar.gz", "lock"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_what_was_not_written_to_its_end_is_not_there(said, error):
    def broken_off():
        yield b"half"
        raise error

    image_cache.keep("base", "a1", [b"before"], say=said.append)
    try:
        image_cache.keep("base", "a1", broken_off(), say=said.append)
    except KeyboardInterrupt:
        assert not said
    else:
        assert said == [f"{image_cache.path_of('base', 'a1')} is not kept (No space left on device)"]
    assert kept("base", "a1") == b"before"
    assert names() == ["base-a1.tar.gz", "lock"]


def test_what_one_that_was_killed_has_left_is_deleted(said, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    image_cache.folder().mkdir(parents=True)
    (image_cache.folder() / "base-a1.tar.gz.part").write_bytes(b"half")
    with image_cache.alone(said.append):
        assert names() == ["lock"]


def test_a_second_one_says_that_it_waits(said, monkeypatch):
    locks = []
    monkeypatch.setattr(fcntl, "flock", lambda _, how: locks.append(how) or (_ for _ in ()).throw(BlockingIOError))
    with pytest.raises(BlockingIOError), image_cache.alone(said.append):
        pass
    assert locks == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert said == ["waiting for another psconform that builds images"]


def test_a_folder_that_cannot_be_made_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    wrong = r"file/psconform/images cannot be written \(Not a directory\)"
    with pytest.raises(PsconformError, match=wrong), image_cache.alone(print):
        pass
