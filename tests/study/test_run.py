from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import pmfl
from pmfl.errors import DataMissing, Diverged, PmflError, SpecError, StoreError
from pmfl.study import frames, nursery
from pmfl.study.jobs import raise_failures, run_all
from pmfl.study.play import play_run, row_of
from pmfl.study.run import Run
from pmfl.study.seal import model_sha256, verify
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.store import Record, Store

METHODS = ["pmfl", "fedau", "fedavg", "fedvarp", "mifa", "fedhyper", "fedppo", "moon", "fedprox"]


def spec(**training: Any) -> RunSpec:
    method = training.pop("method", "pmfl")
    evaluation = training.pop("evaluation", {"every": 3, "train_every": 6, "deviation": True})
    return run_spec(
        {
            "method": method,
            "data": {"clients": 9},
            "participation": {"pattern": "markov", "mean": 0.4},
            "training": {"rounds": 12, "model": {"name": "mlp", "hidden": 8}, "batch_size": 8, **training},
            "evaluation": evaluation,
        }
    )


def never() -> bool:
    return False


def after(rounds: int) -> Any:
    """Stop after some rounds."""
    asked = iter(range(10**6))
    return lambda: next(asked) >= rounds - 1


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = Store(tmp_path / "out", create=True)
    yield store
    store.close()


def add(store: Store, asked: RunSpec) -> str:
    store.add(row_of(asked, "study"))
    return asked.run_id


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_and_resumed_gives_the_same_bits(store: Store, method: str) -> None:
    asked = spec(method=method)
    undisturbed = Run(asked)
    records = list(undisturbed)
    run_id = add(store, asked)
    for stop in (after(1), after(4), after(2)):
        assert play_run(store, asked, stop) == "interrupted"
    assert store.run(run_id).t == 7
    assert play_run(store, asked, never) == "done"
    row = store.run(run_id)
    assert row.model_sha256 == model_sha256(undisturbed.w)
    assert (row.status, row.t, row.resumed) == ("done", 12, 3)
    values = {(t, f"{split}/{metric}"): value for t, metric, split, value in zip(*columns(store, run_id), strict=True)}
    expected = {(r.t, name): value for r in records for name, value in r.values.items() if value == value}
    assert values == expected
    took = frames.participation(store, [run_id])
    assert list(zip(took["t"].to_pylist(), took["client"].to_pylist(), strict=True)) == [
        (r.t, int(k)) for r in records for k in r.took_part
    ]


def columns(store: Store, run_id: str) -> list[list[Any]]:
    table = frames.rounds(store, [run_id])
    return [table[name].to_pylist() for name in ("t", "metric", "split", "value")]


def test_records_while_running_are_those_when_sealed(store: Store) -> None:
    asked = spec()
    run_id = add(store, asked)
    play_run(store, asked, after(11))
    live = {name: getattr(frames, name)(store, [run_id]) for name in ("rounds", "clients", "participation")}
    assert store.latest(run_id, "test", "accuracy") is not None
    play_run(store, asked, never)
    for name, before in live.items():
        sealed = getattr(frames, name)(store, [run_id])
        assert sealed.filter(sealed["t"].to_numpy() < 11).equals(before)
    assert frames.rounds(store, []).num_rows == 0


def test_a_finished_run_is_not_played_again_and_leaves_nothing_behind(store: Store) -> None:
    asked = spec()
    add(store, asked)
    assert play_run(store, asked, never) == "done"
    before = (store.sealed(asked.run_id) / "MANIFEST.json").stat().st_mtime_ns
    assert play_run(store, asked, never) == "done"
    assert (store.sealed(asked.run_id) / "MANIFEST.json").stat().st_mtime_ns == before
    assert not (store.out / "running").exists()
    assert store.rows("rounds", asked.run_id) == []
    verify(store, asked.run_id)


def test_killed_between_sealing_and_tidying(store: Store) -> None:
    asked = spec()
    run_id = add(store, asked)
    play_run(store, asked, after(5))
    checkpoint = store.out / "kept"
    shutil.copytree(store.running(run_id), checkpoint)
    play_run(store, asked, never)
    shutil.copytree(checkpoint, store.running(run_id))
    store.write(run_id, [Record(0, {"test/accuracy": 0.5}, {}, np.array([1]))], status="running")
    assert play_run(store, asked, never) == "done"
    assert store.run(run_id).status == "done"
    assert not store.running(run_id).exists()


