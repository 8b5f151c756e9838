"""Faults of processes: kill, term, crash-loop, late, stop, throttle, twice."""

from __future__ import annotations

import signal
import time
from functools import partial

from ..history.records import Harm
from .fault import Fault
from .injectors import Injector, OfTask, Scene
from .kinds import PROCESS, Amount, Kind, register

PERIOD_S = 0.25
"""A throttled process is stopped about so often; it cannot be much oftener, for psconform looks now and then."""
END_S = 5.0
"""At the end of the run, until a second process that was sent SIGKILL is gone."""


class Ends(OfTask):
    """kill, term, crash-loop: a signal ends the process. The runner reports that (``ended``) and starts it again."""

    ends = starts = True

    def __init__(self, fault: Fault, scene: Scene, *, number: int = signal.SIGKILL) -> None:
        """``number``: the signal."""
        super().__init__(fault, scene)
        self._number = number
        self._left, self._lives_s = self._amounts.get("times", 1), self._amounts.get("lives_ms", 0) / 1000

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
        if status != -self._number and (status < 0 or self._number == signal.SIGKILL or self._scene.done(self._task)):
            return False
        how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        self._seen = f"the process ended {how}"
        return True

    def healed(self) -> str:
        return "started again"


class Late(Injector):
    """late: a task that is not started with the others."""

    starts = True

    def inject(self) -> None:
        """The runner has left it out."""

    def evidence(self) -> str:
        return "it was not there"

    def healed(self) -> str:
        return "started"


class Stops(OfTask):
    """stop: SIGSTOP, then SIGCONT. The kernel acknowledges what is sent to it meanwhile, so peers see a live socket."""

    alone, freezes = "stopped", True

    def inject(self) -> None:
        self._processes.signal(self._task, signal.SIGSTOP)

    def evidence(self) -> str:
        return "the process is stopped (state T)" if self._processes.state(self._task) == "T" else ""

    def heal(self) -> None:
        self._processes.signal(self._task, signal.SIGCONT)

    def healed(self) -> str:
        # without a state it has ended, which the scheduler handles
        return "it goes on" if self._processes.state(self._task) not in ("T", "") else ""


class Throttles(OfTask):
    """throttle: a process that has only some of its time, by SIGSTOP and SIGCONT in turn, as cpulimit(1) does it.

    No cgroup is needed, and none can be left behind. The process is stopped when it is looked at, so the times are
    rounded up to the next look.
    """

    _stopped, _since, _times, _away_s = False, 0.0, 0, 0.0

    def inject(self) -> None:
        self._share, self._began = self._amounts["percent"] / 100, time.monotonic()
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


class Twice(OfTask):
    """twice: a second process of a task is started beside the first; both claim to be that task.

    The task that has arrived where it is injected waits until the second process has begun to record, or has ended: a
    process that is still being loaded has claimed nothing. It is over when the second process has ended; if that never
    does, it is killed when the run is over.
    """

    effect_s = 30.0  # a second process that is started cold has much to load
    unseen = "the second process neither recorded anything nor ended"
    _pid, _over = 0, ""
    _beside = _lost = False  # both were seen at once; the first was seen to be gone

    def inject(self) -> None:
        self._pid = self._scene.start_second(self._task)
        self._look()

    def _look(self) -> None:
        first = self._processes.state(self._task)
        self._lost = self._lost or not first
        self._beside = self._beside or bool(first and self._processes.state_of(self._pid))

    def evidence(self) -> str:
        if not self._over:
            self._look()
        claimed = bool(self._over) or self._scene.recorded(self._pid)
        # on a busy machine it may be over before anybody looks; the first was there before it, and still is
        beside = self._beside or (claimed and not self._lost and bool(self._processes.state(self._task)))
        if beside and claimed and not self._seen:
            self._seen = f"a second process of {self._task} ran beside the first"
        return self._seen

    def second_ended(self, pid: int, how: str) -> None:
        if pid == self._pid:
            self._over = f"it {how}"

    def over(self) -> str:
        return self._over

    def heal(self) -> None:
        """The run is over, and so must it be."""
        self._processes.kill_second(self._pid)
        deadline = time.monotonic() + END_S
        while self._processes.state_of(self._pid) and time.monotonic() < deadline:
            time.sleep(0.005)

    def healed(self) -> str:
        return "" if self._processes.state_of(self._pid) else "it ran until the run ended, and was killed"


KILL = register(
    Kind(
        name="kill",
        of=PROCESS,
        about="SIGKILL",
        evidence="the process ended by signal 9",
        injector=Ends,
        restarts=True,
        option=True,
        harm=Harm.ENDS,
    )
)
TERM = register(
    Kind(
        name="term",
        of=PROCESS,
        about="SIGTERM",
        evidence="the process ended",
        injector=partial(Ends, number=signal.SIGTERM),
        restarts=True,
        harm=Harm.ENDS,
    )
)
CRASH_LOOP = register(
    Kind(
        name="crash-loop",
        of=PROCESS,
        about="SIGKILL, again and again, each time some moments after it was started again",
        evidence="the process ended by signal 9, and was started again, once at least",
        injector=Ends,
        restarts=True,
        again="it is started again, and again",
        repeats=True,
        amounts={
            "times": Amount("SIGKILLs", 3, 2, 100, drawn=(2, 3)),
            "lives_ms": Amount("milliseconds from a start to the next SIGKILL", 300, 0, 60_000, drawn=(0, 100, 400)),
        },
        harm=Harm.ENDS,
    )
)
LATE = register(
    Kind(
        name="late",
        of=PROCESS,
        about="started later than the others",
        evidence="it was not there",
        injector=Late,
        lasts=True,
        first=True,
        keeps_connections=True,
        undoes=("late",),
        harm=Harm.ENDS,
    )
)
STOP = register(
    Kind(
        name="stop",
        of=PROCESS,
        about="SIGSTOP, then SIGCONT",
        evidence="the process is in state T",
        injector=Stops,
        lasts=True,
        option=True,
        outlasts=True,
    )
)
THROTTLE = register(
    Kind(
        name="throttle",
        of=PROCESS,
        about="SIGSTOP and SIGCONT in turn, so that it has only some of its time",
        evidence="the process was seen stopped, and going on, twice at least",
        injector=Throttles,
        lasts=True,
        amounts={"percent": Amount("of the time that it has", 20, 20, 90, drawn=(20, 40))},
        keeps_connections=True,
        undoes=("stop", "throttle"),
    )
)
TWICE = register(
    Kind(
        name="twice",
        of=PROCESS,
        about="a second process of the task is started beside the first",
        evidence="both ran, and the second recorded something, or ended",
        injector=Twice,
        keeps_connections=True,
        harm=Harm.DOUBLES,
    )
)
