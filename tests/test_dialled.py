"""Which tasks dial which: what a calibration learns of a target, and what is drawn and said then."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from psconform.api import judge
from psconform.errors import BadInput
from psconform.faults.fault_generator import drawn_plan
from psconform.faults.kinds import kinds
from psconform.faults.partitions import EVERYBODY, Dialled, region
from psconform.faults.plan_file import load_plan
from psconform.layout import Layout, Task
from psconform.options import Options
from psconform.report.progress_bar import with_warnings
from psconform.runner.plan import fitting, make_plan, unused
from psconform.runner.progress import Progress
from psconform.runner.session import Session

LAYOUT = Layout(ps=2, workers=3)
PS, WORKER = (Task("ps", 0), Task("ps", 1)), Task("worker", 0)
SOCKETS = Path(__file__).parent / "socket_ps" / "target.toml"
SHARED = SOCKETS.with_name("target_shared.toml")
FROM_WORKERS = Dialled.seen([(WORKER, PS[0]), (WORKER, PS[1])])
PAST = """
import pathlib, runpy, sys

here = pathlib.Path(__file__).parent
given = dict(word.split("=", 1) for word in sys.argv[1:])
if given["--job"] == "ps":
    (here / "listens").write_text(given["--ps"])
else:
    given["--ps"] = (here / "listens").read_text()
sys.argv = [str(here / "socket_ps.py"), *map("=".join, given.items())]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NETWORK = "bandwidth,cut,latency,refuse,reset,slice,stall"


def carries(dialled, name, *, one_way=False):
    return dialled.carries(name, region(name, layout=LAYOUT, place="test"), one_way=one_way)


def test_bytes_travel_both_ways_and_only_a_dialler_is_refused():
    for name in ("worker:2->ps:1", "mute worker:2", "isolate ps:0", "deaf ps:1"):
        assert carries(FROM_WORKERS, name, one_way=True), name
    for name in ("ps:1->worker:2", "deaf worker:2", "mute ps:0"):
        assert not carries(FROM_WORKERS, name, one_way=True), name
        assert carries(FROM_WORKERS, name), name
    alone = Dialled.seen([(WORKER, PS[0])])
    assert not carries(alone, "worker:2<->ps:1")
    assert carries(alone, "worker:2<->ps:0")


def test_with_one_proxy_for_each_listener_it_must_be_dialled():
    dialled = Dialled.seen([(EVERYBODY, PS[0])], shared=True)
    assert carries(dialled, "mute ps:0")
    assert not carries(dialled, "mute worker:0")
    assert not carries(dialled, "deaf worker:1", one_way=True)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("sent", [True, False])
def test_no_link_is_drawn_that_no_task_uses(seed, sent):
    given = {"layout": LAYOUT, "steps": 60, "seed": seed, "sent": sent}
    for dialled in (FROM_WORKERS, Dialled.seen([(WORKER, PS[0])])):
        plan = drawn_plan(f"random:{NETWORK}", **given, dialled=dialled)
        assert len(plan) >= 5
        for fault in plan:
            assert dialled.carries(fault.region, fault.links, one_way=kinds()[fault.kind].one_way), fault


def test_others_are_drawn_where_that_is_not_known():
    plans = [drawn_plan(f"random:{NETWORK}", layout=LAYOUT, steps=60, seed=seed) for seed in range(60)]
    of_links = [(f.region, f.links, kinds()[f.kind].one_way) for plan in plans for f in plan]
    assert not all(FROM_WORKERS.carries(name, links, one_way=one_way) for name, links, one_way in of_links)


def test_a_target_that_dials_past_the_addresses_is_broken_by_other_kinds_alone():
    nobody = Dialled.seen([])
    plan = drawn_plan("random", layout=LAYOUT, steps=60, seed=1, dialled=nobody)
    assert plan
    assert not any(fault.links for fault in plan)
    with pytest.raises(BadInput, match="no task dials another by the address that it was told, got 'random:stall"):
        drawn_plan("random:stall,cut", layout=LAYOUT, steps=60, seed=1, dialled=nobody)


