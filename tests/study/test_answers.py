"""Answers: looked up by question, condensed, and the same from wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pmfl.study import frames
from pmfl.study.answers import NOT_STARTED, StoreSource, from_store, gather, question_of
from pmfl.study.grid import Study
from pmfl.study.store import Store
from tests.report.stores import made_store, made_study


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study()


@pytest.fixture(scope="module")
def store(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_store(tmp_path_factory.mktemp("answers") / "out", study, {8: "absent", 7: "running"})


def test_answers_come_in_the_order_of_the_study(study: Study, store: Store) -> None:
    found = from_store(store, study)
    assert [row.question_id for row in found.runs] == [spec.question_id for spec in study.runs]
    assert [row.status for row in found.runs] == ["done"] * 7 + ["running", NOT_STARTED]
    assert len(found.done) == 7
    assert set(found.rounds["run_id"].to_pylist()) == {row.run_id for row in found.done}


def test_a_question_is_answered_by_any_run_id(study: Study, store: Store) -> None:
    class Elsewhere(StoreSource):
        def runs(self) -> list:
            return [replace(row, run_id=row.run_id) for row in super().runs() if row.status == "done"]

    other = Study("other", base=study.base, sweep={"seed": [1], "method": ["fedau"]})
    (row,) = gather(other, [Elsewhere(store)]).runs
    assert row.status == "done"
    assert row.method == "fedau"
    assert row.seed == 1


def test_settings_that_were_not_there_yet_had_their_default(store: Store) -> None:
    row = store.runs()[0]
    old = {**row.spec, "data": {k: v for k, v in row.spec["data"].items() if k != "held_out"}}
    assert question_of(replace(row, spec=old, question_id="other")) == row.question_id


def test_a_run_of_own_code_keeps_the_name_of_its_question(store: Store) -> None:
    row = store.runs()[0]
    own = {**row.spec, "method": {"name": "./mine.py:method", "params": {}}}
    assert question_of(replace(row, spec=own, question_id="kept")) == "kept"
    unknown = {**row.spec, "method": {"name": "no-more", "params": {}}}
    assert question_of(replace(row, spec=unknown, question_id="kept")) == "kept"


def test_what_was_recorded_in_every_round_becomes_means(study: Study, store: Store) -> None:
    run_id = from_store(store, study).done[0].run_id
    every = study.runs[0].evaluation.every
    raw = frames.rounds(store, [run_id]).to_pylist()
    here = {row["t"]: row["value"] for row in raw if row["split"] == "local" and row["metric"] == "clients"}
    found = [
        row
        for row in from_store(store, study).rounds.to_pylist()
        if row["run_id"] == run_id and row["split"] == "local" and row["metric"] == "clients"
    ]
    assert [row["t"] for row in sorted(found, key=lambda row: row["t"])] == list(range(every - 1, 60, every))
    for row in found:
        window = [here[t] for t in range(row["t"] - every + 1, row["t"] + 1)]
        assert row["value"] == pytest.approx(np.mean(window))


def test_clients_are_kept_at_the_last_evaluation(study: Study, store: Store) -> None:
    run_id = from_store(store, study).done[0].run_id
    found = [row for row in from_store(store, study).clients.to_pylist() if row["run_id"] == run_id]
    assert {row["t"] for row in found} == {59}
    assert {row["metric"] for row in found} == {"accuracy", "weight", "participations"}
    took = frames.participation(store, [run_id])["client"].to_pylist()
    assert {row["client"]: row["value"] for row in found if row["metric"] == "participations"} == {
        k: took.count(k) for k in range(20)
    }


def test_nothing_found_is_empty_tables(study: Study, tmp_path: Path) -> None:
    found = from_store(Store(tmp_path, create=True), study)
    assert not found.done
    assert len(found.rounds) == len(found.clients) == 0
