"""What commands print that only look: methods, checks, status."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict

import typer

from pmfl.cli.progress import accuracy_of, name_of
from pmfl.study.names import built_in, parameters, resolve
from pmfl.study.store import Store


def print_methods() -> None:
    """Every built-in method, with what it is in one line."""
    for name in built_in("method"):
        first = (inspect.getdoc(resolve("method", name)) or "").splitlines()[0]
        typer.echo(f"{name:<10} {first}")


def print_method(name: str) -> None:
    """One method: what it is, and its parameters, all from its signature and docstring."""
    function = resolve("method", name)
    known = parameters(function)
    text = (inspect.getdoc(function) or "").split("\n\n")[0]
    typer.echo(f"{name}: {text}\n")
    width = max((len(p.name) for p in known), default=0)
    for p in known:
        default = "required" if p.default is inspect.Parameter.empty else json.dumps(p.default)
        typer.echo(f"  {p.name:<{width}}  {default:<12} {p.text}")
        typer.echo(f"  {'':<{width}}  {'':<12} {p.type}")
    typer.echo(f"\nSet one with --set method.{name}.PARAMETER=VALUE, or in a study's [method.{name}] table.")


def print_check(name: str) -> bool:
    """The battery's findings on a method; whether all is well."""
    from pmfl.testing import check_method

    report = check_method(resolve("method", name))
    typer.echo(str(report))
    return report.passed


def print_status(store: Store, *, as_json: bool) -> None:
    """Every run in a folder."""
    rows = store.runs()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        accuracy = accuracy_of(store, row)
        shown = f"{100 * accuracy:5.1f} %" if accuracy is not None else "      -"
        rate = f"{row.t / row.seconds:7.1f} rounds/s" if row.seconds else ""
        note = json.loads(row.note)["message"] if row.note else ""
        typer.echo(
            f"{row.run_id}  {row.study:<10} {name_of(row):<20} {row.status:<11} "
            f"{row.t:>6}/{row.total:<6} {shown} {rate}  {note}".rstrip()
        )
