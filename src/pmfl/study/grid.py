"""A study file, and the runs it stands for: the product of what it sweeps, over a base."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from pmfl.errors import SpecError, did_you_mean
from pmfl.study.sections import Artefact, Claim, check_sections, read
from pmfl.study.spec import RunSpec, known_keys, run_spec

SECTIONS = ("id", "title", "claim", "extends", "base", "sweep", "method", "case", "scale", "report", "paper", "claims")
TABLES = ("base", "sweep", "method", "scale", "report", "paper")
INHERITED = ("base", "method", "scale")  # what a study takes from the one it extends, besides its cases


@dataclass(frozen=True)
class Study:
    """A question: what is fixed, what is varied, and how the answer is laid out.

    >>> study = Study("mine", base={"training": {"rounds": 20}}, sweep={"method": ["pmfl", "fedavg"], "seed": [0, 1]})
    >>> len(study.runs)
    4
    """

    id: str
    base: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # dotted key -> values
    method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # parameters by method name
    report: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    claim: str = ""
    case: Sequence[Mapping[str, Any]] = ()  # {"if": {key: value}, "set": {key: value}}: what follows from what is swept
    scale: Mapping[str, Any] = field(default_factory=dict)  # how the study is made smaller
    paper: Mapping[str, Any] = field(default_factory=dict)  # the artefact it stands for, and its printed numbers
    claims: Sequence[Mapping[str, Any]] = ()  # sentences with checkable expressions

    @property
    def runs(self) -> list[RunSpec]:
        """Every run of the study once, in the order of the sweep."""
        found: dict[str, RunSpec] = {}
        for values in itertools.product(*self.sweep.values()):
            given = _merge({"method": RunSpec().method.name}, self.base)
            parameters = {name: dict(params) for name, params in self.method.items()}
            for key, value in zip(self.sweep, values, strict=True):
                _set(given, parameters, key, value)
            for case in self.case:
                if all(_is(given, key, value) for key, value in case["if"].items()):
                    for key, value in case["set"].items():
                        if key not in self.sweep:  # what is swept is meant as it stands
                            _set(given, parameters, key, value)
            spec = run_spec(_with_parameters(given, parameters), f"study {self.id}")
            found.setdefault(spec.question_id, spec)
        return list(found.values())

    @property
    def artefact(self) -> Artefact | None:
        """What of the paper it stands for, if anything."""
        return read(Artefact, dict(self.paper), f"study {self.id}: [paper]") if self.paper else None

    @property
    def checks(self) -> tuple[Claim, ...]:
        """Its claims that can be checked."""
        return tuple(read(Claim, dict(claim), f"study {self.id}: claim {i}") for i, claim in enumerate(self.claims, 1))


def load(name: str | Path, overrides: Sequence[str] = ()) -> Study:
    """A built-in study by name, or a TOML file, with ``key=value`` overrides applied."""
    given = _given(str(name))
    for override in overrides:
        _override(given, override)
    return Study(**given)


def overridden(given: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """What a single run is given, with ``key=value`` overrides applied: a sweep makes no sense there."""
    changed = _merge({}, given)
    for override in overrides:
        key, sign, text = (part.strip() for part in override.partition("="))
        if not sign or not key or not text:
            raise SpecError(f"--set {override}: expected key=value", hint="e.g. --set training.rounds=50", code="S115")
        _check_key(key, "--set")
        values = override_values(text)
        if len(values) > 1:
            raise SpecError(
                f"--set {override}: one value is expected here", hint="sweeps are for `pmfl run`", code="S117"
            )
        _put(changed, key, values[0])
    return changed


def built_in_studies() -> list[str]:
    """The names of the studies that come with pmfl."""
    folder = resources.files("pmfl") / "experiments"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def _given(name: str, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """A study file as checked plain values, with what it takes from the study it extends."""
    text, where = _read(name)
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{where}: {error}", hint="https://toml.io explains the format", code="S111") from None
    for section in given:
        if section not in SECTIONS:
            raise SpecError(f"{where}: unknown section `{section}`", hint=did_you_mean(section, SECTIONS), code="S112")
    for section in TABLES:
        if not isinstance(given.get(section, {}), dict):
            raise SpecError(f"{where}: `{section}` = {given[section]!r} should be a table", hint=f"write [{section}]")
    given.setdefault("id", Path(where).stem)
    for key, values in given.get("sweep", {}).items():
        if not isinstance(values, list) or not values:
            raise SpecError(f"{where}: sweep `{key}` = {values!r} should be a list of values", hint=f'"{key}" = [ … ]')
        _check_key(key, where)
    for case in given.get("case", []):
        _check_case(case, where)
    check_sections(given, where)
    other = given.pop("extends", None)
    if other is None:
        return given
    if not isinstance(other, str) or other in (*extended_by, where):
        raise SpecError(f"{where}: extends = {other!r}", hint="name one other study, which does not extend this one")
    theirs = _given(other, (*extended_by, where))
    for section in INHERITED:
        given[section] = _merge(_merge({}, theirs.get(section, {})), given.get(section, {}))
    given["case"] = [*theirs.get("case", []), *given.get("case", [])]
    return given


def _check_case(case: Any, where: str) -> None:
    if not isinstance(case, dict) or set(case) != {"if", "set"} or not all(isinstance(v, dict) for v in case.values()):
        raise SpecError(
            f"{where}: a case is {case!r}",
            hint='write [[case]] with if = { "key" = value } and set = { "key" = value }',
            code="S117",
        )
    for key in (*case["if"], *case["set"]):
        _check_key(key, where)


def _is(given: Mapping[str, Any], key: str, wanted: Any) -> bool:
    """Whether a run's dotted key has a value, or one of several; a named thing is told by its name."""
    here: Any = given
    for word in key.split("."):
        here = here.get(word) if isinstance(here, Mapping) else None
    if isinstance(here, Mapping):
        here = here.get("name")
    return here in wanted if isinstance(wanted, list) else bool(here == wanted)


