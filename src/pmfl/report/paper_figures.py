"""The figures of the paper, and those of the studies beyond it, by kind; a study names its own in ``[report] figure``.

Each is a function from the answers to a study to plates. What a study does not name, it gets as ``finals``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pmfl.errors import SpecError, did_you_mean
from pmfl.report.paper_accuracy import cells, convergence, finals, levels, stability, steadiness
from pmfl.report.paper_clients import deviations, node_cdfs
from pmfl.report.paper_costs import clock, computation, cutoff_bias
from pmfl.report.paper_world import patterns, twenty_clients, weights
from pmfl.report.plates import COLUMN, PAGE, Plate
from pmfl.report.style import save

if TYPE_CHECKING:
    from pmfl.study.answers import Answers
    from pmfl.study.grid import Study

FIGURES: dict[str, Callable[[Answers], list[Plate]]] = {
    "finals": finals,  # a dot and an interval per setting
    "levels": levels,  # accuracy against one setting
    "cells": cells,  # accuracy against two
    "convergence": convergence,  # accuracy by round
    "fluctuation": steadiness,  # from one evaluation to the next
    "stability": stability,  # over repetitions
    "deviation": deviations,  # of updates
    "clients": node_cdfs,  # the final model on each client's own data
    "weights": weights,  # aggregation weights by round; no training
    "twenty-clients": twenty_clients,  # class distributions and rates; no training
    "patterns": patterns,  # of participation; no training
    "computation": computation,  # accuracy against client operations
    "clock": clock,  # seconds of training and of aggregation; no training
    "cutoff-bias": cutoff_bias,  # accuracy and lost influence against the cutoff
}
FORMS = (".svg", ".pdf", ".png", ".html")  # of a page's width
IN_COLUMN = (".svg", ".pdf")  # of a column's


def kinds_of(study: Study) -> list[str]:
    """The kinds of figures a study names, or ``finals``."""
    given = str(study.report.get("figure") or "finals")
    kinds = [word.strip() for word in given.split(",")]
    for kind in kinds:
        if kind not in FIGURES:
            raise SpecError(
                f"study {study.id}: report.figure = {kind!r} is not known",
                hint=did_you_mean(kind, FIGURES),
                code="S142",
            )
    return kinds


def plates_of(answers: Answers) -> list[Plate]:
    """The figures of a study, each with its own name; none where nothing is finished."""
    found = {plate.name: plate for kind in kinds_of(answers.study) for plate in FIGURES[kind](answers)}
    return list(found.values())


def write_figures(answers: Answers, to: Path, forms: Sequence[str] = FORMS, stem: str = "") -> list[Path]:
    """Write a study's figures into a folder: for a page's width in every form, for a column's as SVG and PDF."""
    written = []
    for plate in plates_of(answers):
        name = f"{stem or answers.study.id}-{plate.name}"
        written += [save(plate.chart(PAGE), to / f"{name}{form}") for form in forms]
        written += [save(plate.chart(COLUMN), to / f"{name}-column{form}") for form in IN_COLUMN if form in forms]
    return written
