"""The digits data: 1797 handwritten digits of 8 x 8 pixels, which come with scikit-learn and need no download.

The UCI "Optical Recognition of Handwritten Digits" test set (Alpaydin and Kaynak 1998, CC BY 4.0). Trainers read it
from an .npz in the run folder (`psconform.models.Data.load`), so only psconform itself needs scikit-learn.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from ..models import Data
from ..parts import SCIKIT_LEARN, Missing
from ..trained import DATA

TEST = 450
"""Samples set aside for testing; the other 1347 are for training."""


def load() -> Data:
    """The digits, features scaled from 0..16 to 0..1, always split alike; Missing if there is no scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Missing(SCIKIT_LEARN, str(error)) from error
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    order = np.random.RandomState(0).permutation(len(y))  # a frozen stream (NEP 19); the file is sorted by writer
    test, train = order[:TEST], order[TEST:]
    return Data(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])


def write_data(folder: Path) -> Path:
    """Write the digits into a run folder; returns the path of ``digits.npz`` in it, the same bytes every time."""
    data, path = load(), folder / DATA
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:  # under its name only when whole: trainers may be waiting for it
        np.savez(file, train_x=data.train_x, train_y=data.train_y, test_x=data.test_x, test_y=data.test_y)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)
    return path
