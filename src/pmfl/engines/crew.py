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

    def share(self, make: Callable[[], ResultT]) -> list[ResultT]:
        """What every rank makes, by rank; what went wrong on one of them is raised on all."""
        return [make()]

    def either(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, if any rank has raised it."""
        return flags

    def add(self, numbers: Tensor) -> Tensor:
        """The sum over ranks of whole numbers."""
        return numbers


ALONE = Alone()
