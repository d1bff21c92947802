"""From a specification to the world a run is played in: data, clients, their rates and pattern, the model."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from pmfl.core.keys import Key
from pmfl.core.types import Model
from pmfl.errors import SpecError, did_you_mean
from pmfl.study.names import resolve
from pmfl.study.spec import RunSpec
from pmfl.world.augment import AUGMENTS, to_input
from pmfl.world.datasets import Dataset, IntArray, Split, load
from pmfl.world.models import as_model
from pmfl.world.participation import Pattern, rates
from pmfl.world.partition import Partition
from pmfl.world.population import Population
from pmfl.world.precision import in_bfloat16


class World(NamedTuple):
    """What one run is played in. Two methods under one seed get the same."""

    dataset: Dataset
    partition: Partition
    owner: IntArray  # [n] whose each training sample is
    rates: torch.Tensor | None  # [K] long-run frequency of participation, as the pattern realises it; None: unknown
    pattern: Pattern
    model: Model
    population: Population


def build_world(
    spec: RunSpec,
    key: Key,
    *,
    dataset: Dataset | None = None,
    model: Model | nn.Module | None = None,
    holds_out: bool = False,
) -> World:
    """Everything but the method, from the seed's key."""
    dataset = dataset or build_dataset(spec)
    if spec.data.held_out:
        dataset = hold_out(dataset, spec.data.held_out, key)
    partition = build_partition(spec, key, dataset)
    _, pattern = build_pattern(spec, key, partition)
    pattern.check(spec.training.rounds)
    model = build_model(spec, dataset) if model is None else _as_model(model, "given", spec, dataset)
    if spec.engine.profile == "fast":
        model = in_bfloat16(model)
    population = Population(
        dataset,
        partition.owned,
        model,
        key,
        iterations=spec.training.iterations,
        batch_size=spec.training.batch_size,
        augment=_augment(spec, dataset),
        holds_out=holds_out,
        dtype=getattr(torch, spec.engine.dtype),
    )
    owner = np.empty(len(dataset.train), np.int64)
    for k, mine in enumerate(partition.owned):
        owner[mine] = k
    known = None if np.isnan(pattern.rates).any() else torch.from_numpy(pattern.rates)
    return World(dataset, partition, owner, known, pattern, model, population)


def build_dataset(spec: RunSpec) -> Dataset:
    """The data set by name, or from the user's own function."""
    name = spec.data.dataset
    if ":" in name and not name.startswith("hub:"):
        made = resolve("dataset", name)()
        if not isinstance(made, Dataset):
            raise SpecError(
                f"dataset `{name}` returned a {type(made).__name__}", hint="return pmfl.from_arrays(…)", code="S120"
            )
        return made
    return load(name, spec.data.path, **spec.data.options)


def hold_out(dataset: Dataset, samples: int, key: Key) -> Dataset:
    """The data set with so many training samples in the place of the test set, which is then never looked at."""
    train = dataset.train
    if samples >= len(train):
        raise SpecError(
            f"data.held_out = {samples} of {len(train)} training samples", hint="leave some to train on", code="S124"
        )
    order = key.fold("held-out").numpy().permutation(len(train))
    parts = [np.sort(order[samples:]), np.sort(order[:samples])]
    kept, held = (Split(train.x[rows], train.y[rows], _rows(train.users, rows)) for rows in parts)
    return replace(dataset, train=kept, test=held)


def _rows(users: IntArray | None, rows: IntArray) -> IntArray | None:
    return None if users is None else users[rows]


def build_partition(spec: RunSpec, key: Key, dataset: Dataset) -> Partition:
    """Which client holds which training samples."""
    named, train = spec.data.partition, dataset.train
    split = resolve("partition", named.name)
    found = split(train.y, dataset.classes, spec.data.clients, key.fold("partition"), train.users, **named.params)
    assert isinstance(found, Partition)
    return found


def build_pattern(spec: RunSpec, key: Key, partition: Partition) -> tuple[np.ndarray, Pattern]:
    """The participation rates p_k, and the pattern that realises them."""
    who = spec.participation
    p = rates(partition.mix, key.fold("rates"), mean=who.mean, beta=who.beta, floor=who.floor, normalise=who.normalise)
    return p, resolve("pattern", who.pattern.name)(p, key.fold("participation"), **who.pattern.params)


def recording_notes(specs: Iterable[RunSpec]) -> list[str]:
    """What recordings of availability do to these runs: which devices, from when, repeated or not; a line for each."""
    lines: dict[str, None] = {}
    for spec in specs:
        named, clients = spec.participation.pattern, spec.data.clients
        if named.name == "trace":
            rates, key = np.full(clients, spec.participation.mean), Key.root(spec.seed).fold("participation")
            lines["; ".join(resolve("pattern", named.name)(rates, key, **named.params).notes)] = None
    return list(lines)


def build_model(spec: RunSpec, dataset: Dataset) -> Model:
    """The network by name, or the user's own: a function of sample shape and classes, giving a Model or a module."""
    named, dtype = spec.training.model, getattr(torch, spec.engine.dtype)
    build = resolve("model", named.name)
    shape = tuple(dataset.train.x.shape[1:])
    takes_dtype = "dtype" in inspect.signature(build).parameters
    made = build(shape, dataset.classes, **named.params, **({"dtype": dtype} if takes_dtype else {}))
    return _as_model(made, named.name, spec, dataset)


def _as_model(made: object, name: str, spec: RunSpec, dataset: Dataset) -> Model:
    if isinstance(made, nn.Module):
        dtype = getattr(torch, spec.engine.dtype)
        return as_model(made, example=to_input(dataset.train.x[:2], dataset.mean, dataset.std, dtype), dtype=dtype)
    if not isinstance(made, Model):
        raise SpecError(
            f"model `{name}` is a {type(made).__name__}",
            hint="give a torch.nn.Module with encoder and classifier, or a pmfl Model",
            code="S121",
        )
    return made


def _augment(spec: RunSpec, dataset: Dataset) -> str:
    name = dataset.augment if spec.data.augment is None else spec.data.augment
    if name not in AUGMENTS:
        raise SpecError(f"data.augment = {name!r} is not known", hint=did_you_mean(name, AUGMENTS), code="S122")
    return name
