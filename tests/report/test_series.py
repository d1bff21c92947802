from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pmfl.report.series import panels, runs_of, settings, short_names
from pmfl.study.answers import NOT_STARTED
from pmfl.study.grid import Study
from pmfl.study.play import row_of
from pmfl.study.settings import look_up, plain
from pmfl.study.spec import run_spec
from pmfl.study.store import RunRow, Store
from tests.report.stores import made_study, play


def rows_of(study: Study) -> list[RunRow]:
    return [row_of(spec, study.id) for spec in study.runs]


def test_one_setting_per_method_in_the_order_of_the_study(study: Study) -> None:
    found = settings(study, rows_of(study))
    assert [setting.label for setting in found] == ["pmfl", "fedau", "fedavg"]
    assert [[run.seed for run in setting.runs] for setting in found] == [[0, 1, 2]] * 3
    assert {setting.panel for setting in found} == {""}
    assert found[0].values == {"method": "pmfl"}


def test_what_is_not_the_method_makes_panels() -> None:
    study = made_study(
        sweep={
            "participation.pattern": ["bernoulli", "markov"],
            "data.partition.alpha": [0.1, 0.5],
            "method": ["pmfl", "fedavg"],
        }
    )
    found = settings(study, rows_of(study))
    by_panel = panels(found)
    assert list(by_panel) == [
        "bernoulli · alpha 0.1",
        "bernoulli · alpha 0.5",
        "markov · alpha 0.1",
        "markov · alpha 0.5",
    ]
    assert all([setting.label for setting in panel] == ["pmfl", "fedavg"] for panel in by_panel.values())
    assert list(found[0].values) == ["method", "participation.pattern", "data.partition.alpha"]


def test_parameters_of_a_method_tell_series_apart_and_leave_others_alone() -> None:
    study = made_study(sweep={"method": ["pmfl", "fedavg"], "method.pmfl.cutoff": [10, 50], "seed": [0, 1]})
    found = settings(study, rows_of(study))
    assert [setting.label for setting in found] == ["pmfl · cutoff 10", "pmfl · cutoff 50", "fedavg"]
    assert [len(setting.runs) for setting in found] == [2, 2, 2]
    assert found[2].values["method.pmfl.cutoff"] is None


def test_one_method_under_conditions_is_compared_across_them() -> None:
    study = made_study(sweep={"data.partition.alpha": [0.1, 0.5], "seed": [0]})
    found = settings(study, rows_of(study))
    assert [(setting.panel, setting.label) for setting in found] == [("", "alpha 0.1"), ("", "alpha 0.5")]


def test_tables_in_a_sweep_are_told_apart_by_what_they_say() -> None:
    sweep: dict[str, list[Any]] = {
        "method": [{"name": "pmfl", "cutoff": 20}, {"name": "pmfl", "cutoff": 30}, "fedavg"],
    }
    study = made_study(sweep=sweep)
    assert [setting.label for setting in settings(study, rows_of(study))] == [
        "pmfl cutoff=20",
        "pmfl cutoff=30",
        "fedavg",
    ]


def test_values_are_found_wherever_a_study_may_put_them() -> None:
    given = {"method": {"name": "pmfl", "cutoff": 7}, "participation": {"pattern": "cyclic", "cycle": 30}}
    spec = run_spec(given).model_dump(mode="json")
    assert look_up(spec, "participation.cycle") == 30
    assert look_up(spec, "participation.pattern")["name"] == "cyclic"
    assert look_up(spec, "participation.floor") == 0.02
    assert look_up(spec, "method.pmfl.cutoff") == 7
    assert look_up(spec, "method.fedau.cutoff") is None
    assert look_up(spec, "training.model.hidden") == 64
    assert look_up(spec, "training.rounds.nothing") is None


def test_runs_that_nobody_asked_for_are_there_too(tmp_path: Path, study: Study) -> None:
    store = Store(tmp_path / "out", create=True)
    play(store, study, study.runs[0], "interrupted")
    rows = runs_of(store, study)
    assert [row.status for row in rows] == ["interrupted", *[NOT_STARTED] * 8]
    assert [row.run_id for row in rows] == [spec.run_id for spec in study.runs]


def test_an_answer_by_another_engine_is_taken_where_there_is_no_own(tmp_path: Path) -> None:
    study = made_study(sweep={"method": ["fedavg"]})
    elsewhere = made_study(sweep={"method": ["fedavg"]}, base={**study.base, "engine": {"lanes": 4}})
    store = Store(tmp_path / "out", create=True)
    play(store, elsewhere, elsewhere.runs[0])
    play(store, study, study.runs[0], "interrupted")
    assert [row.run_id for row in runs_of(store, study)] == [elsewhere.runs[0].run_id]
    store.mark(study.runs[0].run_id, status="done")
    assert [row.run_id for row in runs_of(store, study)] == [study.runs[0].run_id]


def test_runs_that_are_done_are_shown_alone_and_others_only_without_them(study: Study) -> None:
    rows = rows_of(study)[:3]
    begun = [replace(rows[0], t=5, status="running"), rows[1]]
    assert [run.seed for run in settings(study, begun)[0].shown] == [0]
    with_done = [*begun, replace(rows[2], t=60, status="done")]
    assert [run.seed for run in settings(study, with_done)[0].shown] == [2]


def test_short_names_stay_different() -> None:
    names = short_names(["data.partition.alpha", "method.pmfl.cutoff", "method.fedau.cutoff", "training.client_lr"])
    assert list(names.values()) == ["alpha", "pmfl cutoff", "fedau cutoff", "client lr"]


def test_values_in_words() -> None:
    assert [plain(value) for value in (True, False, None, 0.10, 1e-5, 7, "word")] == [
        "yes",
        "no",
        "–",
        "0.1",
        "1e-05",
        "7",
        "word",
    ]
