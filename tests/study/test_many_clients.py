"""What a round costs follows from who takes part, and not from how many clients there are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import pmfl
from pmfl.methods import BUILT_IN
from pmfl.study import run as module
from pmfl.study.run import Run
from pmfl.study.spec import run_spec

FEW, MANY, EACH_TURN = 40, 4000, 4
ROUNDS = 4


def run(method: str, clients: int, **evaluation: Any) -> Run:
    params = {"share": EACH_TURN / clients} if method == "fedppo" else {}
    asked = run_spec(
        {
            "method": {"name": method, **params},
            "data": {"clients": clients, "partition": {"name": "iid"}},
            "participation": {"pattern": {"name": "groups", "groups": clients // EACH_TURN}},
            "training": {"rounds": ROUNDS, "iterations": 2, "batch_size": 4, "model": {"name": "mlp", "hidden": 4}},
            "evaluation": {"every": 1, "train_every": 2, "deviation": True, **evaluation},
        }
    )
    x = np.linspace(-1, 1, 8 * MANY * 3, dtype=np.float32).reshape(-1, 3)[: 8 * clients]
    y = np.arange(8 * clients) % 2
    return Run(asked, dataset=pmfl.from_arrays(x, y, x[:64], y[:64]))


def calls(one: Run) -> int:
    """How many functions are called in the rounds after the first, in Python or below."""
    records, counted = iter(one), 0
    next(records)

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(ROUNDS - 2):
            next(records)
    finally:
        sys.setprofile(before)
    one.close()
    return counted


@pytest.mark.parametrize("method", sorted(BUILT_IN))
def test_a_round_takes_as_many_calls_whatever_the_number_of_clients(method: str) -> None:
    few, many = calls(run(method, FEW, train_every=0)), calls(run(method, MANY, train_every=0))
    assert few > 500
    assert abs(many - few) < 0.03 * few


def test_numbers_of_each_of_very_many_clients_are_recorded_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [set(record.per_client) for record in run("fedau", FEW)]
    assert each == [{"weight"}, {"weight", "accuracy", "loss"}] * 2
    monkeypatch.setattr(module, "EACH_KEPT", FEW - 1)
    records = list(run("fedau", FEW))
    assert [set(record.per_client) for record in records] == [set(), set(), set(), {"weight", "accuracy", "loss"}]
    assert all("test/accuracy" in record.values for record in records)
    assert "server/weight" in records[1].values
