"""Faults that only a container has: rate, cpu-quota, pause, disconnect, dns, tmpfs-full, oom, new-address."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..errors import PsconformError
from ..history.records import Harm
from ..layout import Task
from .fault import Fault
from .injectors import Injector, Scene
from .kinds import CONTAINER, Amount, Kind, register

NAMES = "127.0.0.11"
"""Where Docker's own DNS answers in each container's network."""
Said = TypeVar("Said")


class Boxes(Protocol):
    """What the engine can do to the container of a task; the launcher of containers has it."""

    def container(self, task: Task) -> str:
        """Which it runs in; a task that is started again has another. Empty: none."""

    def peers(self, task: Task) -> tuple[str, ...]:
        """By what names the others are found."""

    def pause(self, task: Task, *, on: bool = True) -> None:
        """Freeze all its processes, or let them go on."""

    def paused(self, task: Task) -> bool:
        """The engine says that it is frozen."""

    def quota(self, task: Task, percent: int) -> None:
        """It has so many percent of one CPU's time; 0: as much as it likes."""

    def throttled(self, task: Task) -> int:
        """In how many periods its time was over before they were."""

    def exhaust(self, task: Task) -> int:
        """Leave it hardly more memory than it has, and ask for more; returns the limit in bytes."""

    def fill(self, task: Task, *, on: bool = True) -> str:
        """Fill its /tmp, or empty it of that; returns why one byte more cannot be written."""

    def disconnect(self, task: Task) -> None:
        """Take the interface of its network away."""

    def connect(self, task: Task, *, anew: bool = False) -> str:
        """Give it an interface again, ``anew`` with another address; returns the address."""


class OfBox(Injector):
    """One of a container; with ``within`` it is over when that ends."""

    within = False

    def __init__(self, fault: Fault, scene: Scene) -> None:
        super().__init__(fault, scene)
        assert fault.task is not None
        self._task, self._boxes, self._box = fault.task, scene.boxes(fault), ""

    def refused(self) -> str:
        self._box = self._boxes.container(self._task)
        return "" if self._there else f"{self._task} was not running"

    def over(self) -> str:
        return "it has ended" if self.within and not self._there else ""

    def _asked(self, **request: Any) -> Any:
        """Ask the helper of its pod."""
        return self._scene.wires(self._fault).ask(self._task, **request)

    @property
    def _there(self) -> bool:
        """The container that was struck, not the one that came after it."""
        return self._task in self._scene.processes.running and self._boxes.container(self._task) == self._box

    def _try(self, act: Callable[[], Said], otherwise: Said) -> Said:
        """What the engine is asked for: it may know before psconform does that the container has ended."""
        try:
            return act()
        except PsconformError as error:
            self.unseen = str(error)
            return otherwise


class Pauses(OfBox):
    """pause: the freezer of its cgroup; unlike SIGSTOP no process can notice."""

    alone, within = "paused", True

    def inject(self) -> None:
        self._try(lambda: self._boxes.pause(self._task), None)

    def evidence(self) -> str:
        return "the container is paused" if self._paused else ""

    def heal(self) -> None:
        """Whatever the engine says of it, or cannot say now."""
        if self._there:
            self._try(lambda: self._boxes.pause(self._task, on=False), None)

    def healed(self) -> str:
        if not self._there:
            return "it has ended"
        if not self._try(lambda: self._boxes.paused(self._task), True):
            return "it goes on"
        self.heal()  # once more
        return ""

    @property
    def _paused(self) -> bool:
        return self._there and self._try(lambda: self._boxes.paused(self._task), False)


