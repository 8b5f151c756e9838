"""The faults of a run while it runs: strike where the plan says, watch them take effect, heal them, record it all."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import PsconformError
from ..faults.control import Arrival, Control
from ..faults.fault import Fault
from ..faults.injectors import Injector
from ..faults.when import SENT, When
from ..layout import Task
from ..probe import EventLog

SENT_S = 5.0
"""A push that takes longer to be sent is let be: its answers are held back meanwhile, by nobody's plan."""
GONE_S = 5.0
"""Nor is there more to see of an end that nothing of the target has shown for this long: the proxy's word has to do."""
LEAST_S = 0.1
"""Whatever is to end at a step that has come already lasts so long."""
STANDSTILL_S = 1.0
"""What everybody waits for the end of is healed after this long: the step that was to end it never comes."""

Restart = Callable[[Task], None]


class Sent(Protocol):
    """A push whose answers are held back."""

    def look(self) -> str:
        """What shows that it has been sent; empty so far."""

    def let_go(self) -> None:
        """Let the answers come."""


Hold = Callable[[Task], Sent]


@dataclass
class _State:
    number: int
    fault: Fault
    injector: Injector
    status: str = "waiting"  # (-> sending) -> striking -> struck (-> healing) -> healed, or failed
    since: float = 0.0
    held: Arrival | None = None  # who waits for it to take effect
    why: str = ""
    struck: bool = False
    on_ns: int = 0  # when it was last brought about,
    off_ns: int = 0  # and taken away
    sent: Sent | None = None  # the push that it waits for
    seen: str = ""  # of that push
    past_s: float | None = None  # when the step that was to end it came, if it had not struck by then
    again: float | None = None  # it has been healed, and strikes again at this time of time.monotonic()

    @property
    def name(self) -> str:
        return f"fault {self.fault.kind} {self.fault}"


