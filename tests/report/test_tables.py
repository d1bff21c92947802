from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from pmfl.report.tables import (
    MEASURES,
    columns,
    minutes,
    paired_differences,
    percent,
    points,
    reading,
    summary_table,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
    to_text,
)
from pmfl.study.grid import Study
from pmfl.study.metrics import mean_interval
from pmfl.study.play import row_of
from pmfl.study.store import RunRow, Store
from tests.report.stores import made_study


def rows_with(study: Study, finals: dict[tuple[str, int], float]) -> list[RunRow]:
    """Runs that ended at given test accuracies; those without one are still waiting."""
    found = []
    for spec in study.runs:
        row = row_of(spec, study.id)
        final = finals.get((row.method, row.seed))
        if final is not None:
            metrics = {"test/accuracy": {measure: final + i / 100 for i, measure in enumerate(MEASURES)}}
            row = replace(row, status="done", t=60, seconds=90.0, metrics=metrics)
        found.append(row)
    return found


FINALS = {
    ("pmfl", 0): 0.90,
    ("pmfl", 1): 0.80,
    ("pmfl", 2): 0.70,
    ("fedau", 0): 0.89,
    ("fedau", 1): 0.78,
    ("fedavg", 2): 0.60,
}


@pytest.fixture
def table(store: Store, study: Study) -> list[dict[str, Any]]:
    return summary_table(store, study, rows_with(study, FINALS))


@pytest.fixture
def gaps(store: Store, study: Study) -> list[dict[str, Any]]:
    return paired_differences(store, study, rows_with(study, FINALS))


def test_a_row_holds_mean_and_interval_over_the_seeds_that_are_done(table: list[dict[str, Any]]) -> None:
    assert [row["method"] for row in table] == ["pmfl", "fedau", "fedavg"]
    assert [(row["seeds"], row["planned"]) for row in table] == [(3, 3), (2, 3), (1, 3)]
    expected = mean_interval([0.9, 0.8, 0.7])
    assert table[0]["test_accuracy_final"] == pytest.approx(0.8)
    assert table[0]["test_accuracy_final_low"] == pytest.approx(expected["low"])
    assert table[0]["test_accuracy_final_high"] == pytest.approx(expected["high"])
    assert table[0]["test_accuracy_top5_mean"] == pytest.approx(0.82)
    assert table[2]["test_accuracy_final_low"] is None
    assert table[0]["train_accuracy_final"] is None
    assert table[0]["minutes"] == 1.5


def test_rows_have_the_same_keys_and_are_plain(table: list[dict[str, Any]], gaps: list[dict[str, Any]]) -> None:
    for rows in (table, gaps):
        assert len({tuple(row) for row in rows}) == 1
        assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_runs_are_looked_up_where_none_are_given(store: Store, study: Study) -> None:
    found = summary_table(store, study)
    assert [row["seeds"] for row in found] == [3, 3, 3]
    assert found[0]["test_accuracy_final"] > found[2]["test_accuracy_final"]
    assert found[0]["train_accuracy_final"] is not None
    assert [row["against"] for row in paired_differences(store, study)] == ["fedau", "fedavg"]


def test_differences_are_taken_seed_by_seed(gaps: list[dict[str, Any]]) -> None:
    key = "test_accuracy_final_difference"
    assert [(row["method"], row["against"], row["seeds"]) for row in gaps] == [
        ("pmfl", "fedau", 2),
        ("pmfl", "fedavg", 1),
    ]
    expected = mean_interval([0.01, 0.02])
    assert gaps[0][key] == pytest.approx(0.015)
    assert gaps[0][f"{key}_low"] == pytest.approx(expected["low"])
    assert gaps[1][key] == pytest.approx(0.1)
    assert gaps[1][f"{key}_high"] is None


