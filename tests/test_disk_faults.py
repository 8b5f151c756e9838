"""Checkpoints that are damaged behind the trainer's back: which file, what is seen of it, what is asked of it."""

from __future__ import annotations

import os

import pytest

from psconform import judge
from psconform.faults.disk import Damages, newest_checkpoint
from psconform.faults.fault import NEWEST, Fault
from psconform.faults.when import When
from psconform.runner.session import Session

WHEN = When("before-push", 30)


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


def write(folder, name, size, at):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, ns=(at, at))
    return path


def test_the_largest_file_of_the_newest_checkpoint(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "none") is None
    write(tmp_path, "epoch-1", 10, 99)  # a mark, no checkpoint
    assert newest_checkpoint(tmp_path) is None
    write(tmp_path, "step-10.data-00000-of-00001", 9000, 1)
    data = write(tmp_path, "step-20.data-00000-of-00001", 3000, 2)
    write(tmp_path, "step-20.json", 400, 3)
    assert newest_checkpoint(tmp_path) == data
    newer = write(tmp_path, "saved/ckpt-3.data-00000-of-00002", 3000, 4)
    write(tmp_path, "saved/ckpt-3.data-00001-of-00002", 2000, 5)
    assert newest_checkpoint(tmp_path) == newer


@pytest.mark.parametrize("kind", ["truncate", "flip"])
def test_what_is_done_to_it_is_seen_and_drawn_from_the_seed(tmp_path, kind):
    said = set()
    for seed in (0, 0, 1):
        path = write(tmp_path, "step-20.data", 1000, 2)
        damage = Damages(Fault(kind=kind, region=NEWEST, when=WHEN), tmp_path, seed=seed)
        assert (damage.refused(), damage.evidence()) == ("", "")
        damage.inject()
        assert damage.file == "step-20.data"
        assert damage.evidence().startswith(
            "step-20.data: cut from 1000 to 500 bytes" if kind == "truncate" else "step-20.data: bit "
        )
        data = path.read_bytes()
        assert len(data) == 500 if kind == "truncate" else sum(map(int.bit_count, data)) == 1
        said.add(damage.evidence())
    assert len(said) == (1 if kind == "truncate" else 2)


def test_without_a_checkpoint_it_cannot_strike(tmp_path):
    assert (
        Damages(Fault(kind="flip", region=NEWEST, when=WHEN), tmp_path, seed=0).refused()
        == "there was no checkpoint yet"
    )


@pytest.mark.psconform
@pytest.mark.parametrize(("kind", "update"), [("truncate", "sync"), ("flip", "async")])
def test_the_one_before_it_is_restored(session, tmp_path, kind, update):
    plan = tmp_path / "plan.toml"
    loss = '[[fault]]\nkind = "kill"\ntask = "ps:0"\nat = "worker:0@30"\n'
    plan.write_text(f'[[fault]]\nkind = "{kind}"\nat = 30\n{loss}', encoding="utf-8")
    options = {"layout": "ps=2,worker=2", "update": update, "steps": 40, "checkpoint_every": 5}
    run = judge(**options, faults=plan, session=session, out=tmp_path / "run")
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["R3"].status == "valid"
    damage, *_ = run.as_dict()["faults"]
    assert damage["file"].endswith(".data-00000-of-00001")
