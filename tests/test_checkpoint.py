"""Checkpoint files of the reference trainer: one that is not whole is never taken, the one before it is."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def store(tmp_path):
    from psconform.reference_impl.recovery.checkpoints import Store

    return Store(tmp_path / "checkpoints", keep=3)


def cut(step, epoch=0):
    from psconform.reference_impl.recovery.checkpoints import Cut

    thetas = [np.arange(5, dtype=np.float32) + step, -np.arange(5, dtype=np.float32)]
    return Cut(step, epoch, (step, step + 1), thetas)


def files(store, name):
    return sorted(store.folder.glob(f"{name}.*"))


def same(one, other):
    return one.name == other.name and one.applied == other.applied and np.array_equal(one.thetas, other.thetas)


def test_the_newest_comes_back(store):
    for step in (0, 50, 100):
        store.save(cut(step))
    assert same(store.newest(), cut(100))
    store.save(cut(50, epoch=1))  # after a rollback
    assert same(store.newest(), cut(50, epoch=1))


def test_an_ordinary_tensorflow_checkpoint(store):
    import tensorflow as tf

    store.save(cut(50, epoch=2))
    reader = tf.train.load_checkpoint(str(store.folder / "step-50-epoch-2"))
    assert sorted(reader.get_variable_to_shape_map()) == ["applied", "epoch", "step", "theta_0", "theta_1"]
    assert reader.get_tensor("applied").tolist() == [50, 51]
    assert reader.get_tensor("theta_0").tolist() == [50, 51, 52, 53, 54]
    assert (reader.get_tensor("step"), reader.get_tensor("epoch")) == (50, 2)


def test_keeps_the_newest_and_sweeps_the_rest(store):
    for step in range(0, 60, 10):
        store.save(cut(step))
    assert store.names() == ["step-50-epoch-0", "step-40-epoch-0", "step-30-epoch-0"]
    assert {path.name.split(".")[0] for path in store.folder.iterdir()} == set(store.names())


def test_not_there_before_it_is_committed(store):
    store.save(cut(0))
    seen = []
    store.save(cut(10), before_commit=lambda: seen.append((store.newest().name, len(files(store, "step-10-epoch-0")))))
    assert seen == [("step-0-epoch-0", 2)]  # both of its files, and it does not count
    assert store.newest().name == "step-10-epoch-0"


def test_a_manifest_torn_anywhere(store):
    store.save(cut(0))
    store.save(cut(10))
    manifest = store.folder / "step-10-epoch-0.json"
    whole = manifest.read_bytes()
    for length in range(len(whole)):
        manifest.write_bytes(whole[:length])
        assert store.newest().name == "step-0-epoch-0", length
    manifest.write_bytes(whole)
    assert store.newest().name == "step-10-epoch-0"


@pytest.mark.parametrize("suffix", ["json", "index", "data-00000-of-00001"])
def test_any_bit_flipped_any_file_cut_short_or_gone(store, suffix):
    store.save(cut(0))
    store.save(cut(10))
    path = store.folder / f"step-10-epoch-0.{suffix}"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert store.newest().name == "step-0-epoch-0", bit
    for other in (whole[:-1], whole + b"\n", b""):
        path.write_bytes(other)
        assert store.newest().name == "step-0-epoch-0"
    path.unlink()
    assert store.newest().name == "step-0-epoch-0"


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize(
    "damaged", [lambda data: b"\xff" + data[1:], lambda data: data[: len(data) // 2], lambda _: b""]
)
def test_damaged_while_it_was_written(store, monkeypatch, suffix, damaged):
    """Its digest is that of the damage, and TensorFlow's checksum is not."""
    from psconform.reference_impl.recovery import checkpoints

    write = checkpoints._write_tensors

    def damage(prefix, cut):
        write(prefix, cut)
        path = prefix.with_name(f"{prefix.name}.{suffix}")
        path.write_bytes(damaged(path.read_bytes()))

    store.save(cut(0))
    monkeypatch.setattr(checkpoints, "_write_tensors", damage)
    store.save(cut(10))
    assert store.names() == ["step-10-epoch-0", "step-0-epoch-0"]
    assert store.newest().name == "step-0-epoch-0"


def test_none_is_whole(store):
    store.save(cut(0))
    (store.folder / "step-0-epoch-0.index").unlink()
    assert store.newest() is None
    assert not store.empty


def test_epochs_are_used_once(store):
    assert store.empty
    assert store.epoch == -1
    store.raise_epoch(0)
    assert not store.empty
    assert not store.is_complete(0)
    store.complete(0)
    assert store.is_complete(0)
    for epoch in (1, 2, 3):  # chiefs that die while they restore
        store.raise_epoch(epoch)
        assert store.epoch == epoch
        assert not store.is_complete(epoch - 1)
        assert not store.is_complete(epoch)
    store.complete(3)
    assert store.is_complete(3)


def test_finished(store):
    assert not store.finished
    store.finish()
    assert store.finished


def with_moments(step):
    plain = cut(step)
    return dataclasses.replace(plain, moments=[{"m": theta + 1, "v": theta + 2} for theta in plain.thetas])


def test_moments_are_beside_the_parameters_under_documented_names(store):
    import tensorflow as tf

    store.save(with_moments(50))
    reader = tf.train.load_checkpoint(str(store.folder / "step-50-epoch-0"))
    names = [f"theta_{i}{moment}" for i in range(2) for moment in ("", "/m", "/v")]
    assert sorted(reader.get_variable_to_shape_map()) == ["applied", "epoch", "step", *names]
    found = store.newest()
    assert found.named == ("m", "v")
    for saved, loaded in zip(with_moments(50).moments, found.moments, strict=True):
        for name in ("m", "v"):
            np.testing.assert_array_equal(saved[name], loaded[name])


def test_a_manifest_without_moments_is_as_it_was(store):
    store.save(cut(0))
    assert "moments" not in json.loads((store.folder / "step-0-epoch-0.json").read_text())
    assert store.newest().named == ()
