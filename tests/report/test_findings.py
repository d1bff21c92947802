from __future__ import annotations

import pytest

from pmfl.errors import SpecError
from pmfl.report.findings import findings, measure_of, verdict
from pmfl.report.series import Setting, settings
from pmfl.study.grid import Study
from tests.report.stores import made_study
from tests.report.test_tables import FINALS, rows_with


def found_in(finals: dict[tuple[str, int], float], study: Study | None = None) -> list[Setting]:
    study = study or made_study()
    return settings(study, rows_with(study, finals))


def test_a_clear_difference_is_claimed_and_an_unclear_one_is_not() -> None:
    finals = {("pmfl", s): 0.90 + s / 100 for s in range(3)}
    finals |= {("fedau", s): value for s, value in enumerate((0.95, 0.85, 0.90))}
    finals |= {("fedavg", s): 0.80 + s / 100 + s / 1000 for s in range(3)}
    said = findings(found_in(finals), "final")
    assert said[0] == "Test accuracy of the final model: pmfl 91.0 %, fedau 90.0 %, fedavg 81.1 %."
    assert said[1].startswith("pmfl and fedau cannot be told apart: the difference is +1.0 points (95 % interval −")
    assert said[2].startswith("pmfl is ahead of fedavg by 9.9 points (95 % interval +9.7 to +10.1, 3 seeds)")
    assert "2 comparisons" in said[3]


def test_the_reference_may_be_behind() -> None:
    finals = {(method, s): base + s / 100 for method, base in (("pmfl", 0.9), ("fedavg", 0.8)) for s in range(3)}
    finals[("pmfl", 0)] += 0.001
    said = findings(found_in(finals), "final", "fedavg")
    assert any(sentence.startswith("fedavg is behind pmfl by 10.0 points") for sentence in said)


def test_one_seed_supports_no_claim() -> None:
    said = findings(found_in({("pmfl", 0): 0.9, ("fedavg", 0): 0.5}), "final")
    assert "no difference counts" in said[-1]


def test_one_pair_of_several_may_have_too_few_seeds() -> None:
    said = findings(found_in(FINALS), "final")
    assert "pmfl and fedavg share one finished seed, which is too few to compare them." in said


def test_without_shared_seeds_nothing_is_compared() -> None:
    said = findings(found_in({("pmfl", 0): 0.9, ("fedavg", 1): 0.5}), "final")
    assert said[-1] == "No seed is finished by two methods, so none can be compared yet."


def test_without_a_finished_run_nothing_is_said() -> None:
    assert findings(found_in({}), "final") == ["No run is finished, so there is nothing to conclude yet."]


def test_one_method_alone_is_not_compared() -> None:
    study = made_study(sweep={"method": ["pmfl"], "seed": [0, 1]})
    assert findings(found_in({("pmfl", 0): 0.9, ("pmfl", 1): 0.8}, study), "final") == [
        "Test accuracy of the final model: pmfl 85.0 %."
    ]


def test_many_comparisons_are_counted() -> None:
    study = made_study(
        sweep={"data.partition.alpha": [0.1, 0.5], "method": ["pmfl", "fedau", "fedavg"], "seed": [0, 1]}
    )
    finals = {("pmfl", 0): 0.9, ("pmfl", 1): 0.91, ("fedau", 0): 0.5, ("fedau", 1): 0.9, ("fedavg", 0): 0.4}
    finals[("fedavg", 1)] = 0.41001
    said = findings(found_in(finals, study), "final")
    assert said[0] == "Of 4 comparisons: pmfl is ahead in 2, the two cannot be told apart in 2."


def test_a_long_list_is_cut_short() -> None:
    names = ["pmfl", "fedau", "fedavg", "fedprox", "mifa", "fedvarp", "moon", "fedhyper", "pmfl-hgm"]
    study = made_study(sweep={"method": names, "seed": [0]})
    said = findings(found_in({(name, 0): 0.9 - i / 100 for i, name in enumerate(names)}, study), "final")
    assert said[0].endswith("fedhyper 83.0 % and 1 more below.")


def test_verdicts() -> None:
    key = "gap"
    ends = [(0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (None, None)]
    said = [verdict({"gap": 0, "gap_low": low, "gap_high": high}, key) for low, high in ends]
    assert said == ["ahead", "behind", "unclear", "unknown"]


def test_a_study_chooses_its_number() -> None:
    assert measure_of(made_study()) == "last10_mean"
    assert measure_of(made_study(report={"value": "top5_mean(test/accuracy)"})) == "top5_mean"
    with pytest.raises(SpecError, match=r"report\.value") as caught:
        measure_of(made_study(report={"value": "top5"}))
    assert "top5_mean" in caught.value.hint
