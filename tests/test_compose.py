"""What psconform reads of a Compose file, and refuses; a program in Compose's place prints the file as it is."""

from __future__ import annotations

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.layout import Layout, Task
from psconform.options import Options
from psconform.runner.dry_run import dry_run
from psconform.runner.plan import make_plan
from psconform.targets import compose
from psconform.targets.compose import load_compose
from psconform.targets.lookup import find_target

pytestmark = pytest.mark.engine

FILE = """
x-psconform:
  name: mine
  tf_config: true
  claims: {async: {read_atomicity: per-shard}}
services:
  cache: {image: "redis:7", volumes: ["/:/host"], privileged: true}
  server:
    image: team/trainer:1
    labels: {psconform.task: "ps:0", psconform.port: "3333"}
    command: serve --steps=PsConformStandsFor_steps_ --json={"a":1} --price=5$$
    environment: {A: "PsConformStandsFor_task_", EMPTY: null}
    container_name: parameters
    networks: {back: {aliases: [params, server]}, front: null}
    deploy: {resources: {limits: {cpus: "0.50", memory: "1073741824"}}}
  a:
    image: team/trainer:1
    labels: ["psconform.task=worker:0"]
    entrypoint: [python, train.py]
    command: ["--job", "PsConformStandsFor_job_"]
    working_dir: /app
    mem_limit: 512m
    cpus: 1.5
    shm_size: 64m
    environment: ["B=x=y", "FROM_SHELL"]
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    """Compose's place: it prints the file that it is given, or refuses one with the word REFUSED."""
    tool = tmp_path / "bin" / "docker-compose"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\n[ "$1" = version ] && echo 1.2.3 && exit\n'
        'while read -r line; do case $line in *REFUSED*) echo "no good" >&2; exit 1;; esac; done < "$2"\n'
        'while IFS= read -r line; do printf "%s\\n" "$line"; done < "$2"\n',
        encoding="utf-8",
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    compose.compose.cache_clear()
    yield tool
    compose.compose.cache_clear()


@pytest.fixture
def file(tmp_path):
    def write(text=FILE):
        path = tmp_path / "compose.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_labelled_services_are_the_tasks(file):
    target = load_compose(file())
    assert (target.name, target.layout, target.source) == ("mine", "ps=1,worker=1", f"compose:{file()}")
    server, worker = target.services[Task("ps", 0)], target.services[Task("worker", 0)]
    assert (server.name, server.port, server.cpus, server.memory) == ("server", 3333, 0.5, 1 << 30)
    assert (worker.working_dir, worker.memory, worker.shared_memory) == ("/app", 512 << 20, 64 << 20)
    assert (server.entrypoint, worker.entrypoint) == (False, True)
    assert worker.env == (("B", "x=y"),)
    assert not target.fixed


def test_commands_are_words_with_what_variables_stand_for(file):
    target = load_compose(file())
    addresses = {Task("ps", 0): "p:1", Task("worker", 0): "w:2"}
    layout, workload = Layout(ps=1, workers=1, update="async"), {"steps": 7, "seed": 0, "workload": "ledger"}
    command = target.command(Task("ps", 0), addresses, layout=layout, workload=workload)
    assert command.argv == ("serve", "--steps=7", "--json={a:1}", "--price=5$")
    env = dict(command.env)
    assert env["A"] == "ps:0"
    assert '"ps": ["p:1"], "worker": ["w:2"]' in env["TF_CONFIG"]
    worker = target.command(Task("worker", 0), addresses, layout=layout, workload=workload)
    assert worker.argv == ("python", "train.py", "--job", "worker")