def test_metrics_are_recorded_as_asked() -> None:
    records = list(Run(spec()))
    tested = [r.t for r in records if "test/accuracy" in r.values]
    trained = [r.t for r in records if "train/accuracy" in r.values]
    assert tested == [2, 5, 8, 11]
    assert trained == [5, 11]
    assert all("weight" in records[t].per_client for t in tested)
    assert {"accuracy", "loss"} <= set(records[11].per_client)
    assert any("local/deviation" in r.values for r in records)
    last = records[11]
    sizes = np.bincount(Run(spec()).world.owner, minlength=9)
    assert np.average(last.per_client["accuracy"], weights=sizes) == pytest.approx(last.values["train/accuracy"])
    lean = list(Run(spec(evaluation={"every": 5, "clients": False})))
    assert [r.t for r in lean if "test/accuracy" in r.values] == [4, 9, 11]
    assert [r.t for r in lean if "train/accuracy" in r.values] == [11]
    assert not any("accuracy" in r.per_client or "local/deviation" in r.values for r in lean)


def test_methods_under_one_seed_see_the_same_world() -> None:
    one, other = Run(spec(method="fedavg")), Run(spec(method="fedau"))
    assert torch.equal(one.w, other.w)
    assert all(
        np.array_equal(a, b) for a, b in zip(one.world.partition.owned, other.world.partition.owned, strict=True)
    )
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a.took_part, b.took_part)


def test_the_learning_rate_decays_as_asked() -> None:
    fast, slow = Run(spec(method="fedavg", rounds=2)), Run(spec(method="fedavg", rounds=2, lr_decay=1e-6))
    start = fast.w
    first = next(iter(fast)), next(iter(slow))
    assert first[0].values == first[1].values
    middle = slow.w.clone()
    list(fast), list(slow)
    assert float((slow.w - middle).norm()) < 1e-4 < float((fast.w - middle).norm())
    assert not torch.equal(start, middle)


def test_divergence_names_the_round_and_the_clients(store: Store) -> None:
    asked = spec(method="fedavg", client_lr=1e30)
    run_id = add(store, asked)
    with pytest.raises(Diverged, match="diverged in round 0"):
        play_run(store, asked, never)
    row = store.run(run_id)
    assert row.status == "diverged"
    with pytest.raises(Diverged) as caught:
        raise_failures([row], "diverged")
    assert caught.value.exit_code == 4
    assert "of client" in str(caught.value)


def test_a_global_model_that_is_not_finite_is_divergence() -> None:
    run = Run(spec(method="fedavg", evaluation={"every": 1}))
    server = run.state.server
    run.state = run.state._replace(server=server._replace(w=server.w * 3e38 * 10))
    with pytest.raises(Diverged):
        list(run)


def test_arrays_of_the_users_own(tmp_path: Path) -> None:
    x = np.concatenate([np.full((40, 2), -1.0), np.full((40, 2), 1.0)]).astype(np.float32)
    y = np.repeat([0, 1], 40)
    data = pmfl.from_arrays(x, y, x, y)
    asked = spec(method="fedavg", rounds=10)
    record = list(Run(asked, dataset=data))[-1]
    assert record.values["test/accuracy"] == 1.0
    net = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 5), "classifier": torch.nn.Linear(5, 2)})
    run = Run(asked, dataset=data, model=net)
    assert run.model.size == 27
    assert list(run)[-1].values["test/accuracy"] == 1.0
    with pytest.raises(SpecError, match="cannot be named in a checkpoint"):
        Run(asked, dataset=data, folder=tmp_path)


def test_functions_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, torch, pmfl\n"
        "def data():\n    x = np.eye(4, dtype=np.float32).repeat(8, 0)\n"
        "    return pmfl.from_arrays(x, np.arange(32) // 8, x, np.arange(32) // 8)\n"
        "def net(shape, classes):\n    return torch.nn.ModuleDict({'encoder': torch.nn.Linear(shape[0], 6),"
        " 'classifier': torch.nn.Linear(6, classes)})\n"
        "def wrong(*shape_and_classes):\n    return 3\n"
    )
    own = f"{tmp_path}/mine.py"
    given = {
        "method": "pmfl",
        "data": {"dataset": f"{own}:data", "clients": 4, "partition": "iid"},
        "participation": {"pattern": "always"},
        "training": {"rounds": 30, "model": f"{own}:net", "batch_size": 4, "client_lr": 0.5},
    }
    assert list(Run(run_spec(given)))[-1].values["test/accuracy"] == 1.0
    with pytest.raises(SpecError, match="is a int"):
        Run(run_spec({**given, "training": {"model": f"{own}:wrong"}}))
    with pytest.raises(SpecError, match="returned a int"):
        Run(run_spec({**given, "data": {"dataset": f"{own}:wrong"}}))


