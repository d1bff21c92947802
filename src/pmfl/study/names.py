"""From a name in a file to a function, and from its signature to checked parameters.

A name is one of ours, `package.module:function`, or `./file.py:function`. Its keyword-only arguments are its
configuration: there is no second list of names, types and defaults.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from pmfl.errors import SpecError, did_you_mean

Kind = Literal["method", "partition", "pattern", "model", "dataset"]


@dataclass(frozen=True)
class Parameter:
    """One keyword argument of a named function."""

    name: str
    type: str
    default: Any
    text: str


def built_in(kind: Kind) -> Mapping[str, Any]:
    """Our own names of a kind: functions, or where to import them from."""
    if kind == "method":
        from pmfl.methods import BUILT_IN

        return BUILT_IN
    if kind == "partition":
        from pmfl.world.partition import PARTITIONS

        return PARTITIONS
    if kind == "pattern":
        from pmfl.world.participation import PATTERNS

        return PATTERNS
    if kind == "model":
        from pmfl.world.networks import MODELS

        return MODELS
    return {}


def resolve(kind: Kind, name: str) -> Callable[..., Any]:
    """The function a name stands for."""
    found = built_in(kind).get(name, name if ":" in name else None)
    if found is None:
        own = "or name your own as `package.module:function` or `./file.py:function`"
        hint = f"{did_you_mean(name, built_in(kind))}; {own}"
        raise SpecError(f"there is no {kind} `{name}`", hint=hint, code="S101")
    if not isinstance(found, str):
        return typing.cast("Callable[..., Any]", found)
    place, _, attribute = found.rpartition(":")
    module = _import(kind, place)
    function = getattr(module, attribute, None)
    if not callable(function):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise SpecError(f"{kind} `{name}`: {place} has no function `{attribute}`", hint=did_you_mean(attribute, names))
    return typing.cast("Callable[..., Any]", function)


def fingerprint(kind: Kind, name: str) -> str:
    """A hash of the source of a user's own function's file; empty for ours, whose version is the package's."""
    if name in built_in(kind) or ":" not in name:
        return ""
    file = inspect.getsourcefile(resolve(kind, name))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file else ""


@functools.lru_cache(maxsize=256)
def parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The keyword-only arguments of a function, with what its docstring says of each."""
    hints = typing.get_type_hints(function, include_extras=True)
    texts = dict(re.findall(r"^\s*(\w+): (.+)$", inspect.getdoc(function) or "", flags=re.MULTILINE))
    return tuple(
        Parameter(p.name, _type_name(hints.get(p.name, Any)), p.default, texts.get(p.name, ""))
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    )


def bind(kind: Kind, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of the named function: those given, checked against its signature, and its defaults."""
    function = resolve(kind, name)
    known = {p.name: p.default for p in parameters(function)}
    for word in given:
        if word not in known:
            accepts = ", ".join(known) or "no parameters"
            raise SpecError(
                f"{kind} `{name}` has no parameter `{word}`\n"
                f"  given:    {word} = {given[word]!r}\n"
                f"  accepts:  {accepts}",
                hint=did_you_mean(word, known) if known else f"leave `{word}` out",
                code="S104",
            )
    schema = _schema(name, function)
    try:
        bound = schema.model_validate(dict(given))
    except ValidationError as error:
        takes = "; ".join(f"{p.name}: {p.type}" for p in parameters(function))
        raise SpecError(f"{kind} `{name}`: {problems(error)}", hint=f"it takes {takes}", code="S105") from None
    return {word: getattr(bound, f"{word}_") for word in known}


@functools.lru_cache(maxsize=256)
def _schema(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    """What checks a function's keyword arguments; making one takes far longer than using it."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        f"{p.name}_": (
            hints.get(p.name, Any),
            Field(alias=p.name) if p.default is inspect.Parameter.empty else Field(p.default, alias=p.name),
        )
        for p in parameters(function)
    }
    return create_model(name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False, strict=False), **fields)


def problems(error: ValidationError) -> str:
    """What pydantic found, one line each, in words."""
    lines = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"] if not str(part).startswith(("function-", "literal[")))
        lines.append(f"{place} = {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}")
    return "\n  ".join(lines)


def _import(kind: Kind, place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        file = Path(place).resolve()
        spec = importlib.util.spec_from_file_location(f"pmfl_user_{file.stem}", file)
        if spec is None or spec.loader is None or not file.is_file():
            raise SpecError(
                f"{kind}: there is no file {place}", hint="give a path relative to where you are", code="S102"
            )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except SpecError:
        raise
    except Exception as error:  # whatever a user's file raises while it is imported
        raise SpecError(
            f"{kind}: importing {place} failed: {type(error).__name__}: {error}",
            hint="it is imported as plain Python: try `python -c 'import …'`",
            code="S103",
        ) from error


def _type_name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        limits = [
            f"{sign} {getattr(limit, word)}"
            for limit in arguments[1:]
            for word, sign in _LIMITS.items()
            if hasattr(limit, word)
        ]
        return " ".join([_type_name(arguments[0]), *limits])
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if arguments:
        return " | ".join(map(_type_name, arguments))
    return getattr(hint, "__name__", str(hint))


_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
