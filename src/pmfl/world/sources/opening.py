"""From a name or a path to a data set: what `datasets.load` and `pmfl data get` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pmfl.errors import DataMissing, SpecError, did_you_mean
from pmfl.world import cache
from pmfl.world.datasets import Dataset, digits
from pmfl.world.sources import finding, hub
from pmfl.world.sources.known import KNOWN, Known
from pmfl.world.sources.raw import Options

DIGITS = "digits"


def load(name: str, path: str | Path | None = None, **given: Any) -> Dataset:
    """A data set by name, or from a file or folder. Never downloads."""
    options = Options.of(given)
    if path is not None:
        _check_name(name)
        source = finding.find(Path(path), options, name)
        return as_dataset(cache.ensure(source), name, source.origin)
    if name == DIGITS:
        if given:
            raise SpecError("digits: takes no options", hint="leave out " + ", ".join(given))
        return digits()
    record = cache.recall(name)
    if record is not None:
        if not options.said() or options.said() == record["options"]:
            return as_dataset(cache.open_entry(record["key"]), name, record["source"])
        if Path(record["source"]).exists():
            return load(name, record["source"], **given)
    known = KNOWN.get(name)
    found = finding.search(known, cache.downloads(name), options) if known is not None else None
    if found is not None:
        return as_dataset(cache.ensure(found), name, found.origin)
    raise _missing(name, known)


def get(name: str, where: str | None = None, **given: Any) -> Dataset:
    """Bring a data set into the cache under a name: from a path, from `hub:…`, from a usual place, or by download."""
    _check_name(name)
    options, known = Options.of(given), KNOWN.get(name)
    if where is not None:
        is_hub = where.startswith(hub.PREFIX)
        source = hub.find(where, options) if is_hub else finding.find(Path(where), options, name)
    elif name.startswith(hub.PREFIX):
        source = hub.find(name, options)
    elif known is None:
        raise SpecError(f'data: "{name}" is not a known set', hint=_named(name))
    elif (found := finding.search(known, cache.downloads(name), options)) is not None:
        source = found
    elif known.remotes:
        from pmfl.world.sources import download

        download.fetch(known, cache.downloads(name))
        source = finding.find(cache.downloads(name), options, name)
    else:
        source = hub.find(hub.PREFIX + known.hub, options)
    entry = cache.ensure(source)
    dataset = as_dataset(entry, name, where or source.origin)
    cache.remember(name, entry, source)
    return dataset


def as_dataset(entry: cache.Entry, name: str, origin: str) -> Dataset:
    """An entry with what is published about its name: label names, statistics, augmentation, licence."""
    manifest, known = entry.manifest, KNOWN.get(name)
    if known is not None:
        _check_known(entry, known, origin)
    labels = manifest["labels"] or (known.labels if known is not None else None)
    notes = {"licence": "not known: ask whoever gave you the data", "source": origin} | manifest["notes"]
    mean, std, augment = manifest["mean"], manifest["std"], "none"
    if known is not None:
        mean, std, augment = known.mean or mean, known.std or std, known.augment
        notes["licence"] = known.licence
        train, test = (sum(manifest["counts"][split]) for split in ("train", "test"))
        if (train, test) != (known.train, known.test):
            notes["published"] = f"{known.train:,} train" + (
                f", {known.test:,} test" if known.test else ", no test split"
            )
    return Dataset(
        name,
        entry.train,
        entry.test,
        tuple(labels) if labels is not None else tuple(map(str, range(manifest["classes"]))),
        tuple(mean),
        tuple(std),
        augment,
        notes,
        tuple(manifest["users"]),
    )


def _check_known(entry: cache.Entry, known: Known, origin: str) -> None:
    shape, classes = tuple(entry.manifest["files"]["train_x"]["shape"][1:]), entry.manifest["classes"]
    is_resized = "size" in entry.manifest["options"]
    if classes != known.classes or (shape != known.shape and not (is_resized and shape[2:] == known.shape[2:])):
        raise DataMissing(
            f"{origin}: samples of {shape} in {classes} classes are not {known.name} ({known.shape}, {known.classes})",
            hint="point at another copy, or give this set a name of its own",
            code="D101",
        )


def _check_name(name: str) -> None:
    if name == DIGITS or not name.strip():
        raise SpecError(f'data: "{name}" cannot be the name of other data', hint="choose another name")


def _named(name: str) -> str:
    return (
        did_you_mean(name, [DIGITS, *KNOWN, *cache.names()])
        + f"\nyour own data: pmfl data get {name} --from PATH; a set of the hub: pmfl data get hub:owner/name"
    )


def _missing(name: str, known: Known | None) -> Exception:
    if name.startswith(hub.PREFIX):
        return DataMissing(f"{name}: not on this machine", hint=hub.ways(name), code="D100")
    if known is None:
        return SpecError(f'data: "{name}" is not a known set, and no path is given', hint=_named(name))
    from pmfl.world.sources.download import ways

    looked = ", ".join(str(place) for place in finding.places())
    return DataMissing(
        f"{name}: not on this machine (looked in {cache.root()}, {looked})", hint=ways(known), code="D100"
    )
