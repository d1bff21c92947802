"""All artefacts of the paper at the scale of a test, played once: runs that artefacts share are played once too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from pmfl.study import papers
from pmfl.study.evidence import Evidence
from pmfl.study.papers import Asked

View = tuple[Asked, Evidence]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all test processes."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny-results"


@pytest.fixture(scope="session")
def tiny(results: Path) -> dict[str, View]:
    """Every artefact, run: name -> how it was asked for, and the evidence. The second process finds all of it there."""
    found = {}
    with FileLock(f"{results}.lock"):
        for name in papers.artefacts():
            asked = Asked(name, "tiny")
            found[name] = asked, Evidence(papers.answer(asked, results, papers.sources([results], []), jobs=1))
    return found
