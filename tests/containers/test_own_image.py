"""A trainer that is not ours, in an image that is not ours: named in its target file, or on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from psconform import judge
from psconform.errors import BadInput

SOURCE = Path(__file__).parents[1] / "socket_ps"


@pytest.mark.parametrize("update", ["sync", "async"])
def test_it_is_judged_like_any_other(update, image, target, session, tmp_path, left_behind):
    options = {"update": update, "steps": 20, "launcher": "docker", "session": session}
    run = judge(target(image=image), out=tmp_path / "run", **options)
    assert run.valid, run.explain()
    assert f"run {tmp_path}/target.toml" in run.repeat
    assert f"--launcher docker --image {image}" in run.repeat
    assert not left_behind()


def test_the_command_line_comes_first(image, target, session, tmp_path):
    options = {"steps": 20, "launcher": "docker", "session": session, "image": image}
    run = judge(target(image="no/such:image"), out=tmp_path / "run", **options)
    assert run.valid, run.explain()


def test_of_a_small_trainer_too_the_kernel_ends_the_task(image, target, session, tmp_path):
    """Not the program that takes the memory, which is larger."""
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "oom"\ntask = "worker:1"\nat = 5\nrestart_after = "never"\n')
    options = {"update": "async", "steps": 20, "faults": plan, "launcher": "docker", "session": session}
    run = judge(target(image=image), out=tmp_path / "run", **options)
    (fault,) = run.as_dict()["faults"]
    assert fault["evidence"].startswith("the kernel ended it: it was out of memory (OOM) at ")


def test_a_folder_of_this_machine_is_not_there(tmp_path):
    with pytest.raises(BadInput, match=r"takes \{here\}, a folder of this machine, which containers do not see"):
        judge(SOURCE / "target.toml", launcher="docker", out=tmp_path / "run")


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "a b", "x;y"])
def test_a_path_is_no_image(name, target, tmp_path):
    with pytest.raises(BadInput, match=r"target\.toml: image"):
        judge(target(image=name), launcher="docker", out=tmp_path / "run")
