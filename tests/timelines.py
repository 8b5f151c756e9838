"""Histories made of nothing but times: who read, pushed and was answered when; for the detectors of anomalies."""

from __future__ import annotations

import numpy as np

from psconform.claims import DEFAULTS
from psconform.history.columns import OK, Pushes, Reads, no_odd
from psconform.history.model import History, Worker
from psconform.layout import Layout

START_NS = 7_000_000_000_000


def steps_of(count, *, step_s=0.01, own_s=0.001, begin_s=0.0):
    """(read, push, answer) of each step in seconds, back to back."""
    times = begin_s + step_s * np.arange(count)
    return np.column_stack([times, times + own_s, times + 0.9 * step_s])


def held(times, *, step, event, by_s):
    """The same with everything from that event of a step on later: 0 read, 1 push, 2 answer."""
    flat = times.reshape(-1).copy()
    flat[3 * step + event :] += by_s
    return flat.reshape(-1, 3)


def worker_of(index, times, *, steps, workers, boot="b", final_s=None, ended=True):
    count = len(times)
    ns = (np.asarray(times) * 1e9).astype(np.int64) + START_NS
    through = final_s is not None
    at = np.append(ns[:, 0], [int(final_s * 1e9) + START_NS] if through else []).astype(np.int64)
    each = np.arange(count)
    read = np.append(each, [steps] if through else []).astype(np.int64)
    clock = np.zeros((len(at), 1, workers), np.int64)
    reads = Reads(
        step=read,
        use=np.zeros(len(read), np.int64),
        final=read == steps,
        after=np.minimum(read, count),
        at=at,
        clock=clock,
        nonce=np.ones((len(at), 1)),
        versions=None,
        odd=no_odd(),
        epoch=np.zeros(len(at), np.int64),
        life=np.zeros(len(at), np.int64),
    )
    one, none = np.ones(count, np.int64), np.zeros(count, np.int64)
    pushes = Pushes(
        step=each,
        attempts=one,
        outcome=one * OK,
        width=none,
        versions=np.zeros((count, 0), np.int64),
        read=each,
        first=3 * each + 1,
        last=3 * each + 1,
        at=ns[:, 1],
        answered=np.where(np.isnan(np.asarray(times)[:, 2]), 0, ns[:, 2]),
        epoch=none,
        refused=none,
    )
    return Worker(index, reads, pushes, each, ended, boot)


def history_of(*times, update="async", steps=None, until_s=0.0, ps=1, boots=None, through=None, **more):
    """One worker for each list of times; those that have all steps are through."""
    steps = steps or max(map(len, times))
    layout = Layout(ps=ps, workers=len(times), update=update, **more)
    done = [len(t) == steps for t in times] if through is None else through
    last = max(float(np.nanmax(t)) for t in times)
    workers = tuple(
        worker_of(
            i,
            t,
            steps=steps,
            workers=len(times),
            boot=(boots or ["b"] * len(times))[i],
            final_s=last + 0.1 if done[i] else None,
            ended=done[i],
        )
        for i, t in enumerate(times)
    )
    return History(
        layout=layout,
        claims=DEFAULTS[update],
        steps=steps,
        workers=workers,
        inits=(),
        variables=1,
        shards=(0,),
        scale=1.0,
        gaps=(),
        until=int((until_s or last + 0.2) * 1e9) + START_NS,
    )
