"""`pmfl paper`, `pmfl compare` and `pmfl archive`, as they are typed. Nothing is trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pmfl.study.papers import artefacts
from tests.cli.test_commands import pmfl
from tests.report.stores import made_store, made_study

__all__ = ["pmfl"]  # a fixture


def test_a_figure_without_training_in_all_forms(pmfl: Any, tmp_path: Path) -> None:
    made = pmfl("paper", "clients", "--seeds", "2", "--to", "shown")
    assert made.code == 0, made.err
    assert "HOLDS" in made.out or "UNDECIDED" in made.out
    assert "full scale: the paper's setting" in made.out
    names = {file.name for file in (tmp_path / "shown" / "figures").iterdir()}
    assert {f"clients-twenty-clients{form}" for form in (".svg", ".pdf", ".png", ".html")} <= names
    assert (tmp_path / "shown" / "figures" / "clients-twenty-clients.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "shown" / "figures" / "clients-twenty-clients.pdf").read_bytes().startswith(b"%PDF")
    assert {"clients.txt", "clients.md", "clients.tex", "clients.csv"} <= {
        file.name for file in (tmp_path / "shown" / "tables").iterdir()
    }
    assert "<figure>" in (tmp_path / "shown" / "pages" / "clients.html").read_text()

    kept = pmfl("archive", "kept")
    assert kept.code == 0, kept.err
    assert kept.out.startswith("kept: 2 runs added, 2 in all")
    again = pmfl("paper", "clients", "--seeds", "2", "--no-run", "--out", "nowhere", "--archive", "kept")
    assert again.out == made.out
    whole = pmfl("paper", "all", "--no-run", "--out", "nowhere", "--archive", "kept", "--to", "all", "--forms", "svg")
    assert whole.code == 0, whole.err
    assert {"claims.md", "claims.csv", "paper.html", "pages", "tables", "figures"} == {
        file.name for file in (tmp_path / "all").iterdir()
    }
    assert json.loads(pmfl("paper", "clients", "--seeds", "2", "--no-run", "--json").out)["done"] == 2


def test_the_list(pmfl: Any) -> None:
    listed = pmfl("paper")
    assert listed.code == 0, listed.err
    assert [line.split()[0] for line in listed.out.splitlines()] == artefacts()
    assert listed.out.count("not run") == len(artefacts())


def test_nothing_answered_is_said(pmfl: Any) -> None:
    found = pmfl("paper", "table4", "--no-run", "--set", "seed=0", "--set", "participation.pattern=bernoulli")
    assert found.code == 0, found.err
    assert "0 of 12 runs answered" in found.out
    assert "NOT RUN" in found.out
    assert pmfl("paper", "all", "--no-run").out.strip() == "nothing is answered yet"


def test_runs_are_compared(pmfl: Any, tmp_path: Path) -> None:
    made_store(tmp_path / "results", made_study())
    found = pmfl("compare", "made-up")
    assert found.code == 0, found.err
    assert "first is ahead" in found.out
    rows = json.loads(pmfl("compare", "made-up", "--measure", "final(test/accuracy)", "--json").out)
    assert [row["setting"] for row in rows] == ["pmfl", "fedau", "fedavg"]


def test_mistakes_are_named(pmfl: Any) -> None:
    for words, said in (
        (("paper", "table1", "--scale", "huge"), "--scale huge is not known"),
        (("paper", "smoke", "--no-run"), "stands for no artefact"),
        (("archive", "kept"), "there are no results"),
        (("compare", "x", "--measure", "best(test/accuracy)"), "there is no measure `best`"),
    ):
        found = pmfl(*words)
        assert found.code != 0
        assert said in found.err
