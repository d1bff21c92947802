"""What a deployment ends with: the trained model as safetensors and ONNX, and a card that says where it came from."""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pmfl.core.files import replacing
from pmfl.deploy.journal import told
from pmfl.deploy.settings import Deployment
from pmfl.errors import SpecError
from pmfl.study import frames
from pmfl.study.export import export_model
from pmfl.study.spec import RunSpec
from pmfl.study.store import Store, storing

REPORTED = "accuracy/first"  # what a client says of the model it received
MODEL, GRAPH, CARD = "model.safetensors", "model.onnx", "MODEL_CARD.md"


def write_result(made: Deployment) -> list[Path]:
    """Put model and card into DIR/server/result. Without the packages for ONNX that file is left out, and said so."""
    spec, folder = made.spec, made.result
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = [export_model(made.results, spec.run_id, folder / MODEL)]
    missing = ""
    try:
        written.append(export_model(made.results, spec.run_id, folder / GRAPH))
    except SpecError as error:
        if error.code != "S141":
            raise
        missing = error.hint
    with storing(folder / CARD), replacing(folder / CARD) as beside:
        beside.write_text(card(made, spec, missing), "utf-8")
    return [*written, folder / CARD]


def card(made: Deployment, spec: RunSpec, missing: str = "") -> str:
    """The model card."""
    store = Store(made.results)
    row = store.run(spec.run_id)
    measured = sorted((row.metrics or {}).items())
    graph = f"left out: {missing}" if missing else "input `x`, normalised samples; output `logits`, one per class"
    lines = [
        f"# Model trained by {spec.method.name} on {spec.data.dataset}",
        "",
        f"Trained with pmfl over {row.t} rounds by {len(made.clients)} clients whose samples stayed with them;",
        f"written on {dt.datetime.now(dt.UTC):%Y-%m-%d}.",
        "",
        "| | |",
        "|---|---|",
        f"| method | {spec.method.name}{_parameters(spec.method.params)} |",
        f"| model | {spec.training.model.name}{_parameters(spec.training.model.params)} |",
        f"| rounds | {row.t} of {spec.training.rounds} |",
        f"| local training | {spec.training.iterations} iterations of {spec.training.batch_size} samples, "
        f"learning rate {spec.training.client_lr:g} |",
        f"| seed | {spec.seed} |",
        f"| run | `{spec.run_id}` |",
        f"| model_sha256 | `{row.model_sha256}` |",
        f"| `{MODEL}` | named tensors |",
        f"| `{GRAPH}` | {graph} |",
        "",
        "## What was measured",
        "",
        *(f"- {name}: {kinds['final']:.6g} after the last round" for name, kinds in measured),
        "",
        "## Who took part",
        "",
        "| client | name | rounds | share of rounds | weight | accuracy it reported |",
        "|---|---|---|---|---|---|",
        *_clients(made, store, spec, row.t),
        "",
        "A weight is the method's importance of a client at the end (PMFL: its mean interval between participations).",
        "The accuracy is what the client last reported of the model it received, on mini-batches of its own samples.",
        "",
    ]
    return "\n".join(lines)


def _parameters(params: Any) -> str:
    return f" ({', '.join(f'{name} = {value}' for name, value in sorted(params.items()))})" if params else ""


def _clients(made: Deployment, store: Store, spec: RunSpec, rounds: int) -> list[str]:
    """A row for each client, from what the run has recorded."""
    took_part = Counter(frames.participation(store, [spec.run_id])["client"].to_pylist())
    last: dict[str, dict[int, float]] = {}
    for row in frames.clients(store, [spec.run_id]).sort_by("t").to_pylist():
        last.setdefault(row["metric"], {})[row["client"]] = row["value"]
    reported = {given["id"]: given.get("latest", {}) for given in told(made.status).get("clients", [])}
    rows = []
    for client in made.clients:
        weight = last.get("weight", {}).get(client.id)
        accuracy = reported.get(client.id, {}).get(REPORTED)
        rows.append(
            f"| {client.id} | {client.name} | {took_part[client.id]} | {took_part[client.id] / max(rounds, 1):.1%} | "
            f"{'-' if weight is None else f'{weight:.4g}'} | {'-' if accuracy is None else f'{accuracy:.4f}'} |"
        )
    return rows


def main(arguments: list[str]) -> None:
    """As a process: what it has loaded is gone with it."""
    for file in write_result(Deployment.open(Path(arguments[0]))):
        sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
