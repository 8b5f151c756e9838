"""A copy of a checkout with a Python of its own that imports it, so that a mutant is seen by every process of a test.

The Python is a virtual environment without packages: a ``.pth`` file adds those of the Python that runs this, and a
finder that comes before theirs takes psconform from the copy. So ``sys.executable`` of a test, of its keeper and of its
tasks is the copy's. All is deleted in the end, and whatever the tests have left running is killed: this process is a
subreaper, so orphans come to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import site
import subprocess
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psconform.launchers.keeper import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, children_of, kill_descendants, unmount

from .recorder import TRACE, prepare
from .selector import WATCHDOG

HERE = Path(__file__).parent
GRACE_S = 3.0
"""For what tests have left running."""
FINDER = '''\
"""Takes psconform from a copy of a checkout; written by benchmarks/mutants.py."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

FOLDERS = {folders!r}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in FOLDERS:
            return None
        folder = Path(FOLDERS[name])
        if (folder / "__init__.py").exists():
            return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)] if folder.exists() else []
        return spec


sys.meta_path.insert(0, Finder)
'''


@dataclass(frozen=True)
class Outcome:
    """What came of tests. ``stopped`` is the test that failed or did not end; empty: all passed, or nothing began."""

    passed: tuple[str, ...]
    stopped: str
    how: str
    output: str

    @property
    def fine(self) -> bool:
        """Nothing failed, and something ran."""
        return not self.how


def files_of(root: Path) -> list[Path]:
    """Files of a checkout that git does not ignore, relative to it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return [Path(name) for name in names if name and (root / name).is_file()]


class Sandbox:
    """The copy, at ``tree``. Use `sandbox` to have it deleted."""

    def __init__(self, root: Path, folder: Path, *, tests: Path | None) -> None:
        self.folder, self.tree = folder, folder / "tree"
        self._changes = 0
        for name in files_of(root):
            if tests is None or name.parts[0] != "tests":
                self._copy(root, name)
        if tests is not None:
            for name in files_of(tests):
                if name.parts[0] == "tests":
                    self._copy(tests, name)
        self.python = self._make_python()
        (folder / "lines" / "main").mkdir(parents=True)

    def _copy(self, root: Path, name: Path) -> None:
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, self.tree / name)

    def _make_python(self) -> Path:
        venv.create(self.folder / "venv", symlinks=True)
        packages = sysconfig.get_path("purelib", vars={"base": str(self.folder / "venv")})
        setuptools = tomllib.loads((self.tree / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
        folders = {name: str(self.tree / place) for name, place in setuptools["package-dir"].items()}
        here = Path(packages)
        (here / "mutants_finder.py").write_text(FINDER.format(folders=folders), encoding="utf-8")
        shutil.copytree(HERE, here / HERE.name)
        added = "".join(f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages())
        traced = f'import os; os.environ.get("{TRACE}") and __import__("mutation.recorder")'
        (here / "mutants.pth").write_text(f"import mutants_finder\n{traced}\n{added}", encoding="utf-8")
        return self.folder / "venv" / "bin" / "python"

    def write(self, name: str, text: str) -> None:
        """Change a file of the copy. Its time is new, so that no compiled file of another text is taken for it."""
        self._changes += 1
        path = self.tree / name
        path.write_text(text, encoding="utf-8")
        moment = time.time() - 10**6 + 10 * self._changes
        os.utime(path, (moment, moment))

    def imports(self, module: str) -> bool:
        """Whether a module can be imported."""
        return self._run([str(self.python), "-c", f"import {module}"], {}, limit_s=60.0)[0] == 0

    def run(self, tests: Mapping[str, float], *, arguments: tuple[str, ...] = ()) -> Outcome:
        """Run tests, each with its limit in seconds, in their order until the first that fails."""
        wanted = self.folder / "wanted.json"
        wanted.write_text(json.dumps(dict(tests)), encoding="utf-8")
        files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
        words = (f"--mutants-wanted={wanted}", "-x", *arguments, *files)
        status, output = self._pytest(words, {})
        messages = self._messages()
        ended = {message["ended"]: message["outcome"] for message in messages if "ended" in message}
        passed = tuple(name for name, outcome in ended.items() if outcome != "failed")
        begun = [message["begun"] for message in messages if "begun" in message]
        hung = [name for name in begun if name not in ended]
        failed = [name for name, outcome in ended.items() if outcome == "failed"]
        if hung:
            watchdog = self.folder / WATCHDOG
            late = watchdog.read_text(encoding="utf-8", errors="replace") if watchdog.exists() else ""
            return Outcome(passed, hung[-1], "did not end" if late else "ended pytest", late or output)
        if failed:
            return Outcome(passed, failed[0], "failed", output)
        if not begun:
            return Outcome((), "", "nothing could be collected", output)
        return Outcome(passed, "", "" if status == 0 else "pytest failed after its tests", output)

    def trace(self, targets: list[str], files: list[str], marker: str, *, jobs: int) -> list[dict[str, Any]]:
        """Run all tests of these files that the marker expression selects; returns one message for each test.

        A message has ``id``, ``outcome``, ``seconds``, and ``lines``: of each target those that the test ran. One with
        the empty id has what importing ran.
        """
        lines = self.folder / "lines"
        shutil.rmtree(lines)
        prepare(lines / "main").close()
        (lines / "files").write_text("\n".join(str(self.tree / name) for name in targets), encoding="utf-8")
        workers = ("-n", str(jobs), "--dist", "worksteal") if jobs > 1 else ()
        status, output = self._pytest(("-m", marker, *workers, *files), {TRACE: str(lines / "main")})
        messages = self._messages()
        if not any("ended" in message for message in messages):
            raise SystemExit(f"no test ran (exit status {status}):\n{output[-3000:]}")
        names = {(message["worker"], message["number"]): message["begun"] for message in messages if "begun" in message}
        ran: dict[str, dict[str, set[int]]] = {}
        for path in lines.glob("*/hits"):
            for line in path.read_text(encoding="utf-8").splitlines():
                number, file, place = map(int, line.split())
                name = names.get((path.parent.name, number), "")
                ran.setdefault(name, {}).setdefault(targets[file], set()).add(place)
        found = {message["ended"]: message for message in messages if "ended" in message} | {"": {}}
        return [
            {
                "id": name,
                "outcome": message.get("outcome", ""),
                "seconds": message.get("seconds", 0.0),
                "lines": {file: sorted(places) for file, places in sorted(ran.get(name, {}).items())},
            }
            for name, message in found.items()
        ]

    def _messages(self) -> list[dict[str, Any]]:
        path = self.folder / "report.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _pytest(self, words: tuple[str, ...], env: dict[str, str]) -> tuple[int, str]:
        for name in ("report.jsonl", WATCHDOG):
            (self.folder / name).unlink(missing_ok=True)
        # what one mutant taught Hypothesis must not help to find another
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)
        _delete(self.folder / "t")
        (self.folder / "t").mkdir()
        options = ("-q", "-p", "mutation.selector", "-p", "no:cacheprovider", "--hypothesis-seed", "0", "--tb", "short")
        command = [str(self.python), "-m", "pytest", *options, f"--mutants-report={self.folder / 'report.jsonl'}"]
        return self._run([*command, *words], env)

    def _run(self, command: list[str], env: dict[str, str], *, limit_s: float = float("inf")) -> tuple[int, str]:
        """Exit status and output; nothing of it runs on. Orphans are reaped meanwhile, as init would."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "TMPDIR": str(self.folder / "t"), "TF_CPP_MIN_LOG_LEVEL": "2", **env}
        deadline = time.monotonic() + limit_s
        with (self.folder / "output").open("w+", encoding="utf-8", errors="replace") as file:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 (there is one thread)
            )
            try:
                while not _ended(process.pid) and time.monotonic() < deadline:
                    time.sleep(0.02)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
                _end_descendants()
            file.seek(0)
            return status, file.read()


def _ended(pid: int) -> bool:
    """Whether this child has ended; it is left to be waited for, any other child that has ended is not."""
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return False
        if found.si_pid == pid:
            return True
        os.waitpid(found.si_pid, 0)


def _end_descendants() -> None:
    """Keepers whose test is gone end by themselves, and unmount what they have mounted; what is left then is killed."""
    deadline = time.monotonic() + GRACE_S
    while children_of(os.getpid()) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)
    kill_descendants()


def _delete(folder: Path) -> None:
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        if (place := line.split()[1]).startswith(f"{folder}/"):
            unmount(place)
    shutil.rmtree(folder, ignore_errors=True)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def sandbox(root: Path, *, tests: Path | None = None) -> Iterator[Sandbox]:
    """A copy of a checkout, with the tests of another if one is given."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = signal.signal(signal.SIGTERM, _stop)
    folder = Path(tempfile.mkdtemp(prefix="psm-"))  # short: sockets lie in it
    try:
        yield Sandbox(root, folder, tests=tests)
    finally:
        interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave something
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_descendants()
        _delete(folder)
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGTERM, before)


__all__ = ["Outcome", "Sandbox", "files_of", "sandbox"]
