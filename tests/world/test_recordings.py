from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from pmfl.errors import DataMissing, PmflError, SpecError
from pmfl.world.datasets import Array
from pmfl.world.recordings import Recording, read

SHARED = Path(__file__).parents[2] / "../shared/data"
DAY = 86_400.0

MATRIX = np.array([[1, 0, 0], [1, 0, 1], [0, 0, 1], [1, 0, 1]])

FLASH: dict[str, Any] = {
    "681": {
        "isSuccess": True,
        "trace_start": 1000.0,
        "trace_end": 2000.0,
        "ready_time": [[1000.0, 1100.0], [1500, 1500]],
    },
    "3": {"isSuccess": False, "trace_start": None, "trace_end": None, "ready_time": []},
    "9": {"isSuccess": True, "trace_start": 500.0, "trace_end": 1500.0, "ready_time": [[1250.0, 1500.0]]},
}
# As FedScale's client_behave_trace holds it (keys there are numbers).
FEDSCALE: dict[str, Any] = {
    "3834": {"duration": 30, "inactive": [20, 50], "finish_time": 100, "active": [10, 30], "model": "CPH1801"},
    "3835": {"duration": 0, "inactive": [], "finish_time": 100, "active": [], "model": "CPH1801"},
}


def spells(recording: Recording) -> list[list[tuple[float, float]]]:
    """Per device, the intervals since its recording began, both ends included."""
    found: list[list[tuple[float, float]]] = [[] for _ in recording.span]
    for first, last in recording.edges.reshape(-1, 2):
        device = int(np.searchsorted(recording.base, first, side="right")) - 1
        found[device].append((first - recording.base[device], np.nextafter(last, 0) - recording.base[device]))
    return found


def write_pair(folder: Path, intervals: Any, clients: Any, suffix: str = ".parquet") -> Path:
    write = pa.parquet.write_table if suffix == ".parquet" else pa.csv.write_csv
    file = folder / f"phones_intervals{suffix}"
    write(pa.table(intervals), file)
    write(pa.table(clients), folder / f"phones_clients{suffix}")
    return file


def write_json(folder: Path, content: Any) -> Path:
    file = folder / "trace.json"
    file.write_text(json.dumps(content))
    return file


def as_parquet(file: Path, cells: Array) -> None:
    pa.parquet.write_table(pa.table({f"phone {k}": column for k, column in enumerate(cells.T)}), file)


def as_csv(file: Path, cells: Array) -> None:
    np.savetxt(file, cells, fmt="%d", delimiter=",")


def as_csv_with_names(file: Path, cells: Array) -> None:
    np.savetxt(file, cells, fmt="%d", delimiter=",", header="a,b,c", comments="")


@pytest.mark.parametrize(
    ("name", "write"),
    [("m.parquet", as_parquet), ("m.csv", as_csv), ("m.CSV", as_csv_with_names), ("m.npy", np.save)],
)
@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, np.bool_])
def test_a_matrix_has_a_row_per_round(tmp_path: Path, name: str, write: Callable[..., None], kind: type) -> None:
    write(tmp_path / name, MATRIX.astype(kind))
    found = read(str(tmp_path / name))
    assert not found.in_seconds
    assert spells(found) == [[(0, 1), (3, 3)], [], [(1, 3)]]
    assert found.span.tolist() == [4, 4, 4]
    assert found.begin.tolist() == [0, 0, 0]
    assert found.share.tolist() == [0.75, 0, 0.75]
    assert "3 devices, 4 rounds" in found.notes[0]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("ids", [[7, 5], ["b", "a"]])
def test_a_pair_of_tables(tmp_path: Path, suffix: str, ids: list[Any]) -> None:
    file = write_pair(
        tmp_path,
        {"client_id": [ids[1], ids[0], ids[1]], "start_s": [30.0, 5.0, 0.0], "end_s": [40.0, 5.0, 10.0]},
        {"client_id": ids, "trace_start_s": [1000.0, 2000.0], "trace_end_s": [1100.0, 2200.0], "model": ["x", "y"]},
        suffix,
    )
    found = read(file)
    assert found.in_seconds
    assert spells(found) == [[(5, 5)], [(0, 10), (30, 40)]]
    assert found.begin.tolist() == [1000, 2000]
    assert found.span.tolist() == [100, 200]
    np.testing.assert_allclose(found.share, [0, 0.1])
    assert found.notes == ("phones_intervals" + suffix + ": 2 devices, 3 intervals",)


def test_flash_and_flhetbench(tmp_path: Path) -> None:
    found = read(write_json(tmp_path, FLASH))
    assert spells(found) == [[(0, 100), (500, 500)], [(750, 1000)]]
    assert found.begin.tolist() == [1000, 500]
    np.testing.assert_allclose(found.share, [0.1, 0.25])
    assert found.notes == ("trace.json: 2 devices, 3 intervals", "1 of 3 devices have no recording and are left out")


