from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.core.tree import load_tree, save_tree
from pmfl.errors import DataMissing, SpecError
from pmfl.world.participation import Pattern, matrix, summary
from pmfl.world.recordings import read
from pmfl.world.trace import DAY, _places, trace

FLASH = Path(__file__).parents[2] / "../shared/data/availability_flash_intervals.parquet"
needs_flash = pytest.mark.skipif(not FLASH.is_file(), reason="the FLASH recording lies beside the repository")
KEY = Key.root(0)

Phone = tuple[float, float, list[list[float]]]  # when its recording begins and ends, and its intervals


def write(folder: Path, phones: list[Phone]) -> str:
    content = {
        str(i): {"isSuccess": True, "trace_start": begin, "trace_end": end, "ready_time": ready}
        for i, (begin, end, ready) in enumerate(phones)
    }
    (folder / "trace.json").write_text(json.dumps(content))
    return str(folder / "trace.json")


def pattern(path: str | Path, clients: int, key: Key = KEY, **options: Any) -> Pattern:
    return trace(np.full(clients, 0.1), key, path=str(path), **options)


def dealt(clients: int, devices: int, key: Key = KEY) -> list[int]:
    """Which device each client is."""
    order = key.fold("devices").numpy().permutation(devices).tolist()
    return [order[k % devices] for k in range(clients)]


def ready(phone: Phone, second: float) -> bool:
    """FLASH's own rule: the recording repeats, and an interval includes both its ends."""
    begin, end, intervals = phone
    now = (second - begin) % (end - begin) + begin
    return any(start <= now <= stop for start, stop in intervals)


@st.composite
def recordings(draw: st.DrawFn) -> list[Phone]:
    phones: list[Phone] = []
    for _ in range(draw(st.integers(1, 4))):
        begin, length = draw(st.integers(0, 200_000)), draw(st.integers(1, 300))
        ends = st.integers(begin, begin + length)
        found = draw(st.lists(st.tuples(ends, ends), max_size=5))
        phones.append((float(begin), float(begin + length), [[float(min(s)), float(max(s))] for s in found]))
    phones[0][2].append([phones[0][0], phones[0][0]])  # somebody is there at some time
    return phones


@given(phones=recordings(), step=st.sampled_from([0.5, 1.0, 7.0, 60.0, 4000.0]), data=st.data())
@settings(deadline=None, max_examples=40)
def test_repeated_rows_are_what_flash_says(
    tmp_path_factory: pytest.TempPathFactory, phones: list[Phone], step: float, data: st.DataObject
) -> None:
    path = write(tmp_path_factory.mktemp("t"), phones)
    clients = data.draw(st.integers(1, len(phones)))
    device = dealt(clients, len(phones))
    midnight = min(begin for begin, _, _ in phones) // DAY * DAY
    for offset in ("common", "own"):
        found = pattern(path, clients, round_seconds=step, offset=offset)
        rows = matrix(found, 60)
        for k, d in enumerate(device):
            start = midnight if offset == "common" else phones[d][0]
            assert rows[:, k].tolist() == [ready(phones[d], start + t * step) for t in range(60)]
        state = found.start()
        for t in data.draw(st.lists(st.integers(0, 59), max_size=12)):  # in any order
            here, state = found.row(state, t)
            assert torch.equal(here, rows[t])


