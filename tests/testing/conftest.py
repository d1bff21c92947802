"""Tiny tensors on one thread: on a busy machine, a second one mostly waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pmfl.testing.battery import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
