"""Copies and bitwise comparisons of whatever a rule takes or gives: the ruler of the battery."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.types import Model

OPAQUE = (Model, Key, type)  # never looked into: functions of the world, and names


def copy_of(value: Any) -> Any:
    """A copy that shares no storage with ``value``, cut off from any gradient graph.

    >>> copy_of((torch.ones(1), {"n": [1, 2]}))
    (tensor([1.]), {'n': [1, 2]})
    """
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, tuple):
        parts = [copy_of(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [copy_of(part) for part in value]
    if isinstance(value, dict):
        return {name: copy_of(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | set):
        return value.copy()
    if dataclasses.is_dataclass(value) and not isinstance(value, OPAQUE):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, copy_of(getattr(value, field.name)))
        return twin
    return value


def difference(a: Any, b: Any, place: str = "") -> str:
    """Where two values first differ in a bit, and how; empty if they do not.

    >>> difference({"x": torch.zeros(2)}, {"x": torch.tensor([0.0, 1.0])}, "state")
    'state.x[1] is 0.0 in one and 1.0 in the other'
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _tensor_difference(a.detach(), b.detach(), place)
    if type(a) is not type(b):
        return f"{place} is a {type(a).__name__} in one and a {type(b).__name__} in the other"
    if a is b:
        return ""
    parts_of_a, parts_of_b = _parts(a), _parts(b)
    if parts_of_a is not None and parts_of_b is not None:
        return _first(parts_of_a, parts_of_b, place)
    if isinstance(a, np.ndarray):
        return "" if a.tobytes() == b.tobytes() and a.shape == b.shape else f"{place} differs"
    if isinstance(a, bool | int | float | str | bytes | set) and a != b and not (a != a and b != b):
        return f"{place} is {a!r} in one and {b!r} in the other"
    return ""


def shapes(tree: Any, place: str) -> dict[str, str]:
    """Every leaf of a state tree with its type, dtype and shape.

    >>> shapes({"x": torch.zeros(2), "n": 3}, "state")
    {'state.x': 'float32 [2]', 'state.n': 'int'}
    """
    parts = _parts(tree)
    if parts is None:
        return {place: describe(tree)}
    found = {place: f"an empty {type(tree).__name__}"} if not parts else {}
    for name, part in parts.items():
        found |= shapes(part, f"{place}.{name}")
    return found


def describe(value: Any) -> str:
    """A value's type in a few words: for a tensor, dtype and shape."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else type(value).__name__


def listed(items: Iterable[object]) -> str:
    """The first few of many items, for a message."""
    shown = [str(item) for item in items]
    return ", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")


def _parts(value: Any) -> dict[str, Any] | None:
    """The named children of a nest, or None for a leaf."""
    if isinstance(value, dict):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None) or range(len(value))
        return {str(name): part for name, part in zip(names, value, strict=True)}
    if dataclasses.is_dataclass(value) and not isinstance(value, OPAQUE):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _first(a: dict[str, Any], b: dict[str, Any], place: str) -> str:
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        return f"{place} has {listed(odd)} in only one of the two"
    return next((found for name in a if (found := difference(a[name], b[name], f"{place}.{name}"))), "")


def _tensor_difference(a: Tensor, b: Tensor, place: str) -> str:
    if describe(a) != describe(b):
        return f"{place} is {describe(a)} in one and {describe(b)} in the other"
    a, b = a.to_dense().contiguous().flatten(), b.to_dense().contiguous().flatten()
    unequal = (a.view(torch.uint8) != b.view(torch.uint8)).reshape(a.numel(), -1).any(1) if a.numel() else a
    where = unequal.nonzero().flatten().tolist()
    if not where:
        return ""
    i = where[0]
    return f"{place}[{i}] is {a[i].item()} in one and {b[i].item()} in the other"
