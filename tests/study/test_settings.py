from __future__ import annotations

from typing import Any

import pytest

from pmfl.study.settings import look_up, plain, setting_of
from pmfl.study.spec import run_spec

SPEC: dict[str, Any] = run_spec(
    {
        "method": {"name": "pmfl", "cutoff": 20},
        "data": {"partition": {"name": "dirichlet", "alpha": 0.3}},
        "participation": {"pattern": "cyclic", "cycle": 40},
    }
).model_dump(mode="json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 0),
        ("training.rounds", 1000),
        ("data.partition.alpha", 0.3),
        ("data.partition.beta", None),
        ("participation.cycle", 40),
        ("participation.wake", None),
        ("participation.mean", 0.1),
        ("method.pmfl.cutoff", 20),
        ("method.pmfl.cut", None),
        ("method.fedau.cutoff", None),  # a parameter of another method does not apply
        ("training.rounds.more", None),
    ],
)
def test_a_dotted_key_is_looked_up(key: str, value: Any) -> None:
    assert look_up(SPEC, key) == value


def test_a_named_thing_is_told_by_what_was_swept() -> None:
    swept = [{"name": "pmfl", "cutoff": 10}, {"name": "pmfl", "cutoff": 20}, "fedavg"]
    assert setting_of(SPEC, "method", swept) == "pmfl cutoff=20"
    assert setting_of(SPEC, "method", ["pmfl", "fedavg"]) == "pmfl"
    assert setting_of(SPEC, "method", [{"name": "pmfl"}]) == "pmfl"
    assert setting_of(SPEC, "method", [{"name": "pmfl", "cutoff": 30}]) == "pmfl"
    assert setting_of(SPEC, "training.rounds", [10, 1000]) == 1000


@pytest.mark.parametrize(
    ("value", "words"), [(True, "yes"), (False, "no"), (0.10, "0.1"), (None, "–"), (3, "3"), ("a", "a")]
)
def test_values_are_said_in_words(value: Any, words: str) -> None:
    assert plain(value) == words