def test_another_method_may_be_the_reference(store: Store, study: Study) -> None:
    gaps = paired_differences(store, study, rows_with(study, FINALS), reference="fedavg")
    assert [(row["method"], row["against"]) for row in gaps] == [("fedavg", "pmfl"), ("fedavg", "fedau")]
    assert gaps[0]["test_accuracy_final_difference"] == pytest.approx(-0.1)
    assert gaps[1]["test_accuracy_final_difference"] is None


def test_text_says_mean_and_half_the_interval(table: list[dict[str, Any]]) -> None:
    text = to_text(table, 200)
    assert "80.0 ± 24.8" in text
    assert "2 of 3" in text
    assert "60.0 " in text
    assert reading(table) in text
    assert "seeds" in text.splitlines()[1]


def test_text_keeps_to_the_terminal_where_it_can(store: Store, study: Study) -> None:
    table = summary_table(store, study)
    wide, narrow = to_text(table, 200), to_text(table, 80)
    assert wide.splitlines()[1].count("best 5") == 2
    assert narrow.splitlines()[1].count("best 5") == 1
    assert max(map(len, narrow.splitlines())) <= 80
    assert all("±" in line for line in to_text(table, 30).splitlines()[3:6]), "cells are never cut"


def test_a_curve_of_one_evaluation_is_one_number(table: list[dict[str, Any]]) -> None:
    flat = [{**row, **{f"train_accuracy_{measure}": 0.5 for measure in MEASURES}} for row in table]
    assert [column.title for column in columns(flat) if column.group == "train"] == ["train final"]
    curved = [{**row, "train_accuracy_last10_mean": 0.6} for row in flat]
    assert len([column for column in columns(curved) if column.group == "train"]) == 3


def test_only_what_varies_has_a_column() -> None:
    study = made_study(sweep={"method": ["pmfl"], "data.partition.alpha": [0.1, 0.5], "training.rounds": [60]})
    table = summary_table(None, study, rows_with(study, {}))  # type: ignore[arg-type]
    assert [column.heading for column in columns(table)][:3] == ["method", "alpha", "seeds"]
    assert table[0]["training.rounds"] == 60


def test_markdown(table: list[dict[str, Any]]) -> None:
    lines = to_markdown(table).splitlines()
    assert lines[0].startswith("| method | seeds | test final | test last 10 | test best 5 | train final | minutes |")
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[2].startswith("| pmfl | 3 | 80.0 ± 24.8 |")
    strange = to_markdown([{**table[0], "method": "a|b"}])
    assert "a\\|b" in strange


def test_latex(table: list[dict[str, Any]], gaps: list[dict[str, Any]]) -> None:
    text = to_latex([{**table[0], "method": "my_method & co"}])
    assert r"my\_method \& co & 3 & 80.0 $\pm$ 24.8 & " in text
    assert text.startswith("\\begin{tabular}{@{}lrrrrrr@{}}\n\\toprule\n")
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert "$-$" in to_latex(gaps)


def test_csv_has_all_digits(table: list[dict[str, Any]]) -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [row["method"] for row in read] == ["pmfl", "fedau", "fedavg"]
    assert float(read[0]["test_accuracy_final_low"]) == table[0]["test_accuracy_final_low"]
    assert read[2]["test_accuracy_final_low"] == ""
    assert to_csv([]) == ""


def test_differences_are_laid_out_in_points(gaps: list[dict[str, Any]]) -> None:
    text = to_text(gaps, 200)
    assert "+1.5 (−4.9 to +7.9)" in text
    assert "percentage points" in text
    assert to_rich(gaps).row_count == 2


def test_nothing_is_an_empty_table() -> None:
    assert columns([]) == []
    assert to_text([], 80)


def test_numbers_in_words() -> None:
    assert [percent(0.8744), percent(None), percent(1.0)] == ["87.4", "–", "100.0"]
    assert [points(0.0312), points(-0.0312), points(-0.0001), points(None)] == ["+3.1", "−3.1", "0.0", "–"]
    assert [minutes(value) for value in (None, 0.01, 3.14, 1234.5)] == ["–", "< 0.1", "3.1", "1,234"]
