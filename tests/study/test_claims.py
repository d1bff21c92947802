"""Verdicts: what seeds can tell of a claim, on made-up results whose truth is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmfl.errors import SpecError
from pmfl.report.paper_tables import as_markdown, rests_on, to_terminal, verdict_words
from pmfl.study.answers import StoreSource, gather
from pmfl.study.claims import verify
from pmfl.study.evidence import Evidence, contest_rows
from pmfl.study.grid import Study
from pmfl.study.store import Store
from tests.report.stores import made_store, made_study

PAPER = {
    "artefact": "Table I",
    "shows": "made up",
    "data": ["digits"],
    "measures": ["top5_mean(test/accuracy)", "spread(accuracy)", "range_of_final(test/accuracy)"],
    "printed": {
        "rows": ["method"],
        "columns": "data.dataset",
        "values": ["digits"],
        "curves": ["test/accuracy"],
        "table": [["pmfl", 92.0], ["fedau", 91.0], ["fedavg", 95.0]],
    },
}


def study_of(*checks: str, **changes: object) -> Study:
    claims = [{"id": f"c{i}", "says": f"claim {i}", "check": check} for i, check in enumerate(checks)]
    sweep = {"method": ["pmfl", "fedau", "fedavg"], "data.dataset": ["digits"], "seed": [0, 1, 2]}
    return made_study(claims=claims, paper=PAPER, **{"sweep": sweep, **changes})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_store(tmp_path_factory.mktemp("claims") / "out", made_study())


def evidence(store: Store, *checks: str, **changes: object) -> Evidence:
    study = study_of(*checks, **changes)
    return Evidence(gather(study, [StoreSource(store)]))


def test_verdicts(store: Store) -> None:
    found = evidence(
        store,
        "top5_mean(test/accuracy): pmfl > fedavg",
        "top5_mean(test/accuracy): fedavg > pmfl",
        "top5_mean(test/accuracy): pmfl > fedau by 20 points",
        "top5_mean(test/accuracy): pmfl = fedau within 20 points",
        "top5_mean(test/accuracy): pmfl in 0.5 .. 1.5",
        "top5_mean(test/accuracy): pmfl < 0.5",
        "range_of_final(test/accuracy): pmfl < 90 points",
        "range_of_final(test/accuracy): pmfl < 0.0001 points",
        "final(test/absent): pmfl > fedavg",
    )
    verdicts = [one.verdict for one in found.found]
    assert verdicts[:2] == ["holds", "does not hold"]
    assert verdicts[2:] == ["does not hold", "holds", "holds", "does not hold", "holds", "does not hold", "not run"]
    assert found.counts() == {"holds": 4, "does not hold": 4, "undecided": 0, "not run": 1}
    assert found.agreement(found.found[0]) == (0, 1)
    assert found.agreement(found.found[1]) == (1, 1)
    rows = contest_rows(found.found)
    assert rows[0]["margin"] == pytest.approx(rows[0]["left_mean"] - rows[0]["right_mean"])
    assert rows[0]["low"] <= rows[0]["margin"] <= rows[0]["high"]
    assert (rows[0]["seeds"], rows[0]["planned"]) == (3, 3)


def test_one_seed_decides_nothing(store: Store) -> None:
    found = evidence(
        store, "top5_mean(test/accuracy): pmfl > fedavg", sweep={"method": ["pmfl", "fedavg"], "seed": [0]}
    )
    (one,) = found.found
    assert one.verdict == "undecided"
    assert verdict_words(one) == "undecided at 1 seed"
    assert rests_on(one) == "1 of 1 comparisons, 1 seeds: 1 undecided"


def test_missing_seeds_are_counted(store: Store) -> None:
    found = evidence(
        store,
        "top5_mean(test/accuracy): pmfl > fedavg",
        "range_of_final(test/accuracy): pmfl < 90 points",
        sweep={"method": ["pmfl", "fedavg"], "seed": [0, 1, 2, 3]},
    )
    first, ranged = found.found
    assert first.seeds == (3, 3)
    assert ranged.verdict == "undecided", "a range can only grow"
    assert (found.lines[0].done, found.lines[0].planned) == (3, 4)
    assert "6 of 8 runs answered" in to_terminal(found)
    assert "| 3 of 4 |" in as_markdown(found)


def test_an_undecided_claim_says_how_many_seeds_would_decide(store: Store) -> None:
    found = evidence(store, "fluctuation(test/accuracy): pmfl > fedau", "fluctuation(test/accuracy): fedau > pmfl")
    for one in found.found:
        if one.verdict == "undecided":
            assert one.needed is None or one.needed > 3
            assert "would" in verdict_words(one)


def test_printed_numbers_stand_beside_ours(store: Store) -> None:
    found = evidence(store, "top5_mean(test/accuracy): pmfl > fedavg")
    cells = {line.values["method"]: line.cells[0] for line in found.lines}
    assert [cells[name].printed for name in ("pmfl", "fedau", "fedavg")] == [0.92, 0.91, 0.95]
    for cell in cells.values():
        low, mean, high = (value for value in (cell.low, cell.mean, cell.high) if value is not None)
        assert low <= mean <= high
    assert found.ranks is None, "ranks need two settings"


def test_ranks_over_settings(tmp_path: Path) -> None:
    sweep = {"method": ["pmfl", "fedau", "fedavg"], "data.partition.alpha": [0.1, 0.2, 0.3], "seed": [0, 1]}
    store = made_store(tmp_path / "out", made_study(sweep=sweep))
    found = evidence(store, sweep=sweep).ranks
    assert found is not None
    names, ranked = found
    assert names == ["pmfl", "fedau", "fedavg"]
    assert ranked.blocks == 3
    assert ranked.ranks[2] == 3.0


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("final(test/accuracy): pmfl > fedprox", "settings that the study does not have"),
        ("final(test/accuracy): pmfl > fedau for each alpha", "`alpha` is not swept"),
        ("final(test/accuracy): [seed=1] > fedau", "`seed` is not swept"),
        ("final(test/accuracy): [model=a] > fedau", "is not swept"),
    ],
)
def test_a_claim_must_speak_of_what_there_is(check: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        verify(study_of(check))


def test_a_claim_must_name_one_setting() -> None:
    sweep = {"method": ["pmfl", "fedau"], "data.partition.alpha": [0.1, 0.2], "seed": [0]}
    with pytest.raises(SpecError, match="stands for 2 settings, which differ in data"):
        verify(study_of("final(test/accuracy): pmfl > fedau", sweep=sweep))
    verify(study_of("final(test/accuracy): pmfl > fedau for each alpha", sweep=sweep))
    verify(study_of("final(test/accuracy): pmfl > fedau where alpha=0.1", sweep=sweep))
