"""Archives: small, mergeable, and enough to make a study's tables again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pmfl.errors import StoreError
from pmfl.study.answers import StoreSource, gather
from pmfl.study.archive import Archive, add
from pmfl.study.grid import Study
from pmfl.study.store import Store
from tests.report.stores import made_store, made_study


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study()


@pytest.fixture(scope="module")
def store(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_store(tmp_path_factory.mktemp("archived") / "out", study, {8: "absent", 7: "running"})


def test_answers_from_an_archive_are_those_of_the_store(study: Study, store: Store, tmp_path: Path) -> None:
    assert len(add(tmp_path / "kept", [StoreSource(store)])) == 7
    ours = gather(study, [StoreSource(store)])
    theirs = gather(study, [Archive(tmp_path / "kept")])
    assert [row for row in theirs.runs if row.status == "done"] == [row for row in ours.runs if row.status == "done"]
    for name in ("rounds", "clients"):
        order = [(column, "ascending") for column in getattr(ours, name).column_names if column != "value"]
        first, second = (getattr(found, name).sort_by(order) for found in (ours, theirs))
        assert first.equals(second)


def test_later_runs_are_added_and_none_twice(study: Study, store: Store, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    some = Study("some", base=study.base, sweep={"method": ["pmfl"], "seed": [0]})
    first = made_store(tmp_path / "first", some)
    assert len(add(kept, [StoreSource(first)])) == 1
    assert len(add(kept, [StoreSource(store)])) == 6
    before = {file.name: file.read_bytes() for file in kept.iterdir()}
    assert add(kept, [StoreSource(store), StoreSource(first)]) == []
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == before
    assert len(gather(study, [Archive(kept)]).done) == 7


def test_an_answer_of_another_version_counts(study: Study, store: Store, tmp_path: Path) -> None:
    class Renamed(StoreSource):
        def runs(self) -> list:
            return [replace(row, question_id="of an older version") for row in super().runs()]

    assert len(add(tmp_path / "kept", [Renamed(store)])) == 7
    assert len(gather(study, [Archive(tmp_path / "kept")]).done) == 7


def test_no_archive_is_an_empty_one(study: Study, tmp_path: Path) -> None:
    found = gather(study, [Archive(tmp_path / "nothing")])
    assert not found.done
    assert len(found.rounds) == 0


def test_a_damaged_archive_says_so(study: Study, store: Store, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    add(kept, [StoreSource(store)])
    (kept / "rounds.parquet").write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"rounds\.parquet cannot be read"):
        gather(study, [Archive(kept)]).rounds  # noqa: B018
    (kept / "rounds.parquet").write_bytes((kept / "runs.parquet").read_bytes())
    with pytest.raises(StoreError, match=r"rounds\.parquet cannot be read"):
        gather(study, [Archive(kept)]).rounds  # noqa: B018
    (kept / "runs.parquet").write_bytes((kept / "clients.parquet").read_bytes())
    with pytest.raises(StoreError, match=r"runs\.parquet cannot be read"):
        Archive(kept).runs()
