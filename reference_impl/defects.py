"""Deliberate bugs by name: what they do to a run, and which check must find them, says ``psconform list defects``."""

from __future__ import annotations

from . import faulty_claims as claims
from . import faulty_clients as clients
from . import faulty_membership as membership
from . import faulty_modes as modes
from . import faulty_network as network
from . import faulty_optimizers as optimizers
from . import faulty_recovery as recovery
from . import faulty_shards as shards
from . import faulty_workers as workers
from . import reorder, samples
from .chief import RecoveringChief
from .in_graph import InGraph
from .membership import DroppingChief
from .model_parallel import ModelParallel
from .optimizers import OptimizingShard, RecoverableOptimizingShard
from .quorum import QuorumWorker
from .recovery import RecoveringWorker
from .shard import Shard, ShardConfig
from .trainer import Worker


def _with_shard(kind: type[Shard]) -> type[Worker]:
    return type(f"{kind.__name__}Worker", (Worker,), {"shard_type": kind})


WORKERS: dict[str, type[Worker]] = {
    "": Worker,
    "drop-gradient": _with_shard(shards.DropGradient),
    "apply-twice": _with_shard(shards.ApplyTwice),
    "flip-sign": _with_shard(shards.FlipSign),
    "scale-500th": _with_shard(shards.Scale500th),
    "sum-not-mean": _with_shard(shards.SumNotMean),
    "wrong-n": _with_shard(shards.WrongN),
    "unequal-weights": _with_shard(shards.UnequalWeights),
    "early-commit": _with_shard(shards.EarlyCommit),
    "early-release": workers.EarlyRelease,
    "run-ahead": workers.RunAhead,
    "late-to-next-round": workers.LateToNextRound,
    "ack-before-apply": workers.AckBeforeApply,
    "stale-cache": workers.StaleCache,
    "torn-read": workers.TornRead,
    "unlocked-updates": _with_shard(shards.UnlockedUpdates),
    "reinit-on-join": workers.ReinitOnJoin,
    "apply-before-init": workers.ApplyBeforeInit,
    "lose-shard-update": _with_shard(shards.LoseShardUpdate),
    "retry-twice": workers.RetryTwice,
    "bfloat16": _with_shard(shards.BFloat16),
    "clip": _with_shard(shards.Clip),
    "forget-residual": workers.ForgetResidual,
    "reuse-sample": samples.ReuseSample,
    "skip-sample": samples.SkipSample,
    "stale-gradients": samples.StaleGradients,
    "tower-left-out": workers.TowerLeftOut,
    "out-of-order": _with_shard(reorder.OutOfOrder),
    "swap-updates": _with_shard(reorder.SwapUpdates),
    "late-applied": modes.LateApplied,
    "quorum-minus-one": modes.QuorumMinusOne,
    "ssp-off": modes.SspOff,
    "tau-ignored": modes.TauIgnored,
    "nan-applied": _with_shard(shards.NanApplied),
    "nan-swallowed": workers.NanSwallowed,
    "leaves-the-round": membership.LeavesTheRound,
    "data-again": membership.DataAgain,
    # bugs of the one client: between-graph, as which a run of theirs is trained for comparison, too, all is well
    "tower-repeats-batch": Worker,
    "detached-slice": Worker,
}

CLIENTS: dict[str, type[InGraph]] = {
    "in-graph": InGraph,
    "model-parallel": ModelParallel,
    "tower-repeats-batch": clients.RepeatsBatch,
    "detached-slice": clients.DetachedSlice,
}


RECOVERING: dict[str, type[RecoveringWorker]] = {
    "": RecoveringWorker,
    "second-newest": recovery.SecondNewest,
    "failed-shard-only": recovery.FailedShardOnly,
    "no-fence": recovery.NoFence,
    "silent-rollback": recovery.SilentRollback,
    "silent-reinit": recovery.SilentReinit,
    "counter-ahead": recovery.CounterAhead,
    "no-idempotence": recovery.NoIdempotence,
    "ack-early": recovery.AckEarly,
    "restore-on-join": recovery.RestoreOnJoin,
    "torn-restore": recovery.TornRestore,
    "checkpoint-unchecked": recovery.CheckpointUnchecked,
    "cut-in-half": recovery.CutInHalf,
    "counts-twice": recovery.CountsTwice,
    "place-lost": recovery.PlaceLost,
    "third-strike": recovery.ThirdStrike,
    "joins-blind": recovery.JoinsBlind,
    "claims-unchecked": claims.ClaimsUnchecked,
    "samples-repeated": recovery.SamplesRepeated,
    "samples-skipped": recovery.SamplesSkipped,
    "adam-slots-lost": optimizers.MomentsLost,
    "momentum-lost": optimizers.MomentsLost,
    "schedule-restarts": optimizers.ScheduleRestarts,
    "drops-early": membership.DropsEarly,
    "never-taken-back": membership.NeverTakenBack,
    "timeout-drops": network.TimeoutDrops,
    "retry-as-second": network.RetryAsSecond,
    "ack-from-cut": network.AckFromCut,
    "backoff-unbounded": network.BackoffUnbounded,
    "heartbeat-apart": network.HeartbeatApart,
}
"""Of the chief, where the bug is its own; it has those of all workers, too."""


def survivor_type(defect: str, config: ShardConfig, *, chief: bool) -> type[RecoveringWorker]:
    """The worker that survives, or the chief, with this bug or, without one, healthy."""
    kind = _survivor_type(defect, chief=chief)
    kind = DroppingChief if kind is RecoveringChief and config.drop_after else kind
    if config.plain or issubclass(kind.shard_type, RecoverableOptimizingShard):
        return kind
    return type(f"Optimizing{kind.__name__}", (kind,), {"shard_type": RecoverableOptimizingShard})


def _survivor_type(defect: str, *, chief: bool) -> type[RecoveringWorker]:
    kind = RECOVERING[defect]
    if not chief:
        return RecoveringWorker if issubclass(kind, RecoveringChief) else kind
    if issubclass(kind, RecoveringChief):
        return kind
    return type(f"{kind.__name__}Chief", (kind, RecoveringChief), {}) if defect else RecoveringChief


def worker_type(defect: str, config: ShardConfig) -> type[Worker]:
    """The worker with this bug or, without one, the healthy worker of this set-up."""
    if defect:
        return WORKERS[defect]
    if not config.plain:
        return _with_shard(OptimizingShard)
    return QuorumWorker if config.quorum else Worker


def client_type(defect: str, replication: str) -> type[InGraph]:
    """The one client of a run that is not between-graph, with this bug or, without one, healthy."""
    return CLIENTS[defect or replication]
