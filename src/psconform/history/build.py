"""Run folder -> History: reads every event file, checks it against the manifest, decodes and indexes it."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from ..errors import Malformed
from ..files import open_regular, tail
from ..layout import Task
from ..models import Data
from ..probe import SAMPLES, WEIGHTS
from ..trained import DATA
from . import logs
from .columns import FAILED, OK, OUTCOMES
from .decode import decode_worker
from .events import AnyEvent, End, Exit, FaultEvent, Push, Samples, Update, Without
from .events import Init as InitEvent
from .events import Poison as PoisonEvent
from .events import Slip as SlipEvent
from .events import State as StateEvent
from .gaps import NOT_ENDED, Files, devices_of, elsewhere, endless, unbroken, unsaid, unwritable
from .incarnations import Life, joined
from .incarnations import marks as marks_of
from .manifest import Manifest
from .model import History, Init, Worker
from .reader import EventFile, read_events
from .reasons import (
    Decided,
    EndedEarly,
    FailedAfterEnd,
    FaultMissed,
    Missed,
    NoEnd,
    NoProgress,
    Reason,
    Stop,
    TaskFailed,
    how_it_ended,
)
from .records import Absence, Harm, Mark, Poisoned, State, Struck
from .slips import Cost, lost_sends, slips_of
from .weights import by_live, by_rate, by_rest, by_weight, rescaled, whole_scale, without_rounding

_NAME = re.compile(r"([a-z][a-z_]*)-([0-9]{1,4})(?:\.([0-9]{1,4}))?\.jsonl")
RUNNER = Task("psconform", 0)
"""The task name under which psconform itself records."""
SHARED_SPEC = (
    "all tasks share one cluster spec, so each is behind one proxy: a fault of links strikes what is sent to that "
    "task, or what it answers, on connections that others have dialled, whoever they are, and none that it dials itself"
)


UNDIALLED = (
    "no fault of the network was drawn: in calibration nothing of training went through the addresses that tasks were "
    "told; they may tell each other addresses of their own"
)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """A million events hold none, and to look for them takes a quarter of the time of judging."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_search_for_cycles()
def load_history(folder: Path, manifest: Manifest | None = None) -> History:
    """Read a run folder.

    Raises:
        BadInput: it is no run folder.
        Malformed: something in it is not what psconform or a probe writes; names file and line.
    """
    manifest = manifest or Manifest.read(folder)
    unit = manifest.workload.unit
    if unit is None or not 1e-30 < unit < 1e30:  # within what float32 slots can hold
        raise Malformed(folder / "manifest.json", f"workload.unit must be positive, got {unit}")
    workers: list[Worker] = []
    shards: tuple[int, ...] | None = None
    own: EventFile | None = None
    said = _Said()
    marks: list[Mark] = []
    poisons: dict[tuple[int, int], Poisoned] = {}
    absences: list[Absence] = []
    states: list[State] = []
    devices: dict[int, tuple[str, ...]] = {}
    slips: dict[Task, list[SlipEvent]] = {}
    last: dict[Task, AnyEvent] = {}
    closed: dict[Task, int] = {}
    files, notes, lost, inits = _of_tasks(_event_files(folder, manifest), manifest)
    for task, paths in sorted(files.items()):
        lives: list[Life] = []
        for life, path in sorted(paths.items()):
            file = _read(path, task, manifest)  # one at a time: they can be large
            if file is None:
                continue
            _check_life(file, path, task=task, life=life)
            notes += [f"{task}'s record ends in a torn line of {file.torn} bytes, which was left out"] * (file.torn > 0)
            inits += _inits(file, task, life)
            last[task] = [event for event in file.events if not isinstance(event, End)][-1]
            closed |= {task: life} if file.ended else {}
            marks += marks_of(file, task=task, life=life)
            absences += _absences(file, manifest)
            slips.setdefault(task, []).extend(file.of(SlipEvent))
            if task == RUNNER:
                own = file
            if task in manifest.layout.worker_tasks:
                worker, placed = decode_worker(file, task=task, folder=folder, manifest=manifest)
                lives.append(Life(life, worker, len(file.events), lost_sends(file.of(SlipEvent))))
                poisons = {(p.worker, p.step): p for p in _poisons(file, task, manifest)} | poisons  # the first counts
                devices |= devices_of(task, file)
                states += _states(file, task, life)
                said.add(file, task)
                shards = _same_shards(path, placed, shards)
        if lives:
            workers.append(joined(lives, steps=manifest.workload.steps))
    lost += unwritable(folder, manifest.layout)
    variables = _variables(folder, workers, shards)
    shards = tuple(range(variables)) if shards is None and variables == manifest.layout.ps and variables else shards
    history = History(
        layout=manifest.layout,
        claims=manifest.claims,
        steps=manifest.workload.steps,
        workers=tuple(_shaped(worker, variables) for worker in workers),
        inits=tuple(inits),
        variables=variables,
        shards=shards,
        scale=1.0,
        gaps=(),
        workload=manifest.workload,
        samples=said.samples,
        resampled=frozenset(said.resampled),
        weights=said.weights,
        work=said.work,
        pieces=said.pieces,
        states=tuple(states),
        data=read_data(folder) if SAMPLES in manifest.workload.shows else None,
        marks=tuple(marks),
        faults=_faults(own, manifest.missed)
        + tuple(_struck(poison) for _, poison in sorted(poisons.items()) if poison.seeded),
        attempts=_faults(own, manifest.missed, observed=False),
        poisons=tuple(poison for _, poison in sorted(poisons.items())),
        absences=tuple(sorted(absences, key=lambda absence: absence.at)),
        devices=devices,
        ended=manifest.status,
        until=own.events[-1].mono_ns if own is not None else 0,
        endless=tuple(reason for reason in manifest.reasons if isinstance(reason, NoEnd)),
        calibration=manifest.calibration,
        dynamic=manifest.dynamic_work,
        missed=manifest.missed,
        slips=tuple(slip for task, events in slips.items() for slip in slips_of(task, events)),
        notes=(
            *([SHARED_SPEC] if manifest.shared_spec else ()),
            *([UNDIALLED] if manifest.undialled else ()),
            *notes,
            *unsaid(manifest.layout, devices),
            *map(str, manifest.harmless),
        ),
        missing=(*lost, *endless(files, own, closed, manifest.layout)),
    )
    history = replace(history, stops=_stops(history, manifest, own))
    if history.stops or history.endless:
        history = replace(history, last_words=_last_words(folder, manifest, last))
    history = replace(history, gaps=(*_gaps(history, manifest, own), *lost))
    return _in_shares(_with_refused_rounds(history))


