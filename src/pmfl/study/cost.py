"""What a participation costs a client, in floating-point operations: counted, not estimated.

A client is played on samples of the right shape under PyTorch's counter, which counts multiplications and additions of
convolutions and matrix products, forwards and backwards; again and again until one participation costs what the one
before did. Images and labels do not matter to it, so a data set that is known by name need not be there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import torch

from pmfl.core.client import train_client
from pmfl.core.keys import Key
from pmfl.core.types import Batch, Downlink, Model, Round, Work
from pmfl.engines.local import exactly
from pmfl.study.names import resolve
from pmfl.study.spec import RunSpec, run_spec
from pmfl.world.augment import to_input
from pmfl.world.dense import FORMULAS
from pmfl.world.masks import draw_masks
from pmfl.world.population import CHECK_SAMPLES

MOST = 40  # participations after which no memory is still filling up


def client_flops(spec: RunSpec | Mapping[str, Any]) -> int:
    """Floating-point operations of one participation of a client whose memory is full."""
    plain = spec.model_dump(mode="json") if isinstance(spec, RunSpec) else spec
    # Data, clients and their coming and going do not change what a participation costs.
    asked = {key: plain[key] for key in ("method", "training")} | {"data": {"dataset": plain["data"]["dataset"]}}
    return _counted(json.dumps({**asked, "path": plain["data"]["path"], "options": plain["data"]["options"]}))


@functools.lru_cache(maxsize=256)
def _counted(asked: str) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    given = json.loads(asked)
    given["data"] |= {"path": given.pop("path"), "options": given.pop("options")}
    spec = run_spec(given)
    method = resolve("method", spec.method.name)(**spec.method.params)
    model, shape, classes = _network(spec)
    work = _work(spec, model, shape, classes, checks=method.client.checks)
    w = model.init(Key.root(0).fold("init"))
    memory, before = method.client.init(w), 0
    with exactly():
        for _ in range(MOST):
            with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
                memory = train_client(method.client, model, _sent(method, spec, w), memory, work).memory
            if counter.get_total_flops() == before:
                break
            before = counter.get_total_flops()
    return before


def _sent(method: Any, spec: RunSpec, w: torch.Tensor) -> Downlink:
    now = Round(0, spec.training.rounds, 1, spec.training.client_lr, Key.root(0))
    sent: Downlink = method.server.send(method.server.init(w), w, now)
    return sent


def _network(spec: RunSpec) -> tuple[Model, tuple[int, ...], int]:
    """The model, and the shape and number of classes of its data: of a known data set without reading it."""
    from pmfl.study.world import build_dataset, build_model
    from pmfl.world.datasets import from_arrays
    from pmfl.world.sources.known import KNOWN

    known = KNOWN.get(spec.data.dataset)
    if known is None:
        dataset = build_dataset(spec)
    else:
        x, y = torch.zeros((1, *known.shape), dtype=torch.uint8).numpy(), torch.zeros(1, dtype=torch.int64).numpy()
        dataset = from_arrays(x, y, x, y, labels=[str(k) for k in range(known.classes)])
    return build_model(spec, dataset), tuple(dataset.train.x.shape[1:]), dataset.classes


def _work(spec: RunSpec, model: Model, shape: tuple[int, ...], classes: int, *, checks: bool) -> Work:
    generator = torch.Generator().manual_seed(0)
    iterations, size = spec.training.iterations, spec.training.batch_size
    dtype = getattr(torch, spec.engine.dtype)

    def some(*lead: int) -> Batch:
        x = torch.randint(256, (*lead, *shape), generator=generator).to(torch.uint8 if len(shape) == 3 else dtype)
        y = torch.randint(classes, lead, generator=generator)
        return Batch(to_input(x, (0.5,), (0.25,), dtype), y)

    masks = draw_masks(model, Key.root(0), (iterations, size)) if model.masks else ()
    batches = some(iterations, size)._replace(masks=masks)
    return Work(batches, torch.tensor(1.0), some(CHECK_SAMPLES) if checks else None)
