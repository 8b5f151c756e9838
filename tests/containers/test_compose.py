"""Compose files: the reference cluster's, by hand and judged; somebody's own, told where the others are, or not."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from psconform import judge
from psconform.launchers.engine import engine
from psconform.runner.replay import stored_plan
from psconform.targets.compose import compose

REFERENCE = Path(__file__).parents[2] / "docker" / "compose.yaml"
STALL = 'fault = [{kind = "stall", links = "worker:1->ps:0", at = 12, for = "400ms"}]'
OWN = """
x-psconform:
  jobs:
    ps: {{ready: {{port: true}}, exits: false}}
  claims: {{sync: {{read_atomicity: snapshot}}, async: {{read_atomicity: per-shard}}}}
x-task: &task
  image: {image}
  networks: [inside]
services:
  ps:
    <<: *task
    labels: ["psconform.task=ps:0"]
    entrypoint: python3 socket_ps.py --job=ps --index=0 --ps=${{PSCONFORM_PS_HOSTS:-ps:2222}}
    command: --update=${{PSCONFORM_UPDATE:-sync}} --reduction=${{PSCONFORM_REDUCTION:-mean}}
  one:
    <<: *task
    labels: ["psconform.task=worker:0"]
    entrypoint: python3 socket_ps.py --job=worker --index=0 --ps=${{PSCONFORM_PS_HOSTS:-ps:2222}}
    command: --update=${{PSCONFORM_UPDATE:-sync}} --reduction=${{PSCONFORM_REDUCTION:-mean}}
  two:
    <<: *task
    labels: ["psconform.task=worker:1"]
    entrypoint: python3 socket_ps.py --job=worker --index=1 --ps=${{PSCONFORM_PS_HOSTS:-ps:2222}}
    command: --update=${{PSCONFORM_UPDATE:-sync}} --reduction=${{PSCONFORM_REDUCTION:-mean}}
    deploy: {{resources: {{limits: {{cpus: "0.5", memory: 300M}}}}}}
networks:
  inside: {{}}
"""


def said_for_good(tmp_path):
    """The reference's file, its tasks told by nobody where the others are: they dial each other's services."""
    text = REFERENCE.read_text(encoding="utf-8")
    text = re.sub(r"  tf_config: true.*\n", "", text)
    text = re.sub(r"  toxiproxy:.*?\n\n", "", text, flags=re.DOTALL).replace("    depends_on: [toxiproxy]\n", "")
    text = re.sub(r'"ps": \["toxiproxy:\d+"\]', '"ps": ["ps0:2222"]', text)
    text = re.sub(r'"worker": \[[^]]*\]', '"worker": ["worker0:2222", "worker1:2222"]', text)
    assert "toxiproxy:" not in text.partition("services:")[2]
    path = tmp_path / "compose.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("told", "update"), [(True, "async"), (False, "sync")], ids=["told", "for good"])
def test_it_is_judged_with_proxies_between_its_services(told, update, session, tmp_path, left_behind):
    file = REFERENCE if told else said_for_good(tmp_path)
    before = file.read_bytes()
    run = judge(f"compose:{file}", update=update, steps=30, faults=STALL, out=tmp_path / "run", session=session)
    assert run.valid, run.explain()
    assert re.search(r"stall worker:1 -> ps:0 when .*: \d+ bytes held back, then \d+ bytes came through", run.explain())
    assert file.read_bytes() == before
    assert f"psconform run compose:{file} --layout ps=1,worker=2" in run.repeat
    assert stored_plan(run.folder, out=tmp_path / "again").containers.boxes
    assert not left_behind()


def test_a_service_that_has_moved_is_found_and_its_proxies_are(session, tmp_path):
    reset = '{kind = "reset", links = "worker:1->ps:0", at = "worker:1@30", for = "400ms"}'
    faults = f'fault = [{{kind = "new-address", task = "ps:0", at = "worker:1@12"}}, {reset}]'
    file = said_for_good(tmp_path)
    run = judge(f"compose:{file}", update="async", steps=60, faults=faults, out=tmp_path / "run", session=session)
    assert run.valid, run.explain()


@pytest.mark.parametrize("update", ["sync", "async"])
def test_somebodys_own_is_calibrated_and_judged(update, image, session, tmp_path, left_behind):
    path = tmp_path / "mine" / "docker-compose.yml"
    path.parent.mkdir()
    path.write_text(OWN.format(image=image), encoding="utf-8")
    run = judge(f"compose:{path}", update=update, steps=20, out=tmp_path / "run", session=session)
    assert run.valid, run.explain()
    assert run.explain().splitlines()[1].startswith("mine on ps=1,worker=2")
    assert not left_behind()


def test_the_reference_cluster_by_hand():
    """It trains, and Toxiproxy's API is for this machine alone."""
    words = [*compose()[0], "-p", "psconform-by-hand", "-f", str(REFERENCE)]
    subprocess.run([*words, "up", "-d"], check=True, capture_output=True, timeout=120)
    try:
        api = engine()
        filters = {"label": "com.docker.compose.project=psconform-by-hand"}
        found = api.containers(all=True, filters=filters)
        there = {said["Labels"]["com.docker.compose.service"]: said for said in found}
        assert set(there) == {"ps0", "worker0", "worker1", "toxiproxy"}
        bound = {port.get("IP") for port in there["toxiproxy"]["Ports"] if "PublicPort" in port}
        assert bound == {"127.0.0.1"}
        tasks = [said["Id"] for name, said in there.items() if name != "toxiproxy"]
        assert [api.wait(task, timeout=90)["StatusCode"] for task in tasks] == [0, 0, 0]
        assert "trained 200 steps" in api.logs(there["worker1"]["Id"]).decode()
        with urllib.request.urlopen("http://127.0.0.1:8474/proxies", timeout=5) as answer:
            assert b"worker1-ps0" in answer.read()
    finally:
        subprocess.run([*words, "down"], check=True, capture_output=True, timeout=120)
