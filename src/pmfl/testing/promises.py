"""What each rule promises to return, looked at the moment it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pmfl.core.method import Method
from pmfl.core.types import Downlink, Uplink, Vector
from pmfl.errors import MethodError
from pmfl.testing.compare import describe, listed, shapes
from pmfl.testing.spy import CALLS, spied


def strict(method: Method) -> Method:
    """The same method, refusing any result that breaks the contract of its rule."""

    def around(name: str, rule: Callable[..., Any], /, *given: Any) -> Any:
        result = rule(*given)
        if name in PROMISES:
            PROMISES[name](name, result, given)
        return result

    return spied(method, around)


def _downlink(name: str, sent: Any, given: tuple[Any, ...]) -> None:
    _expect(isinstance(sent, Downlink), name, f"returned a {type(sent).__name__}", "return Downlink(w, lr, extra)")
    expect_vector(f"{name}: w", sent.w, like=given[1])
    _expect_scalar(f"{name}: lr", sent.lr)
    _expect(
        isinstance(sent.extra, dict) and all(isinstance(value, Tensor) for value in sent.extra.values()),
        f"{name}: extra",
        f"is not a dict of tensors: {listed(shapes(sent.extra, 'extra').values())}",
        "send {} or {name: tensor}",
    )


def _loss(name: str, result: Any, given: tuple[Any, ...]) -> None:
    value, scalars = _pair(name, result)
    _expect_scalar(f"{name}: the loss", value)
    # Under a transform the graph is the transform's own, and not to be seen from here.
    if given[1].w.requires_grad:
        _expect(value.requires_grad, name, "the loss does not depend on local.w", "look for detach() or no_grad()")
    _expect(isinstance(scalars, Mapping), f"{name}: scalars", f"is a {type(scalars).__name__}", "return {} or a dict")
    for key, scalar in scalars.items():
        _expect_scalar(f"{name}: scalar {key!r}", scalar)
        _expect(not scalar.requires_grad, f"{name}: scalar {key!r}", "carries its gradient graph", "add .detach()")


def _step(name: str, result: Any, given: tuple[Any, ...]) -> None:
    expect_vector(f"{name}: w", _pair(name, result)[0], like=given[1].sent.w)


def _reply(name: str, uplink: Any, given: tuple[Any, ...]) -> None:
    _expect(isinstance(uplink, Uplink), name, f"returned a {type(uplink).__name__}", f"as in {CALLS[name]}")
    for part in ("vector", "update"):
        expect_vector(f"{name}: {part}", getattr(uplink, part), like=given[1].sent.w)
    for key, scalar in uplink.scalars.items():
        _expect_scalar(f"{name}: scalar {key!r}", scalar)


def _chosen(name: str, result: Any, given: tuple[Any, ...]) -> None:
    chosen, available = _pair(name, result)[0], given[1]
    _expect(
        isinstance(chosen, Tensor) and chosen.dtype == torch.bool and chosen.shape == available.shape,
        f"{name}: chosen",
        f"is {describe(chosen)} for {len(available)} clients",
        f"return a mask, bool [{len(available)}], not client ids",
    )


def _weights(name: str, result: Any, given: tuple[Any, ...]) -> None:
    weights, (_, seen, now) = _pair(name, result)[0], given
    _expect(
        isinstance(weights, Tensor) and weights.shape == (now.clients,) and not weights.is_complex(),
        f"{name}: weights",
        f"is {describe(weights)} for {now.clients} clients",
        f"return one weight per client, [{now.clients}], whoever took part",
    )
    counted = weights.double()[seen.took_part].tolist()
    for wrong, what, hint in (
        ([not math.isfinite(value) for value in counted], "not finite", "mind a division by zero"),
        ([value < 0 for value in counted], "negative", "steps point downhill: weights are 0 or more"),
    ):
        bad = [(k, value) for k, value, is_bad in zip(seen.clients.tolist(), counted, wrong, strict=True) if is_bad]
        _expect(
            not bad,
            f"{name}: weights",
            f"of clients that took part are {what}: {listed(f'{value:g} (client {k})' for k, value in bad)}",
            hint,
        )


def _moved(name: str, result: Any, given: tuple[Any, ...]) -> None:
    expect_vector(f"{name}: w", _pair(name, result)[0], like=given[1])


def _shown(name: str, w: Any, given: tuple[Any, ...]) -> None:
    expect_vector(f"{name}: w", w, like=given[1])


PROMISES: dict[str, Callable[[str, Any, tuple[Any, ...]], None]] = {
    "client.loss": _loss,
    "client.step": _step,
    "client.reply": _reply,
    "select.apply": _chosen,
    "weigh.apply": _weights,
    "server.send": _downlink,
    "server.apply": _moved,
    "server.show": _shown,
}


def expect_vector(place: str, value: Any, *, like: Vector) -> None:
    """Refuse what is not a finite vector of the model's shape and precision, free of any gradient graph."""
    _expect(
        describe(value) == describe(like),
        place,
        f"is {describe(value)}",
        f"a model here is {describe(like)}; so is this",
    )
    _expect(not value.requires_grad, place, "carries its gradient graph along", "add .detach()")
    wrong = (~value.isfinite()).nonzero().flatten().tolist()
    _expect(not wrong, place, f"is not finite at {listed(wrong)}", "mind divisions, logarithms and roots of zero")


def _expect_scalar(place: str, value: Any) -> None:
    _expect(
        isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex(),
        place,
        f"is {describe(value)}",
        "make it a tensor without dimensions, e.g. by .mean() or torch.tensor(number)",
    )


def _pair(name: str, result: Any) -> tuple[Any, Any]:
    _expect(
        isinstance(result, tuple) and len(result) == 2, name, f"returned {describe(result)}", f"as in {CALLS[name]}"
    )
    return result[0], result[1]


def _expect(holds: bool, place: str, fault: str, hint: str) -> None:
    if not holds:
        raise MethodError(f"{place} {fault}", hint=hint)
