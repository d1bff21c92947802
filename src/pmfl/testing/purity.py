"""Rules are functions: what goes in decides what comes out, and nothing else changes."""

from __future__ import annotations

import random  # noqa: TID251 - to watch it, not to draw from it
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.method import Method
from pmfl.errors import MethodError
from pmfl.testing.compare import copy_of, difference
from pmfl.testing.spy import spied
from pmfl.testing.tiny import Crowd, Position, Tiny

ROUNDS: tuple[Crowd, ...] = ("everyone", "one", "nobody", "everyone")


def check_no_global_randomness(method: Method, tiny: Tiny) -> None:
    """No rule uses a global random generator."""

    def around(name: str, rule: Callable[..., Any], /, *given: Any) -> Any:
        before = GlobalRandomness.read()
        result = rule(*given)
        changed = before.changed_since(GlobalRandomness.read())
        if changed:
            raise MethodError(f"{name} used the global generator of {changed}", hint=FROM_KEY)
        return result

    def ends_at(seed: int) -> Position:
        GlobalRandomness.seeded(seed).set()
        return tiny.play(spied(tiny.build(), around), ROUNDS)

    with same_randomness_after():
        one = ends_at(1)
        found = difference(one, ends_at(2), "run")
        # If even the same seed gives another result, something else than the seed is the reason.
        if found and not difference(one, ends_at(1)):
            raise MethodError(f"the seed of a global random generator changes the result: {found}", hint=FROM_KEY)


def check_inputs_unchanged(method: Method, tiny: Tiny) -> None:
    """No rule changes what it was given."""

    def around(name: str, rule: Callable[..., Any], /, *given: Any) -> Any:
        before = copy_of(given)
        result = rule(*given)
        found = difference(before, given, "argument")
        if found:
            changed = found.replace("in one", "before").replace("in the other", "after")
            raise MethodError(
                f"{name} changed its own input: {changed}",
                hint="make a new value, e.g. `w + step` for `w += step`, and return it",
            )
        return result

    tiny.play(spied(method, around), ROUNDS)


def check_same_input_same_output(method: Method, tiny: Tiny) -> None:
    """The same input twice gives the same bits twice."""

    def around(name: str, rule: Callable[..., Any], /, *given: Any) -> Any:
        copies = copy_of(given)
        result = rule(*given)
        found = difference(result, rule(*copies), "result")
        if found:
            raise MethodError(
                f"{name} returned two things for one input: {found}",
                hint="keep what must be remembered in the state, not in a variable outside of the rule",
            )
        return result

    tiny.play(spied(method, around), ROUNDS)


FROM_KEY = "draw from a key, e.g. now.key.fold('my rule').torch(), on the server; clients get draws with their work"


class GlobalRandomness(NamedTuple):
    """The state of the three generators that any code can reach."""

    of_torch: Tensor
    of_numpy: tuple[Any, ...]
    of_python: tuple[Any, ...]

    @classmethod
    def read(cls) -> GlobalRandomness:
        """What it is now."""
        numpy_state = np.random.get_state()  # noqa: NPY002 - to watch it, not to draw from it
        return cls(torch.get_rng_state(), tuple(numpy_state), random.getstate())

    @classmethod
    def seeded(cls, seed: int) -> GlobalRandomness:
        """A state drawn from a key."""
        key = Key.root(seed)
        words = key.numpy().integers(0, 2**32, size=624, dtype=np.uint32)
        return cls(
            key.torch().get_state(),
            ("MT19937", words, 624, 0, 0.0),
            random.Random(seed).getstate(),
        )

    def set(self) -> None:
        """Make it so."""
        torch.set_rng_state(self.of_torch)
        np.random.set_state(self.of_numpy)  # noqa: NPY002
        random.setstate(self.of_python)

    def changed_since(self, later: GlobalRandomness) -> str:
        """The name of a library whose generator moved, if one did."""
        if not torch.equal(self.of_torch, later.of_torch):
            return "torch"
        if difference(self.of_numpy, later.of_numpy):
            return "numpy"
        return "python's random module" if self.of_python != later.of_python else ""


@contextmanager
def same_randomness_after() -> Iterator[None]:
    """Whatever happens inside, the global generators are afterwards as they were."""
    before = GlobalRandomness.read()
    try:
        yield
    finally:
        before.set()
