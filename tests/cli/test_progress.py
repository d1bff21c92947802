from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pmfl import cli
from pmfl.cli import progress
from pmfl.cli.progress import Bars, Lines, Pace, accuracy_of, eta, name_of, watching
from pmfl.study.play import row_of
from pmfl.study.spec import run_spec
from pmfl.study.store import Record, RunRow, Store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is set by hand."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, create=True)


def row(**changes: Any) -> RunRow:
    asked = run_spec({"method": "fedavg", "seed": 3, "training": {"rounds": 100}})
    return replace(row_of(asked, "study"), **changes)


def test_a_run_is_named_by_method_and_seed() -> None:
    assert name_of(row()) == "fedavg seed 3"


def test_pace_counts_what_was_seen_here(clock: Any) -> None:
    pace = Pace()
    assert pace.of(row(t=40)) is None  # it may have been played elsewhere, at another pace
    clock.now += 0.5
    assert pace.of(row(t=50)) is None  # too short to tell
    clock.now += 1.5
    assert pace.of(row(t=60)) == 10.0


def test_what_is_left_is_said_of_runs_that_move() -> None:
    assert eta(row(status="running", t=40), 0.01) == "1:40:00 left"
    assert eta(row(status="done", t=100), 5.0) == ""
    assert eta(row(status="running"), None) == ""


def test_accuracy_is_the_newest(store: Store) -> None:
    known = row()
    store.add(known)
    assert accuracy_of(store, known) is None
    store.write(known.run_id, [Record(1, {"test/accuracy": 0.25}, {}, np.array([0]))])
    assert accuracy_of(store, known) == 0.25
    assert accuracy_of(store, replace(known, metrics={"test/accuracy": {"final": 0.5}})) == 0.5
    assert accuracy_of(store, replace(known, metrics={"test/loss": {"final": 0.5}})) is None


def test_lines_say_each_end_once_and_the_rest_now_and_then(
    store: Store, clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines()
    going, over = row(status="running", t=10), row(run_id="other", status="done", t=100, seconds=20.0)
    lines.show(store, [going, over])
    assert capsys.readouterr().err == "fedavg seed 3: done, round 100/100, 5.0 rounds/s\n"
    lines.show(store, [going, over])
    assert capsys.readouterr().err == ""
    clock.now += 20
    lines.show(store, [replace(going, t=50), over])
    assert capsys.readouterr().err == "fedavg seed 3: running, round 50/100, 2.0 rounds/s, 0:00:25 left\n"
    lines.show(store, [replace(going, t=50), over])
    assert capsys.readouterr().err == ""
    diverged = replace(going, status="diverged", metrics={"test/accuracy": {"final": 0.125}})
    lines.show(store, [diverged, over])
    assert capsys.readouterr().err == "fedavg seed 3: diverged, round 10/100, test accuracy 12.5 %\n"


def test_bars_show_what_is_played(store: Store, clock: Any) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with progress._progress(console) as drawn:
        bars = Bars(drawn)
        waiting = row(run_id="other")
        bars.show(store, [row(status="running", t=10), waiting])
        assert [task.description for task in drawn.tasks] == ["runs", "fedavg seed 3"]
        clock.now += 10
        metrics = {"test/accuracy": {"final": 0.5}}
        bars.show(store, [row(status="running", t=60, metrics=metrics), waiting])
        fields = drawn.tasks[1].fields
        assert (fields["rate"], fields["accuracy"], fields["eta"]) == ("5.0 rounds/s", "50.0 %", "0:00:08 left")
        bars.show(store, [row(status="done", t=100, seconds=50.0), waiting])
        assert drawn.tasks[0].completed == 1
        assert drawn.tasks[0].total == 2
        assert (drawn.tasks[1].completed, drawn.tasks[1].fields["rate"]) == (100, "2.0 rounds/s")
    assert "rounds/s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_there_are_bars_on_a_terminal_only(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = row(status="done", t=100)
    with watching() as watch:
        watch(store, [over])
    assert "done, round 100/100" in capsys.readouterr().err
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with watching() as watch:
        watch(store, [over])
    assert "1/1" in console.file.getvalue()  # type: ignore[attr-defined]
    assert capsys.readouterr().err == ""


def test_a_signal_that_was_lost_is_heeded_at_the_next_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_heard", [15])
    with watching() as watch:
        with pytest.raises(cli.Interrupted):
            watch(store, [])
        try:
            raise cli.Interrupted
        except cli.Interrupted:
            watch(store, [])  # it is on its way: what is left is to tidy up
