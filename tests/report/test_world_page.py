from __future__ import annotations

import base64
import csv
import io
from pathlib import Path

import numpy as np
import pytest

from pmfl.core.keys import Key
from pmfl.report.world_page import label_counts, write_world
from pmfl.study.spec import run_spec
from pmfl.study.world import build_dataset, build_partition, build_pattern
from tests.report.test_page import Outline, read

GIVEN = {"data": {"clients": 70}, "training": {"rounds": 100}, "seed": 3}


@pytest.fixture(scope="module")
def page(folder: Path) -> Outline:
    return read(write_world(run_spec(GIVEN), folder / "world.html"))


def test_a_world_is_pictured_without_training(page: Outline) -> None:
    assert page.headings == [
        "digits, 70 clients",
        "Who holds what",
        "Who is there how often",
        "The first 100 rounds",
        "Settings",
    ]
    assert "nothing was trained" in page.words
    assert "1,438" in page.words
    assert "60 of 70 clients are shown" in page.words
    assert "40 clients are shown, evenly spaced by rate" in page.words
    assert len(page.all("svg")) == 4
    assert all(picture["aria-label"] for picture in page.all("svg"))


def test_what_a_world_says_is_what_is_built(page: Outline) -> None:
    spec = run_spec(GIVEN)
    dataset = build_dataset(spec)
    partition = build_partition(spec, Key.root(3), dataset)
    rates, _ = build_pattern(spec, Key.root(3), partition)
    counts = label_counts(dataset, partition)
    np.testing.assert_array_equal(counts.sum(1), partition.sizes)
    np.testing.assert_array_equal(counts[5], np.bincount(dataset.train.y[partition.owned[5]], minlength=10))
    (link,) = page.all("a")
    rows = list(csv.DictReader(io.StringIO(base64.b64decode((link["href"] or "").partition(",")[2]).decode())))
    assert [float(row["rate"]) for row in rows] == rates.tolist()
    assert [int(row["label_9"]) for row in rows] == counts[:, 9].tolist()
    assert f"{100 * rates.mean():.1f} % of rounds" in page.words


def test_a_large_world_stays_a_small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmfl.report.world_page.CELLS", 699)
    assert read(write_world(run_spec(GIVEN), tmp_path / "large.html")).all("a") == []


def test_patterns_of_their_own_rates_say_so(tmp_path: Path, page: Outline) -> None:
    assert "rates of its own" not in page.words
    always = run_spec({**GIVEN, "data": {"clients": 4}, "participation": {"pattern": "always"}})
    words = read(write_world(always, tmp_path / "always.html")).words
    assert "The pattern has rates of its own" in words
    assert "4.0 (from 4 to 4)" in words


@pytest.mark.parametrize(
    ("offset", "clock"),
    [("common", "round 0 at midnight"), ("own", "start of each device’s recording"), ("random", "hours of their day")],
)
def test_a_recording_is_shown_by_hour(tmp_path: Path, offset: str, clock: str) -> None:
    here = np.zeros((48, 6), np.int8)
    here[np.arange(48) % 24 < 12, :3] = 1
    np.save(tmp_path / "trace.npy", here)
    who = {"pattern": "trace", "path": str(tmp_path / "trace.npy"), "round_seconds": 3600.0, "offset": offset}
    given = {"data": {"clients": 6}, "training": {"rounds": 48}, "participation": who}
    page = read(write_world(run_spec(given), tmp_path / "trace.html"))
    assert "By hour" in page.headings
    assert "48 rounds of 3600 s, " in page.words
    assert [words in page.words for words in ("midnight", "device’s recording", "hours of their day")] == [
        offset == "common",
        offset == "own",
        offset == "random",
    ]
    assert clock in page.words
    if offset != "random":
        assert "From 0.0 to 50.0 %." in page.words
    assert "Notes on the pattern: trace.npy: 6 devices, 48 rounds" in page.words
    assert "0.0, 25.0, 50.0 %" in page.words
