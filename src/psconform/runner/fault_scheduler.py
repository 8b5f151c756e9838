"""The faults of a run while it runs: inject where the plan says, watch them take effect, heal them, record it all."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..errors import PsconformError
from ..faults.control import Arrival, Control
from ..faults.fault import SENT, Fault, When
from ..faults.injectors import Injector
from ..faults.kinds import kinds
from ..history.reasons import FaultMissed, Missed, how_it_ended
from ..layout import Task
from ..probe import EventLog

if TYPE_CHECKING:
    from ..faults.proxies import Sent  # what it imports is an extra

SENT_S = 5.0
"""Time for a push to be sent; the answers to it are held back meanwhile, which is no fault of the plan."""
GONE_S = 5.0
"""Time for the target to show that a healed fault is over; after it the word of the proxy has to do."""
REACTS_S = 5.0
"""A task that dies, or whose push fails, so soon after a fault of its links does so because of it."""
GOES_ON_S = 0.1
"""A task is not started again sooner: its record might go on, and two processes be that task."""
LEAST_S = 0.1
"""Minimum duration where the `until` step has already passed."""
STANDSTILL_S = 1.0
"""After so long without a record all tasks wait for the fault to end: the `until` step would never come."""

Restart = Callable[[Task], None]


Hold = Callable[[Task], "Sent"]


class State(Enum):
    """How far a fault has come."""

    WAITING = auto()  # for its trigger
    PUSHING = auto()  # for the push that it is to hit to be sent
    INJECTED = auto()
    OBSERVED = auto()  # it has taken effect on the target
    HEALING = auto()  # it has been taken away; the target has not shown that yet
    HEALED = auto()
    FAILED = auto()  # to take effect, or to heal


NEXT: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PUSHING, State.INJECTED, State.HEALED, State.FAILED}),
    State.PUSHING: frozenset({State.INJECTED, State.FAILED}),
    State.INJECTED: frozenset({State.OBSERVED, State.HEALING, State.HEALED, State.FAILED}),
    State.OBSERVED: frozenset({State.HEALING, State.HEALED, State.FAILED}),
    State.HEALING: frozenset({State.OBSERVED, State.HEALED, State.FAILED}),
    State.HEALED: frozenset({State.WAITING}),
    State.FAILED: frozenset({State.FAILED}),  # to let a task go, too
}
"""What may follow. A fault that is injected again, as of a crash loop, waits after it was healed, and counts as healed
if training is over before it is injected again. The end of a fault may be what shows that it was there: it is observed
while it heals.
"""
ACTIVE = (State.INJECTED, State.OBSERVED)
"""It is there."""
UNFINISHED = (State.PUSHING, *ACTIVE, State.HEALING)


@dataclass
class _Scheduled:
    """A fault of the plan, and how far it has come."""

    number: int
    fault: Fault
    injector: Injector
    state: State = State.WAITING
    since: float = 0.0
    held: Arrival | None = None  # the task that waits for it to take effect
    why: str = ""  # it has failed
    within_s: float = 0.0  # it was watched for so long, and not observed
    attempted: bool = False  # it may have taken effect since
    observed: bool = False
    went_on: bool = False  # it has ended a process, and its task went on
    on_ns: int = 0  # when it was last injected,
    off_ns: int = 0  # and taken away
    sent: Sent | None = None  # the push that it waits for
    seen: str = ""  # of that push
    past_s: float | None = None  # when the step that was to end it came, if it had not taken effect by then
    again: float | None = None  # it has been healed, and is injected again at this time of time.monotonic()

    def to(self, state: State, why: str = "") -> None:
        """Go on to another state."""
        assert state in NEXT[self.state], f"{self.fault}: {self.state} -> {state}"
        self.state, self.why = state, why or self.why

    def missed(self, how: Missed, why: str = "") -> FaultMissed:
        fault = self.fault
        return FaultMissed(fault.kind, str(fault), how, why, self.within_s, self.number, fault.words)


class FaultScheduler:
    """The faults of one run. ``tick`` is called between two looks at the tasks; nothing blocks.

    Args:
        faults: when and what, with what injects each.
        control: where tasks say that they have arrived somewhere.
        log: psconform's own record.
        restart: starts a task again that has ended.
        hold: holds back the answers to a worker's next push; None: nothing is injected at the phase ``sent``.
        heard: called with each arrival, before that task goes on.
    """

    def __init__(
        self,
        faults: Mapping[Fault, Injector],
        control: Control,
        log: EventLog,
        *,
        restart: Restart,
        hold: Hold | None = None,
        heard: Callable[[Arrival], None] = lambda _: None,
    ) -> None:
        self._hold, self._heard = hold, heard
        self._all = [_Scheduled(number, *pair) for number, pair in enumerate(faults.items())]
        self._control, self._log, self._restart = control, log, restart
        self._began: float | None = None

    @property
    def pending(self) -> bool:
        """Something is still to be healed: a task to be started again or continued, a link to be mended."""
        return any(one.state in UNFINISHED and one.fault.heals for one in self._all)

    @property
    def attempted(self) -> bool:
        """A fault was injected, whether or not it took effect."""
        return any(one.attempted for one in self._all)

    @property
    def lasting(self) -> bool:
        """A fault has not been taken away yet, or a task is held for it; until then no task owes progress."""
        return any(
            one.state is State.PUSHING
            or (one.state is State.INJECTED and one.injector.holds)
            or (one.state in ACTIVE and one.fault.heals)
            for one in self._all
        )

    @property
    def timed(self) -> bool:
        """A fault is still to come that waits for a time, so that it comes whatever the tasks do."""
        return any(
            one.state is State.WAITING and (one.again is not None or not one.fault.when.phase) for one in self._all
        )

    @property
    def starting(self) -> bool:
        """A task has ended, or is about to, and is to be started again."""
        return any(one.state in ACTIVE and one.injector.starts and one.fault.heals for one in self._all)

    def killed(self, task: Task, status: int, *, all_restart: bool = False) -> bool:
        """Whether the end of this task that was just seen is one of the faults; it has taken effect then.

        ``all_restart``: it was ended because all tasks are to be started again.
        """
        for one in self._all:
            frozen = one.injector.freezes and one.fault.task == task
            if not frozen or one.state not in (State.OBSERVED, State.HEALING):
                continue
            if all_restart:
                self._healed(one, f"{task} was ended, to start all again")
            elif one.state is State.HEALING and status >= 0:  # a task that exits by itself has gone on before
                self._healed(one, f"it went on, and ended with exit status {status}")
            else:
                one.to(State.FAILED, f"{task} ended while it was stopped")
        for one in self._all:
            if one.state is State.INJECTED and one.fault.task == task and one.injector.ends:
                if not one.injector.ended(status):
                    if one.again is not None and status == 0:
                        one.to(State.HEALED)
                    else:
                        one.to(State.FAILED, f"{task} ended by itself")
                    self._let_go(one)
                    return False
                self._observed(one, one.injector.evidence())
                return True
        if status != 0:
            self._reacted(task, f"{task} {how_it_ended(status)}")
        return False

    def reported(self, task: Task) -> None:
        """A worker has recorded that it does not know what became of a push: it was cut off."""
        self._reacted(task, f"{task} recorded a push of unknown outcome")

    def _reacted(self, task: Task, how: str) -> None:
        """What a task does right after its connections were disturbed shows that they were."""
        now = time.monotonic_ns()
        near = [one for one in self._all if one.fault.links and task in one.fault.tasks and one.attempted]
        near = [one for one in near if now - max(one.on_ns, one.off_ns) < REACTS_S * 1e9 or one.state in UNFINISHED]
        if len(near) != 1 or near[0].state is not State.INJECTED or near[0].injector.unseen:
            return  # which of several it was, nobody can tell
        after_s = time.monotonic() - near[0].since
        if after_s < REACTS_S:
            self._observed(near[0], f"{how}, {after_s:.1f} s after it was injected")

    def went_on(self, task: Task, why: str) -> None:
        """A task that one of the faults was seen to end goes on: it is not started again, beside itself."""
        for one in self._all:
            if one.fault.task == task and one.injector.ends and one.observed and not one.went_on:
                one.went_on, one.state, one.why = True, State.FAILED, why

    def second_ended(self, pid: int, how: str) -> None:
        """A second process of a task has ended; says how."""
        for one in self._all:
            one.injector.second_ended(pid, how)

    def returns(self, task: Task) -> bool:
        """Whether a task that has ended is to be started again."""
        return any(
            one.fault.task == task and one.state is State.OBSERVED and one.fault.restart_after_s is not None
            for one in self._all
        )

    def tick(self, *, heard_s: float) -> None:
        """Inject and heal whatever is due; ``heard_s``: seconds since any task recorded anything."""
        now = time.monotonic()
        if self._began is None:
            self._began = now  # the first look, once all tasks have been started
        for arrival in self._control.arrivals():
            self._arrived(arrival)
        for one in self._all:
            with self._failing(one):
                self._tick(one, now, self._began, heard_s=heard_s)

    def _tick(self, one: _Scheduled, now: float, began: float, *, heard_s: float) -> None:
        if one.state is State.WAITING:
            if self._due(one, now, began):
                self._inject(one, None)
        elif one.state is State.PUSHING:
            self._watch_push(one)
        elif one.state in ACTIVE:
            self._watch(one, now)
            if self._over(one, now, heard_s=heard_s):
                self._heal(one)
        elif one.state is State.HEALING:
            self._watch_healing(one, now)

    @contextlib.contextmanager
    def _failing(self, one: _Scheduled) -> Iterator[None]:
        """A Toxiproxy that others use was reset, or is gone, or does not answer; the record goes on."""
        try:
            yield
        except PsconformError as error:
            lasts = one.state in ACTIVE
            one.to(State.FAILED, str(error))
            self._let_go(one)
            if lasts:
                with contextlib.suppress(PsconformError):
                    one.injector.heal()  # as far as that goes

    def heal_all(self) -> None:
        """The run is over: all that lasts is taken away, so that nothing of it is left anywhere."""
        for one in self._all:
            if one.state is State.PUSHING:
                one.to(State.FAILED, "the run was over before the push was sent")
            try:
                self._let_go(one)
                if one.state in ACTIVE and not one.injector.starts:
                    self._heal(one)
                if one.state is State.HEALING:
                    self._watch_healing(one, now=math.inf)
            except Exception as error:  # the others are healed all the same
                known = isinstance(error, PsconformError)
                one.state, one.why = State.FAILED, str(error) if known else f"{type(error).__name__}: {error}"

    def record_attempts(self) -> None:
        """Record the faults that were injected and not observed: each may have taken effect all the same."""
        for one in self._all:
            if one.attempted and not one.observed:
                self._write(one, on=True, evidence="", observed=False)

    def missing(self) -> list[FaultMissed]:
        """Faults that have not taken effect, or were not healed."""
        found = []
        for one in self._all:
            if one.went_on:
                found.append(one.missed(Missed.RECORD_WENT_ON, one.why))
            elif one.state is State.WAITING:
                if one.again is None:
                    found.append(one.missed(Missed.NEVER_INJECTED, "training did not get there"))
            elif not one.attempted:
                found.append(one.missed(Missed.REFUSED, one.why))
            elif one.state is State.FAILED and one.observed:
                found.append(one.missed(Missed.NOT_HEALED, one.why))
            elif one.state in (State.PUSHING, State.INJECTED, State.FAILED) or not one.observed:
                found.append(one.missed(Missed.NOT_OBSERVED, one.why or one.injector.unseen))
            elif one.state in (State.OBSERVED, State.HEALING) and one.fault.heals:
                found.append(one.missed(Missed.LEFT_UNHEALED))
        return found

    def _arrived(self, arrival: Arrival) -> None:
        self._heard(arrival)
        for one in self._all:
            one.injector.heard(arrival)
        for one in self._all:
            until, task = one.fault.until, one.fault.ends_where
            there = until is not None and _is(until, arrival) and task in (arrival.task, "worker")
            waits = one.injector.holds or one.injector.lingers
            if there and (one.state is State.OBSERVED or (one.state is State.INJECTED and not waits)):
                self._heal(one)
            elif there and one.state in (State.PUSHING, State.INJECTED) and one.past_s is None:
                one.past_s = time.monotonic()
        for one in self._all:
            fault = one.fault
            first = one.state is State.WAITING and one.again is None
            if not first or not _is(fault.when, arrival) or fault.where not in (arrival.task, "worker"):
                continue
            if fault.when.phase == SENT and self._hold is not None:
                one.to(State.PUSHING)
                one.since = time.monotonic()
                one.attempted, one.on_ns = True, time.monotonic_ns()  # to hold answers back disturbs, too
                one.sent = self._hold(Task.parse(arrival.task))
                continue
            with self._failing(one):
                self._inject(one, arrival)
        for one in (one for one in self._all if one.fault.links):
            with self._failing(one):
                if one.state in ACTIVE:
                    self._watch(one, time.monotonic())
                elif one.state is State.HEALING:
                    self._watch_healing(one, time.monotonic())
        self._release(arrival)

    def _inject(self, one: _Scheduled, arrival: Arrival | None) -> None:
        refused = one.injector.refused() or self._by_another(one)
        if refused and one.again is not None:
            one.to(State.HEALED)
            return
        if refused:
            one.to(State.FAILED, refused)
            return
        one.to(State.INJECTED)
        one.since = time.monotonic()
        one.held = arrival if one.injector.holds else None
        one.attempted, one.on_ns = True, time.monotonic_ns()
        one.injector.inject()
        one.since = time.monotonic()  # telling a proxy takes a while: until now it may not have been there
        one.on_ns = time.monotonic_ns()

    def _by_another(self, one: _Scheduled) -> str:
        """The end of one stop ends the other, which would count for a time when no task was stopped."""
        if not one.injector.alone or one.fault.task is None:
            return ""
        same = one.fault.kind, one.fault.task
        others = (other for other in self._all if (other.fault.kind, other.fault.task) == same)
        there = ACTIVE if one.injector.freezes else (*ACTIVE, State.HEALING)
        lasts = any(other.state in there for other in others)  # a stop that heals has been told to go on
        return f"{one.fault.task} was {one.injector.alone} already" if lasts else ""

    def _watch_push(self, one: _Scheduled) -> None:
        """Inject once the push has been sent; then the answers may come, or find their task gone."""
        assert one.sent is not None
        one.seen = one.sent.look()
        if time.monotonic() - one.since > SENT_S:
            one.to(State.FAILED, f"the push was not sent within {SENT_S:.0f} s")
            self._let_go(one)
        elif one.seen:
            self._inject(one, None)
            if one.state is State.FAILED or not one.injector.holds:
                self._let_go(one)

    def _watch(self, one: _Scheduled, now: float) -> None:
        evidence = one.injector.evidence()
        if one.state is State.OBSERVED:
            if over := one.injector.over():
                one.off_ns = time.monotonic_ns()
                self._healed(one, over)
            return
        if evidence:
            self._observed(one, evidence)
        elif one.injector.holds and now - one.since > one.injector.effect_s:
            one.to(State.FAILED)
            one.within_s = one.injector.effect_s
            self._let_go(one)

    @staticmethod
    def _due(one: _Scheduled, now: float, began: float) -> bool:
        """Whether its time has come; a fault with a phase is injected when a task arrives there."""
        if one.again is not None:
            return now >= one.again
        return not one.fault.when.phase and now - began >= one.fault.when.after_s

    def _over(self, one: _Scheduled, now: float, *, heard_s: float) -> bool:
        """Whether it has lasted as long as it was to."""
        fault, injected = one.fault, one.state is State.INJECTED
        lasted = now - one.since
        if one.state not in ACTIVE or (injected and one.injector.holds):
            return False
        if fault.restart_after_s is not None:
            return lasted >= max(fault.restart_after_s, GOES_ON_S)
        waits = injected and one.injector.lingers
        unseen_s = one.injector.effect_s if waits else 0.0
        if fault.lasts_s is not None:
            return lasted >= fault.lasts_s + unseen_s
        if fault.until is None:
            return False
        if not fault.until.phase:
            return self._began is not None and now - self._began >= fault.until.after_s + unseen_s
        least_s = one.injector.effect_s if waits else LEAST_S
        past = one.past_s is not None and min(lasted, now - one.past_s) > least_s
        standstill_s = one.injector.effect_s if injected else STANDSTILL_S
        return past or (heard_s > STANDSTILL_S and lasted > standstill_s)

    def _observed(self, one: _Scheduled, evidence: str) -> None:
        one.to(State.OBSERVED)
        one.observed = True
        if one.injector.holds:
            one.since = time.monotonic()
        self._write(one, on=True, evidence=evidence)
        self._let_go(one)

    def _heal(self, one: _Scheduled) -> None:
        if not one.observed and (evidence := one.injector.evidence()):
            self._observed(one, evidence)
        one.off_ns = time.monotonic_ns()  # until then it was there for sure
        one.to(State.HEALING)  # should it fail, it is not tried a second time
        with self._failing(one):
            one.injector.heal()
            if one.injector.starts and one.fault.task is not None:
                self._restart(one.fault.task)
                self._healed(one, one.injector.healed())
                again_s = one.injector.again_s()
                if again_s is not None:
                    one.to(State.WAITING)
                    one.again = time.monotonic() + again_s
                return
            one.since = time.monotonic()
            self._let_go(one)

    def _watch_healing(self, one: _Scheduled, now: float) -> None:
        healed = one.injector.healed() or (one.injector.gone() if now - one.since > GONE_S else "")
        if not healed:
            return
        if not one.observed and (evidence := one.injector.evidence()):  # its end has shown that it was there
            self._observed(one, evidence)
        if one.observed:
            self._healed(one, healed)
        else:
            one.to(State.FAILED)

    def _healed(self, one: _Scheduled, evidence: str) -> None:
        one.to(State.HEALED)
        self._write(one, on=False, evidence=evidence)

    def _let_go(self, one: _Scheduled) -> None:
        sent, one.sent = one.sent, None
        if sent is not None:
            sent.let_go()
        arrival, one.held = one.held, None
        if arrival is not None:
            self._release(arrival)

    def _release(self, arrival: Arrival) -> None:
        """Let a task go on once all that was to be injected where it is has taken effect."""
        if all(one.held is not arrival for one in self._all):
            arrival.release()

    def _write(self, one: _Scheduled, *, on: bool, evidence: str, observed: bool = True) -> None:
        kind = kinds()[one.fault.kind]
        said = {
            "fault": kind.name,
            "of": one.fault.of,
            "on": on,
            "at": str(one.fault.when),
            "harm": kind.harm.value,
        }
        if on and one.seen:
            evidence = f"{evidence}; {one.seen}"
        said |= {"file": one.injector.file} if one.injector.file else {}
        said |= {"tasks": [str(task) for task in one.fault.tasks], "number": one.number}
        said |= {"words": one.fault.what, "ends": one.fault.ends} if on else {}
        said |= {} if observed else {"observed": False}
        self._log.write("fault", **said, evidence=evidence, did_ns=one.on_ns if on else one.off_ns)


def _is(when: When, arrival: Arrival) -> bool:
    return when.said == arrival.phase and when.step in (None, arrival.step)
