from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmfl.core.keys import Key
from pmfl.errors import SpecError
from pmfl.study.spec import run_spec
from pmfl.study.world import build_world, recording_notes
from pmfl.world.datasets import load


def test_held_out_samples_come_from_the_training_set_and_replace_the_test_set() -> None:
    whole = load("digits")
    world = build_world(run_spec({"data": {"clients": 10, "held_out": 200}}), Key.root(3))
    train, test = world.dataset.train, world.dataset.test
    assert (len(train), len(test)) == (len(whole.train) - 200, 200)
    rows = np.concatenate([train.x, test.x]).reshape(len(whole.train), -1)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, whole.train.x.reshape(len(whole.train), -1)))
    assert sum(map(len, world.partition.owned)) == len(train)


def test_methods_under_one_seed_hold_out_the_same_and_seeds_differ() -> None:
    def held(method: str, seed: int) -> bytes:
        spec = run_spec({"method": method, "data": {"clients": 10, "held_out": 50}})
        return build_world(spec, Key.root(seed)).dataset.test.x.tobytes()

    assert held("pmfl", 0) == held("fedau", 0) != held("pmfl", 1)


def test_something_must_be_left_to_train_on() -> None:
    with pytest.raises(SpecError, match="held_out"):
        build_world(run_spec({"data": {"clients": 10, "held_out": 10_000}}), Key.root(0))


def test_options_of_a_source_keep_their_kind() -> None:
    given = {"sites": False, "size": 32, "label": "kind"}
    options = run_spec({"data": {"dataset": "x", "options": given}}).data.options
    assert options == given
    assert options["sites"] is False  # 0 would not be a "no"


def test_recordings_say_what_they_do_once_for_each_world(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.eye(20))
    who = {"pattern": "trace", "path": str(tmp_path / "m.npy")}
    many, few = ({"data": {"clients": clients}, "participation": who} for clients in (30, 5))
    specs = [run_spec(given) for given in (many, {**many, "method": "fedavg"}, {**many, "seed": 1}, few, {})]
    shared, drawn = recording_notes(specs)
    assert "30 clients share 20 devices" in shared
    assert "the 5 clients are 5 of the 20 devices" in drawn
    assert all("recordings repeat after their end: after 20 rounds" in line for line in (shared, drawn))
