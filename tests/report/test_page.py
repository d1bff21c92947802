from __future__ import annotations

import base64
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pmfl.errors import StoreError
from pmfl.report.page import notices, write_report
from pmfl.report.records import flat_spec, study_file
from pmfl.report.series import runs_of
from pmfl.study.grid import Study, load
from pmfl.study.store import Store
from tests.report.stores import made_store, made_study, play

EMPTY = {"meta", "br", "link", "img", "hr", "path", "image", "rect", "stop"}


class Outline(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(file: Path) -> Outline:
    outline = Outline(file.read_text("utf-8"))
    assert outline.open == []
    outline.words = " ".join(outline.words.replace("\u00a0", " ").split())
    return outline


@pytest.fixture(scope="module")
def page(store: Store, study: Study, folder: Path) -> Outline:
    return read(write_report(store, study, folder / "full.html"))


def test_a_report_has_every_part(page: Outline) -> None:
    assert page.headings == [
        "A study that was made up",
        "What the numbers say",
        "Results",
        "Paired differences",
        "Accuracy by round",
        "Who took part",
        "Weights",
        "Who is left behind",
        "Settings",
        "How to repeat it",
        "Runs",
    ]
    assert "pmfl is ahead of fedavg by" in page.words
    assert "9 runs" in page.words
    assert "not finished" not in page.words


def test_nothing_is_fetched(folder: Path, page: Outline) -> None:
    text = (folder / "full.html").read_text("utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', text.replace('xlink:href="data:', ""))
    assert "<script" not in text
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' <)]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert len(text) < 3_000_000


def test_pictures_and_tables_can_be_read_aloud(page: Outline) -> None:
    pictures = page.all("svg")
    assert len(pictures) == 6
    assert all(picture["role"] == "img" and len(picture["aria-label"] or "") > 40 for picture in pictures)
    assert all(heading["scope"] in ("col", "row", "colgroup") for heading in page.all("th"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {table["aria-describedby"] for table in page.all("table") if "aria-describedby" in table} <= set(ids)
    assert page.all("html")[0]["lang"] == "en"


def test_numbers_are_on_the_page_and_in_its_files(page: Outline, store: Store, study: Study) -> None:
    links = {link["download"]: link["href"] or "" for link in page.all("a")}
    assert list(links) == ["made-up.csv", "made-up-differences.csv"]
    text = base64.b64decode(links["made-up.csv"].partition(",")[2]).decode()
    assert text.splitlines()[1].startswith("pmfl,3,3,0.")
    for run in runs_of(store, study):
        assert run.model_sha256
        assert run.model_sha256 in page.words
        assert run.run_id in page.words


def test_a_study_that_is_not_built_in_is_repeated_from_its_file(page: Outline, study: Study) -> None:
    assert "pmfl run made-up.toml" in page.words
    assert tomllib.loads(study_file(study))["sweep"] == {"method": ["pmfl", "fedau", "fedavg"], "seed": [0, 1, 2]}


def test_the_file_of_a_study_means_the_study(tmp_path: Path) -> None:
    study = made_study(
        claim='with "quotes"',
        method={"pmfl": {"cutoff": 20}},
        sweep={"method": ["pmfl", {"name": "fedau", "cutoff": 9}], "data.partition.alpha": [0.1, 0.5]},
        base={"training": {"rounds": 7}, "data": {"path": None}},
    )
    file = tmp_path / "made-up.toml"
    file.write_text(study_file(study), "utf-8")
    again = load(file)
    assert [spec.run_id for spec in again.runs] == [spec.run_id for spec in study.runs]
    assert again.claim == study.claim


def test_a_built_in_study_is_repeated_by_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "out", create=True)
    words = read(write_report(store, load("smoke"), tmp_path / "smoke.html")).words
    assert "pmfl run smoke" in words
    assert "smoke.toml" not in words
    changed = read(write_report(store, load("smoke", ["training.rounds=3"]), tmp_path / "changed.html")).words
    assert "pmfl run smoke.toml" in changed


def test_unfinished_runs_are_said_plainly(partial: Store, study: Study, folder: Path) -> None:
    page = read(write_report(partial, study, folder / "partial.html"))
    assert "7 of 9 runs are not finished. Numbers are of the others only." in page.words
    assert "fedavg, seed 0: diverged after 30 of 60 rounds: diverged in round 30" in page.words
    assert "No seed is finished by two methods" in page.words
    assert "No run of fedau is finished: drawn as far as all of its seeds have come." in page.words
    assert "Who is left behind" in page.headings


def test_what_is_said_of_each_way_not_to_be_done(partial: Store, study: Study) -> None:
    said = notices(runs_of(partial, study))
    assert said[0] == "pmfl, seed 1: interrupted after 30 of 60 rounds; the same command goes on with it"
    assert said[1].startswith("fedau, seed 0: at round 30 of 60 when last heard of, 20")
    assert said[2] == "fedau, seed 2: failed after 30 of 60 rounds: for a reason that was not recorded"
    assert said[-1] == "3 not started"


def test_nothing_done_is_a_page_too(tmp_path: Path, study: Study) -> None:
    store = Store(tmp_path / "out", create=True)
    page = read(write_report(store, study, tmp_path / "none.html"))
    assert "9 not started" in page.words
    assert "No run is finished" in page.words
    assert page.all("svg") == []


def test_panels_stand_under_one_heading_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"data": {"clients": 5}, "training": {"rounds": 6}, "evaluation": {"every": 2}}
    monkeypatch.setattr("pmfl.report.pictures.SHOWN", 2)
    study = made_study(base=base, sweep={"data.partition.alpha": [0.1, 0.2, 0.3], "method": ["pmfl", "fedavg"]})
    page = read(write_report(made_store(tmp_path / "out", study), study, tmp_path / "panels.html"))
    curves, took = page.headings.index("Accuracy by round"), page.headings.index("Who took part")
    assert page.headings[curves + 1 : took] == ["alpha 0.1", "alpha 0.2", "alpha 0.3"]
    assert page.headings[took + 1 : took + 4] == ["alpha 0.1", "alpha 0.2", "Weights"]
    assert "Clients are drawn for 2 of 3 conditions." in page.words
    assert "One seed." in page.words


def test_runs_of_another_engine_are_marked(tmp_path: Path) -> None:
    study = made_study(sweep={"method": ["fedavg"]})
    elsewhere = made_study(sweep={"method": ["fedavg"]}, base={**study.base, "engine": {"lanes": 4}})
    store = Store(tmp_path / "out", create=True)
    play(store, elsewhere, elsewhere.runs[0])
    words = read(write_report(store, study, tmp_path / "other.html")).words
    assert f"{elsewhere.runs[0].run_id}*" in words
    assert "1 of the runs were played by other versions or another engine" in words


def test_what_a_user_writes_cannot_become_markup(tmp_path: Path) -> None:
    study = made_study(title="<script>alert(1)</script>", claim="a < b & c", sweep={"method": ["fedavg"]})
    file = write_report(Store(tmp_path / "out", create=True), study, tmp_path / "page.html")
    assert "<script" not in file.read_text("utf-8")
    assert "Claim: a < b & c" in read(file).words


def test_a_page_is_written_at_once_or_not_at_all(tmp_path: Path, study: Study) -> None:
    store = Store(tmp_path / "out", create=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        write_report(store, study, tmp_path / "file" / "page.html")
    assert write_report(store, study, tmp_path / "new" / "page.html").is_file()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["page.html"]


def test_the_same_records_give_the_same_page(store: Store, study: Study, folder: Path, page: Outline) -> None:
    again = write_report(store, study, folder / "again.html").read_text("utf-8")
    assert again == (folder / "full.html").read_text("utf-8")


def test_specifications_are_flattened_to_dotted_keys(study: Study) -> None:
    flat: dict[str, Any] = flat_spec(study.runs[0].model_dump(mode="json"))
    assert flat["data.partition"] == "slices"
    assert flat["data.partition.alpha"] == 0.1
    assert flat["training.rounds"] == 60
    assert flat["method"] == "pmfl"