def _read(path: Path, task: Task, manifest: Manifest) -> EventFile | None:
    return read_events(path, run=manifest.run, name=str(task), limit=manifest.bounds.record)


@dataclass
class _Said:
    """What workers said of their gradients, by worker and step: samples, pieces of work, what they count in a mean.

    ``resampled``: gradients that were sent with other samples each time. A weight that was not the same each time is
    NaN, for the weight of the applied one is not known.
    """

    samples: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    resampled: set[tuple[int, int]] = field(default_factory=set)
    weights: dict[tuple[int, int], float] = field(default_factory=dict)
    work: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    pieces: int = 0

    def add(self, file: EventFile, task: Task) -> None:
        """What one life of a worker said."""
        for event in file.of(Samples):
            grad, ids = (task.index, event.step), tuple(event.ids)
            if self.samples.setdefault(grad, ids) != ids:
                self.resampled.add(grad)
            self.samples[grad] = ids
        pushed: list[Push | Update] = [*file.of(Push), *file.of(Update)]
        mine = {(task.index, push.step): push.work for push in pushed if push.work is not None}
        self.pieces = max([self.pieces, *(push.pieces or 0 for push in pushed)])
        for grad, piece in mine.items():  # within a life, what it sent last for a step
            before = self.work.get(grad, ())
            self.work[grad] = before if piece in before else (*before, piece)
        for push in (push for push in pushed if push.weight is not None):
            grad, weight = (task.index, push.step), push.weight or 0.0
            self.weights[grad] = weight if self.weights.get(grad, weight) == weight else np.nan


