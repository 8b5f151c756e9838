"""Checkpoints on disk: TensorFlow's own files, and beside them a manifest that says when they are whole.

A folder holds ``chief.lock``, by which a second chief is refused, and per checkpoint, e.g. ``step-50-epoch-0``::

    step-50-epoch-0.index, step-50-epoch-0.data-00000-of-00001    an ordinary TensorFlow checkpoint
    step-50-epoch-0.json                                          its manifest: size and SHA-256 of those, and of itself

The manifest is written last, under another name, and renamed once everything has reached the disk: a checkpoint exists
as soon as its manifest does, and counts only while all that it names is as it says. What was torn, cut short or changed
is passed over, and the one before is taken. A disk that is full, or read-only, or cannot be read now is another matter
(``TROUBLE``): that raises OSError, so that no older checkpoint is taken because the newest cannot be read just now.

``tf.train.load_checkpoint(folder + "/step-50-epoch-0")`` gives these tensors:

* ``theta_0``, ``theta_1`` ...: the parameters of each ps, float32[slots];
* ``theta_0/momentum`` or ``theta_0/m`` and ``theta_0/v``, with ``--optimizer momentum`` or ``adam``: the moments of the
  same parameters (psconform.optimizers), float32[slots]; with sgd there are none;
* ``applied``: how many gradients of each worker are in them, int64[workers], the same on every ps;
* ``step``: the step that the chief was about to take, and once it has taken its last (in async the others may go on)
  one more with each checkpoint; ``epoch``: the cluster epoch it was read in; both int64.

An **epoch** is raised on disk before a restore begins, by a file whose *name* is all that it says (``epoch-3``):
nothing in it can be torn, and no number is used twice. ``epoch-3.done`` says that every ps has been given its state.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..cluster import CALL_TIMEOUT_S, tf, tf1
from ..ps import Row

FORMAT = 1
FINISHED = "finished"
"""Name of the file that says that training is over and all workers have left."""
TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk that may be over soon: what failed is worth another try."""
_NAME = re.compile(r"step-(\d+)-epoch-(\d+)\.json")
_EPOCH = re.compile(r"epoch-(\d+)(\.done)?")


@dataclass(frozen=True)
class Cut:
    """One state of all shards: each holds the first ``applied[w]`` gradients of every worker w, and nothing else.

    ``step`` is the one that the chief was about to take, after its last one more each time; ``epoch`` is the one that
    it was read in. ``moments`` are those of each shard by name, of the same version as its parameters;
    empty: it has none.
    """

    step: int
    epoch: int
    applied: tuple[int, ...]
    thetas: list[Row]
    moments: list[dict[str, Row]] = field(default_factory=list)

    @property
    def named(self) -> tuple[str, ...]:
        """The moments that every shard has."""
        return tuple(self.moments[0]) if self.moments else ()

    @property
    def name(self) -> str:
        """Unique: what a chief repeats after a rollback it does in another epoch."""
        return f"step-{self.step}-epoch-{self.epoch}"

    @property
    def clock(self) -> list[list[int]]:
        """Per ps and worker, how many gradients of that worker it holds."""
        return [list(self.applied) for _ in self.thetas]


