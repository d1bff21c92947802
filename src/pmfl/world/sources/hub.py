"""Data sets of the Hugging Face hub by name, through `datasets` (the extra `hub`), which is imported only here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pmfl.errors import DataMissing
from pmfl.world.sources import parquet
from pmfl.world.sources.raw import Options, Raw, Source, refuse
from pmfl.world.sources.splits import choose

PREFIX = "hub:"


def parts(name: str) -> tuple[str, str | None]:
    """`hub:owner/name:config` -> (`owner/name`, `config`)."""
    repository, _, config = name.removeprefix(PREFIX).partition(":")
    return repository, config or None


def find(name: str, options: Options) -> Source:
    """A data set of the hub, fetched now if `datasets` does not have it; only `pmfl data get` comes here."""
    repository, config = parts(name)
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise DataMissing(
            f"{name}: reading from the hub needs the package `datasets`", hint="pip install 'pmfl[hub]'", code="D100"
        ) from None
    try:
        loaded = datasets.load_dataset(repository, config)
    except Exception as error:  # a dozen kinds, from three packages, for "no network" and "no such name"
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataMissing(f"{name}: the hub did not give it: {first_line}", hint=ways(name), code="D100") from error
    return of_datasets(dict(loaded), options, name)


def ways(name: str) -> str:
    """The three ways to a data set of the hub."""
    repository, config = parts(name)
    return (
        "any of these:\n"
        f"  1. on a machine with network    pmfl data get {name}   (needs: pip install 'pmfl[hub]')\n"
        f"  2. fetch it elsewhere, copy it  hf download {repository} --repo-type dataset --local-dir DIR\n"
        f"                                  pmfl data get {name} --from DIR{'/' + config if config else ''}\n"
        f"  3. from a copy in another form  pmfl data get {name} --from PATH   (image folders, .npz, idx files, CSV)"
    )


def of_datasets(splits: Mapping[str, Any], options: Options, name: str) -> Source:
    """A source from loaded `datasets.Dataset` objects, by the name of their split; their files are its content."""
    files = tuple(sorted(Path(file["filename"]) for dataset in splits.values() for file in dataset.cache_files))
    if not files:
        raise refuse(name, "lies in memory only", "save it with to_parquet, and point at the files")
    return Source("hub", files[0].parent, files, options, lambda scratch: _raw(splits, options, name))


def _raw(splits: Mapping[str, Any], options: Options, name: str) -> Raw:
    train, test, notes = choose(splits, options, name)
    licence = getattr(splits[train].info, "license", "") or ""
    notes |= {"licence": licence} if licence else {}
    chosen = {role: split for role, split in (("train", train), ("test", test)) if split is not None}
    return parquet.raw({role: [_Split(splits[s], f"{name} {s}")] for role, s in chosen.items()}, options, notes)


class _Split:
    """A loaded split with the face of a Parquet file."""

    def __init__(self, dataset: Any, place: str) -> None:
        self._dataset, self.place, self.rows = dataset.with_format("arrow"), place, len(dataset)
        self.schema = dataset.features.arrow_schema

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Record batches of some columns, still encoded; images that are only paths are read in."""
        embed: Any = importlib.import_module("datasets.table").embed_table_storage
        for table in self._dataset.select_columns(columns).iter(parquet.ROWS):
            yield from embed(table).to_batches()
