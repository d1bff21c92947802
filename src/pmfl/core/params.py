"""Types for the parameters of methods, partitions, patterns and models: a signature is its own schema."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le

Count: TypeAlias = Annotated[int, Ge(0)]
Size: TypeAlias = Annotated[int, Ge(1)]
Rate: TypeAlias = Annotated[float, Gt(0)]
Weight: TypeAlias = Annotated[float, Ge(0)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
