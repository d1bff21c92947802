"""The results page says what was measured, and says misses as misses."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.deploy import campaign_report, overhead
from tests.deploy.campaign import wanted
from tests.deploy.faults import KINDS
from tests.deploy.gauge import PARTS

KILLED = "node killed, back after 1 s"


def line(kind: str = KILLED, **more: Any) -> dict[str, Any]:
    given = {"run": "a", "kind": kind, "client": 0, "round": 1, "deadline": 15.0, "healed": True, "client_back": True}
    given |= {"replied_after": 1.0, "counted_after": 3.0, "with_its_history": True, "longest_round": 12.0, "load": 2.0}
    return {**given, **more}


RUN: dict[str, Any] = {
    "run": "a",
    "ended_by_itself": True,
    "code": 0,
    "restarts": {"app": 2},
    "disagreements": [],
    "same_bits": True,
    "replies": 30,
    "late": 1,
    "refused": 2,
    "lost": 3,
    "result": ["a", "b", "c"],
    "of": 100,
}
MEMORY = {"first": 1.0, "last": 1.0, "most": 2.0, "per_100_samples": 0.1, "noise_per_100_samples": 0.2}
STORM: dict[str, Any] = {
    "fresh": 2,
    "nodes": 10,
    "stormed": 100,
    "share_killed": 0.3,
    "rounds": 100,
    "deadline": 15.0,
    "min_replies": 3,
    "load_median": 9.0,
    "load_most": 12.0,
    "kills": 300,
    "ended_by_itself": True,
    "hung": False,
    "round_median": 4.0,
    "round_most": 9.0,
    "took_part_mean": 5.5,
    "took_part_least": 3,
    "disagreements": [],
    "weights_equal": True,
    "same_bits": False,
    "late": 1,
    "refused": 0,
    "lost": 9,
    "memory": dict.fromkeys((*PARTS, "database"), MEMORY),
}


def page(folder: Path, *more: str) -> str:
    sys.argv = ["report", str(folder / "out"), str(folder / "docs"), *more]
    campaign_report.main()
    return (folder / "docs" / "deployment.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def _argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])


def put(folder: Path, injections: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    for name, found in (("injections", injections), ("runs", runs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found), "utf-8")


def test_a_campaign_without_misses(tmp_path: Path) -> None:
    put(tmp_path / "out", [line(), line("app killed", longest_round=40.0), line(skipped="gone")], [RUN])
    text = page(tmp_path)
    assert f"| {KILLED} | 1 | 1 | 1 | 12.0 s, 12.0 s | 1 of 1 |" in text
    assert "| app killed | 1 | 1 | 1 | 40.0 s, 40.0 s | 0 of 1 |" in text
    assert "within 10 s in 1 of 1 cases" in text.replace("\n", " ")
    assert "No fault of a node has cost more time" in text
    assert "seen (1)" in text
    assert "There was none." in text
    assert len(pq.read_table(tmp_path / "docs" / "deployment.parquet")) == 3
    assert max(map(len, (part for part in text.splitlines() if not part.startswith("|")))) <= 130


def test_what_went_wrong_is_on_the_page(tmp_path: Path) -> None:
    put(
        tmp_path / "out",
        [line(counted_after=12.5, load=9.0), line("disk full on a node", longest_round=20.0), line(run="b")],
        [{**RUN, "disagreements": ["client 1: counted twice"], "same_bits": False, "code": 2}],
    )
    text = page(tmp_path)
    assert f"| {KILLED} | 12.0 s | 12.5 s | 9 |" in text
    assert "| disk full on a node | 20.0 s | 3.0 s | 2 |" in text
    assert "run a: client 1: counted twice" in text
    assert "participation that was recorded | 0 of 1 |" in text
    assert "ended by themselves, with exit code 0 | 0 |" in text
    assert "1 belong to runs that were cut off" in text.replace("\n", " ")


def test_what_else_was_measured_has_its_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out, [line()], [RUN])
    put(tmp_path / "quiet", [line("app killed", longest_round=7.0, load=1.0)], [RUN])
    (out / "note.md").write_text("Told by hand.\n")
    text = page(tmp_path)
    assert "Told by hand." in text
    assert "## A storm" not in text
    bits = {"method": "mifa", "rounds": 10, "replies": [10] * 3, "deployed": "a" * 64, "simulated": "a" * 64}
    attack = {
        "seconds": 9.0,
        "model_megabytes": 1.0,
        "body_megabytes": 50.0,
        "limit_megabytes": 16.0,
        "load": 2.0,
        "requests": {"unknown key, large: 401": 3, "unknown key, noise: 401": 2, "turned node, large: 413": 4},
        "answers_of_the_turned_node": {"noise": 4},
        "refused_by_reason": {"malformed": 4},
        "counted_of_honest": [5, 6],
        "counted_of_turned": 0,
        "rounds_before_during_after": [1, 2, 3],
        "restarts_of_the_server": {},
        "memory": {"app": {"before": 1.0, "most_during": 2.0, "after": 1.0}},
    }
    cost = {"whose": "flower", "nodes": 3, "rounds": 4, "median_seconds": 9.5, "least": 9.0, "most": 10.0, "load": 1.0}
    steps = [
        {"step": "pmfl deploy init trial", "at": 0.0, "seconds": 2.0},
        {"step": "[waited: x]", "at": 2, "seconds": 1},
    ]
    way = {
        "minutes": 2.5,
        "with_install": True,
        "commands": 9,
        "rounds": 30,
        "took_part": [30],
        "load": 1.0,
        "steps": steps,
    }
    parts = {
        "same_bits": [bits, {**bits, "simulated": "b" * 64}],
        "storm": STORM,
        "siege": attack,
        "overhead": [cost, {**cost, "whose": "pmfl"}],
        "walk": way,
    }
    for name, found in parts.items():
        (out / f"{name}.json").write_text(json.dumps(found))
    text = page(tmp_path, "--quiet", str(tmp_path / "quiet"))
    assert "| app killed | 1 | 1 | 1 | 7.0 s, 7.0 s | 1 of 1 |" in text
    assert "| mifa | 10 | 10, 10, 10 | `aaaaaaaaaaaaaaaa…` | yes |" in text
    assert "NO: bbbbbbbbbbbbbbbb" in text
    assert "participation | yes |" in text
    assert "local engine's for that participation | NO |" in text
    assert "| unknown key, large | 3 | 401: 3 |" in text
    assert "| 3 | Flower's FedAvg | 4 | 9.50 (9.00 to 10.00) | 1.0 |" in text
    assert "| 0 s | `pmfl deploy init trial` | 2.0 |" in text
    assert set(json.loads((tmp_path / "docs" / "deployment.json").read_text())) == {"runs", *parts}


def test_a_campaign_goes_on_until_nodes_were_in_time_often_enough(tmp_path: Path) -> None:
    late, server = line(counted_after=11.0), line("app killed", longest_round=99.0)
    put(tmp_path / "out", [late, line(), server, server, line(skipped="gone")], [])
    left = wanted(tmp_path / "out", 2)
    assert KILLED in left
    assert "app killed" not in left
    assert set(left) == set(KINDS) - {"app killed"}
    put(tmp_path / "much", [late] * 3, [])
    assert KILLED not in wanted(tmp_path / "much", 2)  # enough is enough: the page says it
    assert "node killed, back after 30 s" not in wanted(tmp_path / "out", 2, left=30)


def test_gaps_are_from_end_to_end() -> None:
    assert overhead.gaps([1.0, 3.0, 6.0]) == [2.0, 3.0]
