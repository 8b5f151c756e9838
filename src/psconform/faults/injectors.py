"""How a fault is brought about, seen, and taken away again: one `Injector` for each fault of a run.

None of them waits: the runner looks at them between two looks at the tasks (runner/fault_scheduler.py).
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

from ..layout import Task
from .control import Arrival
from .fault import Fault

Life = Callable[[Task], int | None]
"""Which of its lives a task is in; None: in none."""


class Processes(Protocol):
    """What a fault of a process needs; launchers have it."""

    @property
    def running(self) -> Iterable[Task]:
        """Tasks that have not ended."""

    def signal(self, task: Task, number: int) -> None:
        """Send a signal to a task's process group."""

    def state(self, task: Task) -> str:
        """State letter of its process, as of ps(1); empty if there is none."""


class Injector(ABC):
    """One fault, for one run.

    Attributes:
        holds: whoever has arrived where it strikes waits until it is seen to have taken effect; else until it is there.
        effect_s: seconds after which it has shown no effect, if whoever has arrived waits for it.
        ends: it has taken effect when the task has ended; see ``ended``.
        starts: it is healed by starting the task.
        lingers: its time is not over before it is seen to have taken effect, within ``effect_s``.
        alone: what its task is while it lasts, where the end of one would end another of its kind; else empty.
        file: what it has damaged, if it is a file.
        unseen: why it may not have been seen to take effect, as far as that is known.
    """

    holds, ends, starts, lingers = True, False, False, False
    effect_s = 10.0
    file = unseen = alone = ""

    def refused(self) -> str:
        """Why it cannot strike now; empty if it can."""
        return ""

    @abstractmethod
    def inject(self) -> None:
        """Bring it about."""

    @abstractmethod
    def evidence(self) -> str:
        """What shows that it has taken effect on the target, empty so far; called often while it lasts."""

    @abstractmethod
    def heal(self) -> None:
        """Take it away."""

    @abstractmethod
    def healed(self) -> str:
        """What shows on the target that it is gone; empty so far."""

    def gone(self) -> str:
        """What shows that it is gone, though nothing of the target tells; empty if it may still be there."""
        return ""

    def heard(self, arrival: Arrival) -> None:  # noqa: B027
        """A task has said where it is; most faults need not know."""

    def ended(self, status: int) -> bool:
        """The task has ended, with this exit status, negative for a signal; returns whether that was the fault."""
        del status
        return False

    def second_ended(self, pid: int, how: str) -> None:  # noqa: B027
        """A second process of a task has ended; says how."""

    def over(self) -> str:
        """What shows that it is over by itself; empty if it is not, or nobody can tell."""
        return ""

    def again_s(self) -> float | None:
        """It strikes again so many seconds after it was healed; None: it does not."""
        return None


SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "crash-loop": signal.SIGKILL}


class Ends(Injector):
    """kill, term, crash-loop: a process that ends by a signal. Its end is told of (``ended``); the runner starts it."""

    ends = starts = True

    def __init__(self, fault: Fault, processes: Processes, *, done: Callable[[], bool]) -> None:
        """``done``: the task has nothing left to do, and may end by itself at any moment."""
        assert fault.task is not None
        self._task, self._number, self._processes = fault.task, SIGNALS[fault.kind], processes
        self._done = done
        self._seen = ""
        amounts = dict(fault.amounts)
        self._left, self._lives_s = amounts.get("times", 1), amounts.get("lives_ms", 0) / 1000

    def refused(self) -> str:
        return "" if self._task in self._processes.running else f"{self._task} was not running"

    def inject(self) -> None:
        self._left -= 1
        self._seen = ""
        self._processes.signal(self._task, self._number)

    def again_s(self) -> float | None:
        return self._lives_s if self._left > 0 else None

    def ended(self, status: int) -> bool:
        """The process has ended, with this exit status, negative for a signal; returns whether that was the fault.

        Who is asked to end may do so with any exit status, but one who does it only once all is done has not heeded
        it, and one whom another signal ends (a segmentation fault) has been ended by that. SIGKILL leaves no choice.
        """
        if status != -self._number and (status < 0 or self._number == signal.SIGKILL or self._done()):
            return False
        how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        self._seen = f"the process ended {how}"
        return True

    def evidence(self) -> str:
        return self._seen

    def heal(self) -> None:
        """The runner starts it."""

    def healed(self) -> str:
        return "started again"


class Late(Injector):
    """late: a task that is not started with the others."""

    starts = True

    def inject(self) -> None:
        """The runner has left it out."""

    def evidence(self) -> str:
        return "it was not there"

    def heal(self) -> None:
        """The runner starts it."""

    def healed(self) -> str:
        return "started"


class Stops(Injector):
    """stop: SIGSTOP, then SIGCONT. The kernel acknowledges what is sent to it meanwhile, so peers see a live socket."""

    alone = "stopped"

    def __init__(self, fault: Fault, processes: Processes) -> None:
        assert fault.task is not None
        self._task, self._processes = fault.task, processes

    def refused(self) -> str:
        return "" if self._task in self._processes.running else f"{self._task} was not running"

    def inject(self) -> None:
        self._processes.signal(self._task, signal.SIGSTOP)

    def evidence(self) -> str:
        return "the process is stopped (state T)" if self._processes.state(self._task) == "T" else ""

    def heal(self) -> None:
        self._processes.signal(self._task, signal.SIGCONT)

    def healed(self) -> str:
        # without a state it has ended, which is told of elsewhere
        return "it goes on" if self._processes.state(self._task) not in ("T", "") else ""


PERIOD_S = 0.25
"""A throttled process is stopped about so often; it cannot be much oftener, for psconform looks now and then."""


class Throttles(Injector):
    """throttle: a process that has only some of its time, by SIGSTOP and SIGCONT in turn, as cpulimit(1) does it.

    No cgroup is needed, and none can be left behind. The process is stopped when it is looked at, so the times are
    rounded up to the next look.
    """

    def __init__(self, fault: Fault, processes: Processes) -> None:
        assert fault.task is not None
        self._task, self._processes = fault.task, processes
        self._share = dict(fault.amounts)["percent"] / 100
        self._stopped, self._since, self._began = False, 0.0, 0.0
        self._times, self._away_s = 0, 0.0

    def refused(self) -> str:
        return "" if self._task in self._processes.running else f"{self._task} was not running"

    def inject(self) -> None:
        self._began = time.monotonic()
        self._turn(stop=True)

    def evidence(self) -> str:
        state, lasted = self._processes.state(self._task), time.monotonic() - self._since
        if self._stopped and state == "T" and lasted >= PERIOD_S * (1 - self._share):
            self._times, self._away_s = self._times + 1, self._away_s + lasted
            self._turn(stop=False)
        elif state not in ("T", "") and lasted >= PERIOD_S * (1.0 if self._stopped else self._share):
            self._turn(stop=True)  # or it is another process by now, started again
        if self._times < 2:
            return ""
        return f"stopped {self._times} times, for {self._away_s:.2f} of {time.monotonic() - self._began:.2f} s"

    def heal(self) -> None:
        self._turn(stop=False)

    def healed(self) -> str:
        state = self._processes.state(self._task)
        return "" if state == "T" else "it goes on" if state else "it has ended"

    def _turn(self, *, stop: bool) -> None:
        self._processes.signal(self._task, signal.SIGSTOP if stop else signal.SIGCONT)
        self._stopped, self._since = stop, time.monotonic()
