"""What is simulated: a layout, how its tasks train, a network, and faults; all of it drawn from one seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from ..errors import BadInput
from ..faults.kinds import Kind
from ..faults.packet_faults import DROP
from ..faults.process_faults import KILL, STOP
from ..faults.proxy_faults import STALL
from .server import Rules
from .worker import Habits
from .world import Network

KINDS = (KILL, STOP, DROP, STALL)
MODES = ("sync", "quorum", "async", "bounded", "staleness-aware")
REPLICAS = AR, LOCAL = "all-reduce", "local-steps"
"""Modes without a ps."""
EIGHTH = 8
"""One in so many schedules, if the mode is drawn, is of replicas."""
GANG = 7
"""In one of so many schedules with checkpoints all tasks are killed at once."""
RESTARTED = 2
"""So are they in one of so many schedules of an all-reduce."""
ELASTIC = 2
"""In one of so many others of an all-reduce one replica is killed, and started again alone."""
OVERFLOW = 5
"""In one of so many sync schedules up to a quarter of the rounds is skipped by all."""
ACCUMULATED = 5
"""In one of so many sync schedules, and of an all-reduce, each worker adds up gradients for a round."""
WEIGHTED = 6
"""In one of so many sync schedules a round is a weighted mean."""
STATED = 3
"""In one of so many schedules of replicas these have a state beside the parameters."""
QUEUED = 6
"""In one of so many async schedules a queue deals out the work."""
RECOVER = ("sync", "async")
"""Modes that have checkpoints; an all-reduce has some where all tasks are killed."""


@dataclass(frozen=True)
class Fault:
    """A fault, injected so many seconds after ``worker`` begins to send its gradient of ``step``.

    A kill and a stop have one task; a drop (messages are lost) and a stall (they are held back) have links.
    ``lasts_s``: until then; None: a worker that is killed for good.
    """

    kind: Kind
    tasks: tuple[str, ...]
    worker: int
    step: int
    after_s: float = 0.0
    lasts_s: float | None = 1.0
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """A run, as it will happen each time."""

    seed: int = 0
    mode: str = "sync"
    ps: int = 1
    workers: int = 2
    variables: int = 1
    steps: int = 10
    reduction: str = "mean"
    quorum: int = 0
    staleness: int | None = None
    local_steps: int = 1
    accumulate: int = 1
    delivery: str = "exactly-once"
    every: int = 0
    elastic: bool = False
    state: bool = False
    drop_after: float = 0.0
    live: bool = False
    weights: tuple[int, ...] = ()
    skips: tuple[int, ...] = ()
    work: tuple[int, ...] = ()
    versions: bool = True
    compute_s: float = 0.005
    slow: tuple[float, ...] = ()
    network: Network = field(default_factory=Network)
    faults: tuple[Fault, ...] = ()

    @property
    def sync(self) -> bool:
        """Training is by rounds."""
        return self.mode in ("sync", "quorum", *REPLICAS)

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, the servers first."""
        return (*(f"ps:{n}" for n in range(self.ps)), *(f"worker:{n}" for n in range(self.workers)))

    @property
    def rules(self) -> Rules:
        """What its servers do."""
        return Rules(
            self.workers,
            per_round=(self.quorum or self.workers) if self.sync else 0,
            last=self.habits.rounds(self.steps),
            mean=self.reduction != "sum",
            live=self.live,
            accumulate=self.accumulate,
            weights=self.weights,
            aware=self.mode == "staleness-aware",
            once=self.delivery != "at-least-once",
            skipped=frozenset(self.skips),
            work=self.work,
        )

    @property
    def habits(self) -> Habits:
        """What its workers do."""
        tries = {"exactly-once": "always", "at-least-once": "recorded", "at-most-once": "never"}[self.delivery]
        return Habits(
            self.steps,
            sync=self.sync,
            full=self.sync and not self.quorum,
            accumulate=self.accumulate,
            staleness=self.staleness,
            tries=tries,
            every=self.every,
            patience=self.drop_after,
            work=bool(self.work),
        )


