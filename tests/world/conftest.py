"""What tests of sources and of the cache need: a cache of their own, and nothing found by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmfl.world.sources import finding


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which PMFL_CACHE points at."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PMFL_CACHE", str(folder))
    monkeypatch.delenv("PMFL_DATA", raising=False)
    monkeypatch.setattr(finding, "SYSTEM", ())
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    return folder