class Store:
    """A folder with checkpoints. Only the chief writes to it."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.keep = folder, keep

    def claim(self) -> IO[bytes] | None:
        """Be the one chief of this folder, as long as this process lives and what is returned is kept; None: there is
        one already. (flock, so on one machine, or a file system that has it on all.)"""
        try:
            file = (self.folder / "chief.lock").open("ab")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError as error:  # a disk that takes nothing now, or knows no locks
            logging.warning("%s cannot be locked: %s", self.folder, error)
            return (self.folder / os.devnull).open("rb")
        return file

    def save(self, cut: Cut, *, before_commit: Callable[[], object] = lambda: None) -> None:
        """Make a checkpoint durable, and remove those beyond the ``keep`` newest.

        ``before_commit`` is called when its files are there and its manifest is not. Raises OSError if the disk does
        not take it: then it does not count, and what there is of it is removed.
        """
        try:
            self._commit(cut, before_commit)
        except OSError:
            if not (self.folder / f"{cut.name}.json").exists():  # or it is whole, and may have been restored
                self._discard(cut.name)
            raise
        try:
            self._prune()
        except OSError as error:  # the new one is durable all the same; what is too much goes with the next
            logging.warning("old checkpoints in %s stay for now: %s", self.folder, error)

    def _commit(self, cut: Cut, before_commit: Callable[[], object]) -> None:
        _write_tensors(self.folder / cut.name, cut)
        files = {}
        for path in sorted(self.folder.glob(f"{cut.name}.*")):
            if path.suffix != ".json" and not path.name.endswith(".tmp"):
                files[path.name] = _digest(path)
                _sync(path)
        before_commit()
        manifest = {"format": FORMAT, "step": cut.step, "epoch": cut.epoch, "applied": list(cut.applied)}
        named = {"moments": list(cut.named)} if cut.named else {}
        self._put(f"{cut.name}.json", _encode({**manifest, **named, "shards": len(cut.thetas), "files": files}))

    def _discard(self, name: str) -> None:
        """Remove what there is of a checkpoint that was not committed; on a full disk it would be in the way."""
        for path in self.folder.glob(f"{name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def newest(self) -> Cut | None:
        """The newest checkpoint that is whole; raises OSError if the disk does not let it be read now."""
        return next((cut for name in self.names() if (cut := self.load(name)) is not None), None)

    def names(self) -> list[str]:
        """All that have a manifest, whole or not, newest first."""
        found = [(int(m[2]), int(m[1]), path.stem) for path in self._files() if (m := _NAME.fullmatch(path.name))]
        return [name for _, _, name in sorted(found, reverse=True)]

    def last(self, epoch: int) -> int:
        """The highest step of any checkpoint of that epoch that has a manifest, whole or not; -1: there is none."""
        found = [m for name in self.names() if (m := _NAME.fullmatch(f"{name}.json"))]
        return max((int(m[1]) for m in found if int(m[2]) == epoch), default=-1)

    def load(self, name: str) -> Cut | None:
        """This checkpoint, or None if anything about it is not as it was written.

        Raises OSError (one of ``TROUBLE``) if that cannot be told, for the disk does not let it be read now.
        """
        try:
            return self._loaded(name)
        except (OSError, tf.errors.OpError) as error:
            why = error if isinstance(error, OSError) else _os_error(error, self.folder / name)
            if why.errno in TROUBLE:
                raise why from None
        except (ValueError, LookupError, NotImplementedError, RecursionError):
            pass  # TensorFlow's reader raises these, too, as of a file that is shorter than its index says
        return None

    def _loaded(self, name: str) -> Cut | None:
        content = (self.folder / f"{name}.json").read_bytes()
        manifest = json.loads(content)
        if not isinstance(manifest, dict):
            return None
        manifest.pop("sha256", None)
        if content != _encode(manifest) or manifest["format"] != FORMAT:  # to the byte
            return None
        if any(_digest(self.folder / file) != digest for file, digest in manifest["files"].items()):
            return None
        # What was damaged before its digest was taken TensorFlow's own checksums tell.
        reader = tf.train.load_checkpoint(str(self.folder / name))
        shards = [f"theta_{i}" for i in range(manifest["shards"])]
        thetas = [reader.get_tensor(theta) for theta in shards]
        named = manifest.get("moments", [])
        moments = [{name: reader.get_tensor(f"{theta}/{name}") for name in named} for theta in shards]
        return Cut(manifest["step"], manifest["epoch"], tuple(manifest["applied"]), thetas, moments if named else [])

    @property
    def empty(self) -> bool:
        """No chief has ever got as far as a checkpoint here."""
        return not self.names() and not self._epochs()

    @property
    def epoch(self) -> int:
        """The highest that was raised; -1: none."""
        return max(self._epochs(), default=-1)

    def raise_epoch(self, epoch: int) -> None:
        """Make it known that ``epoch`` is in use, before it is."""
        self._put(f"epoch-{epoch}", b"")
        for old in (e for e in self._epochs() if e < epoch - 1):
            (self.folder / f"epoch-{old}.done").unlink(missing_ok=True)
            (self.folder / f"epoch-{old}").unlink(missing_ok=True)

    def complete(self, epoch: int) -> None:
        """Say that every ps has been given its state in this epoch."""
        self._put(f"epoch-{epoch}.done", b"")

    def is_complete(self, epoch: int) -> bool:
        """Every ps was given its state in this epoch, and none was begun after it."""
        return self.epoch < epoch or (self._epochs().get(epoch, False) and self.epoch == epoch)

    def finish(self) -> None:
        """Say that training is over and all workers have left: a task that is started from now on has nothing to do."""
        self._put(FINISHED, b"")

    @property
    def finished(self) -> bool:
        """Training is over."""
        return (self.folder / FINISHED).exists()

    def _epochs(self) -> dict[int, bool]:
        """Epochs that were raised, and whether each is complete."""
        found = [m for path in self._files() if (m := _EPOCH.fullmatch(path.name))]
        done = {int(m[1]) for m in found if m[2]}
        return {int(m[1]): int(m[1]) in done for m in found}

    def _files(self) -> list[Path]:
        return list(self.folder.iterdir())

    def _put(self, name: str, content: bytes) -> None:
        """A file appears whole, under its name, and has reached the disk when this returns."""
        temporary = self.folder / f"{name}.tmp"
        temporary.write_bytes(content)
        _sync(temporary)
        temporary.rename(self.folder / name)
        _sync(self.folder)

    def _prune(self) -> None:
        """Remove old checkpoints, manifest first, and what a chief that died has left without a manifest."""
        names = self.names()
        for name in names[self.keep :]:
            (self.folder / f"{name}.json").unlink()
        kept = set(names[: self.keep])
        for path in self._files():
            if path.name.startswith("step-") and path.name.split(".")[0] not in kept:
                path.unlink()


def _encode(manifest: dict[str, Any]) -> bytes:
    """A manifest with its own checksum as the last field: there is one way only to write it."""
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}).encode() + b"\n"


def _digest(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_tensors(prefix: Path, cut: Cut) -> None:
    """An ordinary TensorFlow checkpoint, from a graph and a session of its own that no other task is part of.

    Raises OSError, with the number of the error if TensorFlow says one of ``TROUBLE`` in words.
    """
    tensors = {f"theta_{i}": np.asarray(theta, np.float32) for i, theta in enumerate(cut.thetas)}
    for i, moments in enumerate(cut.moments):
        tensors |= {f"theta_{i}/{name}": np.asarray(moment, np.float32) for name, moment in moments.items()}
    tensors |= {"applied": np.array(cut.applied, np.int64)}
    tensors |= {"step": np.array(cut.step, np.int64), "epoch": np.array(cut.epoch, np.int64)}
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        feeds = [tf1.placeholder(tensor.dtype, tensor.shape) for tensor in tensors.values()]
        save = tf.raw_ops.SaveV2(
            prefix=str(prefix), tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=feeds
        )
        with tf1.Session(graph=graph, config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            try:
                session.run(save, dict(zip(feeds, tensors.values(), strict=True)))
            except tf.errors.OpError as error:
                raise _os_error(error, prefix) from None


def _os_error(error: tf.errors.OpError, prefix: Path) -> OSError:
    """What the system has said to TensorFlow, which passes it on in words, in a line that names the file."""
    if (number := next((number for number in TROUBLE if os.strerror(number) in error.message), 0)) != 0:
        return OSError(number, os.strerror(number))
    lines = error.message.splitlines()
    return OSError(errno.EINVAL, next((line for line in lines if str(prefix) in line), lines[0] if lines else ""))


@dataclass(frozen=True)
class Recovery:
    """Where checkpoints are, after how many steps of the chief or seconds there is one, and how many are kept.

    ``every`` and ``every_s`` 0: only the first and the last are written. A task that hears nothing of the others
    for ``give_up_s`` ends, and names them.
    """

    folder: Path
    every: int = 50
    every_s: float = 0.0
    keep: int = 3
    give_up_s: float = CALL_TIMEOUT_S

    def store(self) -> Store:
        return Store(self.folder, keep=self.keep)
