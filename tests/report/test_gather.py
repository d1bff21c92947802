from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmfl.report import gather
from pmfl.report.series import runs_of, settings
from pmfl.study.grid import Study
from pmfl.study.store import Store
from tests.report.stores import made_store, made_study, records


def test_curves_are_means_over_seeds_with_their_range(store: Store, study: Study) -> None:
    found = settings(study, runs_of(store, study))
    test, train = gather.curves(store, found)
    mine = [row for row in test if row["label"] == "pmfl"]
    assert [row["round"] for row in mine] == list(range(5, 61, 5))
    seeds = [records(spec)[59].values["test/accuracy"] for spec in study.runs[:3]]
    assert mine[-1]["mean"] == pytest.approx(np.mean(seeds), abs=1e-4)
    assert (mine[-1]["low"], mine[-1]["high"]) == pytest.approx((min(seeds), max(seeds)), abs=1e-4)
    assert mine[-1]["each"] == 1
    assert mine[-1]["end"] == 60
    assert len(train) == len(test)


def test_long_curves_are_binned_and_say_so(tmp_path: Path) -> None:
    study = made_study(
        base={"data": {"clients": 3}, "training": {"rounds": 450}, "evaluation": {"every": 1}},
        sweep={"method": ["fedavg"]},
    )
    store = made_store(tmp_path / "out", study)
    rows, train = gather.curves(store, settings(study, runs_of(store, study)))
    assert len(rows) == 150
    assert {row["each"] for row in rows} == {3}
    assert (rows[0]["round"], rows[-1]["round"]) == (2, 449)
    curve = [record.values["test/accuracy"] for record in records(study.runs[0])]
    assert rows[-1]["mean"] == pytest.approx(np.mean(curve[-3:]), abs=1e-4)
    assert "low" not in rows[0]
    assert len(train) == 1


def test_unfinished_settings_are_drawn_as_far_as_all_seeds_have_come(partial: Store, study: Study) -> None:
    test, _ = gather.curves(partial, settings(study, runs_of(partial, study)))
    ends = {row["label"]: row["end"] for row in test}
    assert ends == {"pmfl": 60, "fedau": 30, "fedavg": 60}
    assert not any("low" in row for row in test if row["label"] == "pmfl"), "the interrupted seed is left out"


def test_participation_of_a_run(store: Store, study: Study) -> None:
    took = gather.took_part(store, runs_of(store, study)[0])
    expected = np.zeros(20)
    for record in records(study.runs[0]):
        expected[record.took_part] += 1
    assert (took.rounds, took.clients) == (60, 20)
    np.testing.assert_allclose(took.rates, expected / 60)


def test_clients_of_all_seeds_are_pooled(store: Store, study: Study) -> None:
    fair = gather.fairness(store, settings(study, runs_of(store, study)))
    assert [one.label for one in fair] == ["pmfl", "fedau", "fedavg"]
    assert len(fair[0].accuracy) == 60
    assert fair[0].seed.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    np.testing.assert_array_equal(fair[0].accuracy[:20], records(study.runs[0])[59].per_client["accuracy"])


def test_who_is_left_behind_in_numbers() -> None:
    rate, accuracy = np.array([0.1, 0.2, 0.3, 0.4] * 2), np.array([0.5, 0.6, 0.7, 0.8, 0.1, 0.6, 0.7, 1.0])
    one = gather.Fairness("a", rate, accuracy, np.repeat([0, 1], 4))
    (row,) = gather.fairness_rows([one])
    assert row["mean"] == pytest.approx(0.625)
    assert row["median"] == pytest.approx(0.65)
    assert row["lowest_tenth"] == pytest.approx(0.38)
    assert row["rarest_quarter"] == pytest.approx(0.3)
    assert row["most_frequent_quarter"] == pytest.approx(0.9)
    assert row["gap"] == pytest.approx(0.6)


def test_what_was_not_measured_is_not_there(tmp_path: Path) -> None:
    study = made_study(sweep={"method": ["fedavg"]})
    store = made_store(tmp_path / "out", study, {0: "interrupted"})
    (run,) = runs_of(store, study)
    took = gather.took_part(store, run)
    assert gather.weights(store, run, "fedavg", took) == ([], [])
    store.forget(run.run_id)
    assert gather.last_accuracies(store, run, 20) is None
    assert gather.curves(store, settings(study, [run])) == ([], [])


def test_weights_of_the_mean_and_of_two_clients(store: Store, study: Study) -> None:
    run = runs_of(store, study)[0]
    took = gather.took_part(store, run)
    rows, marks = gather.weights(store, run, "pmfl", took)
    times = np.rint(took.rates * 60)
    last = records(study.runs[0])[59].per_client["weight"]
    ends = {row["who"]: row for row in rows}
    assert ends["mean"]["weight"] == pytest.approx(np.nanmean(last), rel=1e-4)
    assert ends["most frequent"]["weight"] == pytest.approx(last[times.argmax()], rel=1e-4)
    assert {mark["who"]: mark["inverse"] for mark in marks} == {
        "most frequent": pytest.approx(60 / times.max()),
        "rarest": pytest.approx(60 / times[times > 0].min()),
    }


def test_weights_without_a_participant_have_no_client_to_show(store: Store, study: Study) -> None:
    run = runs_of(store, study)[0]
    nobody = gather.Took(np.empty(0, np.int64), np.empty(0, np.int64), 60, 20)
    assert gather.weights(store, run, "pmfl", nobody) == ([], [])
