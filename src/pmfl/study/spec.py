"""One run, fully determined: typed, frozen, and named by a hash of what it asks.

Anything that is not said has the paper's default, and this file is the only place where defaults of a study stand.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pmfl.core.params import Count, Rate, Share, Size
from pmfl.errors import SpecError, did_you_mean
from pmfl.study.names import Kind, bind, fingerprint, problems

_version = functools.cache(importlib.metadata.version)  # a search on disk

Seed = Annotated[int, Ge(0), Le(2**63 - 1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Named(_Part):
    """Something of ours or of the user's by name, with its parameters."""

    name: str
    params: dict[str, Any] = {}

    def bound(self, kind: Kind) -> Named:
        """With every parameter checked and spelled out."""
        return Named(name=self.name, params=bind(kind, self.name, self.params))

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """``"name"`` and ``{name = "…", parameter = …}`` both work."""
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, dict) and "params" not in given and "name" in given:
            return {"name": given["name"], "params": {word: v for word, v in given.items() if word != "name"}}
        return given


class DataSpec(_Part):
    """Which samples, and how clients share them."""

    dataset: str = "digits"
    path: str | None = None
    options: dict[str, bool | str | int] = {}  # how to read it: label, user, size, …
    clients: Size = 250
    partition: Named = Named(name="slices")
    augment: str | None = None  # None: what fits the data set
    held_out: Count = 0  # so many training samples take the place of the test set: to choose hyper-parameters with

    @field_validator("partition", mode="before")
    @classmethod
    def _default_name(cls, given: Any) -> Any:
        return {"name": "slices", **given} if isinstance(given, dict) else given


class ParticipationSpec(_Part):
    """Who is there: rates that follow the data, and a pattern in time."""

    pattern: Named = Named(name="bernoulli")
    mean: Annotated[float, Gt(0), Le(1)] = 0.1
    beta: Rate = 0.1
    floor: Share = 0.02
    normalise: bool = False  # scale the rates so that their realised mean is `mean`

    @model_validator(mode="before")
    @classmethod
    def _pattern_parameters(cls, given: Any) -> Any:
        """``participation.cycle = 50`` is a parameter of the pattern."""
        if not isinstance(given, dict):
            return given
        own = {word: value for word, value in given.items() if word in cls.model_fields}
        rest = {word: value for word, value in given.items() if word not in own}
        if rest:
            pattern = Named.model_validate(own.get("pattern", "bernoulli"))
            own["pattern"] = Named(name=pattern.name, params={**pattern.params, **rest})
        return own


class TrainingSpec(_Part):
    """What clients do, and how long it goes on."""

    rounds: Size = 1000
    iterations: Size = 5
    batch_size: Size = 16
    client_lr: Rate = 0.1
    lr_decay: Annotated[float, Gt(0), Le(1)] = 1.0  # client_lr is multiplied by it after every round
    model: Named = Named(name="mlp")


class EvaluationSpec(_Part):
    """What is looked at, and how often. The last round is always evaluated."""

    every: Size = 10
    train_every: Count = 0  # the train set costs more: 0 for the last round only
    clients: bool = True  # accuracy and loss of each client's own data, when the train set is evaluated
    deviation: bool = False  # Dev^t of the updates, every round


