"""The commands. Each is a few lines: the work is done by the layers below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmfl.cli import paper as papers
from pmfl.cli.bench import app as bench_app
from pmfl.cli.data import app as data_app
from pmfl.cli.deploy import app as deploy_app

if TYPE_CHECKING:
    from pmfl.study.grid import Study
    from pmfl.study.store import RunRow

app = typer.Typer(
    name="pmfl",
    help="Federated learning for clients whose data differ and who come and go as they please.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(data_app, name="data", help="Find, fetch, look at and verify data sets.")
app.add_typer(bench_app, name="bench", help="Time rounds on this machine.")
app.add_typer(deploy_app, name="deploy", help="Train between real machines, on Flower's network and keys.")
for command in (papers.paper, papers.compare, papers.archive):
    app.command()(command)

StudyName = Annotated[str, typer.Argument(metavar="[STUDY]", help="A built-in study or a TOML file.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; a,b sweeps it.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command()
def run(
    study: StudyName = "smoke",
    set_: Set = None,
    out: Out = Path("results"),
    engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Where clients run: local, or ranks:N for N processes.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0: one per core.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Play the runs of a study. Finished ones are not run again; interrupted ones go on."""
    from pmfl.cli.progress import watching
    from pmfl.study.jobs import leads, raise_failures, run_all
    from pmfl.study.world import recording_notes

    chosen = _load(study, [*(set_ or []), *([f"engine.kind={engine}"] if engine is not None else [])])
    specs = chosen.runs
    if not leads(specs):
        run_all(out, chosen.id, specs, jobs=jobs)
        return
    for line in recording_notes(specs):
        typer.echo(f"recorded availability: {line}", err=True)
    with watching() as watch:
        rows = run_all(out, chosen.id, specs, jobs=jobs, watch=watch)
    raise_failures(rows, "failed")
    _show(chosen, out, rows, as_json=as_json)
    raise_failures(rows, "diverged")


@app.command()
def methods(name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A method.")] = None) -> None:
    """List the methods, or the parameters of one."""
    from pmfl.cli.listings import print_method, print_methods

    print_method(name) if name else print_methods()


@app.command()
def check(method: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A method of your own.")]) -> None:
    """Run the published battery on a method: what passes runs on every engine."""
    from pmfl.cli.listings import print_check

    if not print_check(method):
        raise typer.Exit(2)


@app.command()
def status(out: Out = Path("results"), as_json: AsJson = False) -> None:
    """Show every run: how far it is, how fast, how accurate."""
    from pmfl.cli.listings import print_status
    from pmfl.study.store import Store

    print_status(Store(out), as_json=as_json)


@app.command()
def report(
    study: StudyName = "smoke",
    out: Out = Path("results"),
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.html", help="Default: DIR/STUDY.html.")] = None,
    set_: Set = None,
) -> None:
    """Write the page of a study: curves, table, who took part, weights."""
    from pmfl.report.page import write_report
    from pmfl.study.store import Store

    chosen = _load(study, set_ or [])
    typer.echo(write_report(Store(out), chosen, to or out / f"{chosen.id}.html"))


@app.command()
def world(
    study: StudyName = "smoke",
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE.html", help="Default: STUDY-world.html.")] = None,
    set_: Set = None,
) -> None:
    """Picture the partition and the participation of a study's first run. Nothing is trained."""
    from pmfl.report.world_page import write_world

    chosen = _load(study, set_ or [])
    typer.echo(write_world(chosen.runs[0], to or Path(f"{chosen.id}-world.html")))


@app.command()
def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or the beginning of it.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="model.safetensors or model.onnx")],
    out: Out = Path("results"),
) -> None:
    """Write the final model of a run, for use elsewhere."""
    from pmfl.study.export import export_model

    typer.echo(export_model(out, run_id, to))


def _load(study: str, overrides: list[str]) -> Study:
    from pmfl.study.grid import load

    return load(study, overrides)


def _show(study: Study, out: Path, rows: list[RunRow], *, as_json: bool) -> None:
    from pmfl.report.findings import findings, measure_of
    from pmfl.report.page import write_report
    from pmfl.report.rare_clients import rare_client_rows, rare_client_text
    from pmfl.report.series import runs_of, settings
    from pmfl.report.tables import summary_rows, to_text
    from pmfl.study.store import Store

    store = Store(out)
    found = settings(study, runs_of(store, study))
    table, rare = summary_rows(found), rare_client_rows(store, study, found)
    page = write_report(store, study, out / f"{study.id}.html")
    if as_json:
        table = [{**more, **row} for more, row in zip(rare or [{}] * len(table), table, strict=True)]
        typer.echo(json.dumps({"study": study.id, "runs": [_json(row) for row in rows], "table": table}, indent=1))
        return
    typer.echo(to_text(table))
    if rare:
        typer.echo("\n".join(["", *findings(found, measure_of(study), str(study.report.get("reference", "")))]))
        typer.echo(f"\n{rare_client_text(rare)}")
    typer.echo(f"\nreport: {page}")


def _json(row: RunRow) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "question_id": row.question_id,
        "method": row.method,
        "seed": row.seed,
        "status": row.status,
        "rounds": row.t,
        "seconds": row.seconds,
        "resumed": row.resumed,
        "model_sha256": row.model_sha256,
        "metrics": row.metrics or {},
    }