def test_only_what_was_drawn_is_drawn_anew(tmp_path):
    options = {"layout": "ps=2,worker=3", "faults": f"random:{NETWORK}", "kill": ["worker:1@7"]}
    for seed in range(20):
        plan = make_plan(Options(str(SOCKETS), update="async", out=tmp_path, seed=seed, **options))
        fitted = fitting(plan, FROM_WORKERS)
        assert [fault for fault in fitted.faults if fault.kind == "kill"] == [
            f for f in plan.faults if f.kind == "kill"
        ]
        assert not unused(fitted, FROM_WORKERS)
    (tmp_path / "plan.toml").write_text('[[fault]]\nkind = "refuse"\nlinks = "ps:0->worker:1"\nat = 3\nfor = "1s"\n')
    plan = make_plan(Options(str(SOCKETS), layout="ps=2,worker=3", faults=tmp_path / "plan.toml", out=tmp_path))
    assert fitting(plan, FROM_WORKERS) == plan, "a person has written it"
    assert unused(plan, FROM_WORKERS) == list(plan.faults)


@pytest.mark.parametrize("stop", ["worker:1@10..15", "ps:0@1s..3s"])
def test_what_would_clash_with_a_fault_that_was_given_is_left_out(tmp_path, stop):
    options = {"layout": "ps=2,worker=3", "update": "async", "faults": "random", "stop": [stop], "out": tmp_path}
    for seed in range(40):
        with contextlib.suppress(BadInput):  # what is drawn first may clash, too: then nothing has been started
            plan = make_plan(Options(str(SOCKETS), seed=seed, **options))
            fitted = fitting(plan, FROM_WORKERS)
            assert len(fitted.faults) >= 5
            assert [str(fault) for fault in fitted.faults].count(str(plan.faults[0])) == 1


def test_a_warning_names_the_fault(capsys):
    from rich.console import Console

    passed = []
    notify = with_warnings(Console(soft_wrap=True), passed.append)
    notify(Progress({}, 0, 0, 0.0, unused=("refuse ps:0->worker:1@3+100ms",)))
    assert "no task used the links of fault refuse ps:0->worker:1@3+100ms" in capsys.readouterr().out
    notify(Progress({}, 0, 0, 0.0, undialled=True))
    assert "so no fault of the network is drawn" in capsys.readouterr().out
    assert not passed
    notify(Progress({}, 1, 2, 0.5))
    assert passed == [Progress({}, 1, 2, 0.5)]


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize("target", [SOCKETS, SHARED], ids=["own", "shared"])
def test_the_faults_of_a_drawn_plan_are_all_of_links_that_this_target_uses(session, tmp_path, target):
    """Its ps never dials a worker."""
    options = {"layout": "ps=1,worker=2", "update": "async", "steps": 60, "session": session}
    found = set()
    for seed in range(3):
        out = tmp_path / f"run-{seed}"
        run = judge(target, **options, faults="random:refuse,latency", seed=seed, out=out)
        assert not run.unused
        plan = load_plan(out / "faults.toml", layout=Layout(ps=1, workers=2), steps=60)
        found |= {fault.region for fault in plan if fault.kind == "refuse"}
    assert found
    assert not found & {"ps:0->worker:0", "ps:0->worker:1", "mute ps:0", "deaf worker:0", "deaf worker:1"}


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_plan_of_a_person_is_run_and_they_are_told(session, tmp_path):
    plan, told = '[[fault]]\nkind = "refuse"\nlinks = "ps:0->worker:1"\nat = 3\nfor = "100ms"\n', []
    options = {"layout": "ps=1,worker=2", "update": "async", "steps": 20, "session": session}
    run = judge(SOCKETS, **options, faults=plan, out=tmp_path / "run", notify=told.append)
    said = next(progress for progress in told if not progress.what)
    assert not said.undialled
    assert said.unused == ("refuse ps:0 -> worker:1 when worker:1 is at step 3, for 100 ms",)
    assert run.unused == ("refuse ps:0->worker:1@3+100ms",)
    assert run.exit_code == 2


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_target_that_dials_past_the_proxies_is_told_that(session, tmp_path):
    """Its tasks tell each other where they listen, in a file."""
    (tmp_path / "socket_ps.py").write_bytes(SOCKETS.with_name("socket_ps.py").read_bytes())
    text = SOCKETS.read_text(encoding="utf-8").replace("{here}/socket_ps.py", "{here}/past.py")
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    (tmp_path / "past.py").write_text(PAST, encoding="utf-8")
    options = {"layout": "ps=1,worker=1", "update": "async", "steps": 30, "session": session}
    told = []
    run = judge(tmp_path / "target.toml", **options, faults="random", out=tmp_path / "run", notify=told.append)
    assert next(progress for progress in told if not progress.what).undialled
    assert not any("->" in fault for fault in run.as_dict()["faults_missed"]), run.explain()
    with pytest.raises(BadInput, match="no task dials another"):
        judge(tmp_path / "target.toml", **options, faults="random:stall", out=tmp_path / "stalls")
