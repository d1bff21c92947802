"""The battery finds what is wrong: one kept example per fault, each failing exactly one check."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pmfl.testing import CHECKS, check_method
from tests.testing.wrong_methods import WRONG, Wrong


def cases() -> list[Any]:
    """All of them; the first of each check is quick to be told about, the others are part of the full suite."""
    first = {case.check: case for case in reversed(WRONG)}
    return [
        pytest.param(case, id=case.make.__name__, marks=() if first[case.check] is case else pytest.mark.slow)
        for case in WRONG
    ]


@pytest.mark.parametrize("case", cases())
def test_fails_exactly_its_check_and_says_why(case: Wrong) -> None:
    report = check_method(case.make)
    assert [finding.check for finding in report.failed] == [case.check], f"\n{report}"
    finding = report.failed[0]
    assert re.search(case.says, finding.reason), finding.reason
    assert finding.hint
    assert "Traceback" not in str(report)


def test_every_check_has_a_method_that_fails_it() -> None:
    assert {case.check for case in WRONG} == {check.name for check in CHECKS}
