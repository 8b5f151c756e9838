"""A session runs plans one after another and keeps its warm processes and calibrations between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import structs

from ..faults.fault import Fault
from ..faults.partitions import Dialled
from ..faults.plan_file import plan_text
from ..files import write
from ..history.manifest import PLAIN, TWIN, Manifest, Workload
from ..launchers.blueprint import Containers
from ..launchers.engine import engine
from ..launchers.launcher import PROCESS, Launcher, launchers
from ..launchers.local import LocalLauncher
from ..layout import Layout, Link
from ..parts import SCIKIT_LEARN
from ..probe import ORDER, SAMPLES, UNIT, Ledger
from .calibrate import SCALES, STEPS, finished, is_distinct, learning_rate
from .container_setup import need_gpus
from .execute import execute
from .plan import FAULTS, Plan, fitting, unused
from .progress import Notify, Progress

if TYPE_CHECKING:
    from ..faults.toxiproxy import Toxiproxy

_Key = tuple[str, tuple[str, ...] | Containers | None]


@dataclass(frozen=True)
class _Calibrated:
    """What a calibration has found.

    The learning rate; whether each variable got a gradient of its own; and which tasks dial which, where there were
    proxies.
    """

    rate: float
    distinct: bool
    dialled: Dialled | None


class Session:
    """Launchers by what they preload, and what calibrations found. One plan at a time; not for several threads."""

    def __init__(self) -> None:
        self._server: tuple[LocalLauncher, Toxiproxy] | None = None
        self._launchers: dict[_Key, Launcher] = {}
        self._known: dict[tuple[str | bool, ...], _Calibrated] = {}
        self._lock = threading.Lock()
        self.clusters: Counter[str] = Counter()
        """How many were started, by the name of their target."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def launcher(self, plan: Plan) -> Launcher:
        """What starts the tasks of a plan: containers, or processes that have preloaded what its target needs; kept."""
        key = _key(plan)
        if key not in self._launchers:
            self._launchers[key] = launchers()[plan.launcher](key[1])
        return self._launchers[key]

    def server(self, say: Callable[[str], None] = lambda _: None) -> Toxiproxy:
        """A Toxiproxy, set up if need be, started when first asked for; it has a keeper of its own.

        ``say`` receives a line of progress while it is set up.

        Raises:
            PsconformError: there is none; says how to get one.
        """
        from .proxy_setup import serve  # what it imports is an extra

        if self._server is None:
            launcher = LocalLauncher(preload=None)
            try:
                self._server = launcher, serve(launcher, log=launcher.temporary / "toxiproxy.log", say=say)
            except BaseException:
                launcher.close()
                raise
        return self._server[1]

    def run(self, plan: Plan, *, notify: Notify = lambda _: None) -> Manifest:
        """Calibrate if need be, run the plan into ``plan.out``; returns the manifest.

        Raises:
            BadInput: the target is not linear, or ``plan.out`` is taken.
            PsconformError: the cluster could not be started, or needs what this machine lacks.
        """
        with self._lock:
            need_machine(plan)
            launcher = self.launcher(plan)
            known = self._calibrated(plan, launcher, notify)
            if isinstance(known, Manifest):
                return known
            unit = _unit(plan, known)
            distinct = (plan.target if known is None else known).distinct and plan.workload.is_ledger
            workload = structs.replace(plan.workload, unit=unit, rate=_rate(plan, unit), distinct=distinct)
            plan = replace(plan, workload=workload)
            idle: list[Fault] = []
            undialled = False
            if known is not None and known.dialled is not None:
                fitted = fitting(plan, known.dialled)
                idle = unused(fitted, known.dialled)
                undialled = bool(plan.drawn) and not fitted.proxied
                plan = fitted
            if idle or undialled:
                tasks = dict.fromkeys(map(str, plan.layout.all_tasks), "waiting")
                said = tuple(fault.words for fault in idle)
                notify(Progress(tasks, 0, plan.updates, None, unused=said, undialled=undialled))
            server = self._server_for(plan, notify)
            try:
                for beside in _beside(plan):
                    self._execute(beside, launcher, notify=_told(notify, "comparison"))
                manifest = self._execute(plan, launcher, notify=notify, server=server)
            except BaseException:
                self._launchers.pop(_key(plan), None)  # whatever went wrong, the next run starts afresh
                launcher.close()
                self._close_server()
                raise
            manifest.times_s["warm"] = round(launcher.ready_s, 3)
            manifest.unused = [f"{fault.kind} {fault}" for fault in idle]
            manifest.undialled = undialled
            manifest.write(plan.out)
            return manifest

    def _server_for(self, plan: Plan, notify: Notify) -> Toxiproxy | None:
        """What a plan of local processes needs for its proxies; containers have one of their own."""
        if plan.containers is not None or not plan.proxied:
            return None
        tasks = dict.fromkeys(map(str, plan.layout.all_tasks), "waiting")
        return self.server(lambda what: notify(Progress(tasks, 0, plan.updates, None, what=what)))

    def _execute(self, plan: Plan, launcher: Launcher, **more: Any) -> Manifest:
        self.clusters[plan.target.name] += 1
        return execute(plan, launcher, **more)

    def _calibrated(self, plan: Plan, launcher: Launcher, notify: Notify) -> _Calibrated | Manifest | None:
        """What is known of a target, None if its unit is; or the calibration that did not come to its end."""
        if plan.target.unit is not None:
            return None
        layout, source = plan.layout, plan.target.source
        key = (source, _stamp(source), layout.update, layout.reduction, str(layout.ps), plan.proxied)
        if key not in self._known:
            found = self._calibrate(plan, launcher, _told(notify, "calibration"))
            if isinstance(found, Manifest):
                return found
            self._known[key] = found
        return self._known[key]

    def _calibrate(self, plan: Plan, launcher: Launcher, notify: Notify) -> _Calibrated | Manifest:
        """As few workers as the target takes, three steps; the folder is kept only if something is wrong with it.

        A crash or a hang is judged in the place of the run: it is one without a fault.
        """
        folder = plan.out.with_name(f"{plan.out.name}.calibration-{os.urandom(4).hex()}")
        dial_each_other = plan.layout.all_reduce and plan.proxied
        workers = max(plan.target.min_workers, 2 if dial_each_other else 1)
        layout = replace(
            plan.layout,
            workers=workers,
            quorum=min(plan.layout.quorum, 1) * workers,
            local_steps=1,
            accumulate=1,
            drop_after=0.0,
            replication="between-graph",
            optimizer="sgd",
            schedule="constant",
            clip_norm=0.0,
            clip_when=Layout.clip_when,
        )
        workload = Workload(seed=plan.workload.seed, steps=STEPS, scales=SCALES)
        calm = _calm(plan, out=folder, layout=layout, workload=workload, learns=plan.proxied)
        server = self._server_for(calm, notify)
        launcher.scratch(folder)
        try:
            manifest = self._execute(calm, launcher, server=server, notify=notify)
        except (KeyboardInterrupt, SystemExit):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            launcher.scratch(folder, mine=False)  # from here on it is evidence, or deleted below
        if not finished(folder, manifest):
            plan.out.mkdir(parents=True, exist_ok=True)
            folder.rename(plan.out)
            manifest.calibration, manifest.repeat = True, plan.repeat
            manifest.workload = structs.replace(manifest.workload, unit=UNIT)
            manifest.write(plan.out)
            if plan.faults:  # its command to run again names the plan there
                write(plan.out / FAULTS, plan_text(plan.faults))
            return manifest
        rate, distinct = learning_rate(folder, manifest), is_distinct(folder, manifest)
        shutil.rmtree(folder)
        pairs = ((link.source, link.destination) for link in map(Link.parse, manifest.dialled))
        return _Calibrated(rate, distinct, Dialled.seen(pairs, shared=manifest.shared_spec) if calm.learns else None)

    def close(self) -> None:
        """End all keepers."""
        for close in (*(launcher.close for launcher in self._launchers.values()), self._close_server):
            with contextlib.suppress(OSError):
                close()
        self._launchers.clear()

    def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server[0].close()