class EngineSpec(_Part):
    """How it is computed, which does not change what is asked."""

    kind: Literal["local", "ranks"] = "local"
    ranks: Count = 0  # how many of them, which "ranks:3" says too; 0: as many as torchrun starts, or one per core
    lanes: Size = 1
    dtype: Literal["float32", "float64"] = "float32"
    profile: Literal["exact", "fast"] = "exact"  # "fast": networks and remembered models in bfloat16
    device: str = "cpu"
    memory: Literal["ram", "mmap"] = "ram"
    memory_gb: Rate = 4.0  # for "mmap": how many gigabytes of client memories each rank keeps in RAM

    @model_validator(mode="before")
    @classmethod
    def _count(cls, given: Any) -> Any:
        """``kind = "ranks:3"``."""
        kind = given.get("kind") if isinstance(given, dict) else None
        if isinstance(given, dict) and given.get("profile") == "fast" and given.get("dtype") == "float64":
            raise ValueError("double precision cannot be fast: set one of engine.dtype and engine.profile, not both")
        if not isinstance(kind, str) or not kind.startswith("ranks:"):
            return given
        count = kind.removeprefix("ranks:")
        if not count.isdecimal() or int(count) < 1:
            raise PydanticCustomError("ranks", "ranks:N wants a number of processes N from 1, as in ranks:2")
        return {**given, "kind": "ranks", "ranks": int(count)}

    def arithmetic(self) -> dict[str, Any]:
        """What the bits of an answer depend on. Ranks give those of one process, and so do memories in files."""
        profile = {} if self.profile == "exact" else {"profile": self.profile}
        return {"kind": "local", **self.model_dump(include={"lanes", "dtype", "device"}), **profile}


class RunSpec(_Part):
    """One run: one method, one seed."""

    method: Named = Named(name="pmfl")
    data: DataSpec = DataSpec()
    participation: ParticipationSpec = ParticipationSpec()
    training: TrainingSpec = TrainingSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    engine: EngineSpec = EngineSpec()
    seed: Seed = 0

    def question(self) -> dict[str, Any]:
        """All that the answer may depend on, as plain values."""
        asked = self.model_dump(mode="json", exclude={"engine"})
        own: dict[str, str] = {kind: fingerprint(kind, name) for kind, name in self.names.items()}
        own["trace"] = _file_hash(self.participation.pattern.params.get("path"))
        return {**asked, "sources": {kind: found for kind, found in own.items() if found}}

    @property
    def names(self) -> dict[Kind, str]:
        """All that it names: ours, or a user's own code."""
        return {
            "method": self.method.name,
            "partition": self.data.partition.name,
            "pattern": self.participation.pattern.name,
            "model": self.training.model.name,
            "dataset": self.data.dataset,
        }

    @property
    def question_id(self) -> str:
        """Two engines that answer the same question share it."""
        return _digest(self.question())

    @property
    def run_id(self) -> str:
        """Names the run: the question, how it is computed, and by which version of what."""
        versions = {name: _version(name) for name in ("pmfl", "torch", "numpy")}
        return _digest({"question": self.question(), "engine": self.engine.arithmetic(), "versions": versions})


def run_spec(given: dict[str, Any], where: str = "study") -> RunSpec:
    """A run's specification from plain values, with everything spelled out and checked."""
    try:
        spec = RunSpec.model_validate(given)
    except ValidationError as error:
        raise _explain(error, where) from None
    data, participation, training = spec.data, spec.participation, spec.training
    return spec.model_copy(
        update={
            "method": spec.method.bound("method"),
            "data": data.model_copy(update={"partition": data.partition.bound("partition")}),
            "participation": participation.model_copy(update={"pattern": participation.pattern.bound("pattern")}),
            "training": training.model_copy(update={"model": training.model.bound("model")}),
        }
    )


def known_keys() -> list[str]:
    """Every dotted key a study may set, without the parameters of named things."""
    keys = ["method", "seed"]
    for part in ("data", "participation", "training", "evaluation", "engine"):
        keys += [f"{part}.{word}" for word in type(getattr(RunSpec(), part)).model_fields]
    return keys


def _explain(error: ValidationError, where: str) -> SpecError:
    unknown = [item for item in error.errors() if item["type"] == "extra_forbidden"]
    hint = "`pmfl run --help` and docs/guides/studies.md list the keys"
    if unknown:
        hint = did_you_mean(".".join(map(str, unknown[0]["loc"])), known_keys())
    return SpecError(f"{where}: {problems(error)}", hint=hint, code="S110")


def _file_hash(path: Any) -> str:
    """Of the recorded availability, if there is one and it is here."""
    file = Path(path) if isinstance(path, str) else None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file and file.is_file() else ""


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
