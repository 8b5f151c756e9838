"""target.toml: every mistake is one error that names the place, the value and the valid choices."""

from __future__ import annotations

import json

import pytest

from psconform.errors import BadInput
from psconform.layout import Layout, Task
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.runner.random_layouts import make_plans
from psconform.targets.toml import load_target

GOOD = """
name = "mine"
env = { A = "1" }
[jobs.ps]
command = ["{python}", "train.py", "--job={job}"]
ready = { log = "serving on \\\\d+", timeout_s = 5.0 }
exits = false
[jobs.worker]
command = ["{python}", "train.py", "--index={index}"]
env = { A = "2", B = "{seed}" }
[claims.async]
delivery = "at-least-once"
"""


def load(folder, text):
    path = folder / "target.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_target(path)


LIMITS = "max_ps = 1\nmin_workers = 2\nmax_workers = 3\n"


def test_its_clusters_have_as_many_tasks_as_it_says(tmp_path):
    limited = load(tmp_path, LIMITS + GOOD)
    assert limited.nearest(Layout(ps=2, workers=1)) == Layout(ps=1, workers=2)
    assert limited.nearest(Layout(ps=1, workers=9)) == Layout(ps=1, workers=3)
    for layout, says in (
        ("ps=2,worker=2", "takes at most 1 ps"),
        ("ps=1,worker=1", "takes at least 2 workers"),
        ("ps=1,worker=4", "takes at most 3 workers"),
    ):
        with pytest.raises(BadInput, match=f"--layout: target mine {says}, got '{layout}'"):
            make_plan(Options(tmp_path / "target.toml", layout=layout, update="async"))
    plans = make_plans(Options(tmp_path / "target.toml", out=tmp_path, update="async"), repeat=40, random_layouts=True)
    assert {(plan.layout.ps, plan.layout.workers) for plan in plans} == {(1, 2), (1, 3)}
    with pytest.raises(BadInput, match=r"target.toml: min_ps: is more than max_ps \(2\), got 3"):
        load(tmp_path, "min_ps = 3\nmax_ps = 2\n" + GOOD)
    with pytest.raises(BadInput, match="max_workers"):
        load(tmp_path, "max_workers = 65\n" + GOOD)


SUMS = '[claims.sync]\nreduction = "sum"'


@pytest.mark.parametrize(
    ("words", "claims", "reductions"),
    [
        ("", "[claims.sync]", ("mean",)),
        ("", SUMS, ("sum",)),
        ('"{reduction}"', "[claims.sync]", ("mean", "sum")),
        ('"{reduction}"', SUMS, ("sum", "mean")),
        ('"--reduction={reduction}"', "[claims.async]", ("mean", "sum")),
    ],
)
def test_a_target_that_cannot_be_told_the_reduction_has_the_claimed_one(tmp_path, words, claims, reductions):
    jobs = f'[jobs.ps]\ncommand = ["serve"]\n[jobs.worker]\ncommand = ["work", {words}]\n'
    assert load(tmp_path, f'name = "mine"\n{jobs}\n{claims}').reductions == reductions
    update = "async" if "async" in claims else "sync"
    plan = make_plan(Options(tmp_path / "target.toml", update=update))
    assert plan.layout.reduction == reductions[0]
    assert "--reduction" not in plan.repeat
    if len(reductions) == 1:
        other = {"mean": "sum", "sum": "mean"}[reductions[0]]
        with pytest.raises(BadInput, match=f"--reduction: target mine has no such reduction, got '{other}'"):
            make_plan(Options(tmp_path / "target.toml", reduction=other))
    elif update == "sync":
        assert (
            f"--reduction {reductions[1]} "
            in make_plan(Options(tmp_path / "target.toml", reduction=reductions[1])).repeat
        )


def test_the_claimed_reduction_is_the_usual_one_and_is_among_those_named(tmp_path):
    jobs = '[jobs.ps]\ncommand = ["serve"]\n[jobs.worker]\ncommand = ["work"]\n'
    both = f'name = "mine"\nreductions = ["mean", "sum"]\n{jobs}'
    assert load(tmp_path, both + SUMS).reductions == ("sum", "mean")
    assert load(tmp_path, both + "[claims.sync]").reductions == ("mean", "sum")
    assert load(tmp_path, both.replace('"mean", ', "") + "[claims.sync]").reductions == ("sum",)
    says = "claims.sync.reduction: is not among reductions, got 'sum'; valid: mean"
    assert refused(tmp_path, both.replace(', "sum"', "") + SUMS).startswith(says)


def refused(folder, text):
    with pytest.raises(BadInput) as caught:
        load(folder, text)
    message = str(caught.value)
    assert message.startswith(str(folder / "target.toml"))
    assert "\n" not in message or "is not TOML" in message
    return message.removeprefix(str(folder / "target.toml") + ": ")


