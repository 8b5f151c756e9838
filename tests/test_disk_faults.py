"""Checkpoints that are damaged behind the trainer's back, disks that fail for a while: what is seen, what is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from psconform import judge
from psconform.faults.checkpoint_faults import newest_checkpoint
from psconform.faults.fault import FOLDER, NEWEST, Fault, When
from psconform.faults.kinds import kinds
from psconform.launchers.local import OWNER, owner_mark
from psconform.runner.fault_setup import mounted
from psconform.runner.session import Session

from .scenes import injector_of

WHEN = When("before-push", 30)
LASTING = [name for name, kind in kinds().items() if kind.mounts]
BOTH = ("sync", "async")
SOCKETS = Path(__file__).parent / "socket_ps" / "target.toml"
JOB = {"layout": "ps=2,worker=2", "steps": 40, "checkpoint_every": 5}


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
        damage = injector_of(Fault(kind=kind, region=NEWEST, when=WHEN), checkpoints=tmp_path, seed=seed)
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
        injector_of(Fault(kind="flip", region=NEWEST, when=WHEN), checkpoints=tmp_path).refused()
        == "there was no checkpoint yet"
    )


@pytest.mark.nightly
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


def judged(session, tmp_path, text, **options):
    plan = tmp_path / "plan.toml"
    plan.write_text(text, encoding="utf-8")
    return judge(**{**JOB, **options}, faults=plan, session=session, out=tmp_path / "run")


def broken(kind):
    """Until the chief gets there; in async another worker may be long past it."""
    more = "ms = 50\n" if kind == "slow-disk" else ""
    return f'[[fault]]\nkind = "{kind}"\nat = 12\nuntil = "worker:0@24"\n{more}'


def kinds_of(run, name):
    """What the chief has recorded of checkpoints (or restores), in this order."""
    lines = (path.read_text().splitlines() for path in sorted(run.folder.glob("events/worker-0*.jsonl")))
    events = [json.loads(line) for file in lines for line in file]
    return [event["name"] for event in events if event["kind"] == name]


@pytest.mark.nightly
@pytest.mark.psconform_needs("fuse")
@pytest.mark.parametrize(("kind", "update"), [(kind, BOTH[i % 2]) for i, kind in enumerate(LASTING)])
def test_training_goes_on_while_the_disk_is_broken(session, tmp_path, kind, update):
    """What the disk does not take is reported and does not count; when it is well again the next checkpoint does."""
    slow = "worker:0=50ms"  # the other one is done first, or there would be one more checkpoint for what it does then
    run = judged(session, tmp_path, broken(kind), update=update, slow=slow)
    assert run.exit_code == 0, run.explain()
    (fault,) = run.as_dict()["faults"]
    assert fault["of"] == "the folder for checkpoints"
    assert fault["evidence"].startswith("worker:0: ")
    assert fault["healed"].startswith("worker:0: ")
    assert fault["healed"].endswith(" succeeded")
    durable = kinds_of(run, "checkpoint")
    assert durable[-1] == "step-40-epoch-0"
    log = (run.folder / "logs" / "worker-0.log").read_text()
    failed = {
        line.split("checkpoint ")[1].split()[0] for line in log.splitlines() if "failed and does not count" in line
    }
    assert bool(failed) == (kind != "slow-disk")
    assert not failed & set(durable)
    files = {path.name.split(".")[0] for path in (run.folder / "checkpoints").glob("step-*")}
    assert files == {path.stem for path in (run.folder / "checkpoints").glob("step-*.json")} <= set(durable)


@pytest.mark.nightly
@pytest.mark.psconform_needs("fuse")
@pytest.mark.parametrize(("kind", "update"), [(kind, BOTH[i % 2 == 0]) for i, kind in enumerate(LASTING)])
def test_a_ps_is_lost_while_the_disk_is_broken(session, tmp_path, kind, update):
    """It is restored as soon as the disk lets that be done, from the newest checkpoint that is durable."""
    loss = '[[fault]]\nkind = "kill"\ntask = "ps:0"\nat = "worker:0@20"\nrestart_after = "200ms"\n'
    lasting = broken(kind).replace('until = "worker:0@24"', 'for = "12s"')  # however busy: it is to be tried meanwhile
    run = judged(session, tmp_path, lasting + loss, update=update)
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["R3"].status == "valid"
    (restored,) = kinds_of(run, "restore")
    assert restored in kinds_of(run, "checkpoint")
    assert all(fault["healed"] for fault in run.as_dict()["faults"])
    if kind != "slow-disk":  # nothing of after it began has become durable
        assert restored in ("step-5-epoch-0", "step-10-epoch-0")
        assert "it tries again" in (run.folder / "logs" / "worker-0.log").read_text()


@pytest.mark.engine
@pytest.mark.psconform_needs("fuse")
def test_a_disk_that_nobody_used_meanwhile_is_no_evidence(session, tmp_path):
    """This trainer writes nothing."""
    run = judged(session, tmp_path, broken("full"), target=SOCKETS, update="sync")
    assert run.exit_code == 2, run.explain()
    assert "until worker:0 is at step 24 was not observed" in run.explain()


NOW = """
import errno, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from psconform.reference_impl.recovery.checkpoints import Cut, Store, _os_error
store = Store(Path(sys.argv[1]))
for line in sys.stdin:
    try:
        if line.startswith("save"):
            store.save(Cut(int(line.split()[1]), 0, (20,), [np.ones(1000, np.float32)]))
            print("saved", flush=True)
        elif line.startswith("open"):  # what TensorFlow makes of it
            try:
                tf.train.load_checkpoint(str(store.folder / store.names()[0]))
            except tf.errors.OpError as error:
                raise _os_error(error, store.folder)
        else:
            print(store.newest().name, flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


def broken_disk(kind, disk):
    fault = Fault(kind=kind, region=FOLDER, when=WHEN, lasts_s=1.0, amounts=kinds()[kind].usual)
    return kinds()[kind].injector(fault, SimpleNamespace(mounted=lambda _: disk))


@pytest.mark.nightly
@pytest.mark.psconform_needs("fuse")
def test_a_checkpoint_that_cannot_be_read_now_is_no_damaged_one(tmp_path):
    """Else an older one would be restored, which is a rollback too far."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with mounted(folder, whose=lambda _: "") as disk:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        words = [sys.executable, "-c", NOW, str(folder)]
        with subprocess.Popen(words, env={**os.environ, OWNER: owner_mark()}, **pipes) as process:

            def ask(what):
                process.stdin.write(f"{what}\n")
                process.stdin.flush()
                return process.stdout.readline().strip()

            assert ask("save 10") == "saved"
            for kind, error in (("full", "ENOSPC"), ("unreadable", "EIO"), ("read-only", "EROFS")):
                fault = broken_disk(kind, disk)
                fault.inject()
                assert ask("save 20") == error
                fault.heal()
                assert ask("newest") == "step-10-epoch-0"
                files = {path.name.split(".")[0] for path in folder.iterdir()}
                assert files == {"step-10-epoch-0"}, kind  # nothing of what failed is in the way
            assert ask("save 20") == "saved"
            fault = broken_disk("unreadable", disk)
            fault.inject()
            assert ask("newest") == "EIO"
            assert ask("open") == "EIO"
            fault.heal()
            assert ask("newest") == "step-20-epoch-0"
            process.stdin.close()
