"""Data sets: a name, two splits, and how pixels become numbers."""

from __future__ import annotations

import csv
import gzip
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pmfl.errors import DataMissing

IntArray: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """Samples and labels; either may be memory-mapped."""

    x: Array  # images: uint8 [n, height, width, channels]; tabular: float32 [n, features]
    y: IntArray  # [n], 0 … classes - 1
    users: IntArray | None = None  # [n] who each sample came from, where the set knows

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """Everything training needs of a data set. Train decides; test is only ever looked at."""

    name: str
    train: Split
    test: Split
    labels: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)  # per channel, of pixels scaled to [0, 1]
    std: tuple[float, ...] = (1.0,)
    augment: str = "none"  # the name of the training augmentation that fits this set
    notes: dict[str, str] = field(default_factory=dict)  # licence, source, …
    user_names: tuple[str, ...] = ()  # what the numbers in Split.users stand for

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return len(self.labels)

    @property
    def is_image(self) -> bool:
        """Whether samples are images rather than rows of features."""
        return self.train.x.ndim == 4


def load(name: str, path: str | Path | None = None, **options: Any) -> Dataset:
    """A data set by name, or from a file or folder in any layout that is known; nothing is ever downloaded here.

    Names: ``digits`` (always there); ``svhn``, ``cifar10``, ``cifar100``, ``cinic10``, ``fashion``, ``mnist`` and
    ``femnist`` (found in $PMFL_DATA, ./data or the cache); ``hub:owner/name[:config]`` and any other name that
    ``pmfl data get`` has brought into the cache. Options say what a source does not: ``image``, ``label`` and ``user``
    name columns, ``train`` and ``test`` splits, ``size`` resizes images, ``sites=True`` makes every folder a user,
    ``split_seed`` picks another keyed fifth as the test split of a source that has none.

    >>> load("digits").classes
    10
    """
    from pmfl.world.sources import opening

    return opening.load(name, path, **options)


def from_arrays(
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    *,
    name: str = "arrays",
    labels: Sequence[str] | None = None,
    users: Array | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    augment: str = "none",
) -> Dataset:
    """A data set from arrays: uint8 images [n, h, w] or [n, h, w, c], or float features [n, f].

    >>> import numpy as np
    >>> x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    >>> from_arrays(x, y, x, y).classes
    2
    """
    train, test = _split(x_train, y_train, "train", users), _split(x_test, y_test, "test", None)
    if train.x.shape[1:] != test.x.shape[1:]:
        raise DataMissing(
            f"{name}: train samples have shape {train.x.shape[1:]}, test samples {test.x.shape[1:]}",
            hint="give both splits the same shape",
        )
    highest = int(max(train.y.max(initial=0), test.y.max(initial=0)))
    names = tuple(labels) if labels is not None else tuple(map(str, range(highest + 1)))
    if highest >= len(names):
        raise DataMissing(
            f"{name}: label {highest} is out of range for {len(names)} label names", hint="labels count from 0"
        )
    return Dataset(name, train, test, names, tuple(mean), tuple(std), augment)


def _split(x: Array, y: Array, which: str, users: Array | None) -> Split:
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim not in (2, 4) or (x.ndim == 4) != (x.dtype == np.uint8):
        raise DataMissing(
            f"{which}: samples are {x.dtype} {x.shape}",
            hint="give images as uint8 [n, height, width, channels] or features as float [n, features]",
        )
    if x.ndim == 2:
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataMissing(f"{which}: features contain NaN or infinity", hint="fill or drop them first")
    if y.shape != (len(x),) or y.dtype.kind not in "iu" or len(y) == 0 or y.min() < 0:
        raise DataMissing(
            f"{which}: labels are {y.dtype} {y.shape} for {len(x)} samples",
            hint="give one integer label per sample, counting from 0",
        )
    return Split(x, y.astype(np.int64), None if users is None else np.asarray(users, np.int64))


def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, from scikit-learn's own files; every fifth is a test sample."""
    spec = importlib.util.find_spec("sklearn")  # located, not imported: importing it takes a second
    roots = list(spec.submodule_search_locations or []) if spec else []
    files = [Path(root) / "datasets" / "data" / "digits.csv.gz" for root in roots]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise DataMissing("digits: scikit-learn's data file is not here", hint="pip install scikit-learn")
    with gzip.open(file, "rt") as text:
        rows = np.array([[int(float(cell)) for cell in row] for row in csv.reader(text)])
    x = (rows[:, :64].reshape(-1, 8, 8, 1) * 255 // 16).astype(np.uint8)
    y = rows[:, 64].astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 4
    return Dataset(
        "digits",
        Split(x[~is_test], y[~is_test]),
        Split(x[is_test], y[is_test]),
        tuple("0123456789"),
        mean=(0.305,),
        std=(0.376,),
        notes={"licence": "CC BY 4.0, UCI Optical Recognition of Handwritten Digits; part of scikit-learn"},
    )
