"""Which reader fits: a path is shown to one reader after the other, the most particular first."""

from __future__ import annotations

import os
from pathlib import Path

from pmfl.errors import DataMissing
from pmfl.world.sources import archives, arrays, cifar, folders, idx, parquet, sites, svhn, tabular
from pmfl.world.sources.known import Known
from pmfl.world.sources.raw import Options, Source

READERS = (cifar, svhn, idx, parquet, arrays, tabular, archives, folders)
SYSTEM = (Path("/usr/share/datasets"),)  # Debian's packages
LAYOUTS = """any of these is read:
  cifar-10-python.tar.gz, cifar-100-python.tar.gz (or unpacked), *_32x32.mat, idx files (*-ubyte, *-ubyte.gz)
  Parquet in the hub's layout (columns image and label), .npz or .npy (x_train, y_train, x_test, y_test), CSV
  image folders: class/1.png, or train/class/1.png and test/class/2.png; a .tar.gz or .zip of them
  a folder per site, each in one of these layouts"""


def one(path: Path, options: Options, name: str) -> Source | None:
    """The source at a path, unless it is a folder of sites."""
    return next((source for reader in READERS if (source := reader.find(path, options, name)) is not None), None)


def find(path: Path, options: Options, name: str) -> Source:
    """The source at a file or folder; what no reader knows is refused with a list of the layouts."""
    path = path.expanduser().absolute()  # links keep their names, which tell splits
    if not path.exists():
        raise DataMissing(f"{path}: no such file or folder", hint="check the path; " + LAYOUTS, code="D100")
    if not (path.is_file() or path.is_dir()):
        raise DataMissing(
            f"{path}: is neither a file nor a folder", hint="copy it to a file first; " + LAYOUTS, code="D101"
        )
    source = None if options.sites else one(path, options, name)
    source = source or sites.find(path, options, name)
    if source is None:
        raise DataMissing(f"{path}: no data set in a layout that is known", hint=LAYOUTS, code="D101")
    return source


def places() -> list[Path]:
    """Where data are looked for by name: $PMFL_DATA (several, as in $PATH), ./data, and Debian's folder."""
    named = [Path(p).expanduser() for p in os.environ.get("PMFL_DATA", "").split(os.pathsep) if p]
    return [*named, Path("data"), *SYSTEM]


def search(known: Known, downloads: Path, options: Options) -> Source | None:
    """A known set under one of its usual names: what was downloaded, then each of the places."""
    if known.remotes and all((downloads / remote.file).is_file() for remote in known.remotes):
        return find(downloads if len(known.remotes) > 1 else downloads / known.remotes[0].file, options, known.name)
    for path in (place / folder for place in places() for folder in known.folders):
        if path.exists() and (source := one(path.absolute(), options, known.name)) is not None:
            return source
    return None
