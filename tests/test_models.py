"""The models' gradients, the order of the samples, and the data file: what trainer and judge must agree on."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform import models
from psconform.errors import Malformed
from psconform.history.build import read_data
from psconform.models import MOST, Batches, Data, Mlp, Quadratic, Softmax, join, split
from psconform.parts import Missing
from psconform.workloads import digits

MODELS = [Softmax(), Mlp(), Quadratic(size=30, mu=0.1, L=10)]


@pytest.fixture(scope="module")
def data():
    return digits.load()


def batch_for(model, data, count=40):
    return (None, None) if isinstance(model, Quadratic) else (data.train_x[:count], data.train_y[:count])


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_gradient_is_that_of_the_loss_by_finite_differences(model, data):
    x, y = batch_for(model, data)
    theta = model.initial(3).astype(np.float64)
    gradient = model.gradient(theta, x, y)
    assert gradient.dtype == np.float64
    step = 1e-5
    for index in np.random.default_rng(0).choice(model.size, 30, replace=False):
        nudge = np.zeros(model.size)
        nudge[index] = step
        numeric = (model.loss(theta + nudge, x, y) - model.loss(theta - nudge, x, y)) / (2 * step)
        assert gradient[index] == pytest.approx(numeric, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_a_trainer_computes_in_float32_and_comes_out_close_to_float64(model, data):
    x, y = batch_for(model, data)
    theta = model.initial(3)
    assert theta.dtype == np.float32
    assert theta.shape == (model.size,)
    gradient = model.gradient(theta, x, y)
    assert gradient.dtype == np.float32
    exact = model.gradient(theta.astype(np.float64), x, y)
    assert np.linalg.norm(gradient - exact) < 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_initial_parameters_depend_on_the_seed_alone(model):
    assert np.array_equal(model.initial(7), model.initial(7))
    assert not np.array_equal(model.initial(7), model.initial(8))
    with pytest.raises(ValueError, match="seed must be 0 to 2\\*\\*32 - 1, got -1"):
        model.initial(-1)


def test_initial_parameters_and_permutations_are_those_of_other_machines():
    """Frozen values: another version of numpy or this code must not draw other ones."""
    assert Softmax().initial(0)[:2].tolist() == [0.19614645838737488, 0.14690369367599487]
    assert Batches(samples=10, workers=1, batch=10, seed=5).union(1)[1].tolist() == [0, 7, 9, 4, 1, 6, 8, 2, 5, 3]


@pytest.mark.tensorflow
@pytest.mark.parametrize("model", [Softmax(), Mlp()], ids=["softmax", "mlp"])
def test_gradient_is_that_of_tensorflow(model, data):
    import tensorflow as tf

    x, y = batch_for(model, data)
    theta = model.initial(1)
    variable = tf.Variable(theta)
    sizes = [(64, 10), (10,)] if isinstance(model, Softmax) else [(64, 32), (32,), (32, 10), (10,)]
    with tf.GradientTape() as tape:
        parts = [tf.reshape(p, s) for p, s in zip(tf.split(variable, [np.prod(s) for s in sizes]), sizes, strict=True)]
        scores = x @ parts[0] + parts[1]
        if isinstance(model, Mlp):
            scores = tf.tanh(scores) @ parts[2] + parts[3]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores))
    assert float(loss) == pytest.approx(model.loss(theta, x, y), rel=1e-6)
    np.testing.assert_allclose(model.gradient(theta, x, y), tape.gradient(loss, variable).numpy(), rtol=1e-4, atol=1e-7)
    assert model.accuracy(theta, x, y) == np.mean(np.argmax(scores.numpy(), axis=1) == y)


def test_quadratic_is_known_in_closed_form():
    model = Quadratic(size=5, mu=0.01, L=100)
    np.testing.assert_allclose(model.curvature, [0.01, 0.1, 1, 10, 100])
    assert model.loss(model.optimum) == 0
    assert not model.gradient(model.optimum).any()
    ones = model.optimum.astype(np.float64) + 1
    assert model.loss(ones) == pytest.approx(111.11 / 2)
    np.testing.assert_allclose(model.gradient(ones), model.curvature)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"size": 0}, "got 0"),
        ({"mu": 0}, "mu=0"),
        ({"mu": 2}, "mu=2"),
        ({"L": np.inf}, "L=inf"),
        ({"mu": np.nan}, "mu"),
    ],
)
def test_a_quadratic_without_a_minimum_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        Quadratic(**options)


@pytest.mark.parametrize("model", [Softmax(), Mlp()], ids=["softmax", "mlp"])
def test_divergence_is_computed_without_warnings_and_finds_nothing(model, data):
    x, y = batch_for(model, data)
    theta = np.full(model.size, np.nan, np.float32)
    assert np.isnan(model.loss(theta, x, y))
    assert np.isnan(model.gradient(theta, x, y)).any()
    assert model.accuracy(theta, x, y) == 0
    huge = model.initial(0) * np.float32(1e38)
    model.gradient(huge, x, y)
    assert model.loss(huge, x, y) > 1e30


@pytest.mark.parametrize("model", [Softmax(), Mlp()], ids=["softmax", "mlp"])
@pytest.mark.parametrize("call", ["loss", "gradient", "accuracy"])
def test_what_is_no_batch_is_refused(model, call, data):
    x, y, theta = data.train_x[:3], data.train_y[:3], model.initial(0)
    with pytest.raises(ValueError, match=r"theta has shape \(5,\), this model has"):
        getattr(model, call)(np.zeros(5, np.float32), x, y)
    with pytest.raises(ValueError, match="got 0 and 0"):
        getattr(model, call)(theta, x[:0], y[:0])
    with pytest.raises(ValueError, match="got 3 and 2"):
        getattr(model, call)(theta, x, y[:2])
    with pytest.raises(ValueError, match="needs samples"):
        getattr(model, call)(theta, None, None)


@given(size=st.integers(1, 50), parts=st.integers(1, 60))
def test_join_undoes_split(size, parts):
    theta = np.arange(1, size + 1, dtype=np.float32)
    pieces = split(theta, parts)
    assert len(pieces) == parts
    assert {p.shape for p in pieces} == {(-(-size // parts),)}
    assert {p.dtype for p in pieces} == {np.dtype(np.float32)}
    assert not np.concatenate(pieces)[size:].any()
    assert np.array_equal(join(pieces, size), theta)


def test_parts_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="parts must be at least 1, got 0"):
        split(np.zeros(3, np.float32), 0)
    with pytest.raises(ValueError, match="number of parts must be at least 1, got 0"):
        join([], 3)
    with pytest.raises(ValueError, match=r"part 1 has shape \(3,\), 4 values in 2 have \(2,\)"):
        join([np.zeros(2), np.zeros(3)], 4)


@st.composite
def batchings(draw):
    workers, batch = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    samples = workers * batch + draw(st.integers(0, 100))
    return Batches(samples=samples, workers=workers, batch=batch, seed=draw(st.integers(0, 2**32 - 1)))


@settings(max_examples=200, deadline=None)
@given(batchings())
def test_every_sample_is_used_once_per_epoch_by_equally_many_steps(batches):
    for epoch in range(2):
        steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
        drawn = [batches.of(w, s) for w in range(batches.workers) for s in steps]
        assert {number for number, _ in drawn} == {epoch}
        assert sorted(np.concatenate([ids for _, ids in drawn]).tolist()) == list(range(batches.samples))
        sizes = [len(ids) for _, ids in drawn]
        assert batches.batch <= min(sizes)
        assert max(sizes) <= 2 * batches.batch
        for step in steps:
            parts = [batches.of(w, step)[1] for w in range(batches.workers)]
            assert np.array_equal(np.concatenate(parts), batches.union(step)[1])
            assert [len(part) for part in parts] == batches.sizes(step).tolist()
            assert np.ptp(batches.sizes(step)) <= 1


@settings(max_examples=50, deadline=None)
@given(batchings(), st.integers(0, 30))
def test_the_mean_of_weighted_gradients_is_that_of_the_union_batch(batches, step):
    values = np.random.default_rng(0).normal(size=batches.samples)
    means = [values[batches.of(w, step)[1]].mean() for w in range(batches.workers)]
    weights = batches.weights(step)
    assert weights.sum() == pytest.approx(batches.workers)
    assert np.mean(weights * means) == pytest.approx(values[batches.union(step)[1]].mean())


def test_union_batches_do_not_depend_on_how_many_workers_share_them():
    alone, four = (Batches(samples=1347, workers=w, batch=64 // w, seed=9) for w in (1, 4))
    for step in range(2 * alone.steps_per_epoch):
        assert np.array_equal(alone.union(step)[1], four.union(step)[1])
        assert alone.union(step)[0] == four.union(step)[0]
    assert not np.array_equal(alone.union(0)[1], alone.union(alone.steps_per_epoch)[1])  # the next epoch's shuffle


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"samples": 7}, "got 7; 2 workers with batches of 4 need 8"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"seed": 2**32}, f"got {2**32}"),
    ],
)
def test_a_batching_that_cannot_be_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        Batches(**{"samples": 10, "workers": 2, "batch": 4, "seed": 0} | options)


def test_a_worker_or_step_that_is_not_there_is_refused():
    batches = Batches(samples=10, workers=2, batch=2)
    with pytest.raises(ValueError, match="worker must be 0 to 1, got 2"):
        batches.of(2, 0)
    for call in (batches.union, batches.sizes, batches.weights):
        with pytest.raises(ValueError, match="step must be at least 0, got -1"):
            call(-1)
    with pytest.raises(ValueError, match="read-only"):
        batches.of(0, 0)[1][0] = 5


@pytest.mark.engine
def test_models_are_one_file_for_any_trainer(tmp_path):
    """A copy beside a trainer works where psconform is not installed."""
    (tmp_path / "models.py").write_bytes(Path(models.__file__).read_bytes())
    code = "import sys; sys.modules['psconform'] = None; import models; print(models.Mlp().initial(0).sum())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(float(Mlp().initial(0).sum()))


def test_digits_are_scaled_and_split_without_overlap(data):
    assert data.train_x.shape == (1347, 64)
    assert data.test_x.shape == (450, 64)
    assert (data.train_x.min(), data.train_x.max()) == (0, 1)
    assert sorted(set(data.train_y.tolist())) == sorted(set(data.test_y.tolist())) == list(range(10))
    assert np.bincount(data.test_y).min() >= 30  # no class is missing from the test
    assert np.sum(data.train_y) + np.sum(data.test_y) == 8070


def test_written_data_is_read_back_the_same_bytes_every_time(data, tmp_path):
    path = digits.write_data(tmp_path)
    assert path == tmp_path / "digits.npz"
    first = path.read_bytes()
    assert digits.write_data(tmp_path).read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["digits.npz"]
    for loaded in (read_data(tmp_path), Data.load(path)):
        for name in ("train_x", "train_y", "test_x", "test_y"):
            assert np.array_equal(getattr(loaded, name), getattr(data, name))
            assert getattr(loaded, name).dtype == getattr(data, name).dtype


def wrong_dtype(path):
    np.savez(path, train_x=np.zeros((2, 3)), train_y=np.zeros(2), test_x=np.zeros((2, 3)), test_y=np.zeros(2))


def lacking(path):
    np.savez(path, train_x=np.zeros((2, 3), np.float32))


def cut_short(path):
    digits.write_data(path.parent)
    path.write_bytes(path.read_bytes()[:2000])


def flipped(path):
    digits.write_data(path.parent)
    content = bytearray(path.read_bytes())
    content[1000] ^= 255
    path.write_bytes(content)


def array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def pickled(path):
    with path.open("wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)


def enormous(path):
    """A header that claims to be of an array which no machine holds."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 10), }" % 10**17
    header = header.ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as packed:
        for name in ("train_x", "train_y", "test_x", "test_y"):
            packed.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("train_x.npy", b"\0" * (MOST + 1))


@pytest.mark.parametrize(
    "write", [wrong_dtype, lacking, cut_short, flipped, array, pickled, enormous, bomb, lambda p: p.touch()]
)
def test_a_file_that_is_no_data_is_named(write, tmp_path):
    path = tmp_path / "digits.npz"
    write(path)
    with pytest.raises(Malformed, match=r"digits\.npz") as caught:
        read_data(tmp_path)
    assert str(caught.value).count("digits.npz") == 1
    with pytest.raises(ValueError, match=r"digits\.npz"):
        Data.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(Malformed, match=r"digits\.npz: cannot be read \(No such file"):
        read_data(tmp_path)


def test_without_scikit_learn_the_command_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(Missing, match=r"scikit-learn: .*, so workload digits cannot .* -m pip install 'scikit-learn>="):
        digits.write_data(tmp_path)
    assert not list(tmp_path.iterdir())