def test_good_file_is_read_in_full(tmp_path):
    target = load(tmp_path, GOOD)
    assert (target.name, target.here, target.reductions) == ("mine", tmp_path, ("mean",))
    assert dict(target.jobs["worker"].env) == {"A": "2", "B": "{seed}"}  # the job's own value wins
    assert dict(target.jobs["ps"].env) == {"A": "1"}
    assert (target.jobs["ps"].ready.log, target.jobs["ps"].ready.timeout_s) == (r"serving on \d+", 5.0)
    assert (target.jobs["ps"].exits, target.jobs["worker"].exits) == (False, True)
    assert target.claims["async"].delivery == "at-least-once"
    assert target.claims["async"].read_atomicity == "per-shard"  # the usual claim of that mode
    assert list(target.claims) == ["async"]
    assert Task("ps", 0).job in target.jobs


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "mine"', "", "name: is missing"),
        ('name = "mine"', 'name = "my target"', "name: String should match pattern"),
        ('name = "mine"', "name = 3", "name: Input should be a valid string, got 3"),
        ('name = "mine"', 'name = "mine"\nenvironment = ["A=1"]', "environment.0: String should match pattern"),
        (
            'name = "mine"',
            'name = "mine"\nnmae = 1',
            "top level: unknown field, got 'nmae'; valid: batches, claims, cluster_spec, compressions, dynamic_work",
        ),
        ("[jobs.worker]", "[jobs.wrker]", "jobs.worker: is missing"),
        ("exits = false", "exits = 0", "jobs.ps.exits: Input should be a valid boolean, got 0"),
        ("exits = false", "exit = false", "jobs.ps: unknown field, got 'exit'; valid: command, env, exits, ready"),
        ("exits = false", "", None),
        ('"--job={job}"', "7", "jobs.ps.command.2: Input should be a valid string, got 7"),
        ('"--job={job}"', '"--job={jbo}"', "jobs.ps.command: unknown placeholder, got 'jbo'; valid: job, index"),
        ('"--job={job}"', '"{job"', "jobs.ps.command: cannot be filled in (expected '}' before end of string)"),
        ('"--job={job}"', '"{}"', "jobs.ps.command: cannot be filled in"),
        ('"--job={job}"', '"{job[x]}"', "jobs.ps.command: cannot be filled in"),
        ('"--job={job}"', '"{job.x}"', "jobs.ps.command: cannot be filled in"),
        (
            '"--job={job}"',
            '"{job.__class__}"',
            "jobs.ps.command: cannot be filled in (a placeholder is a name",
        ),
        ('"--job={job}"', '"\\u0000"', "jobs.ps.command: must not contain a null character"),
        ('["{python}", "train.py", "--job={job}"]', "[]", "jobs.ps.command: List should have at least 1 item"),
        ('["{python}", "train.py", "--job={job}"]', '"train.py"', "jobs.ps.command: Input should be a valid list"),
        ('B = "{seed}"', 'B = "{sead}"', "jobs.worker.env.B: unknown placeholder, got 'sead'"),
        ('B = "{seed}"', "B = 1", "jobs.worker.env.B: Input should be a valid string, got 1"),
        ('B = "{seed}"', '"B=C" = "x"', "jobs.worker.env: is no name of an environment variable, got 'B=C'"),
        ('B = "{seed}"', '"" = "x"', "jobs.worker.env: is no name of an environment variable, got ''"),
        ('log = "serving on \\\\d+"', 'log = "serving ("', "jobs.ps.ready.log: is no regular expression ("),
        ("timeout_s = 5.0", "timeout_s = 0.0", "jobs.ps.ready.timeout_s: Input should be greater than 0, got 0.0"),
        ("timeout_s = 5.0", "timeout_s = 1e9", "jobs.ps.ready.timeout_s: Input should be less than or equal to 600"),
        (
            "timeout_s = 5.0",
            "timeouts = 5",
            "jobs.ps.ready: unknown field, got 'timeouts'; valid: log, port, timeout_s",
        ),
        ("[claims.async]", "[claims.asink]", "claims: unknown update mode, got 'asink'; valid: sync, async"),
        ('[claims.async]\ndelivery = "at-least-once"', "", "claims: is missing"),
        ('[claims.async]\ndelivery = "at-least-once"', "[claims]", "claims: names no update mode; valid: sync, async"),
        (
            '[claims.async]\ndelivery = "at-least-once"',
            "[claims]\nasync = 1",
            "claims.async: Input should be a valid dict",
        ),
        ('delivery = "at-least-once"', 'delivery = "at-least"', "claims.async.delivery: unknown level, got 'at-least'"),
        (
            'delivery = "at-least-once"',
            'delivry = "none"',
            "claims.async: unknown dimension, got 'delivry'; valid: deliv",
        ),
        (
            'delivery = "at-least-once"',
            "delivery = 1",
            "claims.async.delivery: Input should be a valid string, got 1; valid: none, at",
        ),
        (
            'name = "mine"',
            'name = "mine"\nreductions = ["median"]',
            "reductions: unknown reduction, got 'median'; valid: mean, sum",
        ),
        ('name = "mine"', 'name = "mine"\nreductions = []', "reductions: List should have at least 1 item"),
        ('name = "mine"', 'name = "mine"\ntf_config = "no"', "tf_config: Input should be a valid boolean, got 'no'"),
        ('name = "mine"', "name = mine", "is not TOML: "),
    ],
)
def test_mistake_is_named(tmp_path, old, new, says):
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if says is None:
        assert load(tmp_path, text).jobs["ps"].exits is True
    else:
        assert refused(tmp_path, text).startswith(says)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"a = " + b"[" * 20_000, b"\x00", b"=", b'name = "\\ud800"'])
