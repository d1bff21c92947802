"""Which engine runs a specification."""

from __future__ import annotations

from typing import Any, TypeAlias

from pmfl.core.method import ClientRule
from pmfl.core.types import Model
from pmfl.engines.crew import Alone
from pmfl.engines.lanes import LanesEngine
from pmfl.engines.local import LocalEngine
from pmfl.engines.memory import Memories
from pmfl.world.population import Population

AnyEngine: TypeAlias = LocalEngine | LanesEngine


def build_engine(
    rule: ClientRule[Any],
    model: Model,
    population: Population,
    *,
    lanes: int,
    device: str,
    workers: int,
    memories: Memories,
    crew: Alone,
) -> AnyEngine:
    """One client at a time on a processor is fastest there; lanes, and every other device, take many at once."""
    if lanes == 1 and device == "cpu":
        return LocalEngine(rule, model, population, workers=workers, memories=memories)
    return LanesEngine(rule, model, population, lanes=lanes, device=device, memories=memories)
