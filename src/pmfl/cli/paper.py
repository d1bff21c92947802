"""`pmfl paper`, `pmfl compare` and `pmfl archive`: the paper as evidence, and what it is kept in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pmfl.study.answers import Answers, Source
    from pmfl.study.evidence import Evidence
    from pmfl.study.papers import Asked

    View = tuple[Asked, Evidence]

RESULTS = Path("results")
KEPT = Path("docs/results")  # the archive of this repository

Outs = Annotated[list[Path] | None, typer.Option("--out", metavar="DIR", help="Where results are; may be repeated.")]
Archives = Annotated[
    list[Path] | None,
    typer.Option("--archive", metavar="DIR", help=f"Archived answers; default: {KEPT}, if it is here."),
]


def paper(
    name: Annotated[
        str | None, typer.Argument(metavar="[ARTEFACT]", help="A table or figure, or all; none lists them.")
    ] = None,
    scale: Annotated[str, typer.Option(metavar="SCALE", help="full, half, small or tiny.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; default: as the study says.")] = None,
    data: Annotated[str, typer.Option(metavar="NAME", help="Another data set than the paper's.")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0: one per core.")] = 0,
    out: Outs = None,
    archive: Archives = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write tables, figures and pages there.")
    ] = None,
    forms: Annotated[str, typer.Option(metavar="A,B", help="Of figures: svg, pdf, png, html.")] = "svg,pdf,png,html",
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run what nobody has answered yet.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the paper's tables and figures, or make them: run what is missing, print it beside the paper's numbers."""
    from pmfl.errors import SpecError, did_you_mean
    from pmfl.report.paper_tables import to_terminal
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
    chosen = papers.artefacts() if name == "all" else [name]
    as_usual = not run and (scale, seeds, data, set_) == ("full", None, "", None)
    shown: list[View] = []
    for one in chosen:
        asked = papers.Asked(one, scale, seeds, data, tuple(set_ or []))
        if as_usual and (found := papers.views(asked.study.id, places)):
            shown += [(how, Evidence(known)) for how, known in found]
        elif run or name != "all":
            shown.append((asked, Evidence(_answered(asked, folders[0], places, run=run, jobs=jobs))))
    if to:
        for file in _write(shown, to, [f".{form.strip()}" for form in forms.split(",")], whole=name == "all"):
            typer.echo(f"wrote {file}", err=True)
    if as_json:
        found_json = [_json(evidence) for _, evidence in shown]
        typer.echo(json.dumps(found_json if name == "all" else found_json[0], indent=1))
    else:
        typer.echo("\n\n\n".join(to_terminal(evidence) for _, evidence in shown) or "nothing is answered yet")


def _answered(asked: Asked, out: Path, places: Sequence[Source], *, run: bool, jobs: int) -> Answers:
    from pmfl.cli.progress import watching
    from pmfl.study import papers

    if not run:
        return papers.answers(asked, places)
    with watching() as watch:
        return papers.answer(asked, out, places, jobs=jobs, watch=watch)


def _write(shown: Sequence[View], to: Path, forms: Sequence[str], *, whole: bool) -> list[Path]:
    """Tables, figures and pages; of the whole paper also its page and the table of verdicts."""
    from pmfl.report.paper_figures import write_figures
    from pmfl.report.paper_page import write_artefact, write_paper, write_verdicts
    from pmfl.report.paper_tables import write_tables

    written: list[Path] = []
    pages: dict[str, list[View]] = {}
    for asked, evidence in shown:
        pages.setdefault(asked.name, []).append((asked, evidence))
        written += write_tables(evidence, to / "tables", asked.stem)
        written += write_figures(evidence.answers, to / "figures", forms, asked.stem)
    written += [write_artefact(views, to / "pages" / f"{name}.html") for name, views in pages.items()]
    if whole:
        written += [*write_verdicts(shown, to), write_paper(shown, to / "paper.html")]
    return written


def archive(
    to: Annotated[Path, typer.Argument(metavar="DIR", help="The archive, which is made or added to.")],
    out: Outs = None,
) -> None:
    """Keep finished runs as three small Parquet files, without their models. Runs that are there already stay."""
    from pmfl.errors import StoreError
    from pmfl.study import archive as archives
    from pmfl.study.answers import StoreSource
    from pmfl.study.papers import MADE
    from pmfl.study.store import Store

    folders = out or [RESULTS]
    found: list[Source] = [StoreSource(Store(folder)) for folder in folders if (folder / "store.sqlite").is_file()]
    found += [archives.Archive(folder / MADE) for folder in folders if (folder / MADE).is_dir()]
    if not found:
        raise StoreError(
            f"{', '.join(map(str, folders))}: there are no results", hint="`pmfl run` or `pmfl paper` make some"
        )
    added = archives.add(to, found)
    size = sum(file.stat().st_size for file in to.glob("*.parquet"))
    typer.echo(f"{to}: {len(added)} runs added, {len(archives.Archive(to).runs())} in all, {size / 1e6:.2f} MB")


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUNS...", help="Ids of runs, or names of studies.")],
    measure: Annotated[str, typer.Option(metavar="MEASURE", help="What of a run counts.")] = "top5_mean(test/accuracy)",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are.")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Compare runs seed by seed: the first setting against every other, with intervals, tests and a verdict."""
    from pmfl.report import comparison
    from pmfl.study.expression import parse_measure
    from pmfl.study.store import Store

    what = parse_measure(measure, f"--measure {measure}")
    rows = comparison.compare(Store(out), runs, what)
    typer.echo(json.dumps(rows, indent=1) if as_json else comparison.comparison_text(rows, what))


def _list(places: Any, scale: Any, *, as_json: bool) -> None:
    """Every artefact, a line each: what it is, how much of it is answered, what came of its claims."""
    from pmfl.report.paper_page import where
    from pmfl.study import papers
    from pmfl.study.evidence import Evidence

    rows: list[dict[str, Any]] = []
    for name in papers.artefacts():
        found = papers.views(name, places) if scale == "full" else []
        asked = papers.Asked(name, scale)
        for how, known in found or [(asked, papers.answers(asked, places))]:
            evidence = Evidence(known)
            runs = known.runs
            rows.append(
                {
                    "artefact": name,
                    "is": evidence.artefact.artefact,
                    "shows": evidence.artefact.shows,
                    "scale": how.scale,
                    "on": where((how, evidence)),
                    "state": _state(len(known.done), len(runs), any(run.status == "running" for run in runs)),
                    "done": len(known.done),
                    "runs": len(runs),
                    "claims": evidence.counts() if known.done else {"not run": len(evidence.study.claims)},
                }
            )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["artefact"]) for row in rows)
    for row in rows:
        claims = ", ".join(f"{count} {word}" for word, count in row["claims"].items() if count and word != "not run")
        said = f"{claims} ({row['on'].rpartition(' · ')[0]})" if row["done"] else row["shows"]
        typer.echo(f"{row['artefact']:<{width}}  {row['is']:<16} {row['state']:<16} {said}".rstrip())


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