@given(phones=recordings(), step=st.sampled_from([1.0, 7.0, 60.0]), clients=st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_further_clients_of_a_device_are_elsewhere_in_its_recording(
    tmp_path_factory: pytest.TempPathFactory, phones: list[Phone], step: float, clients: int
) -> None:
    path = write(tmp_path_factory.mktemp("t"), phones)
    device = np.array(dealt(clients, len(phones)))
    for offset in ("common", "own", "random"):
        place = _places(read(path), device, offset, KEY.fold("offset"))
        rows = matrix(pattern(path, clients, round_seconds=step, offset=offset), 40)
        for k, d in enumerate(device):
            first = phones[d][0] + place[k]
            assert rows[:, k].tolist() == [ready(phones[d], first + t * step) for t in range(40)]


@given(phones=recordings(), step=st.sampled_from([1.0, 7.0, 60.0]))
@settings(deadline=None, max_examples=40)
def test_rounds_stop_with_the_recording(
    tmp_path_factory: pytest.TempPathFactory, phones: list[Phone], step: float
) -> None:
    path = write(tmp_path_factory.mktemp("t"), phones)
    own = pattern(path, len(phones), round_seconds=step, offset="own", after="stop")
    assert own.rounds is not None
    shortest = min(end - begin for begin, end, _ in phones)
    assert (own.rounds - 1) * step < shortest <= own.rounds * step
    again = matrix(pattern(path, len(phones), round_seconds=step, offset="own"), own.rounds)
    assert torch.equal(matrix(own, own.rounds), again)


def test_stop_on_the_common_clock_is_away_outside_of_ones_own_recording(tmp_path: Path) -> None:
    phones: list[Phone] = [(100.0, 150.0, [[100.0, 150.0]]), (120.0, 200.0, [[130.0, 200.0]])]
    found = pattern(write(tmp_path, phones), 2, round_seconds=10.0, after="stop")
    assert found.rounds == 20  # the last one at 190 s
    rows = matrix(found, 20)
    early, late = (dealt(2, 2).index(d) for d in (0, 1))
    assert rows[:, early].nonzero().flatten().tolist() == [10, 11, 12, 13, 14]
    assert rows[:, late].nonzero().flatten().tolist() == [13, 14, 15, 16, 17, 18, 19]
    assert "the recording ends after 20 rounds" in found.notes
    assert "2 clients were recorded for only a part of them, and are away in the rest" in found.notes
    with pytest.raises(SpecError, match="ends after 20 rounds, and round 20 is asked for"):
        found.row(found.start(), 20)
    with pytest.raises(SpecError, match="21 rounds are asked for, and the recording ends after 20") as refused:
        found.check(21)
    assert "at most 20" in refused.value.hint


def test_stop_with_own_clocks_ends_with_the_first_recording(tmp_path: Path) -> None:
    phones: list[Phone] = [(0.0, 100.0, [[0.0, 100.0]]), (0.0, 45.0, [[0.0, 45.0]])]
    found = pattern(write(tmp_path, phones), 2, round_seconds=10.0, offset="own", after="stop")
    assert found.rounds == 5
    assert matrix(found, 5).all()
    assert not any("only a part" in note for note in found.notes)


def test_stop_needs_recordings_from_their_start(tmp_path: Path) -> None:
    path = write(tmp_path, [(0.0, 9.0, [[0.0, 1.0]])])
    for clients, offset in ((1, "random"), (2, "common")):
        with pytest.raises(SpecError, match='after = "stop" does not go with') as refused:
            pattern(path, clients, after="stop", offset=offset)
        assert "repeat" in refused.value.hint


def test_a_matrix_is_replayed_row_by_row(tmp_path: Path) -> None:
    cells = KEY.numpy().random((37, 5)) < 0.4
    np.save(tmp_path / "m.npy", cells)
    device = dealt(5, 5)
    for offset, seconds in (("common", 60.0), ("own", 60.0), ("own", 0.3)):
        rows = matrix(pattern(tmp_path / "m.npy", 5, offset=offset, round_seconds=seconds), 80).numpy()
        np.testing.assert_array_equal(rows, np.resize(cells, (80, 5))[:, device])
    stops = pattern(tmp_path / "m.npy", 5, after="stop")
    assert stops.rounds == 37
    np.testing.assert_array_equal(matrix(stops, 37).numpy(), cells[:, device])
    np.testing.assert_allclose(stops.rates, cells.mean(0)[device])
    assert any("a row is a round" in note for note in stops.notes)


def test_clients_of_a_matrix_at_random_places(tmp_path: Path) -> None:
    cells = KEY.numpy().random((50, 3)) < 0.4
    np.save(tmp_path / "m.npy", cells)
    for offset in ("random", "common"):
        rows = matrix(pattern(tmp_path / "m.npy", 30, offset=offset), 50).numpy()
        device = dealt(30, 3)
        turns = [
            [turn for turn in range(50) if (np.roll(cells[:, d], -turn) == rows[:, k]).all()]
            for k, d in enumerate(device)
        ]
        assert all(turns)
        assert len({turn[0] for turn in turns}) > 10
        if offset == "common":
            assert [turn[0] for turn in turns[:3]] == [0, 0, 0]


def test_a_key_deals_devices(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.eye(20))
    some, again, other = (
        matrix(pattern(tmp_path / "m.npy", 6, Key.root(seed)), 20).long().argmax(0).tolist() for seed in (1, 1, 2)
    )
    assert some == again != other
    assert len(set(some)) == 6
    assert matrix(pattern(tmp_path / "m.npy", 20, Key.root(1)), 20).long().argmax(0).tolist()[:6] == some


def test_further_clients_keep_the_hour_of_the_day_on_the_common_clock(tmp_path: Path) -> None:
    phones: list[Phone] = [(3 * DAY + 7200.0, 8 * DAY + 7200.0, [[4 * DAY, 5 * DAY]])]
    recording = read(write(tmp_path, phones))
    place = _places(recording, np.zeros(1000, np.int64), "common", KEY)
    assert place[0] == -7200.0  # round 0 is at midnight, two hours before the recording begins
    moved = place[1:] + 7200.0
    days = np.rint(moved / DAY)
    assert set(days) == {0, 1, 2, 3, 4}
    assert abs(moved - days * DAY).max() <= 1800
    assert len(set(moved)) > 900
    few = _places(recording, np.zeros(10, np.int64), "common", KEY)
    assert few.tolist() == place[:10].tolist()


def test_what_was_done_is_said(tmp_path: Path) -> None:
    phones: list[Phone] = [(0.0, DAY * (1 + i), [[0.0, 60.0]]) for i in range(3)]
    path = write(tmp_path, phones)
    few, same, many = (pattern(path, clients).notes for clients in (2, 3, 7))
    assert "the 2 clients are 2 of the 3 devices, drawn by key" in few
    assert same[1:] == (
        "round 0 is midnight of the recordings' common clock",
        "recordings repeat after their end: after 1,440 and 4,320 rounds",
    )
    assert "7 clients share 3 devices, each at another place of the recording" in many
    assert not any("midnight" in note for note in pattern(path, 3, offset="own").notes)


def test_a_state_can_be_saved_and_is_never_changed(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", KEY.numpy().random((37, 5)) < 0.4)
    found = pattern(tmp_path / "m.npy", 12)
    whole, state = matrix(found, 30), found.start()
    for t in range(11):
        _, state = found.row(state, t)
    save_tree(tmp_path / "state", state)
    for t in range(11, 30):
        found.row(state, t)
    state = load_tree(tmp_path / "state", found.start())
    for t in range(11, 30):
        here, state = found.row(state, t)
        assert torch.equal(here, whole[t])


def test_errors_of_the_file_come_through(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="there is no such file"):
        pattern(tmp_path / "nothing.csv", 3)


# FLASH itself


@needs_flash
def test_flash_is_awake_as_it_was() -> None:
    found = pattern(FLASH, 710, round_seconds=600.0)
    days = summary(found, 144 * 60, round_seconds=600.0)  # 60 days: every recording of 1 to 6 or 10 days is whole
    np.testing.assert_allclose(days.by_client.mean(), found.rates.mean(), rtol=0.02)
    assert np.corrcoef(days.by_client, found.rates)[0, 1] > 0.99
    assert days.quartiles == pytest.approx((0.013, 0.055, 0.131), abs=0.006)
    assert int(np.argmax(days.by_hour)) in (4, 5)  # people sleep, telephones charge
    assert days.by_hour.max() > 2 * days.by_hour.min()


@needs_flash
def test_many_clients_keep_the_hours_of_the_day_on_the_common_clock_only() -> None:
    common, own = (
        summary(pattern(FLASH, 2840, offset=offset, round_seconds=1800.0), 48 * 4, round_seconds=1800.0).by_hour
        for offset in ("common", "random")
    )
    assert int(np.argmax(common)) in (4, 5)
    assert common.max() > 2 * common.min()
    assert own.max() < 1.2 * own.min()


@needs_flash
@pytest.mark.parametrize("offset", ["common", "own", "random"])
def test_a_row_of_a_million_clients_is_quick(offset: str) -> None:
    found = pattern(FLASH, 1_000_000, offset=offset)
    state, times = found.start(), []
    for t in range(12):
        start = time.thread_time()
        here, state = found.row(state, t)
        times.append(time.thread_time() - start)
    assert min(times[1:]) < 0.02  # takes 2 to 3 ms, and 0.1 s for the first
    assert 0.02 < float(here.double().mean()) < 0.3
