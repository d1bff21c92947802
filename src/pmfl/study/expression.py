"""The language in which a claim can be checked: what is measured, which settings are compared, and where.

    top5_mean(test/accuracy): pmfl > fedau, mifa for each pattern
    top5_mean(test/accuracy): [cutoff=50] > [cutoff=200] by 1 points where beta=0.1
    final(test/accuracy): pmfl[alpha=0.5] = pmfl-hgm[alpha=0.5] within 0.5 points for each beta
    share(accuracy >= 0.8): pmfl > 0.5
    late_mean(weight/mean): pmfl in 20 .. 24

A comparison is made seed by seed, of every setting on the left with every one on the right, in every combination of
the keys after ``for each``. A setting is a method, with conditions in brackets; a key may be cut to its last words; a
value of several words stands in 'single quotes'.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from pmfl.errors import SpecError, did_you_mean

T = TypeVar("T")
Value: TypeAlias = str | float | bool
Relation: TypeAlias = Literal[">", "<", "=", "in"]

# What becomes of one run's records: curves are given as split/metric, clients by a metric alone.
OF_CURVES = (
    *("top5_mean", "last10_mean", "final", "mean", "late_mean", "late_median", "lowest", "highest"),
    *("fluctuation", "settling", "at_budget"),
)
OF_CLIENTS = ("share", "spread", "correlation")
OVER_SEEDS = ("range_of_final",)
MEASURES = (*OF_CURVES, *OF_CLIENTS, *OVER_SEEDS)

_TOKEN = re.compile(r"\s*(?:(-?\d+(?:\.\d+)?)|([A-Za-z_]\w*(?:[./-]\w+)*)|('[^']+'|\.\.|>=|<=|[>=<,:()\[\]|]))")
_UNITS = {"points": 0.01, "percent": 0.01}


class Condition(NamedTuple):
    """A key, and the values it may have."""

    key: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Measure:
    """How one run becomes a number."""

    name: str
    of: str  # split/metric, or a metric of clients
    limit: tuple[str, float] | None = None  # share(accuracy >= 0.8)
    other: str = ""  # correlation(accuracy, weight)

    def __str__(self) -> str:
        if self.limit:
            return f"{self.name}({self.of} {self.limit[0]} {self.limit[1]:g})"
        return f"{self.name}({self.of}{', ' * bool(self.other)}{self.other})"


@dataclass(frozen=True)
class Selector:
    """A setting: a method, if it is named, and conditions."""

    method: str
    where: tuple[Condition, ...]

    def __str__(self) -> str:
        said = ", ".join(f"{key}={'|'.join(map(_said, values))}" for key, values in self.where)
        return self.method + (f"[{said}]" if said else "")


@dataclass(frozen=True)
class Expression:
    """A checkable claim."""

    measure: Measure
    left: tuple[Selector, ...]
    relation: Relation
    right: tuple[Selector, ...] = ()  # empty: compared with numbers
    low: float = 0.0  # the number itself; or the ends of ``in low .. high``
    high: float = 0.0
    margin: float = 0.0  # by, or within
    where: tuple[Condition, ...] = ()
    each: tuple[str, ...] = ()


def parse(text: str, place: str = "claim") -> Expression:
    """Read a claim, or say where it cannot be read.

    >>> str(parse("final(test/accuracy): pmfl > fedau").left[0])
    'pmfl'
    """
    return _Reader(text, place).expression()


def parse_measure(text: str, place: str = "measure") -> Measure:
    """Read what is measured alone, as in ``top5_mean(test/accuracy)``."""
    return _Reader(text, place).measure()


class _Reader:
    """One pass over the words; every method reads what it is named after."""

    def __init__(self, text: str, place: str) -> None:
        self.text, self.place, self.at = text, place, 0
        self.words: list[tuple[str, int]] = []
        end = 0
        while text[end:].strip():
            found = _TOKEN.match(text, end)
            if found is None:
                raise self._wrong("a word, a number or one of > < = , : ( ) [ ] ..", len(text[:end].rstrip()) + 1)
            self.words.append((found[0].strip(), found.end() - len(found[0].strip())))
            end = found.end()

    def expression(self) -> Expression:
        """The whole claim."""
        measure = self.measure()
        self._take(":")
        left = self._list(self._selector)
        relation = self._one_of(">", "<", "=", "in")
        right: tuple[Selector, ...] = ()
        low = high = margin = 0.0
        if relation == "in":
            low = self._number()
            self._take("..")
            high = self._number()
            if not low < high:
                raise self._wrong(f"a range that is not empty, not {low:g} .. {high:g}")
        elif self._is_number():
            low = high = self._number()
        else:
            right = self._list(self._selector)
        if relation == "=":
            self._take("within")
            margin = self._number()
        elif right and self._next() == "by":
            self._take("by")
            margin = self._number()
        where = self._conditions() if self._skip("where") else ()
        each: tuple[str, ...] = ()
        if self._skip("for"):
            self._take("each")
            each = self._list(self._name)
        if self.at < len(self.words):
            raise self._wrong("`by`, `where`, `for each` or the end")
        return Expression(measure, left, relation, right, low, high, margin, where, each)  # type: ignore[arg-type]

    def measure(self) -> Measure:
        """What is measured."""
        name = self._name()
        if name not in MEASURES:
            raise SpecError(
                f"{self.place}: there is no measure `{name}`", hint=did_you_mean(name, MEASURES), code="S150"
            )
        self._take("(")
        of, limit, other = self._name(), None, ""
        if (name in OF_CLIENTS) == ("/" in of and name != "correlation"):
            given = "split/metric, as in test/accuracy" if "/" not in of else "a metric of clients, as in accuracy"
            raise SpecError(f"{self.place}: {name}({of}) should be of {given}", hint=self.text, code="S150")
        if name == "share":
            limit = (self._one_of(">=", "<="), self._number())
        elif name == "correlation":
            self._take(",")
            other = self._name()
        self._take(")")
        return Measure(name, of, limit, other)

    def _selector(self) -> Selector:
        if self._next() == "[":
            return Selector("", self._bracketed())
        method = self._name()
        return Selector(method, self._bracketed() if self._next() == "[" else ())

    def _bracketed(self) -> tuple[Condition, ...]:
        self._take("[")
        found = self._conditions()
        self._take("]")
        return found

    def _conditions(self) -> tuple[Condition, ...]:
        return self._list(self._condition)

    def _condition(self) -> Condition:
        key = self._name()
        self._take("=")
        values = [self._value()]
        while self._skip("|"):
            values.append(self._value())
        return Condition(key, tuple(values))

    def _value(self) -> Value:
        if self._is_number():
            return self._number()
        if self._next().startswith("'"):
            return self._pop().strip("'")
        word = self._name()
        return {"true": True, "false": False}.get(word, word)

    def _list(self, one: Callable[[], T]) -> tuple[T, ...]:
        found = [one()]
        while self._skip(","):
            found.append(one())
        return tuple(found)

    def _number(self) -> float:
        if not self._is_number():
            raise self._wrong("a number")
        number = float(self._pop())
        return number * _UNITS[self._pop()] if self._next() in _UNITS else number

    def _is_number(self) -> bool:
        return re.fullmatch(r"-?\d+(\.\d+)?", self._next()) is not None

    def _name(self) -> str:
        if not re.match(r"[A-Za-z_]", self._next()):
            raise self._wrong("a name")
        return self._pop()

    def _one_of(self, *words: str) -> str:
        if self._next() not in words:
            raise self._wrong(" or ".join(f"`{word}`" for word in words))
        return self._pop()

    def _take(self, word: str) -> None:
        self._one_of(word)

    def _skip(self, word: str) -> bool:
        if self._next() != word:
            return False
        self._pop()
        return True

    def _next(self) -> str:
        return self.words[self.at][0] if self.at < len(self.words) else ""

    def _pop(self) -> str:
        self.at += 1
        return self.words[self.at - 1][0]

    def _wrong(self, expected: str, column: int | None = None) -> SpecError:
        if column is None:
            column = self.words[self.at][1] + 1 if self.at < len(self.words) else len(self.text) + 1
        return SpecError(
            f"{self.place}: {expected} is expected at character {column}\n  {self.text}\n  {' ' * (column - 1)}^",
            hint="e.g. top5_mean(test/accuracy): pmfl > fedau for each participation.pattern",
            code="S150",
        )


def _said(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else value
