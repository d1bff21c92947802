"""What worker processes inherit from the one that starts them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from pmfl.study import jobs
from pmfl.study.jobs import run_all
from pmfl.study.spec import run_spec


class Threaded:
    """Stands for something with threads of its own, which can only be destroyed where they are."""

    def __init__(self, flag: Path) -> None:
        self.flag, self.home, self.itself = flag, os.getpid(), self  # a cycle: only a collection ends it

    def __del__(self) -> None:
        if os.getpid() != self.home:
            self.flag.touch()


def test_a_worker_destroys_nothing_of_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(*_: object) -> None:
        (tmp_path / "collected").touch()
        gc.collect()

    monkeypatch.setattr(jobs, "_work", collect)
    gc.disable()  # or it may be gone before the worker is there
    try:
        Threaded(tmp_path / "destroyed")
        run_all(tmp_path / "out", "study", [run_spec({"data": {"clients": 5}, "training": {"rounds": 1}})], jobs=1)
    finally:
        gc.enable()
    assert (tmp_path / "collected").exists()
    assert not (tmp_path / "destroyed").exists()
    assert gc.get_freeze_count() == 0
