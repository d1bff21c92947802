"""`pmfl paper`, `pmfl compare` and `pmfl archive`: the paper as evidence, and what it is kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[list[Path] | None, typer.Option("--out", metavar="DIR", help="Where results are; may be repeated.")]


def archive(
    to: Annotated[Path, typer.Argument(metavar="DIR", help="The archive, which is made or added to.")],
    out: Out = None,
) -> None:
    """Keep finished runs as three small Parquet files, without their models. Runs that are there already stay."""
    from pmfl.study import archive as archives
    from pmfl.study.answers import StoreSource
    from pmfl.study.store import Store

    added = archives.add(to, [StoreSource(Store(folder)) for folder in out or [Path("results")]])
    size = sum(file.stat().st_size for file in to.glob("*.parquet"))
    typer.echo(f"{to}: {len(added)} runs added, {len(archives.Archive(to).runs())} in all, {size / 1e6:.2f} MB")
