"""Workers that survive deaths and misread the network, one subclass each.

A call to a ps ends in three ways: it is answered, it is late, or its connection is over. Only the first says what
became of a push. Each of these workers takes one of the others for something that it is not.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ..cluster import CALL_TIMEOUT_S, tf, tf1
from ..recovery.calls import PATIENCE_S, TRANSIENT, Calls, takes_connections
from ..recovery.recovering_worker import RecoveringWorker
from ..worker import Values
from .recovery_defects import Twice

OVER = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError)
"""What a call says whose connection has ended."""


class _Misread(Exception):
    """The push in hand ended in the way that this worker misreads."""


class _Misreads(RecoveringWorker, ABC):
    """Believes of some pushes that were not answered that they are done with.

    Nothing more is sent of such a gradient; an empty one keeps its place, or the servers would refuse all that follow.
    """

    in_hand = False

    @abstractmethod
    def misread(self, error: Exception | None) -> bool:
        """Whether a push that ended so is done with; None: it has not come back at all."""

    def _deliver(self, step: int, values: Values, gradient: Values) -> list[int]:
        self.in_hand = step < self.probe.due[self.index]
        try:
            return super()._deliver(step, values, gradient)
        except _Misread:
            self.in_hand = False
            return super()._deliver(step, values, self.empty())
        finally:
            self.in_hand = False

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        pushing, errors = self.in_hand and run is self._run_push_pull, []

        def noted(*feeds: Any, options: Any) -> Any:
            try:
                return run(*feeds, options=options)
            except tf.errors.OpError as error:
                errors.append(error)
                raise

        answer = super().ask(noted, *feeds, patience_s=patience_s)
        if pushing and answer is None and self.misread(errors[0] if errors else None):
            raise _Misread
        return answer

    def unanswered(self, step: int) -> None:
        if self.in_hand:
            super().unanswered(step)  # else it is sent no more, and believed to be there


class TimeoutDrops(_Misreads):
    """Takes a time-out for a failure, skips that gradient, and its loop records the step as any other.

    Its deadline for a push is shorter than TensorFlow takes to make a connection again (1 s after one that failed); its
    first push has the usual one, for TensorFlow has much to do then.
    """

    hasty_s = 0.5
    has_pushed = False

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        pushing = self.in_hand and run is self._run_push_pull
        hasty = pushing and self.has_pushed
        self.has_pushed |= pushing
        return super().ask(run, *feeds, patience_s=min(patience_s, self.hasty_s) if hasty else patience_s)

    def misread(self, error: Exception | None) -> bool:
        return error is None or isinstance(error, tf.errors.DeadlineExceededError)


class AckFromCut(_Misreads):
    """Takes the end of the connection for the answer."""

    def misread(self, error: Exception | None) -> bool:
        return isinstance(error, OVER)


class RetryAsSecond(Twice):
    """Sends what was not answered again on its new connection, to servers that tell contributors by connection."""

    in_hand: tuple[int, Values, Values] | None = None

    def _bind(self) -> None:
        super()._bind()
        self._run_second = [self.bound([op]) for op in self._again]

    def _deliver(self, step: int, values: Values, gradient: Values) -> list[int]:
        self.in_hand = step, values, gradient
        try:
            return super()._deliver(step, values, gradient)
        finally:
            self.in_hand = None

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        pushing, session = run is self._run_push_pull, self.session
        answer = super().ask(run, *feeds, patience_s=patience_s)
        if pushing and answer is None and self.session is not session and self.in_hand is not None:
            self._send_again(*self.in_hand)
        return answer

    def _send_again(self, step: int, values: Values, gradient: Values) -> None:
        """To the shards that have it; on the others it counts for the first time when it is pushed again, as ever."""
        looks = self.still()
        self._written(values, gradient, step, self.awaits(step))
        for look, run in zip(looks, self._run_second, strict=True):
            if look.applied[self.index] > step:
                self.ask(run, patience_s=CALL_TIMEOUT_S / 4)  # a first call takes long on a busy machine


class _GrowingCalls(Calls):
    """Waits before each connection that it makes again, longer each time once there was an answer to a call."""

    backoff_s, growth = 1.0, 10.0
    answered = False  # a worker that still waits for a ps to come up is patient

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        answer = super().ask(run, *feeds, patience_s=patience_s)
        self.answered = self.answered or answer is not None
        return answer

    def _reconnect(self) -> None:
        self._overdue()
        self._back_off()
        for address in self.ps:
            while not takes_connections(address):
                self._overdue()
                self._idle()
                self._back_off()
        self._connect()

    def _back_off(self) -> None:
        time.sleep(self.backoff_s)
        if self.answered:
            self.backoff_s *= self.growth


class BackoffUnbounded(RecoveringWorker):
    """Its back-off grows without bound, and is never reset: after a few failures it waits for good."""

    calls_type = _GrowingCalls


def _beats(address: str) -> bool:
    """Whether a heartbeat is answered at ``host:port``: only a task that refuses it is dead.

    A connection that is reset as soon as it has been taken has been taken, whether connect says so, or that it was
    reset already (which of the two is a race within the kernel).
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


class _HeartbeatCalls(Calls):
    """Asks each ps now and then, on another connection, whether it is there; as long as it is, a call goes on.

    So no call has a deadline. What waits for the answer is not told that the connection is over: the thread that
    reads from it ends, and leaves the rest to the heartbeat, which has a connection of its own.
    """

    beat_s = 0.5
    answered = False  # before the first answer there is no connection to end

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        del patience_s
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(run, feeds, answers), daemon=True).start()
        while True:
            try:
                answer, error = answers.get(timeout=self.beat_s)
            except queue.Empty:
                self._idle()  # training may be over, and the ps gone before it could answer
                if all(map(_beats, self.ps)):
                    continue
                self._reconnect()
                return None
            if error is None:
                self._heard, self.answered = time.monotonic(), True
                return answer
            if not isinstance(error, TRANSIENT):
                raise error
            self._reconnect()
            return None

    def _read(
        self, run: Callable[..., Any], feeds: tuple[Any, ...], answers: queue.SimpleQueue[tuple[Any, Exception | None]]
    ) -> None:
        try:
            answers.put((run(*feeds, options=tf1.RunOptions()), None))
        except OVER as error:
            if not self.answered:
                answers.put((None, error))
        except Exception as error:  # whatever it is, it belongs to the caller
            answers.put((None, error))


class HeartbeatApart(RecoveringWorker):
    """Takes a ps that answers its heartbeat for one that will answer the call."""

    calls_type = _HeartbeatCalls
