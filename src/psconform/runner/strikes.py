"""The faults of a run while it runs: strike where the plan says, watch them take effect, heal them, record it all."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..faults.control import Arrival, Control
from ..faults.fault import Fault, When
from ..launchers.local import LocalLauncher
from ..layout import Task
from ..probe import EventLog

EFFECT_S = 10.0
"""A signal that has shown no effect after this long is not evidence of a fault."""
STANDSTILL_S = 1.0
"""A stopped task for which everybody waits is continued after this long: the step that was to end it never comes."""

Restart = Callable[[Task], None]


@dataclass
class _State:
    fault: Fault
    status: str = "waiting"  # -> striking -> struck (-> healing) -> healed, or failed
    since: float = 0.0
    held: Arrival | None = None  # who waits for it to take effect
    why: str = ""
    struck: bool = False


class Strikes:
    """The faults of one run. ``tick`` is called between two looks at the tasks; nothing blocks.

    Args:
        faults: when and what.
        restart: starts a killed task again.
    """

    def __init__(
        self, faults: tuple[Fault, ...], launcher: LocalLauncher, control: Control, log: EventLog, *, restart: Restart
    ) -> None:
        self._states = [_State(fault) for fault in faults]
        self._launcher, self._control, self._log, self._restart = launcher, control, log, restart
        self._began: float | None = None

    @property
    def pending(self) -> bool:
        """Something is still to be healed: a task to be started again or continued."""
        return any(state.status in ("striking", "struck", "healing") and _heals(state.fault) for state in self._states)

    def killed(self, task: Task) -> bool:
        """Whether the end of this task that was just seen is one of the faults; it has taken effect then."""
        for state in self._states:
            if state.fault.kind == "stop" and state.fault.task == task and state.status in ("struck", "healing"):
                state.status, state.why = "failed", f": {task} ended while it was stopped"
        for state in self._states:
            if state.status == "striking" and state.fault.kind == "kill" and state.fault.task == task:
                self._struck(state, "the process ended by signal 9")
                return True
        return False

    def returns(self, task: Task) -> bool:
        """Whether a killed task is to be started again."""
        return any(
            state.fault.task == task and state.status == "struck" and state.fault.restart_after_s is not None
            for state in self._states
        )

    def tick(self, *, heard_s: float) -> None:
        """Strike and heal whatever is due; ``heard_s``: seconds since any task recorded anything."""
        now = time.monotonic()
        if self._began is None:
            self._began = now  # all tasks have been started: nobody looks before
        since = now - self._began
        for arrival in self._control.arrivals():
            self._arrived(arrival)
        for state in self._states:
            fault = state.fault
            if state.status == "waiting" and not fault.when.phase and since >= fault.when.after_s:
                self._strike(state, None)
            elif state.status == "striking":
                self._watch(state, now)
            elif state.status == "healing":
                if self._launcher.state(fault.task) not in ("T", ""):  # none: its end will be told of
                    self._healed(state, "it goes on")
            elif state.status == "struck" and fault.kind == "kill" and fault.restart_after_s is not None:
                if now - state.since >= fault.restart_after_s:
                    self._restart(fault.task)
                    self._healed(state, "started again")
            elif state.status == "struck" and fault.kind == "stop" and fault.until is not None:
                due = not fault.until.phase and since >= fault.until.after_s
                if due or (fault.until.phase and heard_s > STANDSTILL_S and now - state.since > STANDSTILL_S):
                    self._continue(state)

    def missing(self) -> list[str]:
        """Faults that have not taken effect, or were not healed, in words."""
        lines = []
        for state in self._states:
            name = f"fault {state.fault.kind} {state.fault}"
            if state.status == "waiting":
                lines.append(f"{name} never struck: training did not get there")
            elif state.status == "failed" and state.struck:
                lines.append(f"{name} was not healed{state.why}")
            elif state.status in ("striking", "failed"):
                lines.append(f"{name} was not seen to take effect{state.why}")
            elif state.status in ("struck", "healing") and _heals(state.fault):
                lines.append(f"{name} was not healed when the run ended")
        return lines

    def _arrived(self, arrival: Arrival) -> None:
        for state in self._states:
            fault = state.fault
            if fault.until is not None and state.status == "struck" and _is(fault.until, arrival):
                self._continue(state)
        for state in self._states:
            fault = state.fault
            if state.status == "waiting" and _is(fault.when, arrival) and fault.where in (arrival.task, "worker"):
                self._strike(state, arrival)
        self._release(arrival)

    def _strike(self, state: _State, arrival: Arrival | None) -> None:
        fault = state.fault
        if fault.task not in self._launcher.running:
            state.status, state.why = "failed", f": {fault.task} was not running"
            return
        state.status, state.since, state.held = "striking", time.monotonic(), arrival
        self._launcher.signal(fault.task, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)

    def _watch(self, state: _State, now: float) -> None:
        """The end of a killed task comes through ``killed``."""
        if state.fault.kind == "stop" and self._launcher.state(state.fault.task) == "T":
            self._struck(state, "the process is stopped (state T)")
        elif now - state.since > EFFECT_S:
            state.status, state.why = "failed", f" within {EFFECT_S:.0f} s"
            self._let_go(state)

    def _struck(self, state: _State, evidence: str) -> None:
        state.status, state.struck, state.since = "struck", True, time.monotonic()
        self._write(state.fault, on=True, evidence=evidence)
        self._let_go(state)

    def _continue(self, state: _State) -> None:
        self._launcher.signal(state.fault.task, signal.SIGCONT)
        state.status = "healing"

    def _healed(self, state: _State, evidence: str) -> None:
        state.status = "healed"
        self._write(state.fault, on=False, evidence=evidence)

    def _let_go(self, state: _State) -> None:
        arrival, state.held = state.held, None
        if arrival is not None:
            self._release(arrival)

    def _release(self, arrival: Arrival) -> None:
        """Once all that was to strike there has taken effect."""
        if all(state.held is not arrival for state in self._states):
            arrival.release()

    def _write(self, fault: Fault, *, on: bool, evidence: str) -> None:
        self._log.write("fault", fault=fault.kind, of=str(fault.task), on=on, at=str(fault.when), evidence=evidence)


def _heals(fault: Fault) -> bool:
    return fault.kind == "stop" or fault.restart_after_s is not None


def _is(when: When, arrival: Arrival) -> bool:
    return when.phase == arrival.phase and when.step in (None, arrival.step)
