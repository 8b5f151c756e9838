"""psconform from Python: ``psconform.judge(...) -> Run``."""

from __future__ import annotations

import atexit
import os
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec

from rich.text import Text

from .anomalies import Anomaly
from .errors import BadInput
from .history.reasons import FaultMissed
from .launchers.local import temporary_folder
from .options import OPTIONS, Options
from .report.text import explain, table
from .runner.plan import Plan, make_plan
from .runner.progress import Notify
from .runner.session import Session
from .runner.verdicts import Judged, judge_folder, store
from .sizes import parse_size
from .verdict import Coverage, Verdict

Given = ParamSpec("Given")


class Run:
    """One judged run: its folder, its verdicts, and what they mean."""

    def __init__(self, judged: Judged, *, temporary: bool = False) -> None:
        self._judged = judged
        if temporary:
            weakref.finalize(self, _remove, judged.folder, os.getpid())

    @property
    def folder(self) -> Path:
        """The run folder; ``psconform check FOLDER`` judges it again. A temporary one goes with this object."""
        return self._judged.folder

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdicts by the name of the guarantee, such as ``S1``."""
        return {verdict.guarantee: verdict for verdict in self._judged.verdicts}

    @property
    def violated(self) -> tuple[str, ...]:
        """Names of the guarantees that did not hold."""
        return tuple(self._judged.names("violated"))

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """What went unusually, with which task and since when; changes no verdict."""
        return self._judged.anomalies

    @property
    def valid(self) -> bool:
        """Every claimed guarantee that this workload can show held."""
        return self._judged.exit_code == 0

    @property
    def exit_code(self) -> int:
        """What ``psconform run`` would exit with: 0, 1 or 2."""
        return self._judged.exit_code

    @property
    def coverage(self) -> Coverage:
        """How many of the faults of its plan were observed."""
        return self._judged.coverage

    @property
    def missed(self) -> tuple[FaultMissed, ...]:
        """Faults of the plan that were not injected, not observed or not healed, each with the reason."""
        return self._judged.history.missed

    @property
    def unused(self) -> tuple[str, ...]:
        """Faults of the plan, as it spells them, that strike links which no task of the calibration used."""
        return tuple(self._judged.manifest.unused)

    @property
    def repeat(self) -> str:
        """The command line that runs the same again."""
        return self._judged.manifest.repeat

    def text(self, *, verbose: bool = False) -> Text:
        """``explain`` with colours, for rich."""
        return table(self._judged, verbose=verbose)

    def explain(self, *, verbose: bool = False) -> str:
        """The table that ``psconform run`` prints, as plain text; ``verbose``: with ``-v``."""
        return explain(self._judged, verbose=verbose)

    def as_dict(self) -> dict[str, Any]:
        """The content of verdicts.json."""
        return self._judged.as_dict()

    def __repr__(self) -> str:
        state = "valid" if self.valid else f"violated {', '.join(self.violated)}" if self.violated else "unknown"
        return f"<Run {self.folder}: {state}>"


def _remove(folder: Path, pid: int) -> None:
    """Delete a temporary run folder; not in a process that was forked off, which has a copy of the ``Run``."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def default_session() -> Session:
    """The session behind ``judge``: its warm processes live as long as this one."""
    session = Session()
    atexit.register(session.close)
    return session


@dataclass(frozen=True, kw_only=True)
class _Call(Options):
    """The arguments of ``judge``."""

    session: Session | None = None
    notify: Notify = lambda _: None


def _with_arguments_of(call: Callable[Given, _Call]) -> Callable[[Callable[[_Call], Run]], Callable[Given, Run]]:
    """Makes of a function of a call one of its arguments, which mypy, editors and ``help`` know."""

    shown = signature(call).replace(return_annotation="Run")
    known = shown.parameters

    def of(function: Callable[[_Call], Run]) -> Callable[Given, Run]:
        @wraps(function)
        def typed(*args: Given.args, **kwargs: Given.kwargs) -> Run:
            for name in kwargs.keys() - known:
                raise BadInput(f"psconform.{function.__name__}", "unknown argument", value=name, choices=known)
            return function(call(*args, **kwargs))

        arguments = "\n".join(f"        {option.name}: {option.help}" for option in OPTIONS.values())
        typed.__doc__ = (function.__doc__ or "").replace("    Args:\n", f"    Args:\n{arguments}\n")
        vars(typed)["__signature__"] = shown
        return typed

    return of


@_with_arguments_of(_Call)
def judge(call: _Call) -> Run:
    """Run a target once on a real cluster and judge it.

    Options are those of ``psconform run``. A time may be a number of seconds, too; an option that may be given several
    times is one text or several, of ``slow`` and ``batches`` also a mapping, ``{"worker:1": 0.05}``; ``faults`` may be
    the text of a plan. Without ``out`` the run folder is a temporary one, which is deleted with the ``Run`` that is
    returned; if this raises, its logs are kept until ``psconform clean``.

    Args:
        session: keeps warm processes between runs; by default one per Python process.
        notify: called with a ``Progress`` about twenty times a second.

    Raises:
        BadInput: an unknown argument, or an option, a target file or an update rule that cannot be judged.
        PsconformError: the cluster could not be started.
    """
    plan = make_plan(call)
    if call.out is None:
        plan = replace(plan, out=temporary_folder())
    try:
        judged = _judged(plan, session=call.session or default_session(), notify=call.notify)
        return Run(judged, temporary=call.out is None)
    except BaseException:
        if call.out is None and not any(plan.out.iterdir()):
            plan.out.rmdir()
        raise


def run_plan(plan: Plan, *, session: Session, notify: Notify = lambda _: None) -> Run:
    """Run a plan, judge it, store the verdicts. Raises as ``judge`` does."""
    return Run(_judged(plan, session=session, notify=notify))


def _judged(plan: Plan, *, session: Session, notify: Notify) -> Judged:
    session.run(plan, notify=notify)
    judged = judge_folder(plan.out)
    store(judged)
    return judged


def check(folder: str | Path, *, max_record: str = "") -> Run:
    """Judge a stored run again, offline.

    Args:
        folder: a run folder.
        max_record: how large an event file may be, such as ``1GiB``; by default as large as in the run.

    Raises:
        BadInput: not a run folder, or one that cannot be read; names file and line.
    """
    limit = parse_size(max_record, place=OPTIONS["max_record"].flag) if max_record else 0
    return Run(judge_folder(Path(folder), max_record=limit))
