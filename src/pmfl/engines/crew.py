"""Several processes that play one run together: what they must tell each other, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

ResultT = TypeVar("ResultT")


class Alone:
    """A crew of one: nobody to talk to. The form of every crew."""

    rank = 0
    world = 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes records."""
        return self.rank == 0

    def together(self, make: Callable[[], ResultT]) -> ResultT:
        """What this rank makes, once all have made theirs; what goes wrong on one of them is raised on all."""
        return make()

    def share(self, make: Callable[[], ResultT]) -> list[ResultT]:
        """What every rank makes, by rank, as JSON tells it; what goes wrong on one of them is raised on all."""
        return [make()]

    def either(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, if any rank has raised it."""
        return flags

    def add(self, numbers: Tensor) -> Tensor:
        """The sum over ranks of whole numbers."""
        return numbers

    def send(self, numbers: Tensor | None, to: int) -> None:
        """Give bytes to another rank, which takes them by ``receive``; None says that there are none to be had."""
        raise AssertionError("there is nobody else")

    def receive(self, of: int) -> Tensor | None:
        """The next bytes that another rank has sent."""
        raise AssertionError("there is nobody else")

    def leave(self) -> None:
        """Part, when all have come to this point."""


ALONE = Alone()
