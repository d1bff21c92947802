"""The final model of a run, for use elsewhere: named tensors as safetensors, or a graph as ONNX."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from pmfl.core.tree import load_tree, replacing
from pmfl.core.types import Model, Vector
from pmfl.errors import SpecError, StoreError
from pmfl.study.seal import verify
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.store import Store, storing
from pmfl.study.world import build_dataset, build_model
from pmfl.world.augment import to_input


def export_model(out: Path, run_id: str, to: Path) -> Path:
    """Write the model of a finished run to ``to``, as its suffix says."""
    if to.suffix not in (".safetensors", ".onnx"):
        raise SpecError(f"--to {to}: unknown kind of file", hint="name it .safetensors or .onnx", code="S140")
    store = Store(out)
    row = store.run(run_id)
    if not store.is_done(row.run_id):
        raise StoreError(f"run {row.run_id} is {row.status}: it has no final model yet", hint="`pmfl run` finishes it")
    verify(store, row.run_id)
    spec = run_spec(row.spec)
    dataset = build_dataset(spec)
    model = build_model(spec, dataset)
    like = {"w": torch.zeros(model.size, dtype=getattr(torch, spec.engine.dtype))}
    w: Vector = load_tree(store.sealed(row.run_id) / "final.safetensors", like)["w"]
    card = _card(spec, row.model_sha256, dataset.labels)
    with storing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
    with storing(to), replacing(to) as beside:
        if to.suffix == ".onnx":
            example = to_input(dataset.test.x[:2], dataset.mean, dataset.std, w.dtype)
            _write_onnx(model, w, example, beside, card)
        else:
            tensors = {name: tensor.contiguous().clone() for name, tensor in model.tensors(w).items()}
            beside.write_bytes(save(tensors, metadata=card))
    return to


def _card(spec: RunSpec, sha256: str, labels: tuple[str, ...]) -> dict[str, str]:
    """What a file says of itself."""
    return {
        "run_id": spec.run_id,
        "method": spec.method.name,
        "dataset": spec.data.dataset,
        "rounds": str(spec.training.rounds),
        "seed": str(spec.seed),
        "labels": json.dumps(labels),
        "model_sha256": sha256,
    }


class _Classifier(nn.Module):
    """A model with its vector, as a module: normalised inputs to class scores."""

    def __init__(self, model: Model, w: Vector) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("w", w)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.w, Tensor)
        return self.model.logits(self.w, x)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter logs of packages and folds that it does not need."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _write_onnx(model: Model, w: Vector, example: Tensor, file: Path, card: dict[str, str]) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401  what torch's exporter is written in
    except ImportError as error:
        raise SpecError(
            f"ONNX export needs a package that is not here: {error.name}",
            hint="pip install 'pmfl[export]'",
            code="S141",
        ) from None
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # the exporter warns of its own deprecations
        program = torch.onnx.export(
            _Classifier(model, w).eval(),
            (example.contiguous(),),
            dynamo=True,
            input_names=["x"],
            output_names=["logits"],
            dynamic_shapes={"x": {0: batch}},
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, card)
    onnx.save(proto, str(file))
