from __future__ import annotations

from typing import Any

from tests.coverage_floor import ROOT, packages, unseen


def file(ran: int, missed: int) -> dict[str, Any]:
    return {"executed_lines": list(range(ran)), "missing_lines": list(range(ran, ran + missed))}


REPORT: dict[str, Any] = {
    "files": {
        str(ROOT / "core" / "round.py"): file(199, 1),
        str(ROOT / "study" / "run.py"): file(90, 10),
        str(ROOT / "study" / "store.py"): file(100, 0),
        str(ROOT / "errors.py"): file(0, 0),
    }
}


def test_one_line_of_the_core_is_too_many_and_a_twentieth_of_another_package_is_not() -> None:
    core, pmfl, study = packages(REPORT)
    assert (core.name, pmfl.name, study.name) == ("core", "pmfl", "study")
    assert core.percent == 99.5 < core.floor == 100
    assert study.percent == 95 == study.floor
    assert pmfl.percent == 100
    assert study.missed == {"study/run.py": list(range(90, 100))}


def test_a_file_that_no_test_has_opened_is_named() -> None:
    absent = unseen(REPORT)
    assert "core/sums.py" in absent
    assert "core/round.py" not in absent
