"""A running container, and the helper of a pod that answers questions: psconform's ends of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import PsconformError
from ..files import open_regular
from .blueprint import Container
from .engine import told

Ended = Callable[..., None]
READY_S = 60.0
ANSWER_S = 10.0


class Running:
    """A task's container: its output goes to a log, and its end is told of.

    Args:
        api: a docker.APIClient.
        container: what it is.
        log: its output is appended to it.
        ended: called from a thread with its exit status (minus the signal's number, as far as that shows), and whether
            the kernel has ended it for want of memory.

    Raises:
        PsconformError: it cannot be started; says why.
    """

    def __init__(self, api: Any, container: Container, *, log: Path, ended: Ended) -> None:
        self._api, self._name, self._ended = api, container.name, ended
        with told(f"container {container.name} cannot be removed"):
            remove(api, container.name)  # of the life before
        with _starting(api, container, {"stdout": 1, "stderr": 1, "stream": 1}) as (self.id, self._output):
            self.host_pid = int(api.inspect_container(self.id)["State"]["Pid"])
        self._thread = threading.Thread(target=self._follow, args=(log,), daemon=True)
        self._thread.start()

    def _follow(self, log: Path) -> None:
        with contextlib.suppress(OSError), open_regular(log, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            for chunk in frames(self._output):
                file.write(chunk)
        close(self._output)
        status, out_of_memory = 255, False
        with contextlib.suppress(Exception):  # the engine may be gone; then everything is
            status = int(self._api.wait(self.id, timeout=None)["StatusCode"])
            out_of_memory = bool(self._api.inspect_container(self.id)["State"]["OOMKilled"])
        with contextlib.suppress(Exception):
            remove(self._api, self.id)
        self._ended(128 - status if 128 < status < 128 + 65 else status, out_of_memory=out_of_memory)

    @property
    def runs(self) -> bool:
        """Its end has not been seen."""
        return self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait until its end has been told of, so many seconds at most; returns whether it has."""
        self._thread.join(timeout)
        return not self.runs

    def remove(self) -> None:
        """End it, also if it is paused, and delete it; what remains is for the keeper."""
        with contextlib.suppress(Exception):
            self._api.unpause(self.id)
        with contextlib.suppress(Exception):
            remove(self._api, self.id)


class Helper:
    """The helper of a pod. Use ``ask``; it can be used by one thread at a time.

    Raises:
        PsconformError: it cannot be started, or is not ready in READY_S.
    """

    def __init__(self, api: Any, container: Container, *, network: str) -> None:
        self._api, self.name, self.names = api, container.name, container.names
        self._lock, self._number, self._rest = threading.Lock(), 0, b""
        with _starting(api, container, {"stdin": 1, "stdout": 1, "stream": 1}) as (self.id, self._line):
            self._socket: socket.socket = getattr(self._line, "_sock", self._line)
            self._frames = frames(self._line)
            self._answer("ready", within_s=READY_S)
            networks = api.inspect_container(self.id)["NetworkSettings"]["Networks"]
            self.ip: str = networks[network]["IPAddress"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """A request (psconform.faults.pod_agent has them), and its answer.

        Raises:
            PsconformError: it is gone, or what was asked for failed.
        """
        with self._lock:
            self._number += 1
            try:
                self._socket.sendall(json.dumps({**request, "id": self._number}).encode() + b"\n")
                while (said := self._answer("id", within_s=ANSWER_S))["id"] != self._number:
                    pass  # to an earlier request, which has been given up
            except OSError as error:
                raise PsconformError(f"container {self.name} does not answer ({error})") from None
        if "failed" in said:
            raise PsconformError(f"container {self.name}, asked for {request['do']}: {said['failed']}")
        return said

    def _answer(self, key: str, *, within_s: float) -> dict[str, Any]:
        while b"\n" not in self._rest:
            waits = select.poll()
            waits.register(self._socket, select.POLLIN)
            if not waits.poll(within_s * 1000):
                raise TimeoutError(f"nothing for {within_s:.0f} s")
            chunk = next(self._frames, b"")
            if not chunk:
                raise OSError(f"it has ended{self._last_words()}")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if key not in said:
            raise OSError(f"it said {line[:200].decode(errors='replace')}")
        return said

    def _last_words(self) -> str:
        with contextlib.suppress(Exception):
            state = self._api.inspect_container(self.id)["State"]
            return f", with status {state['ExitCode']} {state['Error']}".rstrip()
        return ""

    def close(self) -> bool:
        """End it, and with it every process of its pod; whether the engine has done so, else the keeper will."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        close(self._line)
        try:
            remove(self._api, self.id)
        except Exception:
            return False
        return True


@contextlib.contextmanager
def _starting(api: Any, container: Container, streams: dict[str, int]) -> Iterator[tuple[str, Any]]:
    """The id of a container that was started, and a line to it; if what follows fails it is removed."""
    with told(f"container {container.name} cannot be started"), contextlib.ExitStack() as undo:
        made: str = api.create_container(**container.arguments(api))["Id"]
        undo.callback(remove, api, made)
        line = api.attach_socket(made, params=streams)
        undo.callback(close, line)
        api.start(made)
        yield made, line
        undo.pop_all()


def close(line: Any) -> None:
    """Hang up what ``attach_socket`` has returned: a file, the socket below, and the answer that it came with."""
    for part in (getattr(line, "_response", None), line, getattr(line, "_sock", None)):
        if part is not None:
            with contextlib.suppress(OSError, ValueError):  # one may have closed another
                part.close()


def frames(line: Any) -> Any:
    """What a container without a terminal writes: chunks of its standard output and error, until both are closed.

    https://docs.docker.com/engine/api/v1.41/#operation/ContainerAttach: a header of 8 bytes, the last 4 the size.
    """
    connection: socket.socket = getattr(line, "_sock", line)
    while header := _exactly(connection, 8):
        yield _exactly(connection, struct.unpack(">L", header[4:])[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; fewer if there are no more."""
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def remove(api: Any, name: str) -> None:
    """Remove a container, running or not; nothing, if there is none."""
    import docker

    with contextlib.suppress(docker.errors.NotFound):
        try:
            api.remove_container(name, force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code != 409:  # somebody else is at it
                raise
