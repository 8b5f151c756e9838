"""What containers are: who may do what, what they see, and what they may use. Nothing is started."""

from dataclasses import replace
from pathlib import Path

import docker
import pytest
from docker.types import DeviceRequest, HostConfig

from psconform.launchers.blueprint import Cluster, Containers, Resources
from psconform.layout import Command, Task

API = docker.APIClient("unix:///nowhere", version="1.41")  # with a version it asks nobody
CLUSTER = Cluster(
    run="r1",
    owner="12:34",
    folder=Path("/runs/r1"),
    shared=Path("/tmp/shared"),
    image="theirs:1",
    helper_image="ours:1",
    toxiproxy_image="proxies:1",
)
WORKER = Task("worker", 1)


def host_of(container):
    return container.arguments(API)["host_config"]


ALL = (
    CLUSTER.helper(WORKER),
    CLUSTER.task(WORKER, Command(("python3", "-m", "trainer"), {"A": "b"}), mark="12:34"),
    CLUSTER.toxiproxy(Task("toxiproxy", 0), address="172.20.0.9", port=8474),
)


@pytest.mark.parametrize("container", ALL, ids=lambda container: container.name)
def test_no_container_may_more_than_it_must(container):
    host = host_of(container)
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True
    assert "PortBindings" not in host
    assert not host.get("Privileged")
    assert not any("docker.sock" in bind for bind in host.get("Binds", []))


def test_only_the_helper_may_signal_and_change_the_network_and_it_sees_nothing_of_the_run():
    helper, task = CLUSTER.helper(WORKER), CLUSTER.task(WORKER, Command(("x",)), mark="12:34")
    assert host_of(helper)["CapAdd"] == ["KILL", "NET_ADMIN", "NET_RAW"]
    assert not host_of(task).get("CapAdd")
    assert not host_of(helper).get("Binds")
    assert (helper.image, task.image) == ("ours:1", "theirs:1")
    assert task.user == "10001:10001"


def test_a_task_joins_the_network_and_the_process_ids_of_its_helper():
    host = host_of(CLUSTER.task(WORKER, Command(("x",)), mark="12:34"))
    assert host["NetworkMode"] == host["PidMode"] == f"container:{CLUSTER.helper(WORKER).name}"
    assert host_of(CLUSTER.helper(WORKER))["NetworkMode"] == CLUSTER.network


def test_a_task_sees_the_run_folder_and_what_is_shared_and_nothing_else():
    binds = host_of(CLUSTER.task(WORKER, Command(("x",)), mark="12:34"))["Binds"]
    assert binds == ["/runs/r1:/psconform/run:rw", "/tmp/shared:/psconform/shared:ro"]


def test_names_and_labels_say_run_and_task():
    for container in ALL:
        assert container.name.startswith("psconform-r1-")
        assert container.labels["psconform.owner"] == "12:34"
        assert container.labels["psconform.run"] == "r1"
    assert CLUSTER.task(WORKER, Command(("x",)), mark="12:34").name == "psconform-r1-worker-1"
    assert CLUSTER.task(WORKER, Command(("x",)), mark="12:34").labels["psconform.task"] == "worker:1"


def test_the_image_says_nothing_about_what_runs():
    arguments = CLUSTER.task(WORKER, Command(("python3", "-m", "trainer"), {"A": "b"}), mark="12:34").arguments(API)
    assert (arguments["entrypoint"], arguments["command"]) == (["python3", "-m", "trainer"], [])
    assert arguments["environment"]["A"] == "b"
    assert arguments["healthcheck"] == {"test": ["NONE"]}


def test_resources_are_limits_and_device_requests():
    resources = Resources(cpus=1.5, memory=2 << 30, shared_memory=64 << 20)
    limited = replace(CLUSTER, chosen=Containers(limits=(("worker", resources),)))
    host = host_of(limited.task(WORKER, Command(("x",), gpus=(2, 3)), mark="12:34"))
    said = HostConfig(
        version="1.41",
        network_mode=host["NetworkMode"],
        cpu_period=100_000,
        cpu_quota=150_000,
        mem_limit=2 << 30,
        memswap_limit=2 << 30,
        shm_size=64 << 20,
        device_requests=[DeviceRequest(device_ids=["2", "3"], capabilities=[["gpu"]])],
    )
    assert {key: host[key] for key in said} == said


def test_without_limits_a_task_has_what_there_is():
    host = host_of(CLUSTER.task(WORKER, Command(("x",)), mark="12:34"))
    assert not {"CpuQuota", "NanoCpus", "Memory", "MemorySwap", "DeviceRequests"} & set(host)