def need_machine(plan: Plan) -> None:
    """Raises PsconformError, before anything is started, if this machine lacks what the tasks of a plan take."""
    if plan.containers is not None:
        engine()
    elif plan.launcher == PROCESS:
        for part, module in plan.target.modules.items():
            part.need_module(module)
    if SAMPLES in plan.workload.shows:  # psconform itself reads them
        SCIKIT_LEARN.need_module("sklearn")
    need_gpus(plan.layout, containers=plan.containers is not None)


def _told(notify: Notify, what: str) -> Notify:
    """Progress of another run than that which was asked for."""
    return lambda progress: notify(replace(progress, what=", ".join(filter(None, (what, progress.what)))))


def _unit(plan: Plan, known: _Calibrated | None) -> float:
    """What one gradient, applied once, leaves in a slot."""
    layout = plan.layout
    if plan.target.unit is not None:
        return plan.target.unit(layout)
    assert known is not None
    share = layout.per_round if layout.update == "sync" and plan.target.claimed(layout).averages else 1
    rate = known.rate if plan.target.learning_rate is None else plan.target.learning_rate
    return UNIT * rate / share


def _key(plan: Plan) -> _Key:
    """Plans of the same key run on the same launcher."""
    return plan.launcher, plan.containers if plan.containers is not None else plan.target.preload


def _calm(plan: Plan, **changes: Any) -> Plan:
    """Fault-free, for calibration and comparison."""
    return replace(plan, faults=(), checkpoint_every=0, checkpoint_seconds=0.0, **changes)


def _beside(plan: Plan) -> Iterator[Plan]:
    """What a run is judged by, to be run first, into folders of its own.

    Order is judged only where a plain ledger of the same set-up is clean; a model trained in-graph or model-parallel is
    compared with the same training between-graph.
    """
    if ORDER in plan.workload.shows:
        yield _calm(plan, out=plan.out / PLAIN, workload=structs.replace(plan.workload, name=Ledger.name))
    if not plan.workload.is_ledger and plan.layout.has_twin:
        yield _calm(plan, out=plan.out / TWIN, layout=replace(plan.layout, replication="between-graph"))


def _rate(plan: Plan, unit: float) -> float:
    """What the probe multiplies a model's gradient with, so that a round or an update has the plan's learning rate.

    With an optimizer, a schedule or clipping the trainer applies the rate, and gets the gradient as it is: of a round
    their mean, of an update in async the gradient.
    """
    layout, speed = plan.layout, plan.workload.learning_rate if plan.layout.plain else 1.0
    mean = layout.update == "sync" and plan.target.claimed(layout).averages
    own = unit / UNIT * (layout.per_round if mean else 1)  # of a gradient that nobody else's is averaged with
    return speed / (own if mean or layout.update == "async" else own * layout.per_round)


def _stamp(source: str) -> str:
    path = Path(source)
    return str(path.stat().st_mtime_ns) if path.is_file() else ""
