"""Which engine runs a specification."""

from __future__ import annotations

from typing import Any, TypeAlias

from pmfl.core.method import ClientRule
from pmfl.core.types import Model
from pmfl.engines.crew import ALONE, Alone
from pmfl.engines.lanes import LanesEngine
from pmfl.engines.local import LocalEngine
from pmfl.engines.memory import Memories
from pmfl.engines.spread import SpreadEngine
from pmfl.world.population import Population

OneEngine: TypeAlias = LocalEngine | LanesEngine
AnyEngine: TypeAlias = OneEngine | SpreadEngine


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
    inner: OneEngine
    if lanes == 1 and device == "cpu":
        inner = LocalEngine(rule, model, population, workers=workers, memories=memories)
    else:
        inner = LanesEngine(rule, model, population, lanes=lanes, device=device, memories=memories)
    return inner if crew is ALONE else SpreadEngine(inner, rule, crew)
