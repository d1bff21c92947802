"""The point of it all: the model gets better."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from pmfl.core.method import Method, accuracy
from pmfl.errors import MethodError
from pmfl.testing.tiny import CLASSES, Position, Tiny

LEARNING_ROUNDS = 30
LEARNED = 0.8  # accuracy; guessing gives one in three


def check_loss_falls(method: Method, tiny: Tiny) -> None:
    """One round with everyone lowers the loss of a convex problem."""
    world = tiny.but(kind="linear", rate=1.0, total=LEARNING_ROUNDS)
    before, after = world.start(method), world.play(method, ["everyone"])
    losses = [scores(method, world, at)[0] for at in (before, after)]
    if not losses[1] < losses[0]:
        raise MethodError(
            f"after one round with everyone, the loss went from {losses[0]:.4f} to {losses[1]:.4f}",
            hint="updates point downhill (trained minus received model): the server adds its step, w + lr * step",
        )


def check_learns(method: Method, tiny: Tiny) -> None:
    """Thirty rounds with everyone learn three well separated classes."""
    world = tiny.but(kind="hidden", rate=1.0, total=LEARNING_ROUNDS)
    reached = scores(method, world, world.play(method, ["everyone"] * LEARNING_ROUNDS))[1]
    if not reached >= LEARNED:
        raise MethodError(
            f"after {LEARNING_ROUNDS} rounds with everyone, the accuracy is {reached:.2f}; plain averaging "
            f"gets close to 1, and guessing to {1 / CLASSES:.2f}",
            hint="look at the size of the server's steps, and at what becomes of them after the first round",
        )


@torch.no_grad()
def scores(method: Method, tiny: Tiny, at: Position) -> tuple[float, float]:
    """Mean loss and accuracy of the model that the method shows, on all clients' samples."""
    logits = tiny.model.logits(method.server.show(at.server.server, at.server.w), tiny.everything.x)
    return float(cross_entropy(logits, tiny.everything.y)), float(accuracy(logits, tiny.everything.y))