def test_what_is_no_toml_is_refused(tmp_path, text):
    assert refused(tmp_path, text).startswith("is not TOML: ")


def test_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            load_target(path)


def test_an_option_is_taken_by_who_has_its_placeholder_and_changes_the_claim(tmp_path):
    text = GOOD.replace("[claims.async]", "[claims.sync]")
    with pytest.raises(BadInput, match="--quorum: target mine has no such option, got 1"):
        load(tmp_path, text).claimed(Layout(1, 2, quorum=1))
    target = load(tmp_path, text.replace("--index={index}", "{index}/{quorum}"))
    assert target.modes == ("quorum",)
    assert target.claimed(Layout(1, 2, quorum=1)).barrier == "r-of-n"
    assert target.claimed(Layout(1, 2)).barrier == "full"
    target = load(tmp_path, text.replace("{index}", "{quorum}") + 'barrier = "r-of-n"')
    with pytest.raises(BadInput, match=r"--quorum: target mine claims barrier r-of-n, got 0. Give --quorum"):
        target.claimed(Layout(1, 2))


def test_replication_is_taken_by_who_has_its_placeholder_and_changes_no_claim(tmp_path):
    text, layout = GOOD.replace("[claims.async]", "[claims.sync]"), Layout(1, 2, replication="in-graph")
    with pytest.raises(BadInput, match="--replication: target mine has no such option, got 'in-graph'"):
        load(tmp_path, text).claimed(layout)
    target = load(tmp_path, text.replace("--index={index}", "{index}/{replication}"))
    assert target.modes == ("replication",)
    assert target.claimed(layout) == target.claimed(Layout(1, 2))
    tasks = dict.fromkeys(layout.tasks, "localhost:1")
    workload = {"workload": "ledger", "steps": 1, "seed": 0}
    assert "0/in-graph" in target.command(layout.worker_tasks[0], tasks, layout=layout, workload=workload).argv


def test_a_near_miss_is_suggested(tmp_path):
    text = GOOD.replace('"at-least-once"', '"at-least-onc"')
    assert refused(tmp_path, text).endswith("(did you mean 'at-least-once'?)")


OTHERS = """
[jobs.scheduler]
command = ["schedules", "{scheduler_hosts}"]
exits = false
[jobs.evaluator]
count = 2
command = ["evaluates"]
env = { PS = "{ps_hosts}" }
"""


def test_jobs_that_train_nothing(tmp_path):
    target = load(tmp_path, GOOD.replace("{seed}", "{evaluator_hosts}") + OTHERS)
    assert target.others == (("scheduler", 1), ("evaluator", 2))
    layout = Layout(ps=1, workers=2, others=target.others)
    names = ["scheduler:0", "evaluator:0", "evaluator:1", "ps:0", "worker:0", "worker:1"]
    assert list(map(str, layout.all_tasks)) == names
    addresses = {task: f"{task.slug}:1" for task in layout.all_tasks}
    scheduler, evaluator = layout.all_tasks[:2]
    command = target.command(scheduler, addresses, layout=layout, workload={})
    assert command.argv == ("schedules", "scheduler-0:1")
    worker = target.command(layout.all_tasks[-1], addresses, layout=layout, workload={})
    assert worker.env["B"] == "evaluator-0:1,evaluator-1:1"
    said = json.loads(target.command(evaluator, addresses, layout=layout, workload={}).env["TF_CONFIG"])
    assert said["task"] == {"type": "evaluator", "index": 0}
    assert said["cluster"].keys() == {"ps", "scheduler", "worker"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[jobs.Head]\ncommand = ['a']", "jobs: the name of a job must be a lower-case word"),
        (
            "[jobs.toxiproxy]\ncommand = ['a']",
            "jobs: the name of a job must be a lower-case word, and not psconform, toxi",
        ),
        ("[jobs.head]\ncount = 2", "jobs.head.command: is missing"),
        ("[jobs.head]\ncommand = ['a']\ncount = 0", "jobs.head.count: Input should be greater than or equal to 1"),
        ("[jobs.head]\ncommand = ['a']\nnumber = 2", "jobs.head: unknown field, got 'number'; valid: command, count,"),
        ("[jobs.head]\ncommand = ['{tail_hosts}']", "jobs.head.command: unknown placeholder, got 'tail_hosts'"),
    ],
)
def test_other_jobs_that_cannot_be(tmp_path, text, says):
    assert refused(tmp_path, f"{GOOD}\n{text}").startswith(says)
