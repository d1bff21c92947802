"""Which column holds the images, the labels and the users: told by the hub's feature types, or by the user."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pmfl.errors import did_you_mean
from pmfl.world.datasets import Array, IntArray
from pmfl.world.sources.raw import Options, refuse

USUAL_LABELS = ("label", "labels", "target", "class", "y", "fine_label")
USUAL_USERS = ("writer_id", "user_id", "client_id", "user", "client")


@dataclass(frozen=True)
class Columns:
    """The columns that were chosen, and the names of the classes where the file tells them."""

    image: str
    label: str
    user: str | None
    names: tuple[str, ...] | None


def choose(schema: Any, options: Options, place: str | Path) -> Columns:
    """Columns of an arrow schema, by its `huggingface` feature types, then by their arrow types."""
    features = _features(schema)
    image = _one(place, "image", options.image, schema.names, _images(schema, features))
    label = _one(place, "label", options.label, schema.names, _labels(schema, features))
    user = user_column(schema.names, options, place)
    names = features.get(label, {}).get("names")
    return Columns(image, label, user, tuple(map(str, names)) if names else None)


def user_column(names: list[str], options: Options, place: str | Path) -> str | None:
    """The column that tells whom a sample came from: the one the user names, else one with a usual name, else none."""
    if options.user is None:
        return next((name for name in USUAL_USERS if name in names), None)
    if options.user not in names:
        raise refuse(place, f'has no column "{options.user}" for user', did_you_mean(options.user, names))
    return options.user


def _features(schema: Any) -> dict[str, Any]:
    try:
        text = (schema.metadata or {}).get(b"huggingface", b"{}")
        found = json.loads(text)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: f for name, f in found.items() if isinstance(f, dict)} if isinstance(found, dict) else {}


def _images(schema: Any, features: dict[str, Any]) -> list[str]:
    import pyarrow.types as kinds

    def is_picture(kind: Any) -> bool:
        if kinds.is_struct(kind):
            return any(field.name == "bytes" for field in kind)
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))

    by_feature = [name for name, f in features.items() if f.get("_type") == "Image"]
    return by_feature or [field.name for field in schema if is_picture(field.type)]


def _labels(schema: Any, features: dict[str, Any]) -> list[str]:
    import pyarrow.types as kinds

    by_feature = [name for name, f in features.items() if f.get("_type") == "ClassLabel"]
    by_name = [name for name in USUAL_LABELS if name in (by_feature or schema.names)][:1]
    whole = [field.name for field in schema if kinds.is_integer(field.type)]
    return by_name or by_feature or whole


def _one(place: str | Path, role: str, asked: str | None, columns: list[str], found: list[str]) -> str:
    if asked is not None:
        if asked not in columns:
            raise refuse(place, f'has no column "{asked}" for {role}', did_you_mean(asked, columns))
        return asked
    if len(found) != 1:
        what = f"{len(found)} columns could be the {role}: {', '.join(found)}" if found else f"no {role} column"
        raise refuse(place, f"{what}; it has {', '.join(columns)}", f'name it: {role}="…"')
    return found[0]


def labels(values: Array, names: tuple[str, ...] | None, place: str | Path) -> tuple[IntArray, tuple[str, ...] | None]:
    """Labels as numbers: whole numbers stay as they are, words are looked up among the names, or sorted and counted."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64), names
    if values.dtype.kind not in "bUS":
        raise refuse(place, f"labels are {values.dtype}", 'name a column of whole numbers or words: label="…"')
    if names is None:
        return counted(values)
    where = {name: i for i, name in enumerate(names)}
    for value in np.unique(values):
        if str(value) not in where:
            raise refuse(place, f'label "{value}" is not among the class names', did_you_mean(str(value), names))
    return np.array([where[str(value)] for value in values], np.int64), names


def counted(values: Array) -> tuple[IntArray, tuple[str, ...]]:
    """Values of any kind as numbers from 0 in sorted order, and the values themselves as names."""
    distinct, numbers = np.unique(values, return_inverse=True)
    return numbers.reshape(values.shape).astype(np.int64), tuple(str(value) for value in distinct)