class Limits(OfBox):
    """cpu-quota: the scheduler's bandwidth control counts the periods in which it had to wait."""

    holds, lingers, alone, within = False, True, "short of CPU time", True
    _before, _looked = 0, False

    def inject(self) -> None:
        self._before = self._throttled()
        self._try(lambda: self._boxes.quota(self._task, self._amounts["percent"]), None)

    def evidence(self) -> str:
        times = self._throttled() - self._before
        self._seen = f"its time was over in {times} periods of 100 ms" if times > 0 else self._seen
        return self._seen

    def heal(self) -> None:
        self.evidence()
        if self._there:
            self._try(lambda: self._boxes.quota(self._task, 0), None)
        self._looked = False

    def healed(self) -> str:
        """Two looks, and between them it was not made to wait."""
        if not self._there:
            return "it has ended"
        now = self._throttled()
        free, self._before, self._looked = self._looked and now == self._before, now, True
        return "its time is its own again" if free else ""

    def _throttled(self) -> int:
        return self._try(lambda: self._boxes.throttled(self._task), self._before) if self._there else self._before


class Exhausts(OfBox):
    """oom: the kernel's OOM killer ends it; the runner reports its end (``ended``) and starts it again."""

    ends = starts = True

    def inject(self) -> None:
        self._limit = self._try(lambda: self._boxes.exhaust(self._task), 0)

    def ended(self, status: int) -> bool:
        """The process has ended, with this exit status; returns whether that was the fault."""
        if status == -signal.SIGKILL and self._scene.by_memory(self._task):
            self._seen = f"the kernel ended it: it was out of memory (OOM) at {self._limit >> 20} MiB"
        return bool(self._seen)

    def healed(self) -> str:
        return "started again"


class Moves(OfBox):
    """new-address: it is killed, and started again elsewhere, as an orchestrator does it."""

    ends = starts = True

    def inject(self) -> None:
        self._scene.processes.signal(self._task, signal.SIGKILL)

    def ended(self, status: int) -> bool:
        """The process has ended, with this exit status; returns whether that was the fault."""
        self._seen = "the process ended by signal 9" if status == -signal.SIGKILL else ""
        return bool(self._seen)

    def heal(self) -> None:
        self._scene.moved(self._task, "")
        self._boxes.disconnect(self._task)
        self._address = self._boxes.connect(self._task, anew=True)
        self._scene.moved(self._task, self._address)

    def healed(self) -> str:
        return f"started again at {self._address}"


class Disconnects(OfBox):
    """disconnect: its interface is gone; what it sends meanwhile is sent again later."""

    alone = "disconnected"

    def inject(self) -> None:
        self._boxes.disconnect(self._task)

    def evidence(self) -> str:
        gone = not self._asked(do="interface")["there"]
        return "its network has no interface but loopback" if gone else ""

    def heal(self) -> None:
        self._boxes.connect(self._task)

    def healed(self) -> str:
        """Packets of both directions."""
        said = self._asked(do="interface")
        return f"{said['received']} packets came in" if said["there"] and said["received"] and said["sent"] else ""

    def gone(self) -> str:
        there = self._asked(do="interface")["there"]
        return "it has its interface again, no packet came since" if there else ""


class Nameless(OfBox):
    """dns: nobody's name is found. It shows only when somebody is dialled anew, say because a task has ended."""

    holds, lingers, alone = False, True, "without names"
    unseen = "no name was looked up meanwhile"

    def inject(self) -> None:
        self._asked(do="rule", name="dns", match=("-d", NAMES), target="REJECT")

    def evidence(self) -> str:
        count = self._asked(do="counted")["packets"].get("dns", 0)
        self._seen = f"{count} lookups refused" if count else self._seen
        return self._seen

    def heal(self) -> None:
        self.evidence()
        self._asked(do="unrule", name="dns")

    def healed(self) -> str:
        """Of the others: its own is in its /etc/hosts. Who is not connected has none."""
        found = any(self._asked(do="found", name=name)["found"] for name in self._boxes.peers(self._task))
        return "names are found again" if found else ""


