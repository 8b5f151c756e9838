"""Fault plans: how a file spells them, what is wrong with one, which links a partition strikes, what is drawn."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psconform.errors import BadInput
from psconform.faults.cli_syntax import parse_faults
from psconform.faults.fault import Fault, When
from psconform.faults.fault_generator import MOST, drawn_plan
from psconform.faults.kinds import CONTAINER, DISK, PACKETS, drawn_kinds, kinds
from psconform.faults.partitions import region, talks
from psconform.faults.plan_file import load_plan, parse_plan, plan_text
from psconform.layout import Layout, Link, Task
from psconform.options import Options
from psconform.runner.plan import make_plan

LAYOUT = Layout(ps=3, workers=4)
STEPS = 50
layouts = st.builds(Layout, ps=st.integers(1, 4), workers=st.integers(1, 5))


def parsed(text, layout=LAYOUT):
    return parse_plan(text, place="plan.toml", layout=layout, steps=STEPS)


def entry(**fields):
    return "[[fault]]\n" + "".join(f"{name.rstrip('_')} = {value!r}\n" for name, value in fields.items())


def links(text, layout=LAYOUT):
    return {str(link) for link in region(text, layout=layout, place="links")}


def test_a_plan_says_what_strikes_whom_and_when():
    stall, kill = parsed(
        entry(kind="stall", links="worker:1->ps:0", at=20, until=25)
        + entry(kind="kill", task="ps:2", at="1.5s", restart_after="200ms")
    )
    assert stall.links == (Link(Task("worker", 1), Task("ps", 0)),)
    assert (stall.when, stall.until, stall.where) == (When("before-push", 20), When("before-push", 25), "worker:1")
    assert str(stall) == "worker:1->ps:0@20..25"
    assert stall.strikes == [
        {"task": "worker:1", "phase": "before-push", "step": 20},
        {"task": "worker:1", "phase": "after-push", "step": 20},
        {"task": "worker", "phase": "before-push", "step": 25},
        {"task": "worker", "phase": "after-push", "step": 25},
    ]
    assert (kill.task, kill.when.after_s, kill.restart_after_s, kill.heals) == (Task("ps", 2), 1.5, 0.2, True)
    assert [fault.option for fault in (stall, kill)] == ["--faults", "--kill"]


def test_a_worker_that_must_get_there_may_be_named():
    (kill,) = parsed(entry(kind="kill", task="ps:0", at="worker:1@after-push:20"))
    assert kill.strikes == [{"task": "worker:1", "phase": "after-push", "step": 20}]
    (stall,) = parsed(entry(kind="stall", links="worker:1->ps:0", at="after-push:3", until="worker:2@9"))
    assert [(strike["task"], strike["phase"], strike["step"]) for strike in stall.strikes] == [
        ("worker:1", "after-push", 3),
        ("worker:1", "after-push", 4),  # an answer to a push that was sent since
        ("worker:2", "before-push", 9),
        ("worker:2", "after-push", 9),
    ]
    (short,) = parse_faults(kill=["ps:0@worker:1@after-push:20"], restart_after="1s", layout=LAYOUT, steps=STEPS)
    assert short == kill


def test_a_job_stands_for_all_its_tasks():
    assert [str(fault) for fault in parsed(entry(kind="kill", task="ps", at=9))] == ["ps:0@9", "ps:1@9", "ps:2@9"]


def test_damage_needs_no_more_than_a_moment():
    (flip,) = parsed(entry(kind="flip", at=30))
    assert (str(flip), flip.heals, flip.strikes[0]["task"]) == ("the newest checkpoint@30", False, "worker:0")
    assert parsed(plan_text([flip])) == (flip,)


@pytest.mark.parametrize("kind", [name for name, kind in kinds().items() if kind.mounts])
@pytest.mark.parametrize("end", [{"until": 35}, {"for_": "2s"}, {"until": "worker:1@35"}])
def test_a_fault_of_the_disk_that_lasts_takes_neither_task_nor_links(kind, end):
    (fault,) = parsed(entry(kind=kind, at=30, **end))
    assert (fault.of, fault.where, fault.heals) == ("the folder for checkpoints", "worker:0", True)
    assert dict(fault.amounts) == ({"ms": 200} if kind == "slow-disk" else {})
    assert parsed(plan_text([fault])) == (fault,)
    for other in ({"task": "worker:0"}, {"links": "halves"}):
        with pytest.raises(BadInput, match=f"fault 1: {next(iter(other))}: is not for {kind}"):
            parsed(entry(kind=kind, at=30, **end, **other))


def test_amounts_have_usual_values():
    (usual,) = parsed(entry(kind="latency", links="ps:0<->worker:0", at=3, for_="2s"))
    assert dict(usual.amounts) == {"ms": 50, "jitter_ms": 0}
    (said,) = parsed(entry(kind="latency", links="ps:0<->worker:0", at=3, for_="2s", ms=7))
    assert str(said) == "ps:0<->worker:0@3 ms=7 jitter_ms=0+2s"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fault = 3", "plan.toml: fault: must be a list: [[fault]] before each, got 3"),
        ("[[fault", "plan.toml: is not TOML"),
        ("[[faults]]", "plan.toml: top level: unknown field, got 'faults'; valid: fault (did you mean 'fault'?)"),
        (entry(kind="stal", links="halves", at=1), "fault 1: kind: unknown kind, got 'stal'; valid: clock, "),
        (entry(kind="kill", at=1), "fault 1: task: is missing. kill takes task = ps:0"),
        (entry(kind="stall", at=1, until=2), "fault 1: links: is missing. stall takes links ="),
        (entry(kind="kill", links="halves", at=1), "fault 1: links: is not for kill, it takes task, got 'halves'"),
        (entry(kind="stall", task="ps:0", at=1, until=2), "fault 1: task: is not for stall, it takes links"),
        (entry(kind="kill", task="ps:7", at=1), "no such task for it, got 'ps:7'; valid: ps, worker, ps:0"),
        (entry(kind="poison", task="ps:0", at=1), "got 'ps:0'; valid: worker, worker:0"),
        (entry(kind="poison", task="worker:0", at="1s"), "fault 1: at: must be a step"),
        (
            entry(kind="poison", task="worker:0", at=1, value="x"),
            "fault 1: value: unknown value, got 'x'; valid: nan, inf",
        ),
        (entry(kind="kill", task="ps:0", at=1, value="nan"), "fault 1: value: is not for kill"),
        (entry(kind="kill", task="ps:0"), "fault 1: at: is missing"),
        (entry(kind="kill", task="ps:0", at=50), "fault 1: at: there are 50 steps, 0 to 49, got 50"),
        (entry(kind="kill", task="ps:0", at=[1]), "fault 1: at: must be a step, a phase such as after-push:35, or a"),
        ("fault = [3]", "plan.toml: fault 1: must be a table: [[fault]] before its lines, got 3"),
        ('[[fault]]\nkind = "kill"\ntask = "ps:0"\nat = 5.5', "fault 1: at: must be a step, a phase such as"),
        (entry(kind="kill", task="ps:0", at=1, untl=3), "fault 1: unknown field, got 'untl'"),
        (entry(kind="kill", task="ps:0", at=1, until=3), "fault 1: until: is not for kill, which is over by itself"),
        (entry(kind="full", at=1), "fault 1: full needs one end, until or for, got 'none'"),
        (entry(kind="full", at=1, until=2, ms=3), "fault 1: ms: is not for full, got 3; valid: none"),
        ('[[fault]]\nkind = "kill"\nat = ' + "1" * 5000, "plan.toml: is not TOML: "),
        (entry(kind="slow-disk", at=1, until=2, ms=0), "fault 1: ms: must be between 1 and 60000, got 0"),
        (entry(kind="stop", task="ps:0", at=1), "fault 1: stop needs one end, until or for, got 'none'. Give until"),
        (entry(kind="stop", task="ps:0", at=1, until=3, for_="1s"), "one end, until or for, got 'until and for'"),
        (entry(kind="stop", task="ps:0", at=3, until=3), "fault 1: until: must come after at"),
        (entry(kind="stop", task="ps:0", at="3s", until="2s"), "fault 1: until: must come after at"),
        (entry(kind="stop", task="ps:0", at=3, until="3s"), "fault 1: until: must be a step if at is one"),
        (entry(kind="stop", task="ps:0", at=3, until="restoring"), "fault 1: until: must be a step or a time"),
        (entry(kind="stop", task="ps:0", at=3, for_="1h"), "fault 1: for: the time must be a number with its unit"),
        (entry(kind="stop", task="ps:0", at=3, for_="9999s"), "fault 1: for: must be between 0 and 3600 s"),
        (entry(kind="stop", task="ps:0", at=3, for_="1s", restart_after="1s"), "restart_after: is not for stop"),
        (entry(kind="kill", task="ps:0", at=3, restart_after="soon"), "fault 1: restart_after: the time must be"),
        (entry(kind="cut", links="halves", at=3, for_="1s", bytes=-1), "fault 1: bytes: must be between 0 and"),
        (entry(kind="cut", links="halves", at=3, for_="1s", ms=1), "fault 1: ms: is not for cut, got 1; valid: bytes"),
        (entry(kind="cut", links="half", at=3, for_="1s"), "fault 1: links: is no link and no partition, got 'half'"),
        (entry(kind="cut", links="ps:0->ps:1", at=3, for_="1s"), "fault 1: links: ps:0 and ps:1 exchange nothing"),
        (
            entry(kind="cut", links="ps:0->worker:9", at=3, for_="1s"),
            "fault 1: links: layout ps=3,worker=4 has no such",
        ),
        (entry(kind="cut", links="isolate ps:3", at=3, for_="1s"), "fault 1: links: layout ps=3,worker=4 has no such"),
        (entry(kind="kill", task="ps:0", at="worker:9@1"), "fault 1: at: layout ps=3,worker=4 has no such worker"),
        (entry(kind="kill", task="ps:0", at="ps:1@1"), "fault 1: at: must be WORKER@STEP"),
        (entry(kind="kill", task="ps:0", at="worker:1@1s"), "fault 1: at: must be WORKER@STEP"),
        (entry(kind="late", task="ps:0", at=1, for_="1s"), 'fault 1: at: must be "0s"'),
        (entry(kind="late", task="ps:0", at="0s"), "fault 1: late needs one end"),
        (
            entry(kind="crash-loop", task="ps:0", at=1, restart_after="never"),
            "fault 1: restart_after: must be a time: it is started again, and again, got 'never'",
        ),
        (
            entry(kind="new-address", task="ps:0", at=1, restart_after="never"),
            "fault 1: restart_after: must be a time: it is started again elsewhere, got 'never'",
        ),
        ('[[fault]]\nkind = "late"\ntask = "ps:0"\nat = "0s"\nfor = "0s"', "fault 1: for: must be longer than 0s"),
        (entry(kind="crash-loop", task="ps:0", at=1, times=1), "fault 1: times: must be between 2 and 100, got 1"),
        (entry(kind="twice", task="ps:0", at=1, until=3), "until: is not for twice, which is over by itself"),
        (entry(kind="clock", task="worker:0", at=1), "fault 1: clock needs one end, until or for"),
        (
            entry(kind="clock", task="ps:0", at=1, until=3),
            "task: clock is for workers: nothing in a ps tells, got 'ps:0'",
        ),
        (entry(kind="clock", task="ps", at=1, until=3), "task: clock is for workers: nothing in a ps tells, got 'ps'"),
        (entry(kind="clock", task="worker:9", at=1, until=3), "no such task for it, got 'worker:9'; valid: worker, "),
        (entry(kind="clock", task="worker:0", at=1, until=3, jump_s=0), "fault 1: jump_s: must not be 0"),
        (entry(kind="clock", task="worker:0", at=1, until=3, jump_s=10**10), "jump_s: must be between -1000000000 and"),
        (entry(kind="kill", task="ps:0", at=1, jump_s=1), "jump_s: is not for kill, got 1; valid: none"),
        (entry(kind="flip", task="ps:0", at=1), "fault 1: task: is not for flip, got 'ps:0'"),
        (entry(kind="kill", task="ps:0", at=1) * 2, "plan.toml: fault 2: is given twice, got 'ps:0@1'"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(BadInput) as error:
        parsed(text)
    assert says in str(error.value)


def test_a_plan_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(BadInput, match="--faults: cannot be read"):
        load_plan(tmp_path / "none.toml", layout=LAYOUT, steps=STEPS)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_plan(tmp_path / "bytes.toml", layout=LAYOUT, steps=STEPS)
    for nothing in ("", "# later\n", "fault = []"):
        (tmp_path / "empty.toml").write_text(nothing, encoding="utf-8")
        with pytest.raises(BadInput, match="holds no fault"):
            load_plan(tmp_path / "empty.toml", layout=LAYOUT, steps=STEPS)


@given(layout=layouts, seed=st.integers(0, 10**6), steps=st.integers(1, 200))
def test_same_seed_same_plan_and_what_is_written_is_read_again(layout, seed, steps):
    faults = drawn_plan("random", layout=layout, steps=steps, seed=seed)
    assert 1 <= len(faults) <= MOST
    assert faults == drawn_plan("random", layout=layout, steps=steps, seed=seed)
    assert parse_plan(plan_text(faults), place="again", layout=layout, steps=steps) == faults
    struck = [fault.task for fault in faults if fault.task is not None]
    assert len(set(struck)) == len(struck)
    assert all(fault.heals or fault.kind == "twice" for fault in faults)


def test_a_clock_that_jumps_is_asked_of_its_own_worker():
    (clock,) = parsed(entry(kind="clock", task="worker:1", at=20, until=25, jump_s=-7200))
    assert str(clock) == "worker:1@20 jump_s=-7200..25"
    assert [strike["task"] for strike in clock.strikes] == ["worker:1", "worker:1"]
    assert parsed(plan_text([clock])) == (clock,)


def test_short_forms_are_plans():
    spelled = {"kill": ["worker:1@after-push:9", "ps:0@2s"], "stop": ["worker:0@3..9"], "poison": ["worker:2@4=inf"]}
    short = parse_faults(**spelled, restart_after="never", layout=LAYOUT, steps=STEPS)
    assert parsed(plan_text(short)) == short


@pytest.mark.engine
def test_the_same_plan_in_another_process():
    script = (
        "from psconform.faults.plan_file import plan_text; from psconform.faults.fault_generator import drawn_plan;"
        "from psconform.layout import Layout;"
        "print([plan_text(drawn_plan('random', layout=Layout(), steps=90, seed=seed)) for seed in range(50)])"
    )
    ran = [subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout for _ in range(2)]
    assert ran[0] == ran[1]
    assert ran[0].count(b"[[fault]]") >= 50


def test_every_kind_is_drawn_and_only_those_asked_for():
    drawn = {f.kind for seed in range(200) for f in drawn_plan("random", layout=LAYOUT, steps=STEPS, seed=seed)}
    assert drawn == set(drawn_kinds())
    disk = {name for name, kind in kinds().items() if kind.of == DISK}
    boxed = {name for name, kind in kinds().items() if kind.of in (CONTAINER, PACKETS)}
    assert set(kinds()) - drawn == {"slow-close", "clock", "out-of-data", "poison"} | disk | boxed
    plans = (drawn_plan("random", layout=LAYOUT, steps=STEPS, seed=seed, containers=True) for seed in range(400))
    assert {fault.kind for plan in plans for fault in plan} == drawn | boxed - {"dns"}
    some = {f.kind for seed in range(50) for f in drawn_plan("random:stall,kill", layout=LAYOUT, steps=9, seed=seed)}
    assert some == {"stall", "kill"}
    with pytest.raises(BadInput, match=r"--faults: is no kind that can be drawn, got 'stal'.*did you mean 'stall'"):
        drawn_plan("random:stal", layout=LAYOUT, steps=STEPS, seed=0)
    with pytest.raises(BadInput, match="--faults: names no kind after the colon, got 'random:'; valid: crash-loop, "):
        drawn_plan("random:", layout=LAYOUT, steps=STEPS, seed=0)


def test_one_direction_and_both():
    assert links("worker:1->ps:0") == {"worker:1->ps:0"}
    assert links(" ps:0 <-> worker:1 ") == {"worker:1->ps:0", "ps:0->worker:1"}


def test_one_task():
    small = Layout(ps=2, workers=2)
    assert links("mute worker:1", small) == {"worker:1->ps:0", "worker:1->ps:1"}
    assert links("deaf worker:1", small) == {"ps:0->worker:1", "ps:1->worker:1"}
    assert links("isolate worker:1", small) == links("mute worker:1", small) | links("deaf worker:1", small)
    assert links("mute ps:0", small) == {"ps:0->worker:0", "ps:0->worker:1"}


def test_halves_and_ring():
    assert links("halves", Layout(ps=2, workers=2)) == {
        *("worker:0->ps:1", "ps:1->worker:0"),
        *("worker:1->ps:0", "ps:0->worker:1"),
    }
    assert links("ring", Layout(ps=3, workers=3)) == {
        *("worker:0->ps:2", "ps:2->worker:0"),
        *("worker:1->ps:0", "ps:0->worker:1"),
        *("worker:2->ps:1", "ps:1->worker:2"),
    }
    with pytest.raises(BadInput, match=r"ring cuts no link in layout ps=2,worker=3"):
        links("ring", Layout(ps=2, workers=3))


def test_replicas_exchange_with_each_other():
    four = Layout(ps=0, workers=4)
    assert links("worker:1<->worker:2", four) == {"worker:1->worker:2", "worker:2->worker:1"}
    assert links("mute worker:1", four) == {"worker:1->worker:0", "worker:1->worker:2", "worker:1->worker:3"}
    assert links("halves", Layout(ps=0, workers=2)) == {"worker:0->worker:1", "worker:1->worker:0"}
    across = {("worker:0", "worker:2"), ("worker:1", "worker:3")}
    assert links("ring", four) == {f"{a}->{b}" for pair in across for a, b in (pair, pair[::-1])}
    with pytest.raises(BadInput, match="ring cuts no link in layout ps=0,worker=3"):
        links("ring", Layout(ps=0, workers=3))


@given(layout=layouts, name=st.sampled_from(["halves", "ring", "isolate worker:0", "deaf ps:0"]))
def test_a_partition_strikes_links_that_carry_something(layout, name):
    try:
        found = region(name, layout=layout, place="links")
    except BadInput:
        return
    assert list(found) == sorted(set(found))
    assert all(talks(link.source, link.destination, among=layout.tasks) for link in found)


def test_a_run_is_repeated_with_its_plan(tmp_path):
    (tmp_path / "plan.toml").write_text(entry(kind="kill", task="ps:0", at=9), encoding="utf-8")
    short = make_plan(Options(out=tmp_path / "run", faults=tmp_path / "plan.toml"))
    assert "--kill ps:0@9 --restart-after 1s" in short.repeat
    (tmp_path / "plan.toml").write_text(entry(kind="term", task="ps:0", at=9), encoding="utf-8")
    assert (
        f"--faults {tmp_path}/run/faults.toml"
        in make_plan(Options(out=tmp_path / "run", faults=tmp_path / "plan.toml")).repeat
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"faults": 3}, "--faults: must be the path of a plan, or random, got 3"),
        ({"faults": "none.toml"}, "--faults: cannot be read"),
        ({"faults": "random", "layout": "ps=0,worker=2"}, "--layout: replicas of target reference keep no state"),
        ({"faults": "random", "update": "sync", "quorum": 1}, "--faults: excludes --quorum, got 'random'"),
        ({"faults": "random", "defect": "drop-gradient"}, "defect drop-gradient has no recovery"),
    ],
)
def test_plans_that_do_not_go_with_other_options(options, says, tmp_path):
    with pytest.raises(BadInput) as error:
        make_plan(Options(out=tmp_path, **options))
    assert says in str(error.value)


def test_a_plan_may_be_given_as_its_text(tmp_path):
    text = 'fault = [{kind = "term", task = "ps:0", at = 9}]'
    (tmp_path / "plan.toml").write_text(entry(kind="term", task="ps:0", at=9), encoding="utf-8")
    commented = f"# what broke us\n\n  # in June\n{text}"
    for said in (text, commented, tmp_path / "plan.toml", entry(kind="term", task="ps:0", at=9)):
        assert (
            make_plan(Options(out=tmp_path, faults=said)).faults == make_plan(Options(out=tmp_path, faults=text)).faults
        )
    with pytest.raises(BadInput, match="--faults: fault 1: at: is missing"):
        make_plan(Options(out=tmp_path, faults='fault = [{kind = "term", task = "ps:0"}]'))


def test_phases_of_the_target_are_drawn_and_others_are_never_waited_for():
    phases = {"checkpointing": "worker:0", "restoring": "worker:0", "delivering": "worker"}
    drawn = [
        fault
        for seed in range(300)
        for fault in drawn_plan("random", layout=LAYOUT, steps=STEPS, seed=seed, phases=phases)
    ]
    said = {(fault.when.phase, fault.where) for fault in drawn if fault.when.phase in phases}
    assert {phase for phase, _ in said} == {"checkpointing", "delivering"}  # nobody may ever restore
    assert {where for phase, where in said if phase == "checkpointing"} <= {"worker", "worker:0"}
    assert any(fault.when.task not in ("", str(fault.task)) for fault in drawn)
    without = [f for seed in range(300) for f in drawn_plan("random", layout=LAYOUT, steps=STEPS, seed=seed)]
    assert {fault.when.phase for fault in without} == {"", "before-push", "after-push"}


@pytest.mark.parametrize("layout", ["sync", "async"])
def test_connections_are_not_to_end_where_another_fault_may_leave_none(layout):
    """In sync nobody is further than a round; in async only its own outages hold a worker up, and those of a ps."""
    cluster, ended = Layout(ps=2, workers=3, update=layout), 0
    for seed in range(300):
        plan = drawn_plan("random", layout=cluster, steps=60, seed=seed)
        ending = [fault for fault in plan if kinds()[fault.kind].effect == "ends"]
        ended += bool(ending)
        for fault, other in ((fault, other) for fault in ending for other in plan if other is not fault):
            ends = {task for link in fault.links for task in (link.source, link.destination)}
            away = other.kind in ("kill", "term", "crash-loop", "stop")
            if not away or other.task not in ends:
                continue
            assert abs(fault.when.step - other.when.step) >= 3
            own = other.task.job == "ps" or str(other.task) == fault.where
            assert layout == "sync" or (own and fault.where == other.where)
    assert ended > 200


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_plan_has_what_shows_most_in_it(update):
    """A ps and a worker end, connections end before a push and between one and its answer, bytes are held back."""
    cluster, whole = Layout(ps=2, workers=3, update=update), 0
    for seed in range(200):
        plan = drawn_plan("random", layout=cluster, steps=60, seed=seed, sent=True)
        ends = {fault.task.job for fault in plan if fault.kind in ("kill", "term", "crash-loop")}
        assert ends == {"ps", "worker"}
        assert any(fault.kind == "stall" for fault in plan)
        sent = [fault for fault in plan if fault.when.phase == "sent"]
        assert all(kinds()[fault.kind].effect == "ends" for fault in sent)
        whole += bool(sent) and any(kinds()[fault.kind].effect == "ends" and fault not in sent for fault in plan)
    assert whole > 170


@pytest.mark.parametrize("update", ["sync", "async"])
def test_whoever_has_sent_a_push_is_let_alone(update):
    """Its answers are held back meanwhile: whatever needs one, such as a restore, would wait for good."""
    for seed in range(300):
        plan = drawn_plan("random", layout=Layout(ps=2, workers=3, update=update), steps=60, seed=seed, sent=True)
        for fault in (fault for fault in plan if fault.when.phase == "sent"):
            answers = {(link.source.job, str(link.destination)) for link in fault.links}
            asks = {(link.destination.job, str(link.source)) for link in fault.links}
            assert ("ps", fault.where) in (asks if fault.kind == "refuse" else answers)
            for other in plan:
                ends = other.kind in ("kill", "term", "crash-loop", "stop")
                if ends and (other.task.job == "ps" or str(other.task) == fault.where):
                    assert abs(fault.when.step - other.when.step) >= 3
                    assert update == "sync" or fault.where == other.where


def drawn_for(layout, seeds=200):
    plans = (drawn_plan("random", layout=layout, steps=60, seed=seed, sent=True) for seed in range(seeds))
    return [fault for plan in plans for fault in plan]


def test_who_is_not_waited_for_is_ended_at_its_own_step():
    """At another worker's it may have trained all its steps."""
    ended = [f for f in drawn_for(Layout(ps=2, workers=3, update="async")) if f.kind in ("kill", "term", "crash-loop")]
    assert all(str(fault.task) == fault.where for fault in ended if fault.task.job == "worker")