def draw(seed: int, *, mode: str = "", faults: bool = True) -> Schedule:
    """A healthy schedule: what its trainer claims, it keeps.

    Raises:
        BadInput: no such mode.
    """
    if mode and mode not in (*MODES, *REPLICAS):
        raise BadInput("--mode", "unknown mode", value=mode, choices=(*MODES, *REPLICAS))
    random = Random(f"schedule {seed}")
    if not mode and seed % EIGHTH == 0:
        mode = random.choice(REPLICAS)
    mode = mode or random.choice((*RECOVER, *RECOVER, *MODES))
    workers, ps = random.randint(2, 4), random.randint(1, 3)
    deliveries = ("exactly-once", "exactly-once", "at-least-once", "at-most-once") if mode == "async" else ()
    delivery = random.choice(deliveries or ("exactly-once",))
    steps = random.randint(4, 14)
    every = random.choice((0, 2, 3, 5)) if mode in RECOVER and delivery == "exactly-once" else 0
    schedule = Schedule(
        seed=seed,
        mode=mode,
        ps=0 if mode in REPLICAS else ps,
        workers=workers,
        variables=random.choice((1, 1, 2)),
        steps=steps,
        reduction=random.choice(("mean", "sum")) if mode in ("sync", "quorum", "all-reduce") else "mean",
        quorum=random.randint(1, workers) if mode == "quorum" else 0,
        staleness=random.randint(0, 4) if mode == "bounded" else None,
        local_steps=random.randint(2, 4) if mode == "local-steps" else 1,
        delivery=delivery,
        every=every,
        versions=mode in ("quorum", "staleness-aware") or (mode not in REPLICAS and random.random() < 0.7),
        compute_s=random.choice((0.0, 0.002, 0.02)),
        slow=tuple(random.choice((1.0, 1.0, 3.0, 20.0)) for _ in range(workers)),
        network=_network(random, doubled=delivery != "at-least-once"),
        faults=(),
    )
    if mode == "sync" and seed % OVERFLOW == 0:
        few = Random(f"skips {seed}")
        schedule = replace(schedule, skips=tuple(sorted(few.sample(range(steps), few.randint(1, steps // 4)))))
    if faults and random.random() >= 0.2:
        schedule = _with_faults(schedule, random)
    job = Random(f"job {seed}")
    if faults and mode == AR and not job.randrange(RESTARTED):
        schedule = replace(schedule, every=job.choice((2, 3, 5)))
        schedule = replace(schedule, faults=(*schedule.faults, *_restarts(schedule, job)))
    elif faults and mode == AR and not job.randrange(ELASTIC):
        schedule = replace(schedule, elastic=True, faults=(*schedule.faults, *_rejoins(schedule, job)))
    if mode == "sync" and seed % WEIGHTED == 0 and schedule.reduction == "mean" and not schedule.drop_after:
        samples = Random(f"weights {seed}")
        weights = tuple(samples.choice((1, 2, 10, 37)) for _ in range(workers))
        schedule = replace(schedule, reduction="weighted", weights=weights)
    whole = schedule.every or schedule.elastic or schedule.weights
    if mode in ("sync", AR) and seed % ACCUMULATED == 2 and not whole:
        schedule = replace(schedule, accumulate=Random(f"accumulate {seed}").randint(2, 4))
    if mode in REPLICAS and seed % STATED == 0:
        schedule = replace(schedule, state=True)
    if mode == "async" and seed % QUEUED == 4 and delivery != "at-most-once":
        schedule = _queued(schedule, Random(f"work {seed}"), faults=faults)
    return schedule


def _queued(schedule: Schedule, random: Random, *, faults: bool) -> Schedule:
    """A queue of one ps deals out the work, no more than one worker can do; a worker may die, and stay away."""
    number = random.randint(schedule.steps // 2 + 1, schedule.steps)
    work = tuple(random.sample(range(number), number))
    share = 2 + number // schedule.workers  # so many steps a worker comes to
    compute_s, slow = random.choice((0.002, 0.02, 0.05)), random.choices((1.0, 3.0, 20.0), k=schedule.workers)
    schedule = replace(schedule, ps=1, every=0, work=work, faults=(), compute_s=compute_s, slow=tuple(slow))
    found = _with_faults(replace(schedule, steps=share), random).faults if random.random() >= 0.5 else ()
    if random.random() >= 0.3:
        leaver, lasts = random.randrange(1, schedule.workers), random.choice((1.0, 5.0, None, None))
        after, step = random.choice((0.0, 0.01, 0.1)), random.randrange(share)
        found = (*found, Fault(KILL, (f"worker:{leaver}",), worker=leaver, step=step, after_s=after, lasts_s=lasts))
    return replace(schedule, faults=found if faults else ())


def _network(random: Random, *, doubled: bool) -> Network:
    return Network(
        jitter_s=random.choice((0.0, 0.002, 0.05)),
        loss=random.choice((0.0, 0.0, 0.01, 0.1)),
        doubled=random.choice((0.0, 0.05)) if doubled else 0.0,
        ordered=random.random() < 0.5,
    )


def _with_faults(schedule: Schedule, random: Random) -> Schedule:
    kinds = [*KINDS, KILL, KILL] if schedule.every else [kind for kind in KINDS if kind is not KILL]
    found = []
    for _ in range(random.randint(1, 4)):
        kind, step = random.choice(kinds), random.randrange(1, schedule.steps)
        ps, number = random.randrange(max(1, schedule.ps)), random.randrange(schedule.workers)
        worker, peer = f"worker:{number}", f"worker:{(number + 1) % schedule.workers}"
        server = f"ps:{ps}" if schedule.ps else peer
        links = random.choice((((server, worker),), ((worker, server),), ((server, worker), (worker, server))))
        link = kind in (DROP, STALL)
        found.append(
            Fault(
                kind,
                (worker, server) if link else (random.choice((server, worker)),),
                worker=random.randrange(schedule.workers),
                step=step,
                after_s=random.choice((0.0, random.random() * 0.05)),
                lasts_s=random.choice((0.01, 0.3, 2.0)),
                links=links if link else (),
            )
        )
    if schedule.every and schedule.seed % GANG == 1:  # all are started again
        found = _restarts(schedule, random)
    if schedule.every and schedule.sync and schedule.seed % GANG == 2:  # one is evicted, and may never come back
        found.append(_leaves(schedule, random))
        schedule = replace(schedule, drop_after=random.choice((0.5, 2.0)), live=random.random() < 0.5)
    return replace(schedule, faults=tuple(found))


def _restarts(schedule: Schedule, random: Random) -> list[Fault]:
    """All tasks are killed at once, and started again."""
    step, number = random.randrange(1, schedule.steps), random.randrange(schedule.workers)
    return [Fault(KILL, (task,), worker=number, step=step) for task in schedule.tasks]


def _rejoins(schedule: Schedule, random: Random) -> list[Fault]:
    """One task is killed once or twice, at any moment of a round, and its gradient may have reached some of its peers.

    No other task is killed, so that the state of the job is not lost.
    """
    index, faults = random.randrange(schedule.workers), list[Fault]()
    task, peer = (f"worker:{(index + number) % schedule.workers}" for number in (0, 1))
    for _ in range(random.randint(1, 2)):
        number, step = random.randrange(schedule.workers), random.randrange(1, schedule.steps)
        after_s, lasts_s = random.random() * random.choice((0.0, 0.01, 0.1)), random.choice((0.01, 0.3, 2.0))
        if not random.randrange(2):
            number, lost = index, ((task, peer),)
            faults.append(Fault(DROP, (task, peer), worker=index, step=step - 1, lasts_s=lasts_s, links=lost))
        faults.append(Fault(KILL, (task,), worker=number, step=step, after_s=after_s, lasts_s=lasts_s))
    return faults


def _leaves(schedule: Schedule, random: Random) -> Fault:
    step, lasts = random.randrange(1, schedule.steps), random.choice((1.0, 5.0, None))
    leaver = f"worker:{random.randrange(1, schedule.workers)}"
    return Fault(KILL, (leaver,), worker=random.randrange(schedule.workers), step=step, lasts_s=lasts)