def _read(name: str) -> tuple[str, str]:
    if name in built_in_studies():
        return (resources.files("pmfl") / "experiments" / f"{name}.toml").read_text("utf-8"), name
    file = Path(name)
    if file.suffix != ".toml" and not file.exists():
        raise SpecError(
            f"there is no study `{name}`",
            hint=f"{did_you_mean(name, built_in_studies())}; or give a TOML file",
            code="S113",
        )
    try:
        return file.read_text("utf-8"), name
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"{name} cannot be read: {reason}", hint="give the path of a TOML file", code="S114") from None


def _override(given: dict[str, Any], override: str) -> None:
    """``a.b=value`` or ``a.b=v1,v2``: replaces what the study says of the key, swept or not."""
    key, sign, text = override.partition("=")
    key = key.strip()
    if not sign or not key or not text.strip():
        raise SpecError(f"--set {override}: expected key=value", hint="e.g. --set training.rounds=50", code="S115")
    _check_key(key, "--set")
    values = override_values(text.strip())
    sweep, base = given.setdefault("sweep", {}), given.setdefault("base", {})
    for swept in [other for other in sweep if other == key or other.startswith(f"{key}.")]:
        # Parameters of methods stay swept when only the methods are exchanged.
        if not (key == "method" and swept != "method"):
            del sweep[swept]
    given["case"] = [
        {**case, "set": {k: v for k, v in case["set"].items() if k != key and not k.startswith(f"{key}.")}}
        for case in given.get("case", [])
    ]
    if len(values) > 1:
        sweep[key] = values
    elif key.startswith("method."):
        _put(given.setdefault("method", {}), key.removeprefix("method."), values[0])
    else:
        _put(base, key, values[0])


def override_values(text: str) -> list[Any]:
    """The value or values of an override: TOML where it is TOML, else words."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        return value if isinstance(value, list) and value else [value]
    except tomllib.TOMLDecodeError:
        parts = text.split(",")
        return [override_values(part.strip())[0] for part in parts] if len(parts) > 1 else [text]


def _check_key(key: str, where: str) -> None:
    """Refuse a key that no study could mean; parameters of named things are checked where they are bound."""
    named = ("data.partition.", "participation.", "training.model.", "method.")
    if key not in known_keys() and not key.startswith(named):
        raise SpecError(f"{where}: unknown key `{key}`", hint=did_you_mean(key, known_keys()), code="S116")


def _with_parameters(given: dict[str, Any], parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The run's own method with its parameters; those of other methods do not concern it."""
    method = given["method"]
    if isinstance(method, str):
        method = {"name": method}
    if isinstance(method, dict) and isinstance(method.get("name"), str):
        given["method"] = {**method, **parameters.get(method["name"], {})}
    return given


def _set(given: dict[str, Any], parameters: dict[str, Any], key: str, value: Any) -> None:
    """What a dotted key means for a run: a parameter of a method, or a part of its specification."""
    if key.startswith("method."):
        _put(parameters, key.removeprefix("method."), value)
    else:
        _put(given, key, value)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a plain name on the way becomes a table with that name."""
    *path, last = key.split(".")
    for word in path:
        inner = tree.get(word)
        inner = {"name": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, Mapping) else {}
        tree[word] = inner
        tree = inner
    if isinstance(value, str) and isinstance(tree.get(last), Mapping):
        value = {"name": value}  # another partition, pattern or model: the old one's parameters do not fit it
    tree[last] = value


def _merge(into: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in given.items():
        nested = isinstance(value, Mapping)
        if nested and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            _put(into, key, _merge({}, value) if nested else value)
    return into
