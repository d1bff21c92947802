"""Data sets from a user's own arrays, and the one that is always there."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from pmfl.errors import DataMissing
from pmfl.world.datasets import digits, from_arrays
from tests.world import makers

X, Y = makers.pixels(6), makers.labels(6)


def test_images_and_their_labels() -> None:
    data = from_arrays(X, Y, X[:2], Y[:2], labels=["a", "b", "c"], users=np.array([5, 5, 5, 6, 6, 7]), augment="crop")
    assert data.is_image
    assert data.labels == ("a", "b", "c")
    assert len(data.test) == 2
    assert data.train.users is not None
    assert data.train.users.tolist() == [5, 5, 5, 6, 6, 7]
    assert from_arrays(X[..., 0], Y, X[..., 0], Y).train.x.shape == (6, 6, 6, 1)


def test_features() -> None:
    data = from_arrays(np.eye(6), Y, np.eye(6), Y)
    assert not data.is_image
    assert data.train.x.dtype == np.float32
    assert data.labels == ("0", "1", "2")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_test": makers.pixels(6, 8)}, r"train samples have shape \(6, 6, 3\), test samples \(8, 8, 3\)"),
        ({"labels": ["a", "b"]}, "label 2 is out of range for 2 label names"),
        ({"x_train": X / 255}, "train: samples are float64"),
        ({"x_train": np.zeros(6, np.uint8)}, "train: samples are uint8"),
        ({"x_train": np.full((6, 2), np.nan), "x_test": np.eye(6)[:, :2]}, "train: features contain NaN"),
        ({"y_test": Y[:5]}, r"test: labels are int64 \(5,\) for 6 samples"),
        ({"y_train": Y - 1}, "train: labels are int64"),
        ({"y_train": Y * 1.0}, "train: labels are float64"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed: dict[str, Any], message: str) -> None:
    arrays = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y} | changed
    with pytest.raises(DataMissing, match=message) as caught:
        from_arrays(**arrays)
    assert caught.value.hint


def test_digits() -> None:
    data = digits()
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert data.train.x.shape[1:] == (8, 8, 1)
    pixels = data.train.x / 255
    assert data.mean == pytest.approx((pixels.mean(),), abs=0.002)
    assert data.std == pytest.approx((pixels.std(),), abs=0.002)
    assert np.bincount(data.train.y).min() == 127


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataMissing, match="not here"):
        digits()