class Strikes:
    """The faults of one run. ``tick`` is called between two looks at the tasks; nothing blocks.

    Args:
        faults: when and what, with what brings each about.
        control: where tasks say that they have arrived somewhere.
        log: psconform's own record.
        restart: starts a task again that has ended.
        hold: holds back the answers to a worker's next push; None: nothing strikes at the phase ``sent``.
    """

    def __init__(
        self,
        faults: Mapping[Fault, Injector],
        control: Control,
        log: EventLog,
        *,
        restart: Restart,
        hold: Hold | None = None,
    ) -> None:
        self._hold = hold
        self._states = [_State(number, *pair) for number, pair in enumerate(faults.items())]
        self._control, self._log, self._restart = control, log, restart
        self._began: float | None = None

    @property
    def pending(self) -> bool:
        """Something is still to be healed: a task to be started again or continued, a link to be mended."""
        going_on = ("sending", "striking", "struck", "healing")
        return any(state.status in going_on and state.fault.heals for state in self._states)

    @property
    def lasting(self) -> bool:
        """Something has not even been taken away yet, or a task is held for it; until then nobody owes progress."""
        return any(
            state.status == "sending"
            or (state.status == "striking" and state.injector.holds)
            or (state.status in ("striking", "struck") and state.fault.heals)
            for state in self._states
        )

    @property
    def starting(self) -> bool:
        """A task has ended, or is about to, and is to be started again."""
        states = (state for state in self._states if state.status in ("striking", "struck"))
        return any(state.injector.starts and state.fault.heals for state in states)

    def killed(self, task: Task, status: int) -> bool:
        """Whether the end of this task that was just seen is one of the faults; it has taken effect then."""
        for state in self._states:
            if state.fault.kind != "stop" or state.fault.task != task or state.status not in ("struck", "healing"):
                continue
            if state.status == "healing" and status >= 0:  # it was told to go on, and who has an exit status did
                self._healed(state, f"it went on, and ended with exit status {status}")
            else:
                state.status, state.why = "failed", f": {task} ended while it was stopped"
        for state in self._states:
            if state.status == "striking" and state.fault.task == task and state.injector.ends:
                if not state.injector.ended(status):
                    if state.again is not None and status == 0:
                        state.status = "healed"  # it has struck before; training was over before it could again
                    else:
                        state.status, state.why = "failed", f": {task} ended by itself"
                    self._let_go(state)
                    return False
                self._struck(state, state.injector.evidence())
                return True
        return False

    def second_ended(self, pid: int, how: str) -> None:
        """A second process of a task has ended; says how."""
        for state in self._states:
            state.injector.second_ended(pid, how)

    def returns(self, task: Task) -> bool:
        """Whether a task that has ended is to be started again."""
        return any(
            state.fault.task == task and state.status == "struck" and state.fault.restart_after_s is not None
            for state in self._states
        )

    def tick(self, *, heard_s: float) -> None:
        """Strike and heal whatever is due; ``heard_s``: seconds since any task recorded anything."""
        now = time.monotonic()
        if self._began is None:
            self._began = now  # all tasks have been started: nobody looks before
        for arrival in self._control.arrivals():
            self._arrived(arrival)
        for state in self._states:
            try:
                self._tick(state, now, self._began, heard_s=heard_s)
            except PsconformError as error:
                self._failed(state, error)

    def _tick(self, state: _State, now: float, began: float, *, heard_s: float) -> None:
        if state.status == "waiting":
            if self._due(state, now, began):
                self._strike(state, None)
        elif state.status == "sending":
            self._watch_push(state)
        elif state.status in ("striking", "struck"):
            self._watch(state, now)
            if self._over(state, now, heard_s=heard_s):
                self._heal(state)
        elif state.status == "healing":
            self._watch_healing(state, now)

    def _failed(self, state: _State, error: PsconformError) -> None:
        """A Toxiproxy that others use was reset, or is gone, or does not answer; the record goes on."""
        lasts, state.status, state.why = state.status in ("striking", "struck"), "failed", f": {error}"
        self._let_go(state)
        if lasts:
            with contextlib.suppress(PsconformError):
                state.injector.heal()  # as far as that goes

    def heal_all(self) -> None:
        """The run is over: whatever lasts is taken away, so that nothing of it is left anywhere."""
        for state in self._states:
            if state.status == "sending":
                state.status, state.why = "failed", ": the run was over before the push was sent"
            try:
                self._let_go(state)
                if state.status in ("striking", "struck") and not state.injector.starts:
                    self._heal(state)
                if state.status == "healing":
                    self._watch_healing(state, now=math.inf)
            except PsconformError as error:
                state.status, state.why = "failed", f": {error}"
            except Exception as error:  # the others are healed all the same
                state.status, state.why = "failed", f": {type(error).__name__}: {error}"

    def missing(self) -> list[str]:
        """Faults that have not taken effect, or were not healed, in words."""
        lines = []
        for state in self._states:
            if state.status == "waiting" and state.again is not None:
                continue  # it has struck, and was healed; training was over before it could again
            if state.status == "waiting":
                lines.append(f"{state.name} never struck: training did not get there")
            elif state.status == "failed" and state.struck:
                lines.append(f"{state.name} was not healed{state.why}")
            elif state.status in ("sending", "striking", "failed") or not state.struck:
                unseen = "" if ":" in state.why else state.injector.unseen
                lines.append(f"{state.name} was not seen to take effect{state.why}{unseen}")
            elif state.status in ("struck", "healing") and state.fault.heals:
                lines.append(f"{state.name} was not healed when the run ended")
        return lines

    def _arrived(self, arrival: Arrival) -> None:
        for state in self._states:
            state.injector.heard(arrival)
        for state in self._states:
            until, who = state.fault.until, state.fault.ends_where
            there = until is not None and _is(until, arrival) and who in (arrival.task, "worker")
            waits = state.injector.holds or state.injector.lingers
            if there and (state.status == "struck" or (state.status == "striking" and not waits)):
                self._heal(state)
            elif there and state.status in ("sending", "striking") and state.past_s is None:
                state.past_s = time.monotonic()
        for state in self._states:
            fault = state.fault
            if (
                state.status == "waiting"
                and state.again is None
                and _is(fault.when, arrival)
                and fault.where in (arrival.task, "worker")
            ):
                if fault.when.phase == SENT and self._hold is not None:
                    state.status, state.since = "sending", time.monotonic()
                    state.sent = self._hold(Task.parse(arrival.task))
                else:
                    try:
                        self._strike(state, arrival)
                    except PsconformError as error:
                        self._failed(state, error)
        self._release(arrival)

    def _strike(self, state: _State, arrival: Arrival | None) -> None:
        refused = state.injector.refused() or self._by_another(state)
        if refused and state.again is not None:
            state.status = "healed"
            return
        if refused:
            state.status, state.why = "failed", f": {refused}"
            return
        state.status, state.since = "striking", time.monotonic()
        state.held = arrival if state.injector.holds else None
        try:
            state.injector.inject()
        except PsconformError as error:
            self._failed(state, error)
            return
        state.since = time.monotonic()  # telling a proxy takes a while: until now it may not have been there
        state.on_ns = time.monotonic_ns()

    def _by_another(self, state: _State) -> str:
        """The end of one stop ends the other, which would count for a time when nobody was stopped."""
        if not state.injector.alone or state.fault.task is None:
            return ""
        same = state.fault.kind, state.fault.task
        others = (other for other in self._states if (other.fault.kind, other.fault.task) == same)
        there = ("striking", "struck") if state.fault.kind == "stop" else ("striking", "struck", "healing")
        lasts = any(other.status in there for other in others)  # who was told to go on is only looked at
        return f"{state.fault.task} was {state.injector.alone} already" if lasts else ""

    def _watch_push(self, state: _State) -> None:
        """Strike once the push has been sent; then the answers may come, or find nobody."""
        assert state.sent is not None
        state.seen = state.sent.look()
        if time.monotonic() - state.since > SENT_S:
            state.status, state.why = "failed", f": the push was not sent within {SENT_S:.0f} s"
            self._let_go(state)
        elif state.seen:
            self._strike(state, None)
            if state.status == "failed" or not state.injector.holds:
                self._let_go(state)

    def _watch(self, state: _State, now: float) -> None:
        evidence = state.injector.evidence()
        if state.status == "struck":
            if over := state.injector.over():
                state.off_ns = time.monotonic_ns()
                self._healed(state, over)
            return
        if evidence:
            self._struck(state, evidence)
        elif state.injector.holds and now - state.since > state.injector.effect_s:
            state.status, state.why = "failed", f" within {state.injector.effect_s:.0f} s"
            self._let_go(state)

    @staticmethod
    def _due(state: _State, now: float, began: float) -> bool:
        """Whether its time has come; one that strikes at a phase strikes when somebody arrives."""
        if state.again is not None:
            return now >= state.again
        return not state.fault.when.phase and now - began >= state.fault.when.after_s

    def _over(self, state: _State, now: float, *, heard_s: float) -> bool:
        """Whether it has lasted as long as it was to."""
        fault, lasted = state.fault, now - state.since
        if state.status not in ("striking", "struck") or (state.status == "striking" and state.injector.holds):
            return False
        if fault.restart_after_s is not None:
            return lasted >= fault.restart_after_s
        unseen_s = state.injector.effect_s if state.status == "striking" and state.injector.lingers else 0.0
        if fault.lasts_s is not None:
            return lasted >= fault.lasts_s + unseen_s
        if fault.until is None:
            return False
        if not fault.until.phase:
            return self._began is not None and now - self._began >= fault.until.after_s + unseen_s
        waits = state.status == "striking" and state.injector.lingers
        least_s = state.injector.effect_s if waits else LEAST_S
        past = state.past_s is not None and min(lasted, now - state.past_s) > least_s
        standstill_s = state.injector.effect_s if state.status == "striking" else STANDSTILL_S
        return past or (heard_s > STANDSTILL_S and lasted > standstill_s)

    def _struck(self, state: _State, evidence: str) -> None:
        state.status, state.struck = "struck", True
        if state.injector.holds:
            state.since = time.monotonic()
        self._write(state, on=True, evidence=evidence)
        self._let_go(state)

    def _heal(self, state: _State) -> None:
        if not state.struck and (evidence := state.injector.evidence()):
            self._struck(state, evidence)
        state.off_ns = time.monotonic_ns()  # until then it was there for sure
        try:
            state.injector.heal()
        except PsconformError as error:
            state.status = "healing"  # it is not tried a second time
            self._failed(state, error)
            return
        if state.injector.starts and state.fault.task is not None:
            self._restart(state.fault.task)
            self._healed(state, state.injector.healed())
            again_s = state.injector.again_s()
            if again_s is not None:
                state.status, state.again = "waiting", time.monotonic() + again_s
            return
        state.status, state.since = "healing", time.monotonic()
        self._let_go(state)

    def _watch_healing(self, state: _State, now: float) -> None:
        healed = state.injector.healed() or (state.injector.gone() if now - state.since > GONE_S else "")
        if not healed:
            return
        if not state.struck and (evidence := state.injector.evidence()):  # its end has shown that it was there
            self._struck(state, evidence)
        if state.struck:
            self._healed(state, healed)
        else:
            state.status = "failed"

    def _healed(self, state: _State, evidence: str) -> None:
        state.status = "healed"
        self._write(state, on=False, evidence=evidence)

    def _let_go(self, state: _State) -> None:
        sent, state.sent = state.sent, None
        if sent is not None:
            sent.let_go()
        arrival, state.held = state.held, None
        if arrival is not None:
            self._release(arrival)

    def _release(self, arrival: Arrival) -> None:
        """Once all that was to strike there has taken effect."""
        if all(state.held is not arrival for state in self._states):
            arrival.release()

    def _write(self, state: _State, *, on: bool, evidence: str) -> None:
        said = {"fault": state.fault.kind, "of": state.fault.of, "on": on, "at": str(state.fault.when)}
        if on and state.seen:
            evidence = f"{evidence}; {state.seen}"
        said |= {"file": state.injector.file} if state.injector.file else {}
        did_ns = state.on_ns if on else state.off_ns
        self._log.write("fault", **said, evidence=evidence, did_ns=did_ns, number=state.number)


def _is(when: When, arrival: Arrival) -> bool:
    return when.said == arrival.phase and when.step in (None, arrival.step)
