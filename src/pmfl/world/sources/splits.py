"""Which part trains and which part tests: by the source's own names, else a keyed share."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from pmfl.errors import did_you_mean
from pmfl.world.datasets import IntArray
from pmfl.world.sources.raw import Options, refuse

TRAIN = ("train", "training")
TEST = ("test", "testing", "t10k")
HELD_OUT = ("validation", "valid", "val", "dev")
TEST_EVERY = 5  # one sample in five becomes a test sample where the source has no test split


def split_word(name: str) -> str | None:
    """The word in a file's name that tells its split: `svhn_train.parquet` -> `train`."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((word for word in words if word in (*TRAIN, *TEST, *HELD_OUT)), None)


def choose(found: Collection[str], options: Options, place: str | Path) -> tuple[str, str | None, dict[str, str]]:
    """The names of the train and the test split among those found, and what to say about the choice."""

    def pick(asked: str | None, usual: tuple[str, ...], role: str) -> str | None:
        if asked is not None:
            if asked not in found:
                raise refuse(place, f'has no split "{asked}" to {role} on', did_you_mean(asked, found))
            return asked
        return next((name for name in usual if name in found), None)

    train = pick(options.train, TRAIN, "train")
    if train is None:
        rest = [name for name in found if name != options.test]
        if len(rest) != 1:
            raise refuse(
                place,
                f"which split to train on? It has {', '.join(sorted(found))}",
                'name it: train="…" (and test="…")',
            )
        train = rest[0]
    test = pick(options.test, tuple(n for n in (*TEST, *HELD_OUT) if n != train), "test")
    left_out = sorted(set(found) - {train, test})
    notes = {"left out": ", ".join(left_out)} if left_out else {}
    if test in HELD_OUT:
        notes["test split"] = f'the source\'s "{test}" split'
    return train, test, notes


def keyed_share(y: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """Indices of train and test: every class gives a fifth of its samples, rounded down, so train keeps every class."""
    from pmfl.core.keys import Key  # brings torch along, so only when a split is drawn

    by_class = np.lexsort((Key.root(seed).fold("test-split").numpy().random(len(y)), y))
    rank = np.arange(len(y)) - np.searchsorted(y[by_class], y[by_class])  # within the class
    is_test = np.zeros(len(y), bool)
    is_test[by_class[rank % TEST_EVERY == TEST_EVERY - 1]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
