"""The studies that come with pmfl: every artefact of the paper has one, and each says only what its runs can show."""

from __future__ import annotations

import pytest

from pmfl.study.claims import verify
from pmfl.study.grid import built_in_studies, load
from pmfl.study.papers import artefacts
from pmfl.study.scales import SCALES, Scale, scaled, specs
from pmfl.study.sections import ROMAN

FIGURES = 14


def test_every_table_and_figure_of_the_paper_has_a_study() -> None:
    found = [load(name).paper["artefact"] for name in artefacts()]
    assert {f"Table {roman}" for roman in ROMAN} | {f"Figure {n}" for n in range(1, FIGURES + 1)} <= set(found)
    assert found[:5] == [f"Table {roman}" for roman in ROMAN]
    assert found.count("beyond the paper") >= 10


@pytest.mark.parametrize("name", artefacts())
def test_a_study_of_the_paper_is_complete(name: str) -> None:
    study = load(name)
    assert study.title
    assert study.claim
    assert study.artefact is not None
    assert study.checks, "no claim to check"
    assert study.report["figure"]
    if study.artefact.order[0] < 2:
        assert study.artefact.label, "not tied to the paper's LaTeX"
    verify(study)
    data = {spec.data.dataset for spec in study.runs}
    assert data == set(study.artefact.data)


@pytest.mark.parametrize("name", artefacts())
def test_what_a_study_prints_is_of_settings_that_it_has(name: str) -> None:
    from pmfl.study.answers import gather
    from pmfl.study.evidence import Evidence

    study = load(name)
    evidence = Evidence(gather(study, []))
    wanted = len(study.artefact.printed.cells) if study.artefact and study.artefact.printed else 0
    curves = {measure.of for measure in evidence.artefact.measured if measure.name == evidence.artefact.measure}
    shown = {
        (i, curve)
        for i, line in enumerate(evidence.lines)
        for curve in curves
        if evidence.printed_of(line.values, curve)
    }
    assert len(shown) >= wanted


@pytest.mark.parametrize("scale", SCALES)
def test_scales_only_make_smaller(scale: Scale) -> None:
    for name in artefacts():
        study = load(name)
        full, small = specs(scaled(study, "full"), "full"), specs(scaled(study, scale), scale)
        assert 0 < len(small) <= len(full)
        assert max(spec.training.rounds for spec in small) <= max(spec.training.rounds for spec in full)
        if scale == "tiny":
            assert {spec.data.dataset for spec in small} == {"digits"}
            assert max(spec.training.rounds for spec in small) <= 400


def test_what_is_swept_wins_over_cases() -> None:
    models = {spec.training.model.params["projection"] for spec in load("projection").runs}
    assert models == {"hidden", "moon"}
    assert len(load("projection").runs) == 18


def test_figures_share_the_runs_of_tables() -> None:
    table = {spec.question_id for spec in load("table1").runs}
    for name in ("convergence", "nodes-cdf", "computation"):
        assert {spec.question_id for spec in load(name).runs} <= table
    buffers = {spec.question_id for spec in load("buffers").runs}
    mine = {spec.question_id for spec in load("fluctuation").runs if spec.participation.mean == 0.1}
    assert mine <= buffers
    assert table & buffers


def test_built_in_studies_can_be_played() -> None:
    for name in built_in_studies():
        assert load(name).runs
