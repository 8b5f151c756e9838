"""Start the cluster of a plan, watch it train, end it, leave a run folder."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ..checks import violated_for_good
from ..errors import BadInput, NotStarted, PsconformError
from ..faults import faketime
from ..faults.control import Arrival, Control
from ..faults.kinds import kinds
from ..faults.process_faults import KILL
from ..faults.proxy_faults import REFUSE
from ..files import create
from ..history.build import RUNNER, load_history
from ..history.logs import LastError, last_error
from ..history.manifest import Manifest
from ..history.reasons import (
    Cause,
    Decided,
    FailedAfterEnd,
    LinksLost,
    NoEnd,
    NoProgress,
    Problem,
    Reason,
    TaskFailed,
    how_it_ended,
)
from ..history.records import Harm
from ..launchers.containers import TOXIPROXY
from ..launchers.launcher import Ended, Launcher
from ..layout import Command, Task
from ..probe import CONTROL, SAMPLES, EventLog
from ..targets.target import RESTART_ALL, Job, Ready
from ..workloads.digits import write_data
from .fault_scheduler import FaultScheduler
from .fault_setup import clock_of, injectors, is_done, mounted, never_poisoned, ran_out
from .folder import (
    CHECKPOINTS,
    cut_log,
    log_of,
    log_text,
    new_folder,
    new_manifest,
    overgrown,
    placeholders,
    write_spec,
)
from .plan import Plan
from .progress import AwakeClock, Notify, Progress, Records, ask_for_stacks, await_ready, closed, events_of
from .training_links import TrainingLinks

if TYPE_CHECKING:
    from ..faults.pod_network import Wires
    from ..faults.proxies import Links, Sent
    from ..faults.toxiproxy import Toxiproxy


TICK_S = 0.05
LOOK_S = 0.5
"""The longest time between two looks whether a replica listens."""
FAILED_PATIENCE_S = 3.0
"""After a task has failed, the others may record nothing for this long before the run is ended."""
START_PATIENCE_S = 60.0
"""Until the first acknowledgement nobody is taken for stalled sooner: on a busy machine tasks take long to start, and
their first calls long to be answered. Nor while a task that was started since has recorded nothing yet."""
HEAL_PATIENCE_S = 20.0
"""So long after everything else is over it is waited for a fault to be healed."""
AFTERWARDS = 10
"""Workers that have closed their records have so many times as long: they may save or evaluate a model."""
SETTLED_S = 10.0
"""After such a silence it is seen whether a guarantee is violated for good: then it is not waited for the hang. A
worker that has lost a call, or its ps, is back sooner (recovery of the reference trainer takes 6 s at most)."""
END_S = 10.0
"""Until all tasks are gone that were sent SIGKILL."""
WITH_ALL = "the restart of all"
MEASURE_S = 0.5
"""Between two looks at the size of the run folder."""
SLOWER = 10
"""A hang is a silence of so many times the longest one that there was before a fault was injected."""


def execute(
    plan: Plan, launcher: Launcher, *, notify: Notify = lambda _: None, server: Toxiproxy | None = None
) -> Manifest:
    """Run one cluster into the folder of its plan; returns its manifest. Never leaves a task behind.

    ``server`` is for plans with faults of the network.

    Raises:
        BadInput: the folder is taken, or the run could not be recorded there.
        PsconformError: a task cannot be started; the run folder says so too.
    """
    folder = new_folder(plan.out)
    manifest = new_manifest(folder, plan)
    run = _Execution(plan, launcher, folder, manifest, notify, server)
    unwritten: OSError | None = None
    failure: PsconformError | None = None
    try:
        if SAMPLES in plan.workload.shows:
            write_data(folder)
        run.start()
        run.watch()
        manifest.status = run.status
    except (KeyboardInterrupt, SystemExit):
        manifest.status = "interrupted"
        raise
    except PsconformError as error:
        manifest.status = "failed"
        manifest.reasons.append(Problem(str(error)))
        failure = error
    except OSError as error:
        unwritten = error
    finally:
        unwritten = run.end() or unwritten
        manifest.reasons += run.reasons
        if manifest.status == "running" or unwritten is not None:
            manifest.status = "failed"
        unwritten = _stored(manifest, folder, unwritten)
    if unwritten is not None:  # a task of which nothing is found may have recorded much
        raise BadInput(str(folder), _unrecorded(unwritten)) from failure
    if failure is not None:
        raise failure
    return manifest


def _stored(manifest: Manifest, folder: Path, unwritten: OSError | None) -> OSError | None:
    """Write the manifest, whatever has kept something else from being written; returns the first that did."""
    try:
        if unwritten is not None:
            manifest.reasons.append(Problem(_unrecorded(unwritten)))
        manifest.write(folder)
    except OSError as error:
        first = unwritten or error
        manifest.status, manifest.reasons = "failed", [Problem(_unrecorded(first))]
        with suppress(OSError):
            manifest.write_in_place(folder)
        return first
    return unwritten


def _unrecorded(error: OSError) -> str:
    return f"the run cannot be recorded ({error.strerror}{f': {error.filename}' if error.filename else ''})"


class View(Protocol):
    """What tasks see, of a `Launcher`."""

    python: str
    temporary: Path
    inherited: Mapping[str, str]

    def seen(self, path: Path, /) -> str: ...

    def named(self, address: str, /) -> str: ...


def command_of(
    plan: Plan,
    manifest: Manifest,
    task: Task,
    known: Mapping[Task, str],
    *,
    listens: str,
    life: int,
    spec: Path,
    control: str,
    view: View,
) -> Command:
    """How an incarnation of a task is started that knows the others by these addresses."""
    layout, target = plan.layout, plan.target
    given = placeholders(manifest) | {"python": view.python, "here": view.seen(target.here)}
    addresses = {other: view.named(address) for other, address in known.items()}
    command = target.command(task, addresses, layout=layout, workload=given, listens=view.named(listens))
    env = {
        **plan.environment,
        **command.env,
        "PSCONFORM_SPEC": view.seen(spec),
        "PSCONFORM_TASK": str(task),
        "PSCONFORM_RUN": manifest.run,
        "PSCONFORM_INCARNATION": str(life),
        CONTROL: control,
    }
    if task in plan.clocks:
        library, clock = view.temporary / faketime.NAME, clock_of(view.temporary, task)
        env |= faketime.environment(view.seen(library), view.seen(clock), {**view.inherited, **env})
        command = replace(command, entry="", remains=faketime.REMAINS)  # started for it, by its argv
    return replace(command, env=env, gpus=layout.gpus_of(task) if layout.gpus else None)


@dataclass
class _Execution:
    plan: Plan
    launcher: Launcher
    folder: Path
    manifest: Manifest
    notify: Notify
    server: Toxiproxy | None = None
    status: Literal["finished", "stalled", "decided"] = "finished"
    reasons: list[Reason] = field(default_factory=list)
    states: dict[Task, str] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    lives: dict[Task, int] = field(default_factory=dict)  # incarnation of the process that is the task
    started: dict[Task, int] = field(default_factory=dict)  # how often it was started, second processes among them
    seconds: dict[int, tuple[Task, int]] = field(default_factory=dict)  # and incarnation of each, by process id
    launched: dict[Task, float] = field(default_factory=dict)  # when its process was started
    trained_until: float = 0.0  # when the last worker ended
    killed: dict[Path, tuple[Task, int]] = field(default_factory=dict)  # records of tasks that faults have ended, sizes
    acked_before: int = 0  # when the clock of the rate was started
    looked: float = -1.0  # when its record was judged last
    slowest_s: float = 0.0  # the longest silence since the first acknowledgement, without a fault
    logs: dict[Path, int] = field(default_factory=dict)  # how many bytes were cut out of each
    measured: float = 0.0  # when the run folder was last measured
    too_large: bool = False  # it is
    down: dict[Task, bool] = field(default_factory=dict)  # ended, until all are started again: by a fault of the plan
    killed_before: int = 0  # processes that the OOM killer had ended when the run began

    def __post_init__(self) -> None:
        self.layout = self.plan.layout
        self.states = dict.fromkeys(self.layout.all_tasks, "waiting")
        self.began, self.clock = time.monotonic(), AwakeClock()
        self.trained_since: float | None = None
        self.killed_before = _oom_kills()
        run = self.manifest.run
        path = self.folder / "events" / f"{RUNNER.slug}.jsonl"
        self.log = EventLog(path, run=run, task=str(RUNNER), incarnation=0)
        self.control = Control(self.launcher.control)
        self.links: Links | None = None
        self.dialled: set[tuple[Task, Task]] = set()  # where the plan learns it
        self.trains_by: TrainingLinks | None = None  # and what replicas train through
        self.silent: dict[Task, float] = {}  # replicas that do not listen yet, behind a proxy, and when to look again
        self.cleanup = ExitStack()
        self.scheduler = FaultScheduler({}, self.control, self.log, restart=self._restart)

    def job(self, task: Task) -> Job:
        return self.plan.target.jobs[task.job]

    def start(self) -> None:
        """Start all tasks, parameter servers first, and wait for those that have a sign of readiness."""
        self.launcher.begin(self.manifest.run, self.layout.all_tasks, self.folder)
        self.addresses = {task: self.launcher.address(None, task) for task in self.layout.all_tasks}
        if self.plan.proxied:
            from .proxy_setup import proxies  # what it imports is an extra

            fixed = self.plan.target.fixed
            trains = {task: self.addresses[task] for task in self.layout.tasks}
            made = proxies(self.server, self.manifest, trains, launcher=self.launcher, folder=self.folder, fixed=fixed)
            self.links = self.cleanup.enter_context(made)
        if self.links is not None and self.plan.learns and self.layout.all_reduce:
            self.trains_by = TrainingLinks(self.links, self.plan.workload.steps)
        self.spec = write_spec(
            self.folder,
            self.manifest,
            faults=self.plan.faults,
            wait_s=self.plan.patience_s + self.plan.outage_s,
            seen=self.launcher.seen,
            looks=[] if self.trains_by is None else self.trains_by.strikes,
        )
        disk = None
        if any(kinds()[fault.kind].mounts for fault in self.plan.faults):
            disk = self.cleanup.enter_context(
                mounted(self.folder / CHECKPOINTS, whose=self.launcher.whose, others=self.launcher.others)
            )
        faults = injectors(
            self.plan,
            self.launcher,
            self.links,
            folder=self.folder,
            life=self._life,
            start_second=self.start_second,
            recorded=self.recorded,
            disk=disk,
            wires=self._wires(),
            moved=self._moved,
        )
        hold = None if self.links is None else self._hold
        self.scheduler = FaultScheduler(
            faults, self.control, self.log, restart=self._restart, hold=hold, heard=self._heard
        )
        late = {fault.task for fault in self.plan.faults if kinds()[fault.kind].first}
        for task in self.plan.clocks:
            faketime.write(clock_of(self.launcher.temporary, task), 0)
        if self.plan.clocks and (library := faketime.find()) is not None:
            faketime.copy(library, self.launcher.temporary)
        self.lives = dict.fromkeys(self.layout.all_tasks, -1)
        self.started = dict.fromkeys(self.layout.all_tasks, 0)
        for task in self.layout.tasks:
            self._refuse_until_it_listens(task)
        self._launch_all([task for task in self.layout.all_tasks if task not in late])
        self.manifest.times_s["started"] = round(time.monotonic() - self.began, 3)

    def _launch_all(self, tasks: Sequence[Task]) -> None:
        """Start these tasks, job by job: each once those before it are ready that have a sign of it."""
        for job in dict.fromkeys(task.job for task in tasks):
            for task in (task for task in tasks if task.job == job):
                self._launch(task)
            for task in (task for task in tasks if task.job == job != "worker"):
                there, ready = partial(self._runs, task), self.job(task).ready
                await_ready(
                    task,
                    ready,
                    self.addresses[task],
                    folder=self.folder,
                    there=there,
                    poll=self._poll,
                    clock=self.clock,
                )
                if ready != Ready():  # what is started next may dial it at once
                    self._let_be_dialled(task)

    def _moved(self, task: Task, address: str) -> None:
        """It listens at another address from now on; empty: nowhere."""
        if address := address and f"{address}:{self.addresses[task].rpartition(':')[2]}":
            self.addresses[task] = address
        if self.links is not None and task in self.layout.tasks:
            self.links.at(task, address)

    def _wires(self) -> Wires | None:
        """The network of the run, if faults strike its packets."""
        launcher, pods = self.launcher, self.launcher.pods
        if pods is None:
            return None
        from ..faults.pod_network import Wires  # what it imports is an extra

        return Wires(pods.ask_pod, lambda task: launcher.address(None, task), self.links, TOXIPROXY)

    def _restart(self, task: Task) -> None:
        """Start a task that is not there; with all others, if a fault has ended it and they restart together."""
        if self._runs(task):
            return  # it has been started again with another one
        if self.down and not all(map(self._is_over, self.layout.worker_tasks)):
            self._restart_all()
        else:
            self.down.pop(task, None)
            self._launch(task)

    def _restart_all(self) -> None:
        """End every process that is left, and start all tasks again, each with the same incarnation."""
        for task in self.launcher.running:
            self.launcher.signal(task, signal.SIGKILL)
        for pid in self.seconds:
            self.launcher.kill_second(pid)
        deadline = self.clock() + END_S
        while (self.launcher.running or any(map(self.launcher.state_of, self.seconds))) and self.clock() < deadline:
            self._poll()
        self.started = dict.fromkeys(self.started, max(self.started.values()))
        for task in self.layout.all_tasks:
            if task not in self.down:
                self._restarts(task, "it had ended")
            if task.job == "worker":
                (self.folder / "done" / f"worker-{task.index}").unlink(missing_ok=True)
        others, self.down = self.down, {}
        self._launch_all(self.layout.all_tasks)
        for task in (task for task, of_plan in others.items() if not of_plan):
            self._tell_restart(task, "started again", on=False)

    def _restarts(self, task: Task, evidence: str) -> None:
        """A task has ended, or is ended, because all are to be started again."""
        self.down[task] = False
        self._tell_restart(task, evidence, on=True)

    def _tell_restart(self, task: Task, evidence: str, *, on: bool) -> None:
        """For the judge it is a kill like that of the plan which it comes with."""
        said = {"fault": KILL.name, "of": str(task), "on": on, "at": WITH_ALL, "harm": KILL.harm.value}
        more = {"words": f"{KILL.name} {task}, to start all again"} if on else {}
        self.log.write("fault", **said, tasks=[str(task)], **more, evidence=evidence, did_ns=time.monotonic_ns())

    def _launch(self, task: Task) -> None:
        """Start a task, or start it again."""
        self.lives[task] = self.started[task]
        self._start(task)
        self.states[task], self.launched[task] = "running", self.clock()

    def _refuse_until_it_listens(self, task: Task) -> None:
        """A proxy takes connections for a task that is not there.

        Workers wait for the sign of readiness of a ps, but replicas dial each other, and other jobs are there first.
        """
        dialled_early = self.layout.all_reduce or self.layout.others
        if self.links is not None and dialled_early and task in self.layout.tasks:
            self.silent[task] = 0.0
            with suppress(PsconformError):  # proxies that are gone are reported in the end
                self.links.silent(task, on=True)

    def _look_who_listens(self) -> None:
        """Let replicas be dialled that listen now."""
        for task, due in list(self.silent.items()):
            if self.links is None or (now := self.clock()) < due or not self._runs(task):
                continue
            if self.links.listens(task):
                self._let_be_dialled(task)
            else:  # some never do
                self.silent[task] = now + min(LOOK_S, (now - self.launched[task]) / 10)

    def _let_be_dialled(self, task: Task) -> None:
        if self.links is not None and self.silent.pop(task, None) is not None:
            with suppress(PsconformError):
                self.links.silent(task, on=False)

    def start_second(self, task: Task) -> int:
        """Start a second process of a task; returns its process id."""
        life = self.started[task]
        pid = self._start(task, second=True)
        self.seconds[pid] = task, life
        return pid

    def recorded(self, pid: int) -> bool:
        """A second process has begun to record."""
        return self._events_of(*self.seconds[pid]).exists()

    def _start(self, task: Task, *, second: bool = False) -> int:
        """Start a process that is this task, its next incarnation."""
        life = self.started[task]
        self.started[task] += 1
        known = self.addresses
        if self.links is not None and (self.links.shared or task in self.layout.tasks):
            known = {**known, **self.links.addresses_of(task)}  # no proxy is before a task of another job
        command = command_of(
            self.plan,
            self.manifest,
            task,
            known,
            listens=self.addresses[task],
            life=life,
            spec=self.spec,
            control=self.control.told(self.launcher.seen),
            view=self.launcher,
        )
        log = log_of(self.folder, task, second=life if second else 0)
        command = replace(command, record=str(self._events_of(task, life)))
        self.logs.setdefault(log, 0)
        return self.launcher.start(task, command, log=log, second=second)

    def watch(self) -> None:
        """Follow the record to the end of training.

        A run that did not get there may have lost psconform's proxies, or the network of its containers.
        """
        self._follow()
        killed = any(isinstance(reason, TaskFailed) and reason.cause for reason in self.reasons)
        if self.status == "stalled" or "failed" in self.states.values():
            self._look_between()
        lost = any(isinstance(reason, LinksLost) for reason in self.reasons)
        if not self.scheduler.attempted and not killed and not self.too_large and not lost:
            self._check_started()

    def _look_between(self) -> None:
        """Say so if tasks cannot reach each other, and that is not the plan's doing: a fault that is not healed.

        Then the target owes no progress.
        """
        between = {"the proxies": self.links, "the network": self.launcher.pods}
        for of, part in between.items():
            if part is not None and (why := part.lost()):
                self.reasons.append(LinksLost(why))
                said = {"fault": REFUSE.name, "of": of, "on": True, "at": "", "evidence": why}
                self.log.write("fault", **said, harm=REFUSE.harm.value)
                return

    def _follow(self) -> None:
        """Until every worker has ended, or training has not moved for too long since all healed."""
        moved = healed = self.clock()
        self.scheduler.tick(heard_s=0.0)  # who is late may be all workers
        while not self._too_large() and (self.scheduler.pending or any(map(self._runs, self.layout.worker_tasks))):
            trained = self.records.acked > 0
            if self._poll() | self._grown():
                if trained and not self.scheduler.attempted:
                    self.slowest_s = max(self.slowest_s, self.clock() - moved)
                moved = self.clock()
            self._notify()
            self._learn()
            self.scheduler.tick(heard_s=self.clock() - moved)
            trains = any(map(self._runs, self.layout.worker_tasks))
            if not trains and not self.scheduler.starting:
                self.scheduler.heal_all()  # no task is left that could show an effect, or its end
                if self.clock() - moved > HEAL_PATIENCE_S:
                    break  # and what is not healed by now never is
            if self.scheduler.lasting or self._comes_up():
                healed = self.clock()
            silent_s = 0.0 if self.scheduler.pending else self.clock() - max(moved, healed)
            if self._given_up(silent_s, moved=moved):
                return
        self._learn()
        self.manifest.times_s["trained"] = round(time.monotonic() - self.began, 3)
        if self.too_large or "failed" in self.states.values():
            return  # a ps waits for goodbyes that will not come
        patience = self._patience()
        deadline = self.clock() + patience
        while any(self._owes_its_end(task) for task in self.launcher.running) and self.clock() < deadline:
            self._poll()
        late = [str(task) for task in self.launcher.running if self._owes_its_end(task)]
        if late:
            self.reasons.append(NoEnd(tuple(late), patience))
            ask_for_stacks(self.folder, self.launcher, self.lives)

    def _owes_its_end(self, task: Task) -> bool:
        """It ends by itself. Of another job not if it was started again after training: no worker tells it to end."""
        return self.job(task).exits and (task in self.layout.tasks or self.launched[task] < self.trained_until)

    def _is_over(self, task: Task) -> bool:
        """A worker has made its last step; for any other task, all workers have."""
        return is_done(self.folder, self.layout, task)

    def _given_up(self, silent_s: float, *, moved: float) -> bool:
        """Whether training has been silent for so long that the run ends; ``moved``: when it was not for the last time.

        Such a run hangs, or its tasks do not end after training, or nothing that may come could change its verdict.
        """
        failed = any(state == "failed" for state in self.states.values())
        patience = FAILED_PATIENCE_S if failed else self._patience()
        if self._all_closed():
            if silent_s <= AFTERWARDS * patience:
                return False
            open_ended = tuple(str(task) for task in self.layout.worker_tasks if self._runs(task))
            self.reasons.append(NoEnd(open_ended, silent_s))
        elif silent_s > patience:
            self.status = "stalled"
            self.reasons.append(NoProgress(patience))
        else:
            if failed or self.looked >= moved or silent_s <= max(SETTLED_S, SLOWER * self.slowest_s):
                return False
            self.looked = self.clock()
            if guarantees := self._violated_for_good():
                self.status = "decided"
                self.reasons.append(Decided(silent_s, guarantees))
            return bool(guarantees)
        ask_for_stacks(self.folder, self.launcher, self.lives)
        return True

    def _violated_for_good(self) -> tuple[str, ...]:
        """Guarantees that are violated whatever happens from now on, if that can be said of this plan.

        Not of one with a fault that is still to come, a worker that may be dropped, a poisoned gradient, or a second
        process, of which it is only known when it has ended that its record is not that of its task.
        """
        excused = self.layout.drop_after or not all(fault.outside for fault in self.plan.faults)
        if excused or self.scheduler.timed or self.seconds:
            return ()
        try:
            return violated_for_good(load_history(self.folder, self.manifest))
        except PsconformError:
            return ()  # the record cannot be read; the error is reported when the run is over

    def _learn(self) -> None:
        """Which tasks have dialled which; of replicas those that train by it."""
        if self.plan.learns and self.links is not None:
            self.dialled |= self.links.dialled_by_now(self.dialled)
            used = self.dialled if self.trains_by is None else self.trains_by.among(self.dialled)
            self.manifest.dialled = sorted(f"{dialler}->{listener}" for dialler, listener in used)

    def _heard(self, arrival: Arrival) -> None:
        """A task waits at a phase; proxies that are gone are reported in the end."""
        if self.trains_by is not None:
            with suppress(PsconformError):
                self.trains_by.heard(arrival)

    def _check_started(self) -> None:
        """Raises NotStarted if a worker ended, or hangs, and has recorded nothing, or if another task ended first.

        That is the user's set-up.
        """
        failed = [reason for reason in self.reasons if isinstance(reason, TaskFailed)]
        silent = [task for task in self.layout.worker_tasks if not events_of(self.folder, task, 0).exists()]
        early = not self.records.acked and failed and not failed[0].task.startswith("worker:")
        first = failed[:1] if early else []
        of_silent = [reason for reason in failed if reason.task in map(str, silent)]
        if not silent and not first:
            return
        if ended := (*first, *of_silent):
            reason = ended[0]
            problem = f"{how_it_ended(reason.status)} before it had started{': ' * bool(reason.log)}{reason.log}"
            raise NotStarted(reason.task, problem, hint=f"Its log is {log_of(self.folder, Task.parse(reason.task))}")
        task = silent[0]
        problem = "ended with status 0 and recorded nothing" if self.states[task] == "ended" else "recorded nothing"
        hint = f"Does its trainer use the probe? Its log is {log_of(self.folder, task)}"
        raise NotStarted(str(task), problem, hint=hint)

    def _all_closed(self) -> bool:
        """Every worker has closed its record: training is over, whatever they do now."""
        return all(closed(self._events_of(task)) for task in self.layout.worker_tasks)

    def _runs(self, task: Task) -> bool:
        return self.states[task] == "running"

    def _patience(self) -> float:
        """How long no task may make progress, in seconds."""
        patience = max(self.plan.patience_s, SLOWER * self.slowest_s)
        usual = patience + self.layout.drop_after  # so long nobody moves if one is waited for
        return usual if self.records.acked else max(usual, START_PATIENCE_S)

    def end(self) -> OSError | None:
        """Heal and stop whatever is there, and close the record; returns what kept it from being written."""
        with ExitStack() as all_of_them:  # also if Ctrl-C comes again meanwhile
            for last in (self.cleanup.close, self._stop, self.scheduler.heal_all):
                all_of_them.callback(self._as_far_as_it_goes, last)
        self._cut_logs()  # what they wrote until they had ended
        self._grown()
        self._notify()
        seconds = {self._events_of(*of).name for of in self.seconds.values()}  # they are not the task
        given = never_poisoned(self.plan.faults, self.folder, without=seconds)
        given += ran_out(self.plan.faults, self.folder, self.log, without=seconds)
        self.reasons += [*self.scheduler.missing(), *given]
        self.manifest.times_s["ended"] = round(time.monotonic() - self.began, 3)
        self.control.close()
        try:
            self.scheduler.record_attempts()
            self.log.close()
        except OSError as error:
            return error
        return None

    def _as_far_as_it_goes(self, last: Callable[[], object]) -> None:
        """The keeper or Toxiproxy may be gone, or a file; the record is closed all the same."""
        try:
            last()
        except PsconformError as error:
            self.reasons.append(Problem(str(error)))
        except Exception as error:
            self.reasons.append(Problem(f"clean-up failed: {type(error).__name__}: {error}"))

    def _stop(self) -> None:
        for ended in self.launcher.stop_all():
            self._note(ended, stopped=True)

    def _note(self, ended: Ended, *, stopped: bool = False) -> None:
        if ended.second:
            self._note_second(ended)
            return
        task, all_restart = ended.task, bool(self.down)
        if task.job == "worker":
            self.trained_until = self.clock()
        struck = not stopped and self.scheduler.killed(task, ended.status, all_restart=all_restart)
        if struck and self.plan.target.on_failure == RESTART_ALL and self.scheduler.returns(task):
            self.down[task] = True
        elif all_restart and not stopped and not struck and not (ended.status == 0 and self._is_over(task)):
            struck = True
            self._restarts(task, f"it {how_it_ended(ended.status)}")
        self.states[task] = "killed" if struck else "stopped" if stopped else "ended" if ended.status == 0 else "failed"
        if not stopped:
            self._refuse_until_it_listens(task)
        size = events.stat().st_size if (events := self._events_of(task)).exists() else 0
        elsewhere = task.job == "worker" and task.index > 0 and self.layout.one_client  # worker:0 keeps its record
        if elsewhere and not closed(events):
            size = 0  # what there is now is not all of it
        over = self._is_over(task)  # it had nothing left to train, whatever happened then
        self.killed |= {events: (task, size)} if struck else {}
        more = {"stopped": stopped, "recorded": size > 0, "recorded_bytes": size}
        said = {name: value for name, value in more.items() if value}
        self.log.write("exit", of=str(task), status=ended.status, incarnation=self.lives[task], **said)
        if task.job == "worker" and not elsewhere and not self.scheduler.returns(task) and not self.down:
            marker = self.folder / "done" / f"worker-{task.index}"
            # nobody is to wait for it; where the job may go on without it, a read without it is as final as any. A task
            # may write to that folder: what is there stays, and no link is followed
            without = self.layout.drop_after or (self.layout.update == "async" and not self._rolls_back())
            with suppress(FileExistsError):
                create(marker, "" if struck and without else "dead\n")
        if self.states[task] == "failed" and over and closed(events):
            self.states[task] = "ended"
            last = last_error(log_text(self.folder, task)).line
            self.reasons.append(FailedAfterEnd(str(task), ended.status, last))
        elif self.states[task] == "failed":
            error = last_error(log_text(self.folder, task))
            cause = self._cause(task, ended.status, error)
            self.reasons.append(TaskFailed(str(task), ended.status, error.line, error.block, cause))

    def _rolls_back(self) -> bool:
        """A fault of the plan ends a ps: a worker that is dead by then cannot send again what that ps loses."""
        ended = (fault.task for fault in self.plan.faults if kinds()[fault.kind].harm is Harm.ENDS)
        return any(task is not None and task.job == "ps" for task in ended)

    def _cause(self, task: Task, status: int, said: LastError) -> Cause:
        """Who ended it, if that was not the trainer."""
        pods = self.launcher.pods
        if status in (-signal.SIGKILL, 128 + signal.SIGKILL):  # or a shell says so of what it ran
            by_memory = _oom_kills() > self.killed_before or (pods is not None and pods.ended_by_memory(task))
            return Cause.OUT_OF_MEMORY if by_memory else Cause.KILLED
        full = os.strerror(errno.ENOSPC)
        return Cause.DISK_FULL if any(full in line for line in (said.line, *said.block)) else Cause.UNKNOWN

    def _hold(self, worker: Task) -> Sent:
        from .proxy_setup import hold  # what it imports is an extra

        assert self.links is not None
        return hold(self.links, worker, self.manifest)

    def _note_second(self, ended: Ended) -> None:
        """A second process has ended: the task has not."""
        task, life = self.seconds[ended.pid]
        self.log.write("exit", of=str(task), status=ended.status, incarnation=life, second=True)
        how = "ended" if ended.status == 0 else how_it_ended(ended.status)
        last = last_error(log_text(self.folder, task, second=life)).line
        self.scheduler.second_ended(ended.pid, f"{how}; its log ends: {last}" if last else how)

    def _life(self, task: Task) -> int | None:
        """Which of its lives a task is in; None: in none."""
        return self.lives.get(task) if self.launcher.state(task) else None

    def _events_of(self, task: Task, life: int | None = None) -> Path:
        """What a life of a task records into, by default the present one."""
        return events_of(self.folder, task, self.lives.get(task, 0) if life is None else life)

    def _grown(self) -> bool:
        """Whether the record shows progress since the last look; whose goes on after its death has not been killed."""
        for path, (task, size) in self.killed.items():
            if path.exists() and (more := path.stat().st_size - size) > 0:
                self.scheduler.went_on(task, f"{path.name} grew by {more} bytes after the process had ended")
        paths = {self._events_of(task): task for task in self.layout.tasks}
        grown = self.records.look(paths)
        for path in self.records.unknown:
            self.scheduler.reported(paths[path])
        if self.records.acked and self.trained_since is None:
            self.trained_since, self.acked_before = time.monotonic(), self.records.acked
            self.manifest.times_s["first_ack"] = round(self.trained_since - self.began, 3)
        return grown

    def _comes_up(self) -> bool:
        """A task that was started not long ago has recorded nothing yet, as those of its job do."""
        since = self.clock() - START_PATIENCE_S
        jobs = {task.job for task in self.layout.tasks if events_of(self.folder, task, 0).exists()}
        up = [task for task, state in self.states.items() if state == "running" and task.job in jobs]
        return any(self.launched[task] > since and not self._events_of(task).exists() for task in up)

    def _notify(self) -> None:
        elapsed = 0.0 if self.trained_since is None else time.monotonic() - self.trained_since
        more = self.records.acked - self.acked_before
        rate = more / elapsed if elapsed > 0 and more else None
        states = {str(task): state for task, state in self.states.items()}
        total = self.plan.updates
        self.notify(Progress(states, min(self.records.acked, total), total, rate))  # some is acknowledged twice

    def _too_large(self) -> bool:
        """The tasks have written more than they may; looked at now and then."""
        if not self.too_large and time.monotonic() >= self.measured + MEASURE_S:
            self.measured = time.monotonic()
            if over := overgrown(self.folder, self.plan.bounds):
                self.too_large = True
                self.reasons.append(over)
        return self.too_large

    def _cut_logs(self) -> None:
        for log, cut in self.logs.items():
            self.logs[log] = cut_log(log, self.plan.bounds.log, cut)

    def _poll(self) -> bool:
        """Let tasks run for a moment; whether one has ended meanwhile."""
        ended = self.launcher.poll(TICK_S)
        self._look_who_listens()
        self._cut_logs()
        for each in sorted(ended, key=lambda each: each.status >= 0):  # what was killed is why others fail
            self._note(each)
        return bool(ended)


def _oom_kills() -> int:
    """Processes that the OOM killer of this machine has ended since it was started; 0 where that is not known."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)