class Fills(OfBox):
    """tmpfs-full: no room in /tmp, which in a container is memory."""

    _left, alone, within = "", "without room in /tmp", True

    def inject(self) -> None:
        self._seen = self._try(lambda: self._boxes.fill(self._task), "")

    def evidence(self) -> str:
        return f"in /tmp a byte more is refused ({self._seen})" if self._seen else ""

    def heal(self) -> None:
        self._empty()

    def healed(self) -> str:
        if not self._there:
            return "it has ended"
        if self._left:
            self._empty()
        return "" if self._left else "a byte can be written to /tmp again"

    def _empty(self) -> None:
        """What the engine does not answer is no byte that was written."""
        if self._there:
            self._left = self._try(lambda: self._boxes.fill(self._task, on=False), "the engine does not say")


class Rate(OfBox):
    """rate: a token bucket for all that a task sends."""

    holds, lingers, alone = False, True, "slow to send"

    def refused(self) -> str:
        there = self._asked(do="interface")["there"]
        return "" if there else f"{self._task} was not connected"

    def inject(self) -> None:
        self._asked(do="rate", kbit=self._amounts["kbit_per_s"])

    def evidence(self) -> str:
        times = self._waited()
        self._seen = f"packets had to wait {times} times" if times > 0 else self._seen
        return self._seen

    def over(self) -> str:
        """Another fault has taken its interface away, and the bucket with it."""
        return "its interface was taken away, and the token bucket with it" if self._waited() < 0 else ""

    def heal(self) -> None:
        self.evidence()
        self._asked(do="unrate")

    def healed(self) -> str:
        return "the token bucket is gone" if self._waited() < 0 else ""

    def _waited(self) -> int:
        return int(self._asked(do="waited")["times"])


RATE = register(
    Kind(
        name="rate",
        of=CONTAINER,
        about="all that the task sends leaves at no more than this rate (tbf)",
        evidence="packets that had to wait, counted by the token bucket",
        injector=Rate,
        lasts=True,
        # what a small model's traffic exceeds
        amounts={"kbit_per_s": Amount("kilobits a second", 1000, 8, 10_000_000, drawn=(100, 200))},
        undoes=("rate",),
    )
)
CPU_QUOTA = register(
    Kind(
        name="cpu-quota",
        of=CONTAINER,
        about="it has only some of a CPU's time",
        evidence="periods in which its time was over, counted by its cgroup",
        injector=Limits,
        lasts=True,
        # of more, a task that mostly waits may not notice in half a second
        amounts={"percent": Amount("of one CPU's time", 20, 1, 6400, drawn=(5, 10))},
        hides=True,
    )
)
PAUSE = register(
    Kind(
        name="pause",
        of=CONTAINER,
        about="its container is frozen (docker pause), which no process notices",
        evidence="the engine says that it is paused",
        injector=Pauses,
        lasts=True,
    )
)
DISCONNECT = register(
    Kind(
        name="disconnect",
        of=CONTAINER,
        about="its container is taken from the network, and put back with the same address",
        evidence="its network has no interface but loopback",
        injector=Disconnects,
        lasts=True,
        silences=True,
    )
)
DNS = register(
    Kind(
        name="dns",
        of=CONTAINER,
        about="it cannot look up the names of other tasks",
        evidence="lookups of the target that were refused",
        injector=Nameless,
        lasts=True,
        drawn=False,
    )
)
TMPFS_FULL = register(
    Kind(
        name="tmpfs-full",
        of=CONTAINER,
        about="no room in its /tmp",
        evidence="one byte more is refused",
        injector=Fills,
        lasts=True,
    )
)
OOM = register(
    Kind(
        name="oom",
        of=CONTAINER,
        about="it is out of memory, so the kernel ends it",
        evidence="the engine says that it was ended for want of memory",
        injector=Exhausts,
        restarts=True,
        harm=Harm.ENDS,
    )
)
NEW_ADDRESS = register(
    Kind(
        name="new-address",
        of=CONTAINER,
        about="SIGKILL, and it is started again at another address",
        evidence="the process ended by signal 9",
        injector=Moves,
        restarts=True,
        again="it is started again elsewhere",
        moves=True,
        harm=Harm.ENDS,
    )
)