def _with_refused_rounds(history: History) -> History:
    """The same history, in which what a worker had only added up was refused if the gradient that completed it was.

    Unless some of the round shows in the end: then that gradient alone was left out.
    """
    several, step = history.layout.accumulate, np.arange(history.steps)
    if several == 1:
        return history
    shown = np.logical_or.reduceat(history.last.ever.any(axis=(0, 1)), step[::several])[step // several]
    completes = np.minimum(step - step % several + several, history.steps) - 1
    refused = (history.outcomes == FAILED)[:, completes] & ~shown
    workers = []
    for worker in history.workers:
        pushes = worker.pushes
        too = refused[worker.index, pushes.step] & (pushes.outcome == OK)
        outcome, times = np.where(too, FAILED, pushes.outcome), np.where(too, pushes.attempts, pushes.refused)
        workers.append(replace(worker, pushes=replace(pushes, outcome=outcome, refused=times)))
    return replace(history, workers=tuple(workers))


def _in_shares(history: History) -> History:
    """The same history, in which a gradient with the share that it should have of its round counts for one."""
    if WEIGHTS not in history.workload.shows:
        return history
    weighted = history.claims.reduction == "weighted"
    history = by_weight(history) if weighted else history  # before counts are rounded: of those none need be whole
    history = without_rounding(history) if history.workload.distinct else history
    history = history if weighted else by_rest(by_live(history))
    # where each gradient has a weight of its own, many may have the same one; of local steps C5 knows what each is
    constant = history.claims.rate == "constant" and history.layout.local_steps == 1
    history = by_rate(history) if constant and not weighted else history
    scale = whole_scale(history) if constant else 1.0
    return history if scale == 1.0 else rescaled(history, scale)


def _check_life(file: EventFile, path: Path, *, task: Task, life: int) -> None:
    if file.start.incarnation != life:
        problem = f"is incarnation {file.start.incarnation} of {task}, not {life} as its name says"
        raise Malformed(path, problem, line=1)


def _same_shards(path: Path, placed: tuple[int, ...] | None, before: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The ps of each variable, where any worker has said it; raises Malformed if two disagree."""
    if placed is not None and before not in (None, placed):
        raise Malformed(path, f"shards are {list(placed)}, {list(before or ())} in another worker's record")
    return placed if before is None else before


def read_data(folder: Path) -> Data:
    """What was trained on; raises Malformed, naming the file, if it is missing or something else."""
    try:
        with open_regular(folder / DATA) as file:
            return Data.load(file)
    except OSError as error:
        raise Malformed(folder / DATA, f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise Malformed(folder / DATA, str(error)) from None


def _last_words(folder: Path, manifest: Manifest, last: dict[Task, AnyEvent]) -> dict[str, str]:
    """By task, what it recorded and logged last, and where it is stuck, for the witness of a hang or a crash."""
    lines = {}
    for task in manifest.layout.all_tasks:
        event = last.get(task)
        step = getattr(event, "step", None)
        what = "recorded nothing" if event is None else f"recorded {event.__struct_config__.tag} last"
        what += f", of step {step}" if step is not None else ""
        own_words, stack = logs.split(tail(folder / "logs" / f"{task.slug}.log", logs.LOOKED_AT))
        what += f"; it is in {stack}" if stack else ""
        said = [line for line in own_words.splitlines() if line.strip()][-1:]
        lines[str(task)] = f"{task} {what}" + (f"; its log ends: {said[0][: logs.LENGTH]}" if said else "")
    return lines


def _faults(own: EventFile | None, missed: Sequence[FaultMissed] = (), *, observed: bool = True) -> tuple[Struck, ...]:
    """Faults that took effect, with what became of them; or those that may have: injected, and not observed."""
    untrue = {reason.number for reason in missed if reason.how is Missed.RECORD_WENT_ON}
    told = own.of(FaultEvent) if own is not None else []
    told = [event for event in told if (event.observed and event.number not in untrue) is observed]
    found: list[Struck] = []
    last: dict[tuple[str, str, str, int | None], int] = {}  # of one that strikes again and again, the last
    for event in told:
        which = event.fault, event.of, event.at, event.number
        when = event.did_ns or event.mono_ns
        if event.on:
            last[which] = len(found)
            said = event.fault, event.of, event.at, event.evidence, ""
            more = {name: getattr(event, name) for name in ("file", "harm", "tasks", "number", "words", "ends")}
            found.append(Struck(*said, on_ns=when, **more))
        elif which in last:
            found[last[which]] = replace(found[last[which]], healed=event.evidence, off_ns=when)
    return tuple(found)


def _poisons(file: EventFile, task: Task, manifest: Manifest) -> list[Poisoned]:
    events = file.of(PoisonEvent)
    for event in events:
        if event.step >= manifest.workload.steps:
            raise Malformed(file.path, f"step {event.step} of {manifest.workload.steps}", line=event.seq + 1)
        if event.seeded and not manifest.faults:
            raise Malformed(file.path, "is poisoned, and this run had no faults", line=event.seq + 1)
    return [Poisoned(task.index, e.step, e.value, e.seeded, e.mono_ns) for e in events]


def _states(file: EventFile, task: Task, life: int) -> list[State]:
    return [
        State(
            task.index, life, e.epoch, e.step, e.name, e.digest, None if e.total is None else float(e.total), e.mono_ns
        )
        for e in file.of(StateEvent)
    ]


def _absences(file: EventFile, manifest: Manifest) -> list[Absence]:
    for event in file.of(Without):
        if not (event.worker < manifest.layout.workers and event.step < manifest.workload.steps):
            problem = f"step {event.step} of worker:{event.worker} is none of this run"
            raise Malformed(file.path, problem, line=event.seq + 1)
    return [Absence(event.worker, event.step, event.mono_ns, event.epoch) for event in file.of(Without)]


def _struck(poison: Poisoned) -> Struck:
    at = str(poison.step) + ("" if poison.value == "nan" else f"={poison.value}")
    said = f"its gradient was {poison.value} in every entry"
    kind, of = str(PoisonEvent.__struct_config__.tag), f"worker:{poison.worker}"
    words = f"{kind} {of} at its step {poison.step}"
    return Struck(kind, of, at, said, "", harm=Harm.NONE, tasks=(of,), words=words)


def _event_files(folder: Path, manifest: Manifest) -> Files:
    """By task and incarnation."""
    if not (folder / "events").is_dir():
        raise Malformed(folder, "has no folder events/")
    files: Files = {}
    known = {*manifest.layout.all_tasks, RUNNER}
    for path in sorted((folder / "events").iterdir()):
        match = _NAME.fullmatch(path.name)
        task = Task(match[1], int(match[2])) if match else None
        if task is None or task not in known or path.is_dir():
            hint = "Files here are named JOB-INDEX.jsonl, for the tasks of the layout"
            raise Malformed(path, f"is not an event file of layout {manifest.layout.text}", hint=hint)
        life = int(match[3] or 0) if match else 0
        usual = f"{task.slug}.{life}.jsonl" if life else f"{task.slug}.jsonl"
        if path.name != usual:
            raise Malformed(path, "is not named as psconform names it", hint=f"It would be {usual}")
        if life and not manifest.faults:
            raise Malformed(path, "is of a task that was started again, and this run had no faults")
        files.setdefault(task, {})[life] = path
    return files


def _variables(folder: Path, workers: list[Worker], shards: tuple[int, ...] | None) -> int:
    counts = {worker.reads.clock.shape[1] for worker in workers if len(worker.reads)}
    if len(counts) > 1:
        raise Malformed(folder / "events", f"workers read different numbers of variables: {sorted(counts)}")
    variables = counts.pop() if counts else 0
    for worker in workers:
        if worker.residual is not None and variables and len(worker.residual) != variables:
            problem = f"{worker} has a residual of {len(worker.residual)} variables, the reads have {variables}"
            raise Malformed(folder / "events", problem)
    if shards is not None and len(shards) != variables:
        raise Malformed(folder / "events", f"shards names {len(shards)} variables, the reads have {variables}")
    return variables


def _shaped(worker: Worker, variables: int) -> Worker:
    """One that has read nothing tells nothing of the number of variables, which checks index."""
    reads = worker.reads
    if len(reads):
        return worker
    clock = np.zeros((0, variables, reads.clock.shape[2]), np.int64)
    return replace(worker, reads=replace(reads, clock=clock, nonce=np.zeros((0, variables))))


def _gaps(history: History, manifest: Manifest, own: EventFile | None) -> list[str]:
    known = {fault.number for fault in history.injected if fault.number is not None}
    gaps = [str(reason) for reason in manifest.reasons if not _covered(reason, known)]
    if history.injected and (not history.faults or history.claims.liveness == "may-hang"):
        gaps += map(str, history.endless)  # no guarantee is about them
    if manifest.status not in ("finished", "stalled", "decided"):
        gaps.append(f"the run is {manifest.status}, not finished")
    if own is None:
        gaps.append("psconform's own record of the run is missing")
    else:
        gaps += _ends(history, own, manifest)
    gaps += [*_silent(history), *elsewhere(history.layout, history.devices)]
    gaps += [str(slip) for slip in history.slips if slip.cost is not Cost.NOTHING]
    slipped = {slip.task for slip in history.slips if slip.cost is Cost.SENT}
    for worker in history.workers if not history.stops else ():  # then, what is missing did not happen
        task = Task("worker", worker.index)
        lacks = []
        left = task in (history.left if history.layout.drop_after else history.gone)  # the others do not wait for it
        if not worker.ended and not left and task not in slipped:
            lacks.append("its record has no end event, so it was killed or cut short")
        if (pushed := len(worker.pushes)) < (due := _due(history, worker)):
            lacks.append(f"it pushed {pushed} of {due} gradients")
        if not worker.reads.final.any() and not left:
            lacks.append("it made no final read after every worker was done (probe.read with final=True)")
        if lacks:
            gaps.append(f"{task}: {', '.join(lacks)}")
    return list(dict.fromkeys(gaps))


def _due(history: History, worker: Worker) -> int:
    """How many gradients a worker had to push."""
    if history.dynamic or (history.layout.quorum and worker.ended and _rounds_over(history)):
        return 0  # where a round does not wait for all, the rounds may be over before it has pushed all of its steps
    if not history.layout.drop_after and Task("worker", worker.index) in history.gone:
        return len(worker.pushes)  # with a --drop-after the job says what it goes on without
    return int((~history.excused | (history.outcomes != 0))[worker.index].sum())


def _rounds_over(history: History) -> bool:
    """Whether there were as many rounds as there are steps, by the final reads. Without any it is not known."""
    wanted, finals = history.layout.quorum * history.steps, history.finals
    variables = range(history.variables)
    shown = [min((w.reads.gradients(v)[read] for v in variables), default=0) for w, read in finals]
    if not shown or max(shown) >= wanted:
        return True
    told = ((worker.reads.versions, read) for worker, read in finals)
    versions = [of[read].min() for of, read in told if of is not None and of.shape[1]]
    return max(versions, default=0) >= history.steps and not _counts_gradients(history)


def _counts_gradients(history: History) -> bool:
    """The versions of a ps go up with each gradient, not with each round; every read shows whole rounds of them."""
    for worker, (variable, shard) in product(history.workers, enumerate(history.shards or ())):
        shown, versions = worker.reads.gradients(variable), worker.reads.versions
        if versions is None or versions.shape[1] != history.layout.ps:
            return False
        if (shown != versions[:, shard]).any() or (shown % history.layout.quorum).any():
            return False
    return history.shards is not None


def _silent(history: History) -> list[str]:
    reported = {worker.index for worker in history.workers}
    reported |= {task.index for task in history.left}  # killed before it did anything, and evicted
    silent = (task for task in history.layout.worker_tasks if task.index not in reported)
    return [f"{task} never reported: no probe wrote events for it" for task in silent]


def _stops(history: History, manifest: Manifest, own: EventFile | None) -> tuple[Stop, ...]:
    """What psconform saw of a run that did not come to its end, and workers that ended too early."""
    stops: list[Stop] = [reason for reason in manifest.reasons if isinstance(reason, TaskFailed | NoProgress | Decided)]
    exits = {event.of: event for event in own.of(Exit) if not event.second} if own is not None else {}
    ended = {fault.of for fault in history.injected if fault.harm is Harm.ENDS}  # by a signal that it may heed
    for worker in (worker for worker in history.workers if str(worker) not in ended):
        end, pushed, due = exits.get(str(worker)), len(worker.pushes), _due(history, worker)
        whole = worker.ended or (end is not None and end.recorded_bytes and not history.missing)
        if end is not None and end.status == 0 and not end.stopped and whole and pushed < due:
            stops.append(EndedEarly(str(worker), pushed, due))
    return tuple(stops)


def _covered(reason: Reason, known: set[int]) -> bool:
    """It takes nothing from the record: of a stop, or of a fault that took no effect or left its event."""
    if isinstance(reason, TaskFailed | NoProgress | Decided | NoEnd | FailedAfterEnd):
        return True
    untouched = (Missed.NEVER_INJECTED, Missed.REFUSED)
    return isinstance(reason, FaultMissed) and (reason.how in untouched or reason.number in known)


def _inits(file: EventFile, task: Task, life: int, *, second: bool = False) -> list[Init]:
    return [Init(task, tuple(map(float, event.nonce)), life, second) for event in file.of(InitEvent)]


def _of_tasks(files: Files, manifest: Manifest) -> tuple[Files, list[str], list[str], list[Init]]:
    """These files without those of second processes, which psconform had started beside a task's own; notes of those.

    They were not the task, whatever they say: what they did to the parameters is seen in the reads of the others. Third
    is what is missing of the task's own: see `unbroken`. Last is what second processes have initialised.
    """
    path = files.get(RUNNER, {}).get(0)
    own = _read(path, RUNNER, manifest) if path is not None else None
    seconds = {(event.of, event.incarnation) for event in own.of(Exit) if event.second} if own is not None else set()
    kept = {task: {n: p for n, p in lives.items() if (str(task), n) not in seconds} for task, lives in files.items()}
    left_out = [(task, n, lives[n]) for task, lives in files.items() for n in lives if n not in kept[task]]
    notes = [f"{path.name} is of a second process of {task}, and was left out" for task, _, path in left_out]
    inits: list[Init] = []
    for task, n, path in left_out:
        with suppress(Malformed):
            file = _read(path, task, manifest)
            inits += _inits(file, task, n, second=True) if file is not None else []
    return *unbroken(kept, own, notes), inits


def _ends(history: History, file: EventFile, manifest: Manifest) -> list[str]:
    exits = {event.of: event for event in file.events if isinstance(event, Exit) and not event.second}
    said = {reason.task for reason in manifest.reasons if isinstance(reason, FailedAfterEnd)}
    ended = history.left if history.layout.drop_after else history.gone
    for task in (task for task in ended if str(task) in exits):
        exits[str(task)] = msgspec.structs.replace(exits[str(task)], stopped=True)  # it was to end so
    gaps = [] if file.ended else [NOT_ENDED]
    others = {job for job, _ in history.layout.others}
    for name, event in exits.items():
        if name.partition(":")[0] in others:
            continue  # it has no record that could lack something; that it failed is a stop
        if event.status != 0 and not event.stopped and name not in said and not history.stops:
            gaps.append(f"{name} {how_it_ended(event.status)}")
    return gaps + [f"{task} has no recorded end" for task in history.layout.all_tasks if str(task) not in exits]


def outcome_counts(history: History) -> dict[str, int]:
    """Gradients by outcome over all workers: ok, failed, unknown."""
    return dict(Counter(OUTCOMES[code] for worker in history.workers for code in worker.pushes.outcome))
