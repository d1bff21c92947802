from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmfl.core.keys import Key
from pmfl.errors import SpecError, StoreError
from pmfl.report import gather
from pmfl.report.attendance import attended
from pmfl.report.figures import (
    BANDS,
    DOTS,
    accuracy_by_rate,
    accuracy_cdf,
    accuracy_curves,
    final_accuracy,
    save,
    weights_picture,
)
from pmfl.report.rasters import participation_picture
from pmfl.report.series import runs_of
from pmfl.report.series import settings as settings_of
from pmfl.report.style import COLOURS, INK, SHAPES, by_label, spec, svg, values
from pmfl.report.world_figures import by_hour, distributions, label_activity, label_order, label_picture, label_rates
from pmfl.study.grid import Study
from pmfl.study.store import Store


def parts(tree: Any, key: str) -> list[Any]:
    """All values under a key, anywhere in a specification."""
    if isinstance(tree, dict):
        own = [tree[key]] if key in tree else []
        return own + [found for inner in tree.values() for found in parts(inner, key)]
    return [found for inner in tree for found in parts(inner, key)] if isinstance(tree, list) else []


def rows_of(drawn: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows a layer draws."""
    rows: list[dict[str, Any]] = drawn["datasets"][(layer.get("data") or drawn["data"])["name"]]
    return rows


@pytest.fixture(scope="module")
def charts(store: Store, study: Study) -> dict[str, Any]:
    runs = runs_of(store, study)
    found = settings_of(study, runs)
    test, train = gather.curves(store, found)
    took = gather.took_part(store, runs[0])
    rows, marks = gather.weights(store, runs[0], "pmfl", took)
    fair = gather.fairness(store, found)
    finals = [{"panel": "", "label": s.label, "mean": 0.9, "low": 0.85, "high": 0.95} for s in found]
    mix = Key.root(0).numpy().dirichlet(np.full(10, 0.2), 80)
    return {
        "curves": accuracy_curves(test, train),
        "test only": accuracy_curves(test),
        "final": final_accuracy(finals, [{"panel": "", "label": "pmfl", "value": 0.9}]),
        "weights": weights_picture(rows, marks),
        "cdf": accuracy_cdf(fair),
        "rates": accuracy_by_rate(fair),
        "participation": participation_picture(attended(took), took.rates),
        "labels": label_picture(mix, tuple("it's a\\bcd"[:10])),
        "distributions": distributions(np.arange(80), np.linspace(0.02, 0.8, 80)),
        "label rates": label_rates((100 * mix).astype(np.int64), np.linspace(0.02, 0.8, 80), tuple("0123456789")),
        "hours": by_hour(np.array([0.1] * 20 + [np.nan] * 4)),
    }


NAMES = [
    "curves", "test only", "final", "weights", "cdf", "rates", "participation", "labels", "distributions",
    "label rates", "hours",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_is_valid_and_small(charts: dict[str, Any], name: str) -> None:
    chart = charts[name]
    chart.to_dict()  # validated by Altair
    picture = svg(chart, "f1", 'A & B "quoted" <words>')
    root = ET.fromstring(picture)
    assert root.attrib["aria-label"] == 'A & B "quoted" <words>'
    assert root.attrib["role"] == "img"
    assert len(picture) < 200_000
    assert float(root.attrib["width"]) < 900  # what overflows its frame makes a picture wider than the page
    assert INK not in picture
    assert "NaN" not in picture


def test_series_keep_their_look_wherever_they_appear() -> None:
    colours, shapes = by_label(list("abcdefghij"))
    assert len(set(zip(colours.to_dict()["range"], shapes.to_dict()["range"], strict=True))) == 10
    assert set(COLOURS) >= set(colours.to_dict()["range"])
    rows = [{"label": "b", "round": r, "mean": 0.1 * r, "each": 1, "end": 3} for r in (1, 2, 3)]
    drawn = spec(accuracy_curves(rows, labels=["a", "b"]))
    scale = next(found["scale"] for found in parts(drawn, "color") if isinstance(found, dict))
    assert dict(zip(scale["domain"], scale["range"], strict=True))["b"] == COLOURS[1]
    assert {tuple(found["values"]) for found in parts(drawn["layer"], "legend") if found} == {("b",)}


def test_train_is_dashed_and_test_is_solid(charts: dict[str, Any]) -> None:
    left, right = spec(charts["curves"])["hconcat"]
    lines = [
        [layer["mark"]["strokeDash"] for layer in side["layer"] if "strokeDash" in layer["mark"]]
        for side in (left, right)
    ]
    assert lines == [[[]], [[5, 3]]]
    assert left["layer"][0]["encoding"]["y"]["scale"] == right["layer"][0]["encoding"]["y"]["scale"]


def test_bands_are_left_out_where_there_are_too_many() -> None:
    def rows(n: int) -> list[dict[str, Any]]:
        row = {"mean": 0.5, "low": 0.4, "high": 0.6, "each": 4, "end": 9}
        return [{"label": str(i), "round": r, **row} for i in range(n) for r in (1, 5, 9)]

    marks = [[mark["type"] for mark in parts(spec(accuracy_curves(rows(n))), "mark")] for n in (BANDS, BANDS + 1)]
    assert ["area" in kinds for kinds in marks] == [True, False]
    assert "mean of 4 evaluations" in json.dumps(spec(accuracy_curves(rows(1))))


def test_marks_lie_on_their_lines(charts: dict[str, Any]) -> None:
    drawn = spec(charts["cdf"])
    line, marks = (rows_of(drawn, layer) for layer in drawn["layer"])
    assert all(mark in line for mark in marks)
    assert {mark["label"] for mark in marks} == {"pmfl", "fedau", "fedavg"}


def test_the_final_picture_has_a_panel_per_condition() -> None:
    rows = [
        {"panel": panel, "label": label, "mean": 0.5, "low": None, "high": None}
        for panel in ("alpha 0.1", "alpha 0.5", "alpha 1")
        for label in ("a", "b")
    ]
    drawn = spec(final_accuracy(rows, []))
    assert len(drawn["concat"]) == 3
    assert drawn["columns"] == 2
    assert {mark["text"] for mark in parts(drawn, "mark") if "text" in mark} == {"alpha 0.1", "alpha 0.5", "alpha 1"}


def test_scatters_are_thinned(charts: dict[str, Any]) -> None:
    rng = Key.root(0).numpy()
    many = gather.Fairness("a", rng.random(5000), rng.random(5000), np.zeros(5000, np.int64))
    drawn = spec(accuracy_by_rate([many]))
    assert 100 < len(rows_of(drawn, drawn["layer"][0])) <= DOTS
    assert len(spec(charts["rates"])["concat"]) == 3
    assert SHAPES[1] in json.dumps(spec(charts["rates"])["concat"][1])


def test_rare_participation_has_ticks_of_its_own() -> None:
    one = gather.Fairness("a", np.array([0.0, 0.01, 0.1]), np.array([0.5, 0.6, 0.7]), np.zeros(3, np.int64))
    (ticks,) = {tuple(axis["values"]) for axis in parts(spec(accuracy_by_rate([one])), "axis") if "values" in axis}
    assert ticks == (0, 0.01, 0.05, 0.1)


def test_a_picture_of_long_runs_stays_small_and_has_a_legend() -> None:
    rng = Key.root(0).numpy()
    here = rng.random((4000, 300)) < 0.05
    t, client = np.nonzero(here)
    chart = participation_picture(attended(gather.Took(t, client, *here.shape)))
    assert len(svg(chart, "f1", "")) < 300_000
    assert "share of rounds in which a client took part" in json.dumps(spec(chart))
    assert "area" in [mark["type"] for mark in parts(spec(chart), "mark") if isinstance(mark, dict)]


def test_names_inside_of_pictures_differ_within_a_page(charts: dict[str, Any]) -> None:
    first, second = (svg(charts["participation"], name, "") for name in ("f1", "f2"))
    ids = [{part.split('"')[0] for part in picture.split(' id="')[1:]} for picture in (first, second)]
    assert not ids[0] & ids[1]


def test_rows_are_read_back_where_a_chart_is_used_directly(charts: dict[str, Any]) -> None:
    import vl_convert

    data = values([{"a": 1}])
    assert spec_of(data) == {"values": '[{"a": 1}]', "format": {"type": "json"}}
    direct = vl_convert.vegalite_to_svg(charts["cdf"].to_dict())
    assert direct == vl_convert.vegalite_to_svg(spec(charts["cdf"]))


def spec_of(part: Any) -> Any:
    return part.to_dict()


@pytest.mark.parametrize(
    ("form", "start"),
    [(".svg", b"<svg"), (".png", b"\x89PNG"), (".pdf", b"%PDF"), (".json", b"{"), (".html", b"<!DOCTYPE html>")],
)
def test_charts_are_saved_in_every_form(charts: dict[str, Any], tmp_path: Path, form: str, start: bytes) -> None:
    file = save(charts["final"], tmp_path / "new" / f"chart{form}")
    content = file.read_bytes()
    assert content.lstrip().startswith(start)
    if form == ".html":
        assert b"https://cdn" not in content
    if form == ".json":
        assert json.loads(content)["$schema"].startswith("https://vega.github.io/schema/vega-lite/")


def test_an_unknown_form_is_refused(charts: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot be written as `\.gif`") as caught:
        save(charts["final"], tmp_path / "chart.gif")
    assert ".svg" in caught.value.hint


def test_a_place_that_cannot_be_written_is_named(charts: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        save(charts["final"], tmp_path / "file" / "chart.json")


def test_clients_are_ordered_by_their_most_frequent_label() -> None:
    mix = np.array([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2], [0.4, 0.6]])
    assert label_order(mix).tolist() == [2, 1, 0, 3]
    assert len(label_order(np.tile(mix, (50, 1)))) == 60


def test_how_often_a_label_is_there() -> None:
    counts = np.array([[10, 0, 0], [10, 20, 0]])
    np.testing.assert_allclose(label_activity(counts, np.array([0.5, 0.1])), [0.3, 0.1, 0.0])


def test_many_labels_are_numbered_and_equal_clients_are_one_bar() -> None:
    mix = Key.root(0).numpy().dirichlet(np.full(40, 0.2), 5)
    assert "labelExpr" not in json.dumps(spec(label_picture(mix, [str(i) for i in range(40)]))["layer"][0]["encoding"])
    sizes, rates = spec(distributions(np.full(5, 7), np.full(5, 0.1)))["datasets"].values()
    assert [bar["clients"] for bar in sizes] == [5]
    assert sum(bar["clients"] for bar in rates) == 5
