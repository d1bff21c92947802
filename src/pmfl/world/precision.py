"""A model whose forwards and backwards run in bfloat16, while the vector itself stays in single precision.

Half the bytes between two layers, and processors that multiply bfloat16 do so at twice to four times the rate. Eight
bits of mantissa are too few for the sum of many small steps, so parameters, steps and the server's sums keep theirs.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from pmfl.core.types import Masks, Model, Vector

AnyModel = TypeVar("AnyModel", bound=Model)


def in_bfloat16(model: AnyModel) -> AnyModel:
    """The same model, of less precision; representations and class scores come out in single precision.

    >>> from pmfl.core.keys import Key
    >>> from pmfl.world.networks import MODELS
    >>> short = in_bfloat16(MODELS["mlp"]((8, 8, 1), 10))
    >>> short.logits(short.init(Key.root(0)), torch.zeros(2, 1, 8, 8)).dtype
    torch.float32
    """
    opened = threading.local()

    def shortened(w: Vector) -> Vector:
        """One conversion for ``represent`` and the ``classify`` that follows: its gradient is one conversion too."""
        pair: tuple[Vector, Vector] | None = getattr(opened, "pair", None)
        needed = w.requires_grad and torch.is_grad_enabled()
        if pair is None or pair[0] is not w or pair[1].requires_grad != needed:
            pair = opened.pair = (w, w.bfloat16())
        return pair[1]

    def represent(w: Vector, x: Tensor, masks: Masks) -> Tensor:
        opened.pair = None  # what an earlier call made belongs to its own graph
        return model.represent(shortened(w), x.bfloat16(), masks).float()

    def classify(w: Vector, z: Tensor, masks: Masks) -> Tensor:
        logits = model.classify(shortened(w), z.bfloat16(), masks).float()
        opened.pair = None
        return logits

    return replace(model, represent=represent, classify=classify)