def test_faults_are_values():
    (fault,) = parsed(entry(kind="term", task="ps:0", at=9))
    assert {fault: 1}[Fault(kind="term", task=Task("ps", 0), when=When("before-push", 9), restart_after_s=1.0)] == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            'kind = "reset"\nlinks = "ps:0<->worker:0"\nat = "worker:1@35"\nfor = "340ms"',
            "reset ps:0 <-> worker:0 when worker:1 is at step 35, for 340 ms",
        ),
        ('kind = "kill"\ntask = "worker:1"\nat = "35"', "kill worker:1 at its step 35, started again after 1 s"),
        (
            'kind = "kill"\ntask = "worker:1"\nat = "after-push:3"\nrestart_after = "never"',
            "kill worker:1 when it has pushed step 3, never started again",
        ),
        (
            'kind = "kill"\ntask = "ps:0"\nat = "sent:3"',
            "kill ps:0 when the first worker has sent its push of step 3, started again after 1 s",
        ),
        (
            'kind = "stop"\ntask = "ps:0"\nat = 2\nuntil = "worker:0@9"',
            "stop ps:0 when the first worker is at step 2, until worker:0 is at step 9",
        ),
        (
            'kind = "kill"\ntask = "worker:0"\nat = "restoring"',
            "kill worker:0 when it says restoring, started again after 1 s",
        ),
        (
            'kind = "latency"\nlinks = "isolate worker:0"\nat = "1500ms"\nuntil = "3s"\nms = 7',
            "latency isolate worker:0 1.5 s after the start, ms=7, until 3 s after the start",
        ),
        ('kind = "poison"\ntask = "worker:0"\nat = 4\nvalue = "inf"', "poison=inf worker:0 at its step 4"),
    ],
)
def test_a_fault_is_said_in_words(tmp_path, said, words):
    path = tmp_path / "plan.toml"
    path.write_text(f"[[fault]]\n{said}\n")
    (fault,) = load_plan(path, layout=Layout(ps=1, workers=2), steps=50)
    assert fault.words == words
