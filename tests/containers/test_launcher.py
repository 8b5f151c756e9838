"""Clusters in containers: judged as those of processes are, and nothing of them is left, however psconform ends."""

import json
import os
import re
import signal
import subprocess
import time

import psutil
import pytest

from psconform.api import check
from psconform.faults.kinds import kinds
from psconform.launchers.engine import engine
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.runner.session import Session

from ..waits import only_one_cleans

SMALL = ("--layout", "ps=1,worker=2", "--launcher", "docker")
WAIT_S = 60.0


@pytest.fixture(scope="module")
def session():
    with Session() as kept:
        yield kept


def wait_for(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def training(process, folder):
    """Wait until the workers of a run have pushed something."""

    def pushed():
        assert process.poll() is None, process.communicate()
        return any(path.stat().st_size > 2000 for path in folder.glob("events/worker-*.jsonl"))

    wait_for(pushed, "training did not begin")


def running(run):
    """Tasks of a run of which something runs; of what was paused nothing can die."""
    found = engine().containers(filters={"label": f"psconform.run={run}"})
    paused = {said["Labels"]["psconform.task"] for said in found if said["State"] == "paused"}
    return {said["Labels"]["psconform.task"] for said in found} - paused


def test_a_healthy_cluster_is_valid(session, tmp_path, left_behind):
    """Of more of them, in both modes, the conformance suite is (`tox -e docker`)."""
    from psconform import judge

    run = judge(layout="ps=1,worker=2", steps=40, launcher="docker", out=tmp_path / "r", session=session)
    assert run.valid, run.explain()
    assert "--launcher docker" in run.repeat
    assert not left_behind()
    said = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert (said["launcher"], said["image"]) == ("docker", "")


def test_who_hangs_because_the_network_has_gone_is_not_accused(session, tmp_path, left_behind):
    """The network is removed after the fault has healed, so no fault of the plan keeps tasks from each other."""
    api, folder = engine(), tmp_path / "r"

    def gone(progress):
        lines = (folder / "events/psconform-0.jsonl").read_text(encoding="utf-8").splitlines()
        networks = api.networks(filters={"label": f"psconform.run={json.loads(lines[0])['run']}"})
        if networks and any(event.get("on") is False for event in map(json.loads, lines)):
            for container in api.inspect_network(networks[0]["Id"])["Containers"]:
                api.disconnect_container_from_network(container, networks[0]["Id"], force=True)
            api.remove_network(networks[0]["Id"])

    options = {"layout": "ps=1,worker=2", "steps": 2000, "patience_s": 3, "launcher": "docker", "out": folder}
    plan = make_plan(Options("reference", stop=("worker:0@10..12",), **options))
    session.run(plan, notify=gone)
    run = check(folder)
    assert not run.violated, run.explain()
    assert run.exit_code == 2
    assert "tasks could not reach each other any more: the Docker engine" in run.explain()
    assert "refuse the network" in run.verdicts["L1"].reason
    assert not left_behind()
    again = make_plan(Options("reference", **{**options, "out": tmp_path / "again", "steps": 10}))
    assert session.run(again).status == "finished"  # the launcher has no network to remove, and goes on


def test_all_sorts_of_faults_strike_show_and_heal(session, tmp_path, left_behind):
    """Of processes, links, the disk, the clock: by the same plan as with processes."""
    from psconform import judge

    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        fault = [
          {kind = "kill", task = "worker:1", at = 10, restart_after = "200ms"},
          {kind = "stop", task = "ps:0", at = "worker:0@20", for = "300ms"},
          {kind = "stall", links = "worker:1->ps:0", at = "worker:0@30", for = "300ms"},
          {kind = "cut", links = "mute worker:0", at = "worker:0@40", for = "300ms", bytes = 100},
          {kind = "full", at = 50, until = 60},
          {kind = "clock", task = "worker:0", at = 70, until = 80},
          {kind = "twice", task = "worker:1", at = 85},
        ]
        """
    )
    options = {"layout": "ps=1,worker=2", "steps": 100, "checkpoint_every": 5, "launcher": "docker"}
    run = judge(faults=plan, out=tmp_path / "r", session=session, **options)
    assert run.valid, run.explain()
    assert not left_behind()


OF_LINKS = (("latency", 10), ("bandwidth", 30), ("slice", 50), ("reset", 70), ("slow-close", 90))
OF_TASKS = """
fault = [
  {kind = "late", task = "worker:1", at = "0s", for = "1s"},
  {kind = "term", task = "worker:1", at = 30, restart_after = "200ms"},
  {kind = "throttle", task = "ps:0", at = "worker:0@60", for = "1s"},
  {kind = "poison", task = "worker:1", at = 80},
  {kind = "truncate", at = "worker:0@100"},
  {kind = "kill", task = "ps:0", at = "worker:0@100", restart_after = "200ms"},
  {kind = "out-of-data", task = "worker:1", at = 150},
]
"""


def of_links():
    """Each kind on the links of worker:1, one after the other; what closes slowly shows when it is killed."""
    parts = [
        f'{{kind = "{kind}", links = "isolate worker:1", at = {step}, for = "{5 if kind == "slow-close" else 0.5}s"'
        + "".join(f", {name} = {amount}" for name, amount in kinds()[kind].usual)
        + "}"
        for kind, step in OF_LINKS
    ]
    parts.append('{kind = "kill", task = "worker:1", at = 91, restart_after = "200ms"}')
    return f"fault = [{', '.join(parts)}]"


@pytest.mark.parametrize("plan", [OF_TASKS, of_links()], ids=["tasks", "links"])
def test_the_kinds_that_the_suites_do_not_strike_in_containers_do(session, tmp_path, left_behind, plan):
    from psconform import judge

    (tmp_path / "plan.toml").write_text(plan)
    options = {"layout": "ps=1,worker=2", "steps": 200, "checkpoint_every": 5, "launcher": "docker"}
    run = judge(faults=tmp_path / "plan.toml", out=tmp_path / "r", session=session, **options)
    assert run.valid, run.explain()
    assert not left_behind()


def test_packets_of_one_link_are_dropped_while_both_ends_talk_to_everyone_else(session, tmp_path, left_behind):
    """What worker:1 pushes is in ps:1 long before it is in ps:0; meanwhile worker:0 reads both, and pushes to both.

    No checkpoint is made: worker:0 would wait for a ps without a push that it has heard of. It is slow, or it would be
    through before worker:1 begins where the machine is busy.
    """
    from psconform import judge

    (tmp_path / "plan.toml").write_text(
        'fault = [{kind = "drop", links = "worker:1->ps:0", at = "worker:1@20", for = "1s"}]'
    )
    options = {"layout": "ps=2,worker=2", "update": "async", "steps": 600, "launcher": "docker"}
    options |= {"checkpoint_every": 1000, "slow": "worker:0=0.01s"}
    run = judge(faults=tmp_path / "plan.toml", out=tmp_path / "r", session=session, **options)
    assert run.valid, run.explain()
    began, over = (said for said in events(tmp_path / "r", "psconform-0") if said["kind"] == "fault")
    assert (began["of"], began["on"], over["on"]) == ("worker:1->ps:0", True, False)
    assert int(re.fullmatch(r"(\d+) packets dropped", began["evidence"])[1]) > 0
    assert int(re.fullmatch(r"(\d+) packets passed", over["evidence"])[1]) > 0
    (late,) = (x["versions"] for x in events(tmp_path / "r", "worker-1") if (x["kind"], x.get("step")) == ("ack", 20))
    assert late[0] - late[1] > 20, late
    others = [x["versions"] for x in events(tmp_path / "r", "worker-0") if x["kind"] == "read"]
    meanwhile = [second - first for first, second in others if late[1] <= second < late[0]]
    assert len(meanwhile) > 20
    assert set(meanwhile) == {1}, others
    assert not left_behind()


def events(folder, task):
    """What a task has recorded."""
    return [json.loads(line) for line in (folder / "events" / f"{task}.jsonl").read_text().splitlines()]


def test_a_run_is_replayed_in_containers(session, tmp_path, psconform):
    from psconform import judge

    options = {"layout": "ps=1,worker=2", "defect": "apply-twice", "launcher": "docker"}
    assert judge(out=tmp_path / "r", session=session, **options).violated
    again = psconform("replay", str(tmp_path / "r"), "--times", "1", "--out", str(tmp_path / "again"))
    out, err = again.communicate(timeout=WAIT_S)
    assert "came back in 1 of 1" in out + err
    (manifest,) = (tmp_path / "again").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["launcher"] == "docker"


def test_ctrl_c_leaves_nothing_and_a_record(tmp_path, image, target, psconform, left_behind):
    folder = tmp_path / "r"
    process = psconform("run", str(target(image)), *SMALL, "--steps", "100000", "--out", str(folder))
    training(process, folder)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert not left_behind()
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"


LASTING = "".join(
    f'[[fault]]\nkind = "{kind}"\n{of}\nat = "worker:0@{step}"\nfor = "3600s"\n'
    for kind, of, step in (
        ("rate", 'task = "ps:0"\nkbit_per_s = 2000', 5),
        ("stall", 'links = "isolate worker:2"', 6),
        ("pause", 'task = "worker:1"', 7),
        ("drop", 'links = "worker:0->ps:0"', 9),
    )
)
"""Nothing trains any more: what is set stays until somebody takes it away."""


def of_the_host(names):
    """Rules, interfaces and queueing disciplines of this machine that have one of these names."""
    said = (["iptables-save"], ["tc", "qdisc", "show"], ["ip", "-o", "link", "show"])
    texts = [subprocess.run(words, check=True, capture_output=True, text=True).stdout for words in said]
    named = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)")
    return [line for text in texts for line in text.splitlines() if named.search(line)]


def names_of(run):
    """What a run has of this machine while it lasts: a bridge, its subnet, an interface for each pod."""
    (network,) = engine().networks(filters={"label": f"psconform.run={run}"})
    bridge, subnet = f"br-{network['Id'][:12]}", network["IPAM"]["Config"][0]["Subnet"]
    links = subprocess.run(
        ["ip", "-o", "link", "show", "master", bridge], check=True, capture_output=True, text=True
    ).stdout
    return [bridge, subnet, *re.findall(r"^\d+: ([^@:]+)", links, re.M)]


def broken(psconform, tmp_path, target):
    """psconform, while a rate, a partition, a drop and a pause are in effect; its run folder, and what it has here."""
    folder = tmp_path / "r"
    (tmp_path / "plan.toml").write_text(LASTING)
    layout = ("--layout", "ps=1,worker=3", "--launcher", "docker", "--update", "async")
    options = ("--faults", str(tmp_path / "plan.toml"), "--steps", "20000", "--out", str(folder))
    process = psconform("run", str(target), *layout, *options)
    training(process, folder)

    def struck():
        assert process.poll() is None, process.communicate()
        events = (folder / "events" / "psconform-0.jsonl").read_text(encoding="utf-8")
        return all(f'"fault":"{kind}"' in events for kind in ("rate", "stall", "drop", "pause"))

    wait_for(struck, "not all was broken")
    names = names_of(json.loads((folder / "manifest.json").read_text())["run"])
    assert len(names) == 2 + 5, names
    assert of_the_host(names)
    return process, folder, names


def test_when_psconform_is_killed_its_keeper_leaves_nothing(tmp_path, image, target, psconform, left_behind):
    process, folder, names = broken(psconform, tmp_path, target(image))
    process.kill()
    wait_for(lambda: not left_behind(), "something was left")
    wait_for(lambda: not of_the_host(names), "a rule, or an interface, was left")
    assert check(folder).exit_code == 2  # and it can be judged


def test_ctrl_c_while_its_pods_start_leaves_nothing(tmp_path, psconform, left_behind):
    process = psconform("run", "reference", *SMALL, "--out", str(tmp_path / "r"))
    wait_for(left_behind, "nothing was made")  # the network: its pods are next
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert not left_behind()


def test_killed_while_its_pods_start_it_leaves_nothing(tmp_path, psconform, left_behind):
    """The engine may still be making one when psconform is gone."""
    process = psconform("run", "reference", *SMALL, "--out", str(tmp_path / "r"))
    wait_for(left_behind, "nothing was made")  # the network: its pods are next
    (keeper,) = psutil.Process(process.pid).children()
    process.kill()
    keeper.wait(timeout=WAIT_S)
    assert not left_behind()


@pytest.fixture
def alone():
    """No other test's ``psconform clean`` finds what this one leaves."""
    with only_one_cleans():
        yield


@pytest.fixture
def networks():
    """Of a psconform that is dead, and of one that may live where other process ids are counted, as in a container."""
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    names = {f"psconform-{what}-{os.getpid()}": where for what, where in (("here", ""), ("elsewhere", ":1"))}
    for name, where in names.items():
        engine().create_network(name, labels={"psconform.owner": f"{dead.pid}:1{where}"}, internal=True)
    yield list(names)
    for name in {said["Name"] for said in engine().networks()} & set(names):
        engine().remove_network(name)


def test_when_the_keeper_is_killed_too_the_pods_end_and_clean_removes_them(
    alone, tmp_path, image, target, psconform, left_behind, networks
):
    """It leaves alone what belongs to somebody of whom cannot be told whether they live."""
    process, folder, names = broken(psconform, tmp_path, target(image))
    for child in (*psutil.Process(process.pid).children(), psutil.Process(process.pid)):
        child.kill()
    process.wait()
    run = json.loads((folder / "manifest.json").read_text())["run"]
    wait_for(lambda: not running(run), "containers run without their psconform")
    assert left_behind()
    done = psconform("clean")
    out, _ = done.communicate(timeout=WAIT_S)
    assert f"removed container psconform-{run}-ps-0\n" in out
    assert [name for name in networks if f"removed network {name}\n" in out] == networks[:1]
    assert not left_behind()
    wait_for(lambda: not of_the_host(names), "a rule, or an interface, was left")


def test_what_cannot_start_is_one_line_and_leaves_nothing(tmp_path, psconform, left_behind):
    target = tmp_path / "target.toml"
    target.write_text(
        'name = "x"\n[jobs.ps]\ncommand = ["/no/such/program"]\n[jobs.worker]\ncommand = ["x"]\n[claims.async]\n'
    )
    done = psconform("run", str(target), *SMALL, "--update", "async", "--out", str(tmp_path / "r"))
    _, err = done.communicate(timeout=WAIT_S)
    assert done.returncode == 3
    assert "/no/such/program" in err
    assert "Traceback" not in err
    assert not left_behind()


def test_an_image_that_is_not_here_is_named(tmp_path, psconform):
    done = psconform("run", "reference", *SMALL, "--image", "no/such:image", "--out", str(tmp_path / "r"))
    _, err = done.communicate(timeout=WAIT_S)
    assert done.returncode == 3
    assert "there is no image no/such:image" in err


def test_a_task_has_no_privilege_and_sees_no_engine(session, tmp_path, psconform):
    """What a task can do and reach, said by one: a target whose worker writes it to its log."""
    target = tmp_path / "target.toml"
    script = (
        "import os, pathlib; s = pathlib.Path('/proc/self/status').read_text(); "
        "print([l for l in s.splitlines() if l.startswith(('CapEff', 'CapBnd', 'Uid', 'NoNewPrivs'))]); "
        "print('socket', os.path.exists('/var/run/docker.sock')); "
        "print('root', os.access('/', os.W_OK), os.access('/opt', os.W_OK))"
    )
    job = f'command = ["{{python}}", "-c", """{script}"""]\nexits = true\n'
    target.write_text(f'name = "x"\n[jobs.ps]\n{job}[jobs.worker]\n{job}[claims.async]\n')
    done = psconform("run", str(target), *SMALL, "--update", "async", "--out", str(tmp_path / "r"))
    done.communicate(timeout=WAIT_S)
    logs = sorted((tmp_path).glob("r*/logs/worker-0.log"))
    assert logs
    text = logs[0].read_text()
    assert "CapEff:\\t0000000000000000" in text
    assert "CapBnd:\\t0000000000000000" in text
    assert "NoNewPrivs:\\t1" in text
    assert "Uid:\\t0\\t" not in text
    assert "socket False" in text
    assert "root False False" in text