def test_more_clients_than_samples_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        Run(run_spec({"data": {"clients": 5000}}))
    assert caught.value.hint


def test_unknown_data_and_augmentation_are_refused() -> None:
    with pytest.raises(SpecError, match="augment"):
        Run(run_spec({"data": {"augment": "flop"}}))
    with pytest.raises((DataMissing, SpecError)) as caught:
        Run(run_spec({"data": {"dataset": "no-such-set"}}))
    assert caught.value.hint


# What can happen to files. Each case damages the folder of a run, and says what must be reported.


def damage_truncate(store: Store, run_id: str) -> None:
    file = next(store.running(run_id).glob("state-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-20])


def damage_flip(store: Store, run_id: str) -> None:
    file = next(store.running(run_id).glob("memory-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def damage_remove(store: Store, run_id: str) -> None:
    next(store.running(run_id).glob("state-*.safetensors")).unlink()


def damage_index(store: Store, run_id: str) -> None:
    (store.running(run_id) / "checkpoint.json").write_text('{"run_id":')


def damage_index_type(store: Store, run_id: str) -> None:
    (store.running(run_id) / "checkpoint.json").write_text("[]")


def damage_foreign(store: Store, run_id: str) -> None:
    index = store.running(run_id) / "checkpoint.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "run_id": "another"}))


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_flip, damage_remove, damage_index, damage_index_type, damage_foreign]
)
def test_a_damaged_checkpoint_is_refused_and_nothing_else_is_lost(store: Store, damage: Any) -> None:
    done, asked = spec(method="fedavg"), spec(method="pmfl")
    add(store, done)
    play_run(store, done, never)
    run_id = add(store, asked)
    play_run(store, asked, after(4))
    damage(store, run_id)
    with pytest.raises(StoreError) as caught:
        play_run(store, asked, never)
    assert "delete" in caught.value.hint
    assert str(store.running(run_id)) in str(caught.value)
    verify(store, done.run_id)
    shutil.rmtree(store.running(run_id))
    assert play_run(store, asked, never) == "done"
    assert store.run(run_id).model_sha256 == model_sha256(fresh(asked))


def fresh(asked: RunSpec) -> torch.Tensor:
    run = Run(asked)
    list(run)
    return run.w


def test_a_checkpoint_of_another_shape_is_refused(store: Store) -> None:
    asked, other = spec(), spec(method="mifa")
    run_id, other_id = add(store, asked), add(store, other)
    play_run(store, asked, after(4))
    play_run(store, other, after(4))
    index = store.running(other_id) / "checkpoint.json"
    shutil.rmtree(store.running(run_id))
    shutil.copytree(store.running(other_id), store.running(run_id))
    index = store.running(run_id) / "checkpoint.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "run_id": run_id}))
    with pytest.raises(StoreError, match="belongs to another method"):
        play_run(store, asked, never)


def test_a_damaged_result_is_refused(store: Store) -> None:
    asked = spec(method="fedavg")
    run_id = add(store, asked)
    play_run(store, asked, never)
    file = store.sealed(run_id) / "rounds.parquet"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreError, match="changed or cut short"):
        verify(store, run_id)
    with pytest.raises(StoreError, match="cannot be read"):
        frames.rounds(store, [run_id])


def test_a_damaged_database_is_refused_and_finished_runs_are_safe(tmp_path: Path) -> None:
    asked = spec(method="fedavg")
    run_all(tmp_path, "study", [asked], jobs=1)
    (tmp_path / "store.sqlite").write_bytes(b"this is not a database at all" * 100)
    for file in tmp_path.glob("store.sqlite-*"):
        file.unlink()
    with pytest.raises(StoreError, match="not a database") as caught:
        run_all(tmp_path, "study", [asked], jobs=1)
    assert "move store.sqlite away" in caught.value.hint
    (tmp_path / "store.sqlite").unlink()
    rows = run_all(tmp_path, "study", [asked], jobs=1)
    assert (rows[0].status, rows[0].resumed) == ("done", 0)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        Store(tmp_path / "file" / "out", create=True)
    with pytest.raises(StoreError, match="there are no results"):
        Store(tmp_path / "nothing")


DISK_FULL = """
import resource, signal, sys
from pathlib import Path
from pmfl.study.play import play_run, row_of
from pmfl.study.store import Store
from tests.study.test_run import after, never, spec
store = Store(Path(sys.argv[1]), create=True)
asked = spec()
store.add(row_of(asked, "study"))
play_run(store, asked, after(4))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
play_run(store, asked, after(4))
"""


@pytest.mark.parametrize("limit", [0, 3000, 20_000])
def test_a_full_disk_loses_nothing(tmp_path: Path, limit: int) -> None:
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path), str(limit)],
        cwd=root,
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 1
    assert "StoreError" in result.stderr.splitlines()[-3] or "StoreError" in result.stderr
    assert not list(tmp_path.rglob("*.part"))
    store = Store(tmp_path)
    assert play_run(store, spec(), never) == "done"
    assert store.run(spec().run_id).model_sha256 == model_sha256(fresh(spec()))
    store.close()


