"""One client on its own machine: from a message of the server to the answer, with its own samples and memory."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from pmfl.core.client import train_client
from pmfl.core.files import replacing
from pmfl.core.keys import Key
from pmfl.core.method import Method
from pmfl.core.types import Downlink, Model
from pmfl.deploy.keeping import NEVER, Keeping
from pmfl.deploy.settings import NodeFolder
from pmfl.engines.local import exactly
from pmfl.engines.remote import EXTRA, SCALAR
from pmfl.engines.wire import Parcel, Refused, decode, digest, encode
from pmfl.errors import DataMissing, PmflError, SpecError
from pmfl.study.names import resolve
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.world import build_world
from pmfl.world.datasets import Dataset, load
from pmfl.world.population import Population

OWN = "own"  # what a data set is called that has only a path
LARGEST = 4 << 30  # bytes of a message that a node looks at, before it knows its model


class Part(NamedTuple):
    """What a node needs of a run: the method, the model, its samples."""

    method: Method
    model: Model
    population: Population


class Node:
    """Answers the server's messages. What it keeps between them is on disk: it may be killed at any time."""

    def __init__(self, folder: NodeFolder, prepare: Callable[..., Part] | None = None) -> None:
        self.folder, self.client = folder, folder.settings.client
        self.prepare = prepare or prepared
        self.keeping = Keeping(folder.memory)
        self._part: tuple[str, Part] | None = None

    def answer(self, data: bytes) -> bytes:
        """The reply to a message, or a refusal with its reason."""
        try:
            parcel = decode(data, LARGEST)
            kind = parcel.words.get("kind")
            if kind == "ask":
                return self._take_part(parcel, digest(data))
            if kind == "done":
                run, t, counted = _address(parcel.words, self.client)
                self.keeping.settle(run, t, counted)
                return encode({"kind": "done", "client": self.client}, {})
            if kind == "hello":
                return encode({"kind": "hello", "client": self.client, "token": self._token()}, {})
            raise Refused("malformed", f"a message of kind {str(kind)[:20]!r}")
        except (Refused, OSError) as refused:  # a full disk is said to the server too
            self._log({"refused": str(refused)})
            return encode({"kind": "no", "client": self.client, "why": str(refused)}, {})

    def _take_part(self, parcel: Parcel, name: str) -> bytes:
        words, tensors = parcel
        run, t, counted = _address(words, self.client)
        part = self._prepared(words)
        sent = _downlink(tensors, part.model.size)
        rule = part.method.client
        memory, fresh = self.keeping.recall(run, t, counted, rule.init(sent.w))
        with exactly():
            work = part.population.work(t, self.client)
            uplink = train_client(rule, part.model, sent, memory, work)
        self.keeping.keep(t, uplink.memory)
        given = {"vector": uplink.vector, **{SCALAR + word: x for word, x in uplink.scalars.items()}}
        if words.get("updates") is True and uplink.update is not uplink.vector:
            given["update"] = uplink.update
        reply = encode({"kind": "reply", "run": run, "t": t, "client": self.client, "ask": name, "fresh": fresh}, given)
        self._log({"run": run, "t": t, "counted": counted, "fresh": fresh, "bytes": len(reply), "sends": sorted(given)})
        return reply

    def _prepared(self, words: Mapping[str, Any]) -> Part:
        """Method, model and samples of the run; made once, as long as the run stays the same."""
        known = digest(json.dumps([words.get(key) for key in ("spec", "data")], sort_keys=True).encode())
        if self._part is None or self._part[0] != known:
            try:
                self._part = known, self.prepare(self.folder, _permitted(words.get("spec"), self.folder), words)
            except PmflError as error:
                raise Refused("cannot", f"{error.message} ({error.hint})") from error
        return self._part[1]

    def _token(self) -> str:
        """What tells this node from another that gives the same number; drawn once."""
        file = self.folder.folder / "token"
        with contextlib.suppress(OSError):
            return file.read_text("utf-8")
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as beside:
            beside.touch(mode=0o600)
            beside.write_text(secrets.token_hex(16), "utf-8")
        return file.read_text("utf-8")

    def _log(self, what: Mapping[str, Any]) -> None:
        """A line for whoever runs the node. It must not keep the node from its work."""
        if self.folder.settings.log_sent:
            line = json.dumps({"time": round(time.time(), 3), "client": self.client, **what})
            with contextlib.suppress(OSError), self.folder.sent_log.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")


