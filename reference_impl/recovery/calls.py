"""Calls to ps tasks that may be dead, stopped or new: each has a deadline, and what does not come back is left behind.

A deadline of TensorFlow's own (``RunOptions.timeout_in_ms``) is not enough: what a session does before a step, asking
every task who it is and handing over its graph, has none, and waits for a stopped or dead ps for as long as it stays
that. So calls are made in a thread of their own, and if one is late, thread and session are abandoned together.
Sessions are never closed, either: that, too, asks every ps.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..cluster import GaveUp, tf, tf1

PATIENCE_S = 2.0
"""Deadline of a call, after which a worker looks at what is true."""
GRACE_S = 3.0
"""A call that has not come back so long after its deadline is left behind; the next one has twice as long."""
POLL_S = 0.02
"""Between two looks of a worker that waits for something no ps tells it of."""
TRANSIENT = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,  # of a ps that is new: it holds nothing
    tf.errors.NotFoundError,  # nor what a session had registered with the one before
    tf.errors.InternalError,
    tf.errors.UnknownError,
    UnicodeDecodeError,  # TensorFlow has something to say and cannot: its text is not UTF-8
)
"""What a call says when a ps was killed or started again while, or since, it was made."""


class _Late(Exception):
    """A call has not come back."""


class Caller:
    """A thread that makes one call after the other."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """What ``function`` returns or raises; raises _Late after so many seconds: this caller is then lost."""
        self._todo.put(function)
        try:
            answer, error = self._done.get(timeout=seconds)
        except queue.Empty:
            raise _Late from None
        if error is not None:
            raise error
        return answer

    def _work(self) -> None:
        while True:
            function = self._todo.get()
            try:
                self._done.put((function(), None))
            except Exception as error:  # whatever it is, it belongs to the caller
                self._done.put((None, error))


class Calls:
    """The calls of one worker, and their bound: none waits longer than ``most_s`` for a ps.

    ``connect`` makes a new session and whatever is bound to it, ``idle`` is called while a ps cannot be reached.
    """

    def __init__(self, ps: list[str], *, most_s: float, connect: Callable[[], None], idle: Callable[[], None]) -> None:
        self.ps, self.most_s = ps, most_s
        self._connect, self._idle = connect, idle
        self.carry_s = 0.0  # on top of every deadline: what the largest message takes on a slow machine
        self._caller = Caller()
        self._heard, self._grace_s = time.monotonic(), GRACE_S

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        """The answer of one call, or None: then it is not known what became of it, and there may be a new session.

        Raises:
            GaveUp: for ``most_s`` no call has been answered.
        """
        patience_s += self.carry_s
        options = tf1.RunOptions(timeout_in_ms=int(patience_s * 1000))
        try:
            answer = self._caller.call(partial(run, *feeds, options=options), patience_s + self._grace_s)
        except _Late:
            # What a new session does first takes longer than this on a machine that is busy enough: then no session
            # would ever come as far as the call.
            self._caller, self._grace_s = Caller(), min(2 * self._grace_s, self.most_s / 3)
            self._reconnect()
        except tf.errors.DeadlineExceededError:
            self._overdue()
        except TRANSIENT:
            self._reconnect()
        else:
            self._heard, self._grace_s = time.monotonic(), GRACE_S
            return answer
        return None

    def _reconnect(self) -> None:
        """A new session, once every ps takes connections."""
        self._overdue()
        for address in self.ps:
            while not takes_connections(address):
                self._overdue()
                self._idle()
                time.sleep(POLL_S)
        self._connect()

    def _overdue(self) -> None:
        if time.monotonic() - self._heard < self.most_s:
            return
        refusing = [f"ps:{i} on {address}" for i, address in enumerate(self.ps) if not takes_connections(address)]
        silent = ", ".join(refusing) or f"a ps that takes connections ({', '.join(self.ps)})"
        raise GaveUp(f"no answer for {self.most_s:.0f} s from {silent}")


def takes_connections(address: str) -> bool:
    """Whether a process listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except OSError:
        return False


class Stall:
    """A wait that is given up when nothing at all has changed for so many seconds."""

    def __init__(self, what: str, most_s: float) -> None:
        self.what, self.most_s, self._state, self._since = what, most_s, None, time.monotonic()

    def over(self, state: Any) -> bool:
        """Nothing has changed for too long."""
        if state != self._state:
            self._state, self._since = state, time.monotonic()
        return time.monotonic() - self._since > self.most_s

    def look(self, counts: list[tuple[int, ...]], least: int = 0) -> None:
        """Go on waiting; raises GaveUp, naming the workers that have fewer than ``least`` gradients somewhere."""
        if self.over(counts):
            slow = [f"worker:{w}" for w, least_w in enumerate(map(min, zip(*counts, strict=True))) if least_w < least]
            raise GaveUp(f"{self} from {', '.join(slow) or 'worker:0'}")

    def __str__(self) -> str:
        return f"has waited for {self.what} for {self.most_s:.0f} s, and nothing has come"
