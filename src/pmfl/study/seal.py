"""From a finished run's records to files that stay: written beside, hashed, and put in place at once."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import Any

import pyarrow.parquet as pq
import tomli_w

from pmfl.core.tree import save_tree, to_disk
from pmfl.core.types import Vector
from pmfl.errors import StoreError
from pmfl.study import frames
from pmfl.study.spec import RunSpec
from pmfl.study.store import Store, read_json, sha256, storing


def seal(store: Store, run_id: str, spec: RunSpec, model: Vector, known: dict[str, Any]) -> dict[str, Any]:
    """Write what a finished run showed to ``OUT/runs/RUN``; returns its summary."""
    # Absolute, since a relative path with a colon in it would be taken for a URI.
    beside, place = store.running(run_id).absolute() / "sealing", store.sealed(run_id)
    with storing(beside):
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for name in ("rounds", "clients", "participation"):
            pq.write_table(frames.live(store, run_id, name), beside / f"{name}.parquet", compression="zstd")
        (beside / "spec.toml").write_text(tomli_w.dumps(_without_none(spec.model_dump(mode="json"))), "utf-8")
        save_tree(beside / "final.safetensors", {"w": model})
        rounds = pq.read_table(beside / "rounds.parquet")
        summary = {**known, "model_sha256": model_sha256(model), "metrics": frames.summarise(rounds)}
        (beside / "summary.json").write_text(json.dumps(summary, indent=1), "utf-8")
        hashes = {file.name: sha256(file) for file in sorted(beside.iterdir())}
        (beside / "MANIFEST.json").write_text(json.dumps(hashes, indent=1), "utf-8")
        for file in beside.iterdir():
            to_disk(file)
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)
        to_disk(place.parent)
    return summary


def verify(store: Store, run_id: str) -> None:
    """Refuse a finished run whose files are not what they were."""
    place = store.sealed(run_id)
    for name, expected in read_json(place / "MANIFEST.json").items():
        if not (place / name).is_file() or sha256(place / name) != expected:
            hint = f"delete {place}; `pmfl run` plays the run again, to the same bits"
            raise StoreError(f"{place / name} was changed or cut short after the run", hint=hint, code="R113")


def model_sha256(model: Vector) -> str:
    """The hash of a model: of its numbers, little-endian, in order."""
    return hashlib.sha256(model.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _without_none(value: Any) -> Any:
    """TOML has no null: what is not set is left out."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value
