"""Stand between a method and whoever calls its rules: to watch, to name, to check."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from pmfl.core.method import ClientRule, Method, SelectRule, ServerRule, WeighRule
from pmfl.errors import MethodError, PmflError

PARTS = {"client": ClientRule, "select": SelectRule, "weigh": WeighRule, "server": ServerRule}

CALLS = {
    "client.init": "init(w) -> memory",
    "client.begin": "begin(model, local, batches) -> scratch",
    "client.loss": "loss(model, local, batch) -> (loss, scalars)",
    "client.step": "step(model, local, gradient) -> (w, scratch)",
    "client.reply": "reply(model, local, delta, check) -> Uplink(vector, memory, scalars, update)",
    "select.init": "init(clients) -> state",
    "select.apply": "apply(state, available, last, now) -> (chosen, state)",
    "weigh.init": "init(clients) -> state",
    "weigh.apply": "apply(state, seen, now) -> (weights, state)",
    "weigh.importance": "importance(state) -> [K] or None",
    "server.init": "init(w) -> state",
    "server.apply": "apply(state, w, step, seen, now) -> (w, state)",
    "server.send": "send(state, w, now) -> Downlink(w, lr, extra)",
    "server.show": "show(state, w) -> w",
}

RuleT = TypeVar("RuleT")


class Around(Protocol):
    """What is done instead of calling a rule; usually calls it."""

    def __call__(self, name: str, rule: Callable[..., Any], /, *given: Any) -> Any:
        """Stand in for ``rule(*given)``."""
        ...


def spied(method: Method, around: Around) -> Method:
    """The same method, with every call of a rule going through ``around(name, rule, *given)``."""
    return replace(method, **{part: _spied(part, getattr(method, part), around) for part in PARTS})


def _spied(part: str, rule: RuleT, around: Around) -> RuleT:
    functions = {field.name: getattr(rule, field.name) for field in fields(rule)}  # type: ignore[arg-type]
    changed = {
        name: partial(around, f"{part}.{name}", function) for name, function in functions.items() if callable(function)
    }
    return replace(rule, **changed)  # type: ignore[type-var]


def named(name: str, rule: Callable[..., Any], /, *given: Any) -> Any:
    """Call a rule; whatever it raises comes out as a ``MethodError`` that names the rule and the line."""
    try:
        return rule(*given)
    except PmflError:
        raise
    except Exception as error:
        raise MethodError(
            f"{name} raised {type(error).__name__}: {_first_lines(error)}{origin(error)}",
            hint=f"it is called as {CALLS[name]}",
        ) from error


def origin(error: BaseException) -> str:
    """Where an exception came from: the innermost line that is neither torch's nor the battery's."""
    mine = Path(__file__).parent.parts
    theirs = Path(torch.__file__).parent.parts
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts
        if parts[: len(mine)] != mine and parts[: len(theirs)] != theirs and not frame.filename.startswith("<"):
            return f" (at {parts[-1]}:{frame.lineno})"
    return ""


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
