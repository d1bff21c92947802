"""Downloads: only on request, checked against the published hash, from a server of the test's own."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pmfl.errors import DataMissing, SpecError
from pmfl.world import cache
from pmfl.world.datasets import load
from pmfl.world.sources import known, opening, progress
from tests.world import makers

pytestmark = pytest.mark.usefixtures("own_cache")

X, Y = makers.pixels(20, 32), makers.labels(20, 10)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that counts."""

    asked: list[str]

    def log_message(self, *_: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """CIFAR-10 as served from a folder of this test; the requests that were made."""
    asked: list[str] = []
    archive = makers.tar_gz(tmp_path / "cifar-10-python.tar.gz", makers.cifar10_members(X, Y, X, Y))
    handler = partial(type("Handler", (Quiet,), {"asked": asked}), directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        remote = known.Remote(url, hashlib.md5(archive.read_bytes()).hexdigest())
        monkeypatch.setitem(known.KNOWN, "cifar10", replace(known.KNOWN["cifar10"], remotes=(remote,)))
        yield asked
        server.shutdown()
        thread.join()


def test_downloaded_once_and_then_open_by_name(asked: list[str]) -> None:
    with pytest.raises(DataMissing, match="not on this machine"):
        load("cifar10")
    assert asked == []  # loading never downloads
    data = opening.get("cifar10")
    assert data.notes["files"] == "as published (same MD5)"
    np.testing.assert_array_equal(data.train.x, X)
    assert len(asked) == 1
    opening.get("cifar10")
    load("cifar10")
    assert len(asked) == 1


def test_progress_is_drawn_when_it_takes_long(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    opening.get("cifar10")
    shown = capsys.readouterr()
    assert "download cifar-10-python.tar.gz" in shown.err
    assert shown.out == ""
    assert asked


def test_a_wrong_hash_is_refused_and_nothing_is_kept(asked: list[str], tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(DataMissing, match="is not the published file") as caught:
        opening.get("cifar10")
    assert caught.value.code == "D102"
    assert "--from PATH" in caught.value.hint
    assert [p for p in own_cache.rglob("*") if p.is_file()] == []
    assert asked


def test_a_damaged_download_is_fetched_again(asked: list[str]) -> None:
    opening.get("cifar10")
    cache.remove(cache.stored()[0])
    file = cache.downloads("cifar10") / "cifar-10-python.tar.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataMissing, match="is not a whole tar archive"):
        load("cifar10")
    file.unlink()
    opening.get("cifar10")
    assert len(asked) == 2


def test_no_server_says_the_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = known.Remote("http://127.0.0.1:9/x.tar.gz", "0" * 32)
    monkeypatch.setitem(known.KNOWN, "cifar10", replace(known.KNOWN["cifar10"], remotes=(remote,)))
    with pytest.raises(DataMissing, match=r"127\.0\.0\.1") as caught:
        opening.get("cifar10")
    assert caught.value.code == "D100"
    assert "--from hub:uoft-cs/cifar10" in caught.value.hint


def test_a_name_nobody_knows_needs_a_source() -> None:
    with pytest.raises(SpecError, match='"mine" is not a known set'):
        opening.get("mine")


def test_published_facts_are_complete() -> None:
    for one in known.KNOWN.values():
        assert one.labels is None or len(one.labels) == one.classes
        assert one.mean is None or len(one.mean) == len(one.std or ()) == one.shape[2]
        assert one.licence
        assert all(len(remote.md5) == 32 for remote in one.remotes)
    hashes = {
        remote.file: remote.md5 for name in ("svhn", "cifar10", "cifar100") for remote in known.KNOWN[name].remotes
    }
    assert hashes["train_32x32.mat"].startswith("e26dedcc")
    assert hashes["cifar-10-python.tar.gz"].startswith("c58f3010")
