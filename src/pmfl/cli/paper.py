"""`pmfl paper`, `pmfl compare` and `pmfl archive`: the paper as evidence, and what it is kept in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pmfl.study.evidence import Evidence

RESULTS = Path("results")
KEPT = Path("docs/results")  # the archive of this repository

Outs = Annotated[list[Path] | None, typer.Option("--out", metavar="DIR", help="Where results are; may be repeated.")]
Archives = Annotated[
    list[Path] | None,
    typer.Option("--archive", metavar="DIR", help=f"Archived answers; default: {KEPT}, if it is here."),
]


def paper(
    name: Annotated[
        str | None, typer.Argument(metavar="[ARTEFACT]", help="A table or figure; none lists them.")
    ] = None,
    scale: Annotated[str, typer.Option(metavar="SCALE", help="full, half, small or tiny.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; default: as the study says.")] = None,
    data: Annotated[str, typer.Option(metavar="NAME", help="Another data set than the paper's.")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0: one per core.")] = 0,
    out: Outs = None,
    archive: Archives = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Write Markdown, LaTeX and CSV there.")] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run what nobody has answered yet.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the paper's tables and figures, or make one: run what is missing, print it beside the paper's numbers."""
    from pmfl.cli.progress import watching
    from pmfl.errors import SpecError, did_you_mean
    from pmfl.report.paper_tables import to_terminal, write_tables
    from pmfl.study import papers
    from pmfl.study.evidence import Evidence
    from pmfl.study.scales import SCALES

    if scale not in SCALES:
        raise SpecError(f"--scale {scale} is not known", hint=did_you_mean(scale, SCALES))
    folders, kept = out or [RESULTS], archive if archive is not None else [KEPT]
    places = papers.sources(folders, kept)
    if name is None:
        _list(places, scale, as_json=as_json)
        return
    asked = papers.Asked(name, scale, seeds, data, tuple(set_ or []))
    if run:
        with watching() as watch:
            found = papers.answer(asked, folders[0], places, jobs=jobs, watch=watch)
    else:
        found = papers.answers(asked, places)
    evidence = Evidence(found)
    if to:
        for file in write_tables(evidence, to):
            typer.echo(f"wrote {file}", err=True)
    typer.echo(json.dumps(_json(evidence), indent=1) if as_json else to_terminal(evidence))


def archive(
    to: Annotated[Path, typer.Argument(metavar="DIR", help="The archive, which is made or added to.")],
    out: Outs = None,
) -> None:
    """Keep finished runs as three small Parquet files, without their models. Runs that are there already stay."""
    from pmfl.study import archive as archives
    from pmfl.study.answers import StoreSource
    from pmfl.study.store import Store

    added = archives.add(to, [StoreSource(Store(folder)) for folder in out or [RESULTS]])
    size = sum(file.stat().st_size for file in to.glob("*.parquet"))
    typer.echo(f"{to}: {len(added)} runs added, {len(archives.Archive(to).runs())} in all, {size / 1e6:.2f} MB")


def _list(places: Any, scale: Any, *, as_json: bool) -> None:
    """Every artefact, a line each: what it is, how much of it is answered, what came of its claims."""
    from pmfl.study import papers
    from pmfl.study.evidence import Evidence

    rows = []
    for name in papers.artefacts():
        evidence = Evidence(papers.answers(papers.Asked(name, scale), places))
        runs = evidence.answers.runs
        rows.append(
            {
                "artefact": name,
                "is": evidence.artefact.artefact,
                "shows": evidence.artefact.shows,
                "scale": scale,
                "state": _state(len(evidence.answers.done), len(runs), any(run.status == "running" for run in runs)),
                "done": len(evidence.answers.done),
                "runs": len(runs),
                "claims": evidence.counts() if evidence.answers.done else {"not run": len(evidence.study.claims)},
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["artefact"]) for row in rows)
    for row in rows:
        claims = ", ".join(f"{count} {word}" for word, count in row["claims"].items() if count and word != "not run")
        typer.echo(f"{row['artefact']:<{width}}  {row['is']:<16} {row['state']:<16} {claims or row['shows']}".rstrip())


def _state(done: int, runs: int, running: bool) -> str:
    if done == runs:
        return "done"
    return f"running {done}/{runs}" if running else f"{done}/{runs} runs" if done else "not run"


def _json(evidence: Evidence) -> dict[str, Any]:
    from pmfl.report.paper_tables import claim_rows, setting_rows
    from pmfl.study.evidence import contest_rows

    return {
        "artefact": evidence.study.id,
        "is": evidence.artefact.artefact,
        "scale": evidence.answers.scale,
        "runs": len(evidence.answers.runs),
        "done": len(evidence.answers.done),
        "settings": setting_rows(evidence),
        "claims": claim_rows(evidence),
        "comparisons": contest_rows(evidence.found),
    }