def test_fedscale(tmp_path: Path) -> None:
    found = read(write_json(tmp_path, FEDSCALE))
    assert spells(found) == [[(10, 20), (30, 50)], []]
    assert found.begin.tolist() == [0, 0]
    np.testing.assert_allclose(found.share, [0.3, 0])  # (its "duration") / finish_time


def test_intervals_are_sorted_joined_and_cut_and_that_is_said(tmp_path: Path) -> None:
    ready = [[70, 130], [10, 20], [15, 30], [30, 40], [12, 13], [101, 105]]
    found = read(write_json(tmp_path, {"a": {"active": [s for s, _ in ready], "inactive": [e for _, e in ready],
                                             "finish_time": 100}}))  # fmt: skip
    assert spells(found) == [[(10, 40), (70, 100)]]
    np.testing.assert_allclose(found.share, 0.6)
    assert "2 intervals reach beyond their device's recording and are cut there" in found.notes
    assert "3 intervals overlap or touch the one before and are joined to it" in found.notes


@pytest.mark.skipif(not SHARED.is_dir(), reason="the FLASH recording lies beside the repository, and is not here")
def test_the_flash_recording() -> None:
    found = read(SHARED / "availability_flash_intervals.parquet")
    assert len(found.span) == 710
    assert found.notes == ("availability_flash_intervals.parquet: 710 devices, 14,139 intervals",)
    assert (found.span % DAY == 0).all()
    np.testing.assert_allclose(np.quantile(found.share, [0.25, 0.5, 0.75]), [0.013, 0.055, 0.131], atol=0.001)
    assert found.share.max() == pytest.approx(0.78, abs=0.005)
    stated = pa.parquet.read_table(SHARED / "availability_flash_clients.parquet")["available_fraction"].to_numpy()
    np.testing.assert_allclose(found.share, stated, atol=1e-12)


# What is wrong with a file is said with its name, the place and what to do.

GOOD_INTERVALS: dict[str, list[Any]] = {"client_id": [0, 1], "start_s": [0.0, 5.0], "end_s": [10.0, 5.0]}
GOOD_CLIENTS: dict[str, list[Any]] = {"client_id": [0, 1], "trace_start_s": [0.0, 0.0], "trace_end_s": [90.0, 90.0]}


@pytest.mark.parametrize(
    ("intervals", "clients", "says"),
    [
        ({"end_s": None}, {}, ["phones_intervals", "column `end_s` is missing", "client_id, start_s"]),
        ({}, {"trace_end_s": None}, ["phones_clients", "column `trace_end_s` is missing"]),
        ({"start_s": [0.0, None]}, {}, ["column `start_s` has empty cells"]),
        ({"start_s": [0.0, float("nan")]}, {}, ['device "1"', "not a number", "nan to 5"]),
        ({"end_s": [float("inf"), 5.0]}, {}, ['device "0"', "not a number"]),
        ({"end_s": [10.0, 4.0]}, {}, ['device "1"', "ends before it starts", "5 to 4"]),
        ({"start_s": [-1.0, 5.0]}, {}, ['device "0"', "starts before the recording does", "-1 to 10"]),
        ({"start_s": ["soon", "late"]}, {}, ["cannot be read", "soon"]),
        ({"client_id": [0, 8]}, {}, ["client_id 8 is not in phones_clients"]),
        ({}, {"client_id": [1, 1]}, ["phones_clients", "client_id 1 occurs twice"]),
        ({}, {"trace_end_s": [90.0, 0.0]}, ['device "1"', "no length", "0 to 0"]),
        ({}, {"trace_start_s": [float("nan"), 0.0]}, ['device "0"', "no length"]),
        ({}, {"trace_end_s": [90.0, float("inf")]}, ['device "1"', "no end"]),
        ({"client_id": [], "start_s": [], "end_s": []}, {}, ["no device is ever available"]),
        (
            {"client_id": [], "start_s": [], "end_s": []},
            {"client_id": [], "trace_start_s": [], "trace_end_s": []},
            ["no device is ever available"],
        ),
    ],
)
def test_wrong_tables(tmp_path: Path, intervals: Any, clients: Any, says: list[str]) -> None:
    both = [
        {name: values for name, values in {**good, **change}.items() if values is not None}
        for good, change in ((GOOD_INTERVALS, intervals), (GOOD_CLIENTS, clients))
    ]
    file = write_pair(tmp_path, both[0], both[1])
    with pytest.raises(DataMissing) as refused:
        read(file)
    assert refused.value.hint
    for words in [str(tmp_path), *says]:
        assert words in str(refused.value)


def test_the_good_tables_are_good(tmp_path: Path) -> None:
    assert len(read(write_pair(tmp_path, GOOD_INTERVALS, GOOD_CLIENTS)).edges) == 4