def prepared(folder: NodeFolder, spec: RunSpec, words: Mapping[str, Any]) -> Part:
    """A client's part of a run: its share of the study's data set, or the samples that its node.toml names."""
    method: Method = resolve("method", spec.method.name)(**spec.method.params)
    key, own = Key.root(spec.seed), folder.settings.data
    if not own.source and not own.path:
        world = build_world(spec, key, holds_out=method.client.checks)
        return Part(method, world.model, world.population)
    dataset = _fitting(load(own.source or OWN, own.path or None, **own.options), words.get("data"))
    everything = np.arange(len(dataset.train))
    nothing = everything[:0]
    world = build_world(_alone(spec), key, dataset=dataset, holds_out=method.client.checks)
    population = Population(
        dataset,
        [everything if k == folder.settings.client else nothing for k in range(spec.data.clients)],
        world.model,
        key,
        iterations=spec.training.iterations,
        batch_size=spec.training.batch_size,
        augment=dataset.augment if spec.data.augment is None else spec.data.augment,
        holds_out=method.client.checks,
        dtype=getattr(torch, spec.engine.dtype),
    )
    return Part(method, world.model, population)


def _permitted(asked: Any, folder: NodeFolder) -> RunSpec:
    """The server's study. What it names is imported here, so code that is not ours is the operator's to allow."""
    given = asked if isinstance(asked, dict) else {}
    with contextlib.suppress(ValidationError):  # run_spec says what is wrong
        for name in RunSpec.model_validate(given).names.values():
            if ":" in name and name not in folder.settings.allow:
                raise SpecError(
                    f"the server's study names code that this node has not been told to trust: {name!r}",
                    hint=f"allow = [{json.dumps(name)}] in node.toml trusts it",
                )
    data, own = given.get("data"), folder.settings.data
    path = data.get("path") if isinstance(data, dict) else None
    if path and not (own.source or own.path) and path not in folder.settings.allow:
        raise SpecError(
            f"the server's study names a path on this machine: {str(path)[:200]!r}",
            hint=f"[data] in node.toml says where samples are; or allow = [{json.dumps(str(path)[:200])}]",
        )
    return run_spec(given, "the server's study")


def described(dataset: Dataset) -> dict[str, Any]:
    """What a node with samples of its own must know of the server's data set, in plain values."""
    return {
        "labels": list(dataset.labels),
        "shape": list(dataset.train.x.shape[1:]),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "augment": dataset.augment,
    }


def _fitting(dataset: Dataset, wanted: Any) -> Dataset:
    """A node's own data set in the numbers of the server's: the same labels, shape and scale."""
    if not isinstance(wanted, dict):
        raise Refused("malformed", "the server does not say what samples should be like")
    labels, shape = list(wanted["labels"]), list(dataset.train.x.shape[1:])
    strange = sorted(set(dataset.labels) - set(labels))
    if shape != wanted["shape"] or strange:
        raise DataMissing(
            f"this node's samples have shape {shape} and labels {list(dataset.labels)[:10]}; "
            f"the server expects shape {wanted['shape']} and labels {labels[:10]}",
            hint="options such as size and label in node.toml, section [data], say how to read them",
        )
    place = np.array([labels.index(label) for label in dataset.labels], np.int64)
    train, test = (replace(split, y=place[split.y]) for split in (dataset.train, dataset.test))
    return replace(
        dataset,
        train=train,
        test=test,
        labels=tuple(labels),
        mean=tuple(wanted["mean"]),
        std=tuple(wanted["std"]),
        augment=wanted["augment"],
    )


def _alone(spec: RunSpec) -> RunSpec:
    """The same run in a world with one client: to build the model in, not to be played."""
    partition = spec.data.partition.model_copy(update={"name": "iid", "params": {}})
    return spec.model_copy(
        update={"data": spec.data.model_copy(update={"clients": 1, "partition": partition, "held_out": 0})}
    )


def _address(words: Mapping[str, Any], client: int) -> tuple[str, int, int]:
    """Of which run and round a message is, and which round of this client was counted last."""
    run, t, acks = words.get("run"), words.get("t"), words.get("acks")
    if not isinstance(run, str) or type(t) is not int or not isinstance(acks, list) or client >= len(acks):
        raise Refused("malformed", f"no message for client {client} in a round")
    counted = acks[client]
    if type(counted) is not int or not NEVER <= counted <= t:
        raise Refused("malformed", f"round {str(counted)[:20]} cannot have been counted in round {t}")
    return run, t, counted


def _downlink(tensors: Mapping[str, Tensor], size: int) -> Downlink:
    w, lr = tensors.get("w"), tensors.get("lr")
    if w is None or w.shape != (size,) or not w.is_floating_point() or lr is None or lr.ndim or lr.dtype != w.dtype:
        raise Refused("malformed", f"not a model of {size} numbers and a learning rate")
    return Downlink(w, lr, {name.removeprefix(EXTRA): x for name, x in tensors.items() if name.startswith(EXTRA)})
