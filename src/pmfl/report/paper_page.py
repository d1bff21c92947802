"""The pages of the paper's artefacts: claim, verdict, figure, numbers, what departs from the paper, how to repeat it.

One page per artefact, with a part for each way in which it was answered, and one of all of them. Each is a single file
that fetches nothing.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pmfl.report.html import Drawer, Figure, Section, Sheet, download, pairs, write_page
from pmfl.report.paper_figures import plates_of
from pmfl.report.paper_tables import (
    READING,
    TESTED,
    claim_rows,
    contest_columns,
    head,
    ranks_words,
    rests_on,
    setting_columns,
    setting_rows,
    verdict_words,
)
from pmfl.report.plates import PAGE, Plate
from pmfl.report.tables import Column, Row, to_csv, to_markdown
from pmfl.study.claims import Found
from pmfl.study.evidence import Evidence, contest_rows
from pmfl.study.papers import Asked
from pmfl.study.store import storing

FOOTER = "Made by pmfl from the records of these runs. The page holds all it shows and fetches nothing."
DEVIATIONS = "docs/paper/deviations.md"
WORDS = ("artefact", "claim", "on", "verdict", "rests on", "paper's own numbers", "remark")
View = tuple[Asked, Evidence]


def write_artefact(views: Sequence[View], to: Path) -> Path:
    """The page of one artefact, shown in one or several ways."""
    evidence, draw = views[0][1], Drawer()
    several = len(views) > 1
    sections = [section for view in views for section in _part(draw, view, 2, where(view) if several else "")]
    downloads = [
        download(f"{asked.name}{suffix}.csv", to_csv(rows))
        for asked, one in views[:1]
        for suffix, rows in (("", setting_rows(one)), ("-comparisons", contest_rows(one.found)))
        if rows
    ]
    return _page(
        to,
        title=f"{evidence.artefact.artefact}: {evidence.study.title}",
        claim=evidence.study.claim,
        facts=[where(view) for view in views],
        findings=[f"{verdict_words(one)}: {one.claim.says}" for _, found in views[:1] for one in found.found],
        sections=sections,
        downloads=downloads,
    )


def write_paper(views: Sequence[View], to: Path) -> Path:
    """The page of the whole paper: a table of verdicts, then every artefact."""
    draw, rows = Drawer(), verdict_rows(views)
    sections = [Section("Verdicts", [TESTED], [_verdicts(rows)])]
    for view in views:
        made = view[1].artefact
        first = Section(f"{made.artefact}: {view[1].study.title}", [f"Claim: {view[1].study.claim}", where(view)])
        sections += [first, *_part(draw, view, 3)]
    hours = sum({run.run_id: run.seconds for _, one in views for run in one.answers.done}.values()) / 3600
    return _page(
        to,
        title="The paper as evidence",
        claim="",
        facts=[
            f"{len({asked.name for asked, _ in views})} artefacts",
            f"{len(rows)} verdicts",
            f"{hours:,.1f} h of runs",
        ],
        findings=_counted(rows),
        sections=sections,
        downloads=[download("claims.csv", to_csv(rows))],
    )


def verdict_rows(views: Sequence[View]) -> list[Row]:
    """One row per claim and way in which it was answered."""
    return [
        {
            "artefact": view[1].artefact.artefact if view[1].artefact.order[0] < 2 else view[0].name,
            "on": where(view),
            **row,
        }
        for view in views
        for row in claim_rows(view[1])
    ]


def verdict_markdown(views: Sequence[View]) -> str:
    """The table of verdicts as Markdown."""
    rows, layout = verdict_rows(views), [Column(word, _word(word), is_number=False) for word in WORDS]
    layout[1] = Column("claim", lambda row: f"`{row['study']}.{row['claim']}` {row['says']}", is_number=False)
    counted = "\n".join(f"- {line}" for line in _counted(rows))
    return f"# Verdicts on the paper's claims\n\n{counted}\n\n{to_markdown(rows, layout).strip()}\n\n{TESTED}\n"


def write_verdicts(views: Sequence[View], to: Path) -> list[Path]:
    """The table of verdicts as Markdown and CSV."""
    texts = {"claims.md": verdict_markdown(views), "claims.csv": to_csv(verdict_rows(views))}
    with storing(to):
        to.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (to / name).write_text(text, "utf-8")
    return [to / name for name in texts]


def where(view: View) -> str:
    """On which data, over how many rounds, at which scale, from how many runs."""
    answers = view[1].answers
    data = sorted({run.spec["data"]["dataset"] for run in answers.runs})
    rounds = sorted({run.total for run in answers.runs})
    said = [", ".join(data), "T = " + " to ".join(f"{n:,}" for n in dict.fromkeys([rounds[0], rounds[-1]]))]
    said += [f"scale {answers.scale}"] if answers.scale != "full" else []
    made, clock = view[1].artefact, "measured by a clock"
    said += {"world": ["nothing is trained"], "clock": [clock], "training": []}[made.needs]
    apart = [] if set(data) <= set(made.data) or not made.data else ["not the paper’s data"]
    said += apart + (["not the paper’s setting"] if answers.departures else [])
    return " · ".join([*said, f"{len(answers.done)} of {len(answers.runs)} runs"])


def _page(to: Path, **content: Any) -> Path:
    return write_page(
        to,
        kind="pmfl paper",
        notice_title="",
        notices=(),
        version=importlib.metadata.version("pmfl"),
        footer=FOOTER,
        **content,
    )


def _part(draw: Drawer, view: View, level: int, title: str = "") -> list[Section]:
    """What is said of an artefact answered in one way."""
    asked, evidence = view
    sections = [Section(title, level=level)] if title else []
    below = level + bool(title)
    figures = [_figure(draw, plate) for plate in plates_of(evidence.answers)]
    sections += [
        Section("Verdicts", _sentences(evidence.found), level=below),
        Section("Figures" if len(figures) > 1 else "Figure", figures=figures, level=below),
    ]
    ranks = ranks_words(evidence)
    numbers = _sheet(setting_rows(evidence), setting_columns(evidence), READING)
    sections.append(Section("Numbers", [ranks] if ranks else [], [numbers], level=below))
    rows = contest_rows(evidence.found)
    if rows:
        sections.append(Section("Comparisons", [], [_sheet(rows, contest_columns(), TESTED, small=True)], level=below))
    notes = [*head(evidence)[1:], *([" ".join(evidence.artefact.remark.split())] if evidence.artefact.remark else [])]
    notes.append(f"Every reading of ours that differs from the print is a row of {DEVIATIONS}.")
    hours = sum(run.seconds for run in evidence.answers.done) / 3600
    facts = {"label in the paper": evidence.artefact.label, "section": evidence.artefact.where}
    facts |= {"time of these runs": f"{hours:.1f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s"}
    sections.append(
        Section("How it differs from the paper", notes, [pairs({k: v for k, v in facts.items() if v})], level=below)
    )
    again = [asked.command, f"{asked.command} --no-run  # from what is there"]
    sections.append(Section("How to repeat it", code=["\n".join(again)], level=below))
    return [section for section in sections if section.title != "Figure" or section.figures]


def _sentences(found: Sequence[Found]) -> list[str]:
    said = []
    for one in found:
        remark = f" {' '.join(one.claim.remark.split())}" if one.claim.remark else ""
        said.append(f"{verdict_words(one).upper()}: {one.claim.says} [{one.claim.id}: {rests_on(one)}.]{remark}")
    return said


def _figure(draw: Drawer, plate: Plate) -> Figure:
    return draw(plate.chart(PAGE), plate.words, plate.caption)


def _sheet(rows: Sequence[Row], layout: Sequence[Column], caption: str, *, small: bool = False) -> Sheet:
    return Sheet(
        [column.heading for column in layout],
        [column.is_number for column in layout],
        [[column.cell(row) for column in layout] for row in rows],
        caption,
        small=small,
        groups=[column.group for column in layout],
    )


def _verdicts(rows: Sequence[Row]) -> Sheet:
    words = ("artefact", "says", "on", "verdict", "rests on")
    return _sheet(rows, [Column(word, _word(word), is_number=False) for word in words], "", small=True)


def _counted(rows: Sequence[Row]) -> list[str]:
    words = ("holds", "does not hold", "undecided", "not run")
    counts = {word: sum(str(row["verdict"]).startswith(word) for row in rows) for word in words}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return [f"Of {len(rows)} claims, each as often as it was answered on other data or over other rounds: {said}."]


def _word(word: str) -> Callable[[Row], str]:
    return lambda row: "–" if row[word] is None else str(row[word])
