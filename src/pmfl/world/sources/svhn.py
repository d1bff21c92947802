"""SVHN's cropped digits as published: `train_32x32.mat` and `test_32x32.mat`, in which the digit 0 has label 10."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from pmfl.world.sources.raw import Options, Raw, RawSplit, Source, guard_size, refuse

AGAIN = "get the file again: pmfl data get svhn"


def find(path: Path, options: Options, name: str) -> Source | None:
    """One of the two files, which finds the other, or a folder that holds them."""
    folder = path if path.is_dir() else path.parent
    if path.is_file() and not path.name.endswith("_32x32.mat"):
        return None
    pair = [folder / f"{split}_32x32.mat" for split in ("train", "test")]
    files = tuple(file for file in pair if file.is_file())
    if path.is_file() and path not in files[:1]:
        files = (path,)  # the test or the extra file alone, because it was asked for
    if not files:
        return None
    return Source("svhn", folder, files, options, lambda scratch: _raw(files))


def _raw(files: tuple[Path, ...]) -> Raw:
    splits = [_read(file) for file in files]
    return Raw(splits[0], splits[1] if len(splits) > 1 else None)


def _read(path: Path) -> RawSplit:
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        if "X" not in shapes or "y" not in shapes:
            raise refuse(path, f"holds {', '.join(shapes) or 'nothing'}, not X and y", f"{AGAIN} (the cropped digits)")
        if len(shapes["X"]) != 4 or shapes["X"][2] != 3:
            raise refuse(path, f"X has shape {shapes['X']}, not (32, 32, 3, n)", AGAIN)
        guard_size(path, path.stat().st_size, int(np.prod([int(side) for side in shapes["X"]])))
        content = loadmat(path, variable_names=["X", "y"])
    except NotImplementedError:
        raise refuse(path, "is a MATLAB 7.3 (HDF5) file", "save it with -v7, or get the published file") from None
    except (MatReadError, ValueError, TypeError, KeyError, IndexError, EOFError, zlib.error, MemoryError) as error:
        raise refuse(path, f"is not a whole MATLAB file: {error}", AGAIN) from None
    x, y = content["X"], content["y"].ravel()
    if x.dtype != np.uint8 or len(y) != x.shape[3] or y.dtype.kind not in "iuf":
        raise refuse(path, f"X is {x.dtype} {x.shape} and y {y.dtype} {y.shape}", AGAIN)
    if not np.isin(y, np.arange(1, 11)).all():
        wrong = y[~np.isin(y, np.arange(1, 11))][0]
        raise refuse(path, f"label {wrong} is out of range: labels are 1 to 10, and 10 means 0", AGAIN)
    return RawSplit(str(path), x.transpose(3, 0, 1, 2), y.astype(np.int64) % 10)
