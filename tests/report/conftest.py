"""Stores that tests only read are made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmfl.study.grid import Study
from pmfl.study.store import Store
from tests.report.stores import made_store, made_study


@pytest.fixture(scope="session")
def study() -> Study:
    return made_study()


@pytest.fixture(scope="session")
def store(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_store(tmp_path_factory.mktemp("made") / "out", study)


@pytest.fixture(scope="session")
def partial(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """pmfl: one seed done; fedau: one running, none done; fedavg: one diverged, one done, one absent."""
    ends = {1: "interrupted", 2: "waiting", 3: "running", 4: "waiting", 5: "failed", 6: "diverged", 8: "absent"}
    return made_store(tmp_path_factory.mktemp("partial") / "out", study, ends)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")
