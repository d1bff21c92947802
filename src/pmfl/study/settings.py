"""What a run's specification says of a dotted key of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def look_up(spec: Mapping[str, Any], key: str) -> Any:
    """The value a dotted key of a study has in a run's specification; None where it does not apply."""
    if key.startswith("method."):
        name = spec["method"]["name"]
        word = key.removeprefix(f"method.{name}.")
        return None if word == key else spec["method"]["params"].get(word)
    here: Any = spec
    for word in key.split("."):
        if not isinstance(here, Mapping):
            return None
        if word in here:
            here = here[word]
        elif "params" in here:
            here = here["params"].get(word)
        else:  # `participation.cycle` is a parameter of the pattern
            here = here.get("pattern", {}).get("params", {}).get(word)
    return here


def setting_of(spec: Mapping[str, Any], key: str, swept: Sequence[Any]) -> Any:
    """A scalar that says which of the swept values a run has."""
    value = look_up(spec, key)
    if not isinstance(value, Mapping):
        return value
    for given in swept:
        if isinstance(given, Mapping) and given.get("name") == value["name"]:
            own = {word: v for word, v in given.items() if word != "name"}
            if all(value["params"].get(word) == v for word, v in own.items()):
                return " ".join([value["name"], *(f"{word}={plain(v)}" for word, v in own.items())])
    return value["name"]


def plain(value: Any) -> str:
    """A setting's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)
