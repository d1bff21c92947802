"""Runs against runs: paired by seed, whatever study they belong to."""

from __future__ import annotations

import pytest

from pmfl.errors import PmflError
from pmfl.report.comparison import compare, comparison_text
from pmfl.study.expression import parse_measure
from pmfl.study.grid import Study
from pmfl.study.store import Store

TOP5 = parse_measure("top5_mean(test/accuracy)")


def test_a_study_is_compared_with_its_first_setting(store: Store, study: Study) -> None:
    rows = compare(store, [study.id], TOP5)
    assert [row["setting"] for row in rows] == ["pmfl", "fedau", "fedavg"]
    assert rows[0]["verdict"] is None
    for row in rows[1:]:
        assert row["shared"] == row["seeds"] == 3
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["difference"] == pytest.approx(rows[0]["mean"] - row["mean"])
    assert rows[2]["verdict"] == "first is ahead"
    text = comparison_text(rows, TOP5)
    assert "the first setting" in text
    assert "first is ahead" in text


def test_runs_by_id_are_paired_by_seed(store: Store) -> None:
    runs = store.runs()
    chosen = [run.run_id for run in runs if (run.method, run.seed) in (("fedavg", 0), ("pmfl", 0), ("pmfl", 1))]
    rows = compare(store, chosen, parse_measure("spread(accuracy)"))
    assert {row["setting"]: row["seeds"] for row in rows} == {"pmfl": 2, "fedavg": 1}
    assert rows[1]["shared"] == 1
    assert rows[1]["verdict"] == "undecided", "one seed decides nothing"
    assert "–" in comparison_text(rows, parse_measure("spread(accuracy)"))


def test_what_cannot_be_compared_is_said(store: Store, partial: Store) -> None:
    with pytest.raises(PmflError, match="no run starts with"):
        compare(store, ["nothing"], TOP5)
    waiting = [run.run_id for run in partial.runs() if run.status != "done"]
    with pytest.raises(PmflError, match="none of these runs is finished"):
        compare(partial, waiting, TOP5)
