"""What may stand where psconform expects a file of its own, sizes, and text that is shown."""

from __future__ import annotations

import io
import os
import socket
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psconform import files
from psconform.errors import BadInput, Malformed
from psconform.files import create, head, open_regular, pieces, read, read_text, tail, write
from psconform.history import reader
from psconform.history.manifest import Bounds
from psconform.history.reader import read_events
from psconform.printable import printable
from psconform.probe import EventLog
from psconform.runner import progress
from psconform.runner.folder import cut_log, overgrown
from psconform.runner.progress import Records, closed
from psconform.sizes import parse_size, spell_size


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD = {
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a symbolic link": partial(os.symlink, "/dev/zero"),
    "a socket": bound_socket,
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_regular_file_is_not_opened(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ODD[what]("odd")
    for opens in (open_regular, partial(read, limit=10), partial(open_regular, flags=os.O_WRONLY | os.O_APPEND)):
        with pytest.raises(OSError, match="not a regular file") as caught:
            opens("odd")
        assert caught.value.strerror == f"it is {what}, not a regular file"
    assert head("odd", 10) == tail("odd", 10) == ""
    assert not closed(tmp_path / "odd")
    assert not Records().look([tmp_path / "odd"])
    with pytest.raises(Malformed, match=f"cannot be read .it is {what}, not a regular file"):
        read_events(tmp_path / "odd", run="run", name="worker:0")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_text(device, tmp_path):
    (tmp_path / "linked").symlink_to(device)
    for path in (device, tmp_path / "linked"):
        with pytest.raises(OSError, match="it is a device, not a regular file"):
            read_text(path)


def test_a_users_own_text_may_be_linked_and_is_bounded(tmp_path):
    (tmp_path / "real").write_text("\ufeffname = 1")
    (tmp_path / "linked").symlink_to("real")
    assert read_text(tmp_path / "linked") == "name = 1"
    with pytest.raises(OSError, match="symbolic link"):
        read(tmp_path / "linked", 100)
    with pytest.raises(OSError, match="it is larger than 5 bytes"):
        read_text(tmp_path / "real", 5)


@given(st.binary(), st.integers(1, 20))
def test_pieces_are_whole_lines_and_lose_nothing(data, size):
    found = list(pieces(io.BytesIO(data), longest=1000, size=size))
    lines = b"".join(each for each, _ in found)
    rest = found[-1][1] if found else b""
    assert lines + rest == data
    assert lines == data[: data.rfind(b"\n") + 1]
    assert all(each.endswith(b"\n") for each, _ in found if each)


def test_a_line_that_is_too_long_ends_them():
    found = list(pieces(io.BytesIO(b"ab\n" + b"x" * 1000), longest=20, size=10))
    assert found[0] == (b"ab\n", b"x" * 7)
    assert found[-1][0] == b""
    assert 20 < len(found[-1][1]) <= 30


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("spoilt", ["", "torn", "wrong"])
def test_a_record_reads_the_same_in_pieces_of_any_size(size, spoilt, tmp_path, monkeypatch):
    path = tmp_path / "worker-0.jsonl"
    log = EventLog(path, run="r", task="worker:0", incarnation=0)
    for step in range(20):
        log.write("read", step=step, clock=[[step, step]], **({"nonce": [1.0]} if step == 0 else {}))
        log.write("push", step=step)
    if spoilt == "torn":
        log.write("push", step=20)
        path.write_bytes(path.read_bytes()[:-5])
    if spoilt == "wrong":
        path.write_bytes(path.read_bytes().replace(b'"step":11', b'"step":12', 1))

    def outcome():
        try:
            file = read_events(path, run="r", name="worker:0")
        except Malformed as error:
            return str(error)
        return [type(event) for event in file.events], file.torn, file.clocks.tolist()

    whole = outcome()
    monkeypatch.setattr(reader, "pieces", partial(files.pieces, size=size))
    assert outcome() == whole
    assert (":24: does not fit its checksum" in whole) == (spoilt == "wrong")


def test_a_record_may_not_be_larger_than_its_limit(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    EventLog(path, run="r", task="worker:0", incarnation=0).close()
    size = path.stat().st_size
    assert read_events(path, run="r", name="worker:0", limit=size) is not None
    with pytest.raises(Malformed, match=rf"larger than {size - 1} bytes; --max-record raises this limit"):
        read_events(path, run="r", name="worker:0", limit=size - 1)


def test_a_line_that_goes_on_and_on_is_read_once(tmp_path, monkeypatch):
    """A record that grows without a newline, as of a task that is stuck in writing it, is no progress and no work."""
    path, records = tmp_path / "worker-0.jsonl", Records()
    read = []
    monkeypatch.setattr(progress, "GAINED", 1000)
    with path.open("ab", buffering=0) as task:
        task.write(b'{"kind":"ack","seq":1}\n{"kind":"ack","seq":')
        assert records.look([path])
        for _ in range(50):
            task.write(b"1" * 500)
            assert not records.look([path])
            read.append(records._begun[path])
        task.write(b'}\n{"kind":"ack","seq":3}\n')
        assert records.look([path])
    assert read == [20 + 500 * n for n in range(1, 51)]
    assert records.acked == 3


def test_nothing_is_created_through_a_link_to_a_folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "done").symlink_to("elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        create(tmp_path / "done" / "worker-0")
    assert not list((tmp_path / "elsewhere").iterdir())
    create(tmp_path / "elsewhere" / "worker-0", "dead\n")
    assert (tmp_path / "elsewhere" / "worker-0").read_text() == "dead\n"
    with pytest.raises(FileExistsError):
        create(tmp_path / "elsewhere" / "worker-0")


def test_what_is_written_replaces_a_link_and_not_what_it_names(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "manifest.json").symlink_to("precious")
    write(tmp_path / "manifest.json", "new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "manifest.json").read_text() == "new"
    assert not (tmp_path / "manifest.json").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "precious"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "verdicts.json").mkdir()
    (tmp_path / "verdicts.json" / "file").touch()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path / "verdicts.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["verdicts.json"]


def test_of_a_log_that_grows_and_grows_the_beginning_and_the_end_are_kept(tmp_path):
    log = tmp_path / "worker-0.log"
    limit, said, cut = 4000, 0, 0
    with log.open("ab", buffering=0) as task:
        for number in range(2000):
            said += task.write(b"line %04d\n" % number)
            cut = cut_log(log, limit, cut)
            assert log.stat().st_size <= limit
    text = log.read_text()
    assert text.startswith("line 0000\nline 0001\n")
    assert text.endswith("line 1998\nline 1999\n")
    (mark,) = [line for line in text.splitlines() if "psconform" in line]
    assert mark == f"psconform: {cut} bytes of this log were cut here (--max-log)"
    assert len(text) - len(mark) - 2 == said - cut


@pytest.mark.parametrize("what", ODD)
def test_no_log_is_cut_through_what_is_no_file(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ODD[what]("odd")
    assert cut_log(tmp_path / "odd", 0, 5) == 5


def test_what_of_a_run_folder_is_too_large_is_named(tmp_path):
    for part in ("events", "vectors", "logs"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "worker-0").write_bytes(b"x" * 100)
    assert overgrown(tmp_path, Bounds(record=100, run=300)) is None
    assert str(overgrown(tmp_path, Bounds(record=99, run=1000))) == (
        "stopped: events/worker-0 grew beyond 99 bytes (--max-record raises this limit)"
    )
    assert str(overgrown(tmp_path, Bounds(record=100, run=299))) == (
        "stopped: the run folder grew beyond 299 bytes (--max-run raises this limit)"
    )
    os.truncate(tmp_path / "vectors" / "worker-0", 50 << 30)
    assert overgrown(tmp_path, Bounds()) is not None


@pytest.mark.parametrize(("text", "size"), [("64KiB", 64 << 10), ("256MiB", 256 << 20), ("4GiB", 4 << 30)])
def test_sizes(text, size):
    assert parse_size(text, place="--max-log") == size
    assert spell_size(size) == text


@pytest.mark.parametrize("text", ["", "5", "5MB", "-5MiB", "1.5GiB", "５MiB", "99999999MiB", "5 MiB"])
def test_what_is_no_size(text):
    with pytest.raises(BadInput, match="such as 512MiB"):
        parse_size(text, place="--max-log")


def test_text_is_shown_without_what_controls_a_terminal():
    assert printable("worker:1 <-> ps:0, 5 µs") == "worker:1 <-> ps:0, 5 µs"
    assert printable("a\x1b[2J\r\n\x9b\u202eb\udcff") == r"a\x1b[2J\r\n\x9b\u202eb\udcff"


@given(st.text())
def test_whatever_is_shown_is_one_line(text):
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text
