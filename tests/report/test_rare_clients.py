from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pmfl.errors import SpecError
from pmfl.report import gather
from pmfl.report.page import write_report
from pmfl.report.rare_clients import rare_client_findings, rare_client_rows, rare_client_text
from pmfl.report.series import runs_of, settings
from pmfl.study.grid import Study, load
from pmfl.study.store import Store
from tests.report.stores import made_study

BIASED = made_study(report={"rare_clients": "fedavg"})


def rows_of(store: Store, study: Study = BIASED) -> list[dict[str, Any]]:
    return rare_client_rows(store, study, settings(study, runs_of(store, study)))


def test_both_ends_equal_a_direct_computation(store: Store) -> None:
    (row,) = [row for row in rows_of(store) if row["method"] == "fedavg"]
    ends = []
    for run in (run for run in store.runs() if run.method == "fedavg"):
        took = np.zeros(20)
        by_round: dict[int, np.ndarray[Any, Any]] = {}
        folder = store.sealed(run.run_id)
        for client in pq.read_table(folder / "participation.parquet")["client"].to_pylist():
            took[client] += 1
        table = pq.read_table(folder / "clients.parquet").to_pylist()
        for entry in (entry for entry in table if entry["metric"] == "accuracy"):
            by_round.setdefault(entry["t"], np.zeros(20))[entry["client"]] = entry["value"]
        mean = np.mean([by_round[t] for t in sorted(by_round)[-10:]], axis=0)
        order = sorted(range(20), key=lambda k: (took[k], k))
        ends.append((mean[order[:5]].mean(), mean[order[-5:]].mean()))
    rarest, most = np.array(ends).T
    assert row["rarest_quarter"] == pytest.approx(rarest.mean())
    assert row["most_frequent_quarter"] == pytest.approx(most.mean())
    assert row["gap"] == pytest.approx((most - rarest).mean())
    assert row["gap_difference"] is None
    assert row["seeds"] == 3


def test_what_was_not_measured_is_none(store: Store) -> None:
    run = next(run for run in store.runs() if run.method == "fedau")
    last = gather.last_accuracies(store, run, 21)
    assert last is not None
    assert last.shape == (21,)
    assert np.isnan(last[20])


def test_a_study_that_does_not_ask_shows_nothing(store: Store, study: Study) -> None:
    assert rows_of(store, study) == []


def test_a_reference_that_is_no_method_of_the_study_is_refused(store: Store) -> None:
    with pytest.raises(SpecError, match="not one of its methods") as caught:
        rows_of(store, made_study(report={"rare_clients": "fedavgg"}))
    assert "did you mean `fedavg`" in caught.value.hint


def test_unfinished_runs_are_left_out(partial: Store) -> None:
    rows = rows_of(partial)
    assert [row["seeds"] for row in rows] == [1, 0, 1]
    said = rare_client_findings(rows)
    assert said[0].endswith("one seed supports no claim.")
    assert said[1] == "pmfl and fedavg share too few finished seeds to compare their bias."
    assert len(said) == 2


def row(who: str, gap: tuple[float, float, float], change: tuple[float, float, float] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"method": who, "who": who, "against": "fedavg", "seeds": 3}
    for key, numbers in (("gap", gap), ("gap_difference", change or (None, None, None))):
        found |= dict(zip((key, f"{key}_low", f"{key}_high"), numbers, strict=True))
    return found


BIAS = (0.10, 0.05, 0.15)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [row("fedavg", BIAS, None)],
            "fedavg is biased by participation: it serves the clients that come often better",
        ),
        ([row("fedavg", (0.1, -0.1, 0.3), None)], "fedavg shows no bias by participation"),
        ([row("x", (0.0, -0.1, 0.1), (-0.1, -0.15, -0.05))], "x corrects it: the gap is −10.0 points against"),
        ([row("x", (0.04, 0.01, 0.07), (-0.06, -0.1, -0.02))], "x lessens it: the gap is −6.0 points against"),
        ([row("x", (-0.04, -0.07, -0.01), (-0.1, -0.2, -0.05))], "It now serves the rare ones better, by +4.0 points."),
        ([row("x", (0.0, -0.1, 0.1), (-0.1, -0.25, 0.05))], "x is not shown to correct it"),
        ([row("x", (0.2, 0.1, 0.3), (0.1, 0.05, 0.15))], "x makes it larger"),
    ],
)
def test_sentences_claim_what_intervals_allow(rows: list[dict[str, Any]], said: str) -> None:
    (sentence,) = rare_client_findings(rows)
    assert said in sentence


def test_text_and_page_show_it(store: Store, tmp_path: Path) -> None:
    text = rare_client_text(rows_of(store))
    assert "that came least" in text
    assert "against fedavg" in text
    assert "fedavg is biased by participation" in text
    assert max(map(len, text.splitlines())) < 400
    page = write_report(store, BIASED, tmp_path / "page.html").read_text("utf-8")
    assert "Participation bias" in page
    assert "made-up-rare-clients.csv" in page
    assert json.dumps("nan") not in page


def test_smoke_asks_for_it() -> None:
    study = load("smoke")
    assert study.report["rare_clients"] == "fedavg"
    assert {run.method.name for run in study.runs} == {"pmfl", "fedau", "fedavg"}
    assert {run.data.held_out for run in study.runs} == {0}
    assert all(run.evaluation.train_every == run.evaluation.every for run in study.runs)
