"""Every table and figure of the paper, end to end, at the scale of a test: runs, tables, figures, pages, an archive."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pmfl.report.paper_figures import plates_of, write_figures
from pmfl.report.paper_page import verdict_markdown, verdict_rows, write_artefact, write_paper, write_verdicts
from pmfl.report.paper_tables import to_terminal, write_tables
from pmfl.report.plates import COLUMN, PAGE, Plate
from pmfl.report.style import svg
from pmfl.study import archive, papers
from pmfl.study.answers import StoreSource
from pmfl.study.archive import Archive
from pmfl.study.evidence import Evidence
from pmfl.study.papers import MADE, Asked, artefacts
from pmfl.study.store import Store
from tests.paper.conftest import View

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_every_run_is_done(tiny: dict[str, View]) -> None:
    for _, evidence in tiny.values():
        assert {run.status for run in evidence.answers.runs} == {"done"}


@pytest.mark.parametrize("name", artefacts())
def test_tables_figures_and_a_page(tiny: dict[str, View], tmp_path: Path, name: str) -> None:
    asked, evidence = tiny[name]
    files = write_tables(evidence, tmp_path, asked.stem)
    assert {file.suffix for file in files} == {".txt", ".md", ".tex", ".csv"}
    text = (tmp_path / f"{name}-tiny.txt").read_text()
    assert "scale tiny" in text
    assert "paper's setting" not in text.replace("not the paper's setting", "")
    assert len((tmp_path / f"{name}-tiny.csv").read_text().splitlines()) == 1 + len(evidence.lines)
    assert plates_of(evidence.answers), "no figure"
    for file in write_figures(evidence.answers, tmp_path, (".svg",), asked.stem):
        picture = ET.fromstring(file.read_text())
        width = float(picture.attrib["width"])
        assert width <= (COLUMN if "-column" in file.name else PAGE) + 24, f"{file.name} is {width} pixels wide"
        said = " ".join("".join(part.itertext()) for part in picture.iter("{http://www.w3.org/2000/svg}text"))
        assert "NaN" not in said
        assert "null" not in said
        assert "undefined" not in said
    page = write_artefact([(asked, evidence)], tmp_path / "page.html").read_text()
    assert "<figure>" in page
    assert asked.command in page.replace("&#39;", "'")
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", page), "a page fetches nothing"
    for claim in evidence.study.checks:
        assert claim.id in page


def test_the_page_of_the_whole_paper(tiny: dict[str, View], tmp_path: Path) -> None:
    views = list(tiny.values())
    page = write_paper(views, tmp_path / "paper.html").read_text()
    rows = verdict_rows(views)
    assert len(rows) == sum(len(evidence.study.checks) for _, evidence in views) >= 25
    for row in rows:
        assert row["verdict"].startswith(("holds", "does not hold", "undecided", "not run"))
    assert page.count("<h2>") >= len(views)
    markdown = verdict_markdown(views)
    assert sum(line.startswith("|") for line in markdown.splitlines()) == len(rows) + 2
    files = write_verdicts(views, tmp_path)
    assert [file.name for file in files] == ["claims.md", "claims.csv"]
    assert files[0].read_text() == markdown


def test_figures_and_tables_from_parquet_alone(tiny: dict[str, View], results: Path, tmp_path: Path) -> None:
    """From an archive, everything is the same to the letter: nothing else of a run is needed."""
    archive.add(tmp_path / "kept", [StoreSource(Store(results)), Archive(results / MADE)])
    places = papers.sources([], [tmp_path / "kept"])
    for name, (asked, evidence) in tiny.items():
        again = Evidence(papers.answers(asked, places))
        assert to_terminal(again) == to_terminal(evidence), name
        if name in ("nodes-cdf", "deviation", "convergence", "weights", "fluctuation"):
            for ours, theirs in zip(plates_of(evidence.answers), plates_of(again.answers), strict=True):
                assert _drawn(theirs) == _drawn(ours), name


def _drawn(plate: Plate) -> str:
    """A picture without the running numbers that the renderer gives to its clips."""
    return re.sub(r"clip\d+", "clip", svg(plate.chart(), "f", ""))


def test_a_partial_archive_is_answered_and_says_so(tiny: dict[str, View], results: Path, tmp_path: Path) -> None:
    class Some(StoreSource):
        def runs(self) -> list:
            return [row for row in super().runs() if row.seed == 0]

    archive.add(tmp_path / "kept", [Some(Store(results))])
    found = papers.views("table5", papers.sources([], [tmp_path / "kept"]))
    assert [asked.scale for asked, _ in found] == ["tiny"]
    evidence = Evidence(found[0][1])
    assert 0 < len(evidence.answers.done) < len(evidence.answers.runs)
    text = to_terminal(evidence)
    assert f"{len(evidence.answers.done)} of {len(evidence.answers.runs)} runs answered" in text
    assert all(one.verdict in ("undecided", "not run") for one in evidence.found), "one seed decides nothing"


def test_nothing_is_run_twice(tiny: dict[str, View], results: Path) -> None:
    before = {run.run_id: run.updated for run in Store(results).runs()}
    asked = Asked("table5", "tiny")
    papers.answer(asked, results, papers.sources([results], []))
    assert {run.run_id: run.updated for run in Store(results).runs()} == before
