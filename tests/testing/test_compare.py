"""The ruler: copies share nothing, and differences are found wherever they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.testing.compare import copy_of, describe, difference, listed, shapes
from pmfl.testing.tiny import MODELS


@dataclass(frozen=True)
class Box:
    inside: Any


class Pair(NamedTuple):
    a: Any
    b: Any


def tensors() -> st.SearchStrategy[torch.Tensor]:
    dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool])
    return st.builds(lambda n, dtype: torch.arange(n).to(dtype), st.integers(0, 3), dtypes)


LEAVES = st.one_of(
    tensors(), st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=2), st.sets(st.integers(0, 3))
)
NESTS = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.lists(below, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), below, max_size=3),
        st.builds(Pair, below, below),
        st.builds(Box, below),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60, database=None)
@given(NESTS)
def test_a_copy_has_the_same_bits(value: Any) -> None:
    assert difference(value, copy_of(value), "value") == ""


@settings(deadline=None, max_examples=60, database=None)
@given(st.recursive(tensors(), lambda below: st.one_of(st.lists(below, min_size=1), st.builds(Pair, below, below))))
def test_a_copy_shares_no_storage(value: Any) -> None:
    twin = copy_of(value)
    before = shapes(value, "value")
    for path in before:
        original, copied = at(value, path), at(twin, path)
        if isinstance(original, torch.Tensor) and original.numel():
            assert original.data_ptr() != copied.data_ptr()
            copied.fill_(1)
            copied[0] = 0 if original[0] else 1
            assert difference(value, twin, "value")
            return


def at(value: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        value = getattr(value, name) if hasattr(value, name) else value[int(name)]
    return value


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]), "v[1] is 1.0 in one and 2.0 in the other"),
        (torch.tensor(0.0), torch.tensor(-0.0), "v[0] is 0.0 in one and -0.0 in the other"),
        (torch.zeros(2), torch.zeros(3), "v is float32 [2] in one and float32 [3] in the other"),
        (torch.zeros(2), torch.zeros(2).double(), "v is float32 [2] in one and float64 [2] in the other"),
        (1, True, "v is a int in one and a bool in the other"),
        (1, 2, "v is 1 in one and 2 in the other"),
        ((1, 2), [1, 2], "v is a tuple in one and a list in the other"),
        ({"a": 1}, {"b": 1}, "v has a, b in only one of the two"),
        (Box(Pair(1, 2)), Box(Pair(1, 3)), "v.inside.b is 2 in one and 3 in the other"),
        (np.zeros(2), np.ones(2), "v differs"),
        (np.zeros(2), np.zeros((2, 1)), "v differs"),
        (0.5, float("nan"), "v is 0.5 in one and nan in the other"),
        ({1}, {2}, "v is {1} in one and {2} in the other"),
    ],
)
def test_differences_are_named(a: Any, b: Any, says: str) -> None:
    assert difference(a, b, "v") == says
    assert difference(copy_of(a), a, "v") == ""


def test_what_is_equal_in_its_bits_is_equal() -> None:
    nan = torch.tensor([float("nan")])
    assert difference(nan, nan.clone()) == ""
    assert difference(float("nan"), float("nan")) == ""
    assert difference(torch.zeros(0), torch.zeros(0)) == ""
    assert difference(torch.eye(2).to_sparse(), torch.eye(2).to_sparse()) == ""
    assert difference(np.ones(2), np.ones(2)) == ""


def test_models_and_keys_are_not_looked_into() -> None:
    model, key = MODELS["hidden"], Key.root(1)
    assert copy_of((model, key)) == (model, key)
    assert copy_of(model) is model
    assert difference(model, MODELS["hidden"]) == ""


def test_a_copy_can_be_differentiated_and_has_no_past() -> None:
    w = torch.ones(2, requires_grad=True)
    twin = copy_of(w * 2)
    assert twin.requires_grad
    assert twin.is_leaf
    assert not copy_of(torch.ones(2)).requires_grad


def test_words() -> None:
    assert describe(None) == "None"
    assert describe(3) == "int"
    assert describe(torch.zeros(2, 1).bool()) == "bool [2, 1]"
    assert listed(range(7)) == "0, 1, 2, 3, 4, …"
    assert listed(range(2)) == "0, 1"
    assert shapes((), "state") == {"state": "an empty tuple"}
    assert shapes(Pair(torch.zeros(1), {"n": None}), "s") == {"s.a": "float32 [1]", "s.b.n": "None"}