def test_a_table_without_its_other_half(tmp_path: Path) -> None:
    file = write_pair(tmp_path, GOOD_INTERVALS, GOOD_CLIENTS)
    (tmp_path / "phones_clients.parquet").unlink()
    with pytest.raises(DataMissing, match="no table of clients beside it"):
        read(file)
    with pytest.raises(DataMissing, match="NAME_intervals and NAME_clients"):
        read(file.rename(tmp_path / "phones.parquet"))


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (np.array([[0, 1], [2, 1]]), "row 1, column 0 is 2, and should be 0 or 1"),
        (np.array([[0, 1], [1, -1]]), "row 1, column 1 is -1"),
        (np.array([[0.0, np.nan]]), "row 0, column 1 is nan"),
        (np.array([[0.5]]), "is 0.5"),
        (np.zeros((0, 3)), r"float64 \(0, 3\)"),
        (np.zeros((3, 0)), r"float64 \(3, 0\)"),
        (np.array([0, 1]), r"int64 \(2,\), and not a matrix"),
        (np.array([["0", "1"]]), "<U1"),
        (np.array([["a", None]], dtype=object), "cannot be read"),
        (np.zeros((3, 3)), "no device is ever available"),
    ],
)
def test_wrong_arrays(tmp_path: Path, cells: Array, says: str) -> None:
    np.save(tmp_path / "m.npy", cells, allow_pickle=True)
    with pytest.raises(DataMissing, match=says):
        read(tmp_path / "m.npy")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("m.csv", b"", "cannot be read"),
        ("m.csv", b"0,1\n1\n", "cannot be read"),
        ("m.csv", b"0,1\n1,\n", "row 1, column 1 is nan"),
        ("m.csv", b",a,b\n0,1,0\n1,0,1\n2,1,1\n", "row 2, column 0 is 2"),
        ("m.csv", b"a,b\n1,yes\n", "cannot be read"),
        ("m.csv", b"a,b\n", "not a matrix"),
        ("m.csv", b"\xff\xfe0,1", "cannot be read"),
        ("m.parquet", b"PAR1 and nothing else", "cannot be read"),
        ("m.npy", b"\x93NUMPY\x01\x00\x10\x00{'shape': (3,   \n", "cannot be read"),
        ("m.npy", b"", "cannot be read"),
        ("m.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("t.json", b'{"1": {"active": [', "cannot be read"),
        ("t.json", b"[1, 2]", "a list, and not"),
        ("t.json", b"{}", "none of its 0 devices"),
        ("t.json", b"[" * 100_000, "cannot be read"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataMissing, match=says) as refused:
        read(file)
    assert str(file) in str(refused.value)
    assert refused.value.hint


def changed(layout: dict[str, Any], device: str, **fields: Any) -> dict[str, Any]:
    return {**layout, device: {**layout[device], **fields}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (changed(FLASH, "9", ready_time=[[1400.0, 1300.0]]), ['device "9"', "ends before it starts (1400 to 1300)"]),
        (changed(FLASH, "9", ready_time=[[400.0, 600.0]]), ['device "9"', "before the recording does"]),
        (changed(FLASH, "9", ready_time=[[1, 2], [3]]), ['device "9" is not laid out as expected']),
        (changed(FLASH, "9", ready_time=[1, 2]), ['device "9" is not laid out']),
        (changed(FLASH, "9", trace_end=None), ['device "9" is not laid out']),
        (changed(FLASH, "9", trace_end=500.0), ['device "9": its recording has no length']),
        (changed(FLASH, "681", ready_time=[[float("nan"), 1]]), ['device "681"', "not a number"]),
        ({"3": FLASH["3"]}, ["none of its 1 devices"]),
        (changed(FEDSCALE, "3834", inactive=[20]), ['device "3834" is not laid out']),
        (changed(FEDSCALE, "3834", active=[-5, 30]), ['device "3834"', "starts before", "-5 to 20"]),
        (changed(FEDSCALE, "3834", finish_time=0), ["has no length"]),
        ({"a": {"active": [1]}}, ['device "a" is not laid out', "FLASH", "FedScale"]),
        ({"a": [1, 2]}, ['device "a" is not laid out']),
        ({"a": 5}, ['device "a" is not laid out']),
    ],
)
def test_wrong_json(tmp_path: Path, content: Any, says: list[str]) -> None:
    with pytest.raises(DataMissing) as refused:
        read(write_json(tmp_path, content))
    for words in says:
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("client_behave_trace", b"\x80\x04}.", "pickles are not read"),
        ("trace.pkl", b"anything", "pickles are not read"),
        ("trace.xlsx", b"PK", "no recording is read from `.xlsx`"),
        ("trace", b"", "no recording is read from `a file without extension`"),
    ],
)
def test_what_is_not_read(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=says) as refused:
        read(tmp_path / name)
    expected = f"open('{Path(name).stem}.json', 'w')" if "pickle" in says else ".parquet, .csv, .npy, .json"
    assert expected in refused.value.hint


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PmflError, match="there is no such file") as refused:
        read(tmp_path / "nowhere.csv")
    assert refused.value.exit_code == 3
    with pytest.raises(DataMissing, match="no such file"):
        read(tmp_path)
