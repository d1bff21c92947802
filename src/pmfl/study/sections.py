"""What a study file may say of the paper: the artefact it stands for, its claims, its scales and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pmfl.core.params import Size
from pmfl.errors import SpecError
from pmfl.study.expression import Expression, Measure, parse, parse_measure
from pmfl.study.names import problems

MEASURED = ("top5_mean(test/accuracy)", "last10_mean(test/accuracy)", "final(test/accuracy)")

ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5}

Word = Literal["top5_mean", "last10_mean", "final"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class PrintedCell(NamedTuple):
    """One number of the paper: for which settings, of which curve."""

    where: Mapping[str, Any]
    curve: str
    value: float


class Printed(_Part):
    """A table of the paper: a row begins with the values of ``rows``; each of ``values`` has a number per curve."""

    rows: tuple[str, ...]  # keys whose values begin each row
    columns: str  # the key that goes across
    values: tuple[Any, ...]  # its values
    curves: tuple[str, ...]  # what is printed for each of them: split/metric, in percent
    table: tuple[tuple[Any, ...], ...]

    @model_validator(mode="after")
    def _complete(self) -> Printed:
        wanted = len(self.rows) + len(self.values) * len(self.curves)
        for row in self.table:
            if len(row) != wanted:
                raise ValueError(f"row {list(row)} has {len(row)} entries, and {wanted} are needed")
        return self

    @property
    def cells(self) -> list[PrintedCell]:
        """The numbers one by one, as shares."""
        across = [(value, curve) for value in self.values for curve in self.curves]
        return [
            PrintedCell({**dict(zip(self.rows, row, strict=False)), self.columns: value}, curve, float(number) / 100)
            for row in self.table
            for (value, curve), number in zip(across, row[len(self.rows) :], strict=True)
        ]


class Artefact(_Part):
    """The section [paper]: what of the paper a study stands for."""

    artefact: str  # "Table I", "Figure 6"; or "beyond the paper"
    label: str = ""  # its label in the LaTeX
    shows: str  # what is seen on it
    where: str = ""  # the section it belongs to
    data: tuple[str, ...] = ()  # the data sets it needs
    instead: tuple[str, ...] = ()  # others on which it can be shown
    needs: Literal["training", "world", "clock"] = "training"  # what makes its numbers
    measure: Word = "top5_mean"  # the summary that the paper prints
    measures: tuple[str, ...] = MEASURED  # what is shown of each setting
    printed: Printed | None = None
    remark: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """Where it comes among the others: tables, figures, then what is beyond the paper."""
        kind, _, number = self.artefact.partition(" ")
        place = {"Table": 0, "Figure": 1}.get(kind, 2)
        return place, ROMAN.get(number, int(number) if number.isdigit() else 0) if place < 2 else 0

    @property
    def measured(self) -> tuple[Measure, ...]:
        """What is shown of each setting."""
        return tuple(parse_measure(text, f"{self.artefact}: measures") for text in self.measures)


class Claim(_Part):
    """One of [[claims]]: a sentence, and how it is checked."""

    id: str
    says: str  # the paper's words
    where: str = ""  # in the paper, if not where the artefact is
    check: str
    remark: str = ""  # where our reading differs, or the paper's own numbers do

    @property
    def expression(self) -> Expression:
        """What is checked."""
        return parse(self.check, f"claim {self.id}")


class Smaller(_Part):
    """A part of [scale]: what one scale does with this study beyond the rule."""

    rounds: Size | None = None
    seeds: Size | None = None
    clients: Size | None = None
    set: dict[str, Any] = {}


class Scales(_Part):
    """The section [scale]."""

    half: Smaller = Smaller()
    small: Smaller = Smaller()
    tiny: Smaller = Smaller()


class Report(_Part):
    """The section [report]: the figure a study is shown by, and the number it is judged by."""

    figure: str = ""
    value: str = ""
    reference: str = ""  # the method that the others are compared with; the first, if none is named
    rare_clients: str = ""  # the method whose participation bias the others are compared with; none: it is not shown


Section = TypeVar("Section", bound=_Part)


def check_sections(given: Mapping[str, Any], where: str) -> None:
    """Raise ``SpecError`` for what a study file cannot mean."""
    for name, kind in (("paper", Artefact), ("scale", Scales), ("report", Report)):
        if given.get(name):
            found = read(kind, given[name], f"{where}: [{name}]")
            if isinstance(found, Artefact):
                for text in found.measures:
                    parse_measure(text, f"{where}: [paper] measures")
    seen: set[str] = set()
    claims = given.get("claims", [])
    if not isinstance(claims, list):
        raise SpecError(f"{where}: `claims` = {claims!r} should be a list of tables", hint="write [[claims]]")
    for number, claim in enumerate(claims, 1):
        found = read(Claim, claim, f"{where}: claim {number}")
        if found.id in seen:
            raise SpecError(f"{where}: two claims are called `{found.id}`", hint="give each its own id", code="S118")
        seen.add(found.id)
        parse(found.check, f"{where}: claim {found.id}")


def read(kind: type[Section], given: Any, place: str) -> Section:
    """A section as what it stands for."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        takes = ", ".join(kind.model_fields)
        raise SpecError(f"{place}: {problems(error)}", hint=f"it takes {takes}", code="S118") from None