def test_an_environment_may_be_said_for_all_or_for_a_job_and_a_service_has_the_last_word(file):
    of_all = "  name: mine\n  env: {B: all, C: all, D: all}\n  jobs: {worker: {env: {C: '{task}'}}}\n"
    target = load_compose(file(FILE.replace("  name: mine\n", of_all)))
    addresses = {Task("ps", 0): "p:1", Task("worker", 0): "w:2"}
    layout, workload = Layout(ps=1, workers=1, update="async"), {"steps": 7, "seed": 0, "workload": "ledger"}
    env = dict(target.command(Task("worker", 0), addresses, layout=layout, workload=workload).env)
    assert (env["B"], env["C"], env["D"]) == ("x=y", "worker:0", "all")


def test_a_plan_of_it_is_in_containers_of_its_services(file, tmp_path):
    plan = make_plan(Options(f"compose:{file()}", out=tmp_path / "run", update="async"))
    assert plan.layout.text == "ps=1,worker=1"
    made = {part["container"]: part["create"] for part in dry_run(plan) if "container" in part}
    server, worker = made["psconform-RUN-ps-0"], made["psconform-RUN-worker-0"]
    assert "entrypoint" not in server
    assert '"ps": ["ps-0:3333"]' in worker["environment"]["TF_CONFIG"]
    assert server["command"][0] == "serve"
    assert (server["image"], worker["working_dir"]) == ("team/trainer:1", "/app")
    assert worker["entrypoint"][:2] == ["python", "train.py"]
    assert (server["host_config"]["Memory"], worker["host_config"]["CpuQuota"]) == (1 << 30, 150_000)
    aliases = made["psconform-RUN-ps-0-pod"]["networking_config"]["EndpointsConfig"]["psconform-RUN"]["Aliases"]
    assert aliases == ["ps-0", "server", "parameters", "params"]
    with pytest.raises(BadInput, match="--layout: is not that of the Compose file, got 'ps=2,worker=3'"):
        make_plan(Options(f"compose:{file()}", out=tmp_path / "run", update="async", layout="ps=2,worker=3"))
    with pytest.raises(BadInput, match="--image: is said by the services"):
        make_plan(Options(f"compose:{file()}", out=tmp_path / "run", update="async", image="other:1"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    working_dir: /app\n",
            '    volumes: ["/etc:/etc"]\n',
            "services.a.volumes: cannot be had in a judged run",
        ),
        ("    working_dir: /app\n", "    privileged: true\n", "services.a.privileged: cannot be had"),
        ("    working_dir: /app\n", "    network_mode: host\n", "services.a.network_mode: cannot be had"),
        ("limits: {", "reservations: {devices: [1]}, limits: {", "services.server.deploy.resources.reservations"),
        ("back: {aliases", "back: {ipv4_address: 172.16.0.2, aliases", "services.server.networks: ipv4_address cannot"),
        (
            "container_name: parameters",
            "container_name: worker-0",
            "services.server: is ps:0, and worker:0, too, got 'worker-0'",
        ),
        ("aliases: [params", "aliases: [a", "services.server: is ps:0, and worker:0, too, got 'a'"),
        (
            "container_name: parameters",
            "container_name: PsConformStandsFor_task_",
            "services.server.container_name: cannot be made of a placeholder, got '${PSCONFORM_TASK}'",
        ),
        ("    mem_limit: 512m\n", "    mem_limit: much\n", "services.a.mem_limit: is no size in bytes"),
        (
            "    mem_limit: 512m\n",
            "    mem_limit: 1k\n",
            "a.mem_limit: must be at least 6 MiB, or 0, got '1k'",
        ),
        *(
            (
                "    cpus: 1.5\n",
                f"    cpus: {cpus}\n",
                "a.cpus: must be a number of CPUs, not below 0.01, or 0",
            )
            for cpus in ("0.5x", "-1", ".inf", "0.001")
        ),
        ("entrypoint: [python, train.py]", "entrypoint: []", "services.a.entrypoint: is empty, which takes away"),
        ('command: ["--job", "PsConformStandsFor_job_"]', 'command: ""', "services.a.command: is empty, which takes"),
        (
            "    working_dir: /app\n",
            '    tmpfs: ["/tmp:size=1m"]\n',
            "a.tmpfs: cannot be had in a judged run, got '/tmp:",
        ),
        ("    working_dir: /app\n", '    tmpfs: ["/tmp", "/scratch:size=1m"]\n', "services.a.tmpfs: cannot be had"),
        (
            "    working_dir: /app\n",
            "    working_dir: /PsConformStandsFor_job_\n",
            "got '/${PSCONFORM_JOB}'; valid",
        ),
        (
            "trainer:1\n    labels: [",
            "trainer:PsConformStandsFor_steps_\n    labels: [",
            "a.image: cannot be made",
        ),
        ("  name: mine\n", "  name: mine\n  image: x:1\n", "x-psconform.image: is said by the services, got 'x:1'"),
        ("  name: mine\n", "  name: mine\n  jobs: {ps: hello}\n", "x-psconform.jobs.ps: must be a table, got 'hello'"),
        (
            "  name: mine\n",
            "  name: mine\n  jobs: {ps: {command: 5}}\n",
            "jobs.ps.command: is said by the",
        ),
        (
            "  tf_config: true\n",
            "  cluster_spec: shared\n  learning_rate: 1.0\n",
            "x-psconform.cluster_spec: must be own where services know each other by name",
        ),
        ("image: team/trainer:1\n    labels: [", "labels: [", "services.a.image: is missing"),
        ("worker:0", "worker:1", "are no cluster of ps and workers, each from 0, got 'ps:0, worker:1'"),
        ("worker:0", "ps:0", "server is psconform.task, too, got 'ps:0'"),
        ("worker:0", "worker", "must be job:index"),
        ('"3333"', '"x"', "psconform.port: must be a port, got 'x'"),
        ("  tf_config: true\n", "", "is one cluster for good, so nobody can calibrate it"),
        (
            "  tf_config: true\n",
            "  learning_rate: -1\n",
            "x-psconform.learning_rate: must be a positive number, got -1",
        ),
        ("  tf_config: true\n", "  tf_confg: true\n", "x-psconform.top level: unknown field, got 'tf_confg'"),
        ("claims: {async", "claims: {asink", "claims: unknown update mode, got 'asink'"),
        ("services:", "services: REFUSED", "is refused by docker-compose: no good"),
        ("services:", "services: [", "is not YAML"),
    ],
)
def test_what_cannot_be_had_is_named_with_its_place(old, new, said, file):
    assert old in FILE
    with pytest.raises(BadInput) as refused:
        load_compose(file(FILE.replace(old, new)))
    assert said in str(refused.value)
    assert "compose.yaml" in str(refused.value)


def test_a_cluster_for_good_says_its_learning_rate(file):
    target = load_compose(file(FILE.replace("  tf_config: true\n", "  learning_rate: 0.5\n")))
    assert target.fixed
    assert target.unit(Layout(ps=1, workers=1, update="async")) == pytest.approx(0.5 * 840)


def test_a_folder_of_this_machine_is_not_there(file, tmp_path):
    path = file(FILE.replace("train.py", "PsConformStandsFor_here_/train.py"))
    with pytest.raises(BadInput, match=r"takes \{here\}, a folder of this machine"):
        make_plan(Options(f"compose:{path}", out=tmp_path / "run", update="async"))


def test_without_compose_it_is_said_how_to_get_one(file, program):
    program.unlink()
    with pytest.raises(PsconformError, match=r"compose: not installed, .* fix: .*apt-get install -y docker-compose"):
        find_target(f"compose:{file()}")


def test_no_file_and_no_defect(tmp_path, file):
    with pytest.raises(BadInput, match="there is no such Compose file"):
        find_target(f"compose:{tmp_path}/no.yaml")
    with pytest.raises(BadInput, match="only the reference trainer has seeded defects"):
        find_target(f"compose:{file()}", defect="drop-gradient")