def test_runs_are_found_by_the_beginning_of_their_id(store: Store) -> None:
    run_id = add(store, spec())
    assert store.run(run_id[:4]).run_id == run_id
    with pytest.raises(StoreError, match="no run starts with"):
        store.run("zzz")
    add(store, spec(method="fedau"))
    with pytest.raises(StoreError, match="several runs start with"):
        store.run("")


def test_unexpected_trouble_in_a_worker_is_reported(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from pmfl.methods.fedavg import fedavg\n"
        "def late(*, server_lr: float = 1.0):\n"
        "    def apply(state, w, step, seen, now):\n        raise ZeroDivisionError('late')\n"
        "    import dataclasses\n    m = fedavg()\n"
        "    return dataclasses.replace(m, server=dataclasses.replace(m.server, apply=apply))\n"
    )
    asked = spec(method=f"{tmp_path}/odd.py:late")
    rows = run_all(tmp_path / "out", "study", [asked], jobs=1)
    assert rows[0].status == "failed"
    with pytest.raises(PmflError, match="ZeroDivisionError: late") as caught:
        raise_failures(rows, "failed")
    assert "PMFL_DEBUG" in caught.value.hint


def test_a_worker_that_is_killed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\nfrom pmfl.methods.fedavg import fedavg\n"
        "def method(*, server_lr: float = 1.0):\n"
        f"    if os.path.exists('{tmp_path}/armed'):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return fedavg()\n"
    )
    asked = spec(method=f"{tmp_path}/deadly.py:method")
    (tmp_path / "armed").write_text("")
    with pytest.raises(PmflError, match="SIGKILL") as caught:
        run_all(tmp_path / "out", "study", [asked], jobs=1)
    assert "goes on" in caught.value.hint
    (tmp_path / "armed").unlink()
    assert run_all(tmp_path / "out", "study", [asked], jobs=1)[0].status == "done"


def test_two_workers_share_the_runs(tmp_path: Path) -> None:
    asked = [spec(method=method) for method in ("fedavg", "fedau", "mifa")]
    seen: list[str] = []
    rows = run_all(tmp_path, "study", asked, jobs=2, watch=lambda store, rows: seen.extend(r.status for r in rows))
    assert [row.status for row in rows] == ["done"] * 3
    assert [row.run_id for row in rows] == [one.run_id for one in asked]
    assert "done" in seen
    assert not (tmp_path / "locks").exists()
    assert pq.read_table(tmp_path / "runs" / rows[0].run_id / "rounds.parquet").num_rows > 0


def test_a_claimed_run_is_left_to_its_owner(store: Store) -> None:
    from pmfl.study.play import claimed

    asked = spec()
    add(store, asked)
    with claimed(store, asked.run_id) as mine:
        assert mine
        with claimed(store, asked.run_id) as other:
            assert not other
        assert play_run(store, asked, never) == "taken"


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_pause_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setenv("PMFL_CHECKPOINT_SECONDS", text)
    with pytest.raises(SpecError, match="is not a time"):
        Run(spec(), folder=tmp_path)


def test_a_signal_waits_while_a_worker_is_started() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with nursery.held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert heard == []
        assert heard == [signal.SIGTERM]
        with ThreadPoolExecutor(1) as pool:  # where no handler can be set
            pool.submit(lambda: nursery.held_back().__enter__()).result()
    finally:
        signal.signal(signal.SIGTERM, before)
