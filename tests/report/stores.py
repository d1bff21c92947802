"""Made-up results: what runs would have written, without training anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from pmfl.core.keys import Key
from pmfl.study.grid import Study
from pmfl.study.play import row_of
from pmfl.study.seal import seal
from pmfl.study.spec import RunSpec
from pmfl.study.store import Record, Store

LEVELS = {"pmfl": 0.92, "fedau": 0.91, "fedavg": 0.84}


def made_study(**changes: object) -> Study:
    """A small study of three methods and three seeds."""
    base = {
        "data": {"clients": 20},
        "training": {"rounds": 60},
        "evaluation": {"every": 5, "train_every": 5},
    }
    given: dict[str, object] = {
        "title": "A study that was made up",
        "base": base,
        "sweep": {"method": ["pmfl", "fedau", "fedavg"], "seed": [0, 1, 2]},
    }
    return Study("made-up", **{**given, **changes})  # type: ignore[arg-type]


def made_store(out: Path, study: Study, ends: Mapping[int, str] | None = None) -> Store:
    """A store with the runs of a study, all done but those whose number ``ends`` gives another end."""
    store = Store(out, create=True)
    for i, spec in enumerate(study.runs):
        play(store, study, spec, (ends or {}).get(i, "done"))
    return store


def play(store: Store, study: Study, spec: RunSpec, end: str = "done") -> None:
    """Write what one run might have shown; half of it where it does not end well."""
    if end == "absent":
        return
    store.add(row_of(spec, study.id))
    if end == "waiting":
        return
    total = spec.training.rounds
    played = total if end == "done" else total // 2
    store.write(spec.run_id, records(spec)[:played], t=played, seconds=0.6 * played, status="running")
    if end == "done":
        known = {"t": total, "seconds": 0.6 * total, "resumed": 0, "note": ""}
        seal(store, spec.run_id, spec, torch.full((4,), float(spec.seed)), known)
        store.mark(spec.run_id, status="done", t=total, seconds=0.6 * total)
        store.tidy(spec.run_id)
    elif end == "diverged":
        note = {"code": "N100", "message": f"diverged in round {played}", "hint": "lower it", "exit_code": 4}
        store.mark(spec.run_id, status="diverged", note=json.dumps(note))
    else:
        store.mark(spec.run_id, status=end)


def records(spec: RunSpec) -> list[Record]:
    """Curves that rise to a method's level, and rates that follow the seed."""
    clients, total = spec.data.clients, spec.training.rounds
    key = Key.root(spec.seed).fold("made-up")
    world, noise = key.numpy(), key.fold(spec.method.name).numpy()
    rates = np.clip(world.exponential(0.1, clients), 0.02, 0.8)
    here = world.random((total, clients)) < rates
    level = LEVELS.get(spec.method.name, 0.88) + 0.01 * world.standard_normal()
    rise = level * (1 - 0.9 * np.exp(-np.arange(total) / (total / 6)))
    own = np.clip(level + (0.02 if level > 0.9 else 0.12) * np.log10(rates / 0.1), 0, 1)
    seen, found = np.zeros(clients), []
    for t in range(total):
        seen += here[t]
        values, per_client = {"local/clients": float(here[t].sum())}, {}
        accuracy = float(np.clip(rise[t] + 0.01 * noise.standard_normal(), 0, 1))
        last = t + 1 == total
        if last or (t + 1) % spec.evaluation.every == 0:
            values |= {"test/accuracy": accuracy, "test/loss": 2 * (1 - accuracy)}
            if spec.method.name != "fedavg":
                with np.errstate(divide="ignore"):
                    per_client["weight"] = np.where(seen > 0, np.minimum((t + 1) / seen, 50), np.nan)
        if last or (spec.evaluation.train_every and (t + 1) % spec.evaluation.train_every == 0):
            values["train/accuracy"] = min(accuracy + 0.02, 1.0)
            per_client["accuracy"] = np.clip(own + 0.05 * noise.standard_normal(clients), 0, 1)
        found.append(Record(t, values, per_client, np.flatnonzero(here[t])))
    return found
