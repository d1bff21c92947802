"""`pmfl data`: what is in the cache, how to get more, and what a data set looks like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pmfl.world.datasets import Dataset
    from pmfl.world.sources.known import Known

app = typer.Typer(help="Data sets: what is here, how to get more, what they look like.", no_args_is_help=True)

NAME = Annotated[str, typer.Argument(help="A data set's name: svhn, cifar10, hub:owner/name, or one of your own.")]


def _tell(line: str) -> None:
    """A line about the work, on stderr: stdout is for data."""
    typer.echo(line, err=True)


@app.command("list")
def list_() -> None:
    """Every data set by name: in the cache, found on this machine, or how to get it."""
    from pmfl.world import cache
    from pmfl.world.sources.known import KNOWN

    rows = [("digits", "here (part of scikit-learn)", "1,797 images of 8 x 8, 10 classes")]
    named = cache.names()
    rows += [(name, *_published(known)) for name, known in KNOWN.items() if name not in named]
    rows += [(name, *_stored(record["key"])) for name, record in named.items()]
    keys = {record["key"] for record in named.values()}
    rows += [(key[:12], *_stored(key)) for key in cache.stored() if key not in keys]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    for name, state, about in rows:
        typer.echo(f"{name:<{first}}  {state:<{second}}  {about}")
    _tell(f"\nthe cache is {cache.root()}")


def _published(known: Known) -> tuple[str, str]:
    """Whether a known set is somewhere on this machine, and what it is."""
    from pmfl.errors import DataMissing
    from pmfl.world import cache
    from pmfl.world.sources import finding
    from pmfl.world.sources.raw import Options

    shape = " x ".join(map(str, known.shape))
    about = f"{known.train + (known.test or 0):,} images of {shape}, {known.classes} classes"
    try:
        source = finding.search(known, cache.downloads(known.name), Options())
    except DataMissing as error:
        return f"cannot be used: {error.message}", about
    return f"found in {source.root}" if source is not None else f"missing: pmfl data get {known.name}", about


def _stored(key: str) -> tuple[str, str]:
    """How much room an entry takes, and what it is."""
    from pmfl.errors import DataMissing
    from pmfl.world import cache

    try:
        entry = cache.open_entry(key)
    except DataMissing:
        return f"damaged: pmfl data clear {key[:12]}", ""
    shape = " x ".join(map(str, entry.manifest["files"]["train_x"]["shape"][1:]))
    samples = sum(map(sum, entry.manifest["counts"].values()))
    about = f"{samples:,} samples of {shape}, {entry.manifest['classes']} classes, from {entry.manifest['source']}"
    return f"in the cache, {entry.bytes / 1e6:,.1f} MB", about


@app.command()
def get(
    name: NAME,
    where: Annotated[
        str | None, typer.Option("--from", help="A file or folder that you have, or hub:owner/name[:config].")
    ] = None,
    image: Annotated[str | None, typer.Option(help="The column that holds the images.")] = None,
    label: Annotated[str | None, typer.Option(help="The column that holds the labels.")] = None,
    user: Annotated[str | None, typer.Option(help="The column that tells whom a sample came from.")] = None,
    train: Annotated[str | None, typer.Option(help="The split to train on.")] = None,
    test: Annotated[str | None, typer.Option(help="The split to test on.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize every image to SIZE x SIZE.")] = None,
    sites: Annotated[bool | None, typer.Option(help="Whether the top folders are sites, a user each.")] = None,
    split_seed: Annotated[int, typer.Option(help="Picks the test samples of a source without a test split.")] = 0,
) -> None:
    """Bring a data set into the cache, under a name. Without --from, what is published is downloaded and checked."""
    from pmfl.world.sources import opening

    options = {"image": image, "label": label, "user": user, "train": train, "test": test, "size": size, "sites": sites}
    if name == opening.DIGITS:
        _tell("digits comes with scikit-learn: there is nothing to get")
        return
    given = {key: value for key, value in options.items() if value is not None}
    dataset = opening.get(name, where, **given, split_seed=split_seed)
    _describe(dataset)


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="A data set's name, or a file or folder.")],
    to: Annotated[Path | None, typer.Option(help="Write a page with sample images to this HTML file.")] = None,
) -> None:
    """Shape, classes, counts per class, licence; with --to, a contact sheet of its images."""
    dataset = _load(name)
    _describe(dataset)
    train, test = _counts(dataset)
    width = max(5, *(len(label) for label in dataset.labels))
    typer.echo(f"\n{'class':<{width}} {'train':>9} {'test':>9}")
    for label, in_train, in_test in zip(dataset.labels, train, test, strict=True):
        typer.echo(f"{label:<{width}} {in_train:>9,} {in_test:>9,}")
    if to is not None:
        from pmfl.world.contact_sheet import contact_sheet

        to.write_text(contact_sheet(dataset), encoding="utf-8")
        _tell(f"wrote {to}")


def _load(name: str) -> Dataset:
    from pmfl.errors import SpecError
    from pmfl.world.datasets import load

    try:
        return load(name)
    except SpecError:
        if not Path(name).exists():
            raise
        return load(Path(name).name, name)


def _counts(dataset: Dataset) -> tuple[list[int], list[int]]:
    import numpy as np

    train, test = (np.bincount(split.y, minlength=dataset.classes).tolist() for split in (dataset.train, dataset.test))
    return train, test


def _describe(dataset: Dataset) -> None:
    from pmfl.world.contact_sheet import facts

    typer.echo(dataset.name)
    for key, value in facts(dataset):
        typer.echo(f"  {key:<18} {value}")


@app.command()
def verify(name: Annotated[str | None, typer.Argument(help="One set, or all of them.")] = None) -> None:
    """Read every cached byte and compare it with the hashes taken when it was written."""
    from pmfl.errors import DataMissing
    from pmfl.world import cache

    damaged = []
    for key in _keys(name):
        try:
            cache.verify(key)
            typer.echo(f"{_called(key)}: whole")
        except DataMissing as error:
            damaged.append(error)
            typer.echo(f"{_called(key)}: {error.message}")
    if damaged:
        raise DataMissing(
            f"{len(damaged)} data sets in the cache are damaged", hint="\n".join(e.hint for e in damaged), code="D103"
        )


@app.command()
def clear(
    name: Annotated[str | None, typer.Argument(help="One set, or all of them.")] = None,
    downloads: Annotated[bool, typer.Option("--downloads", help="Also remove the downloaded archives.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove data from the cache; sources that you pointed at are not touched."""
    import shutil

    from pmfl.world import cache

    keys = _keys(name) if name is None or not downloads else _keys(name, must_exist=False)
    archives = [cache.downloads(name) if name is not None else cache.root() / "downloads"] if downloads else []
    shown = ", ".join(_called(key) for key in keys) or "nothing but downloads"
    if not yes and (keys or archives):
        typer.confirm(f"remove {shown} from {cache.root()}?", abort=True, err=True)
    for key in keys:
        called = _called(key)
        cache.remove(key)
        _tell(f"removed {called}")
    for folder in archives:
        shutil.rmtree(folder, ignore_errors=True)


def _called(key: str) -> str:
    from pmfl.world import cache

    return next((name for name, record in cache.names().items() if record["key"] == key), key[:12])


def _keys(name: str | None, must_exist: bool = True) -> list[str]:
    """Keys of entries by name or by the beginning of a key; all of them without a name."""
    from pmfl.errors import SpecError, did_you_mean
    from pmfl.world import cache

    if name is None:
        return cache.stored()
    names = cache.names()
    if name in names:
        return [names[name]["key"]]
    found = [key for key in cache.stored() if len(name) >= 6 and key.startswith(name)]
    if not found and must_exist:
        hint = did_you_mean(name, names) if names else "the cache has no named data; see `pmfl data list`"
        raise SpecError(f'data: nothing in the cache is called "{name}"', hint=hint)
    return found
