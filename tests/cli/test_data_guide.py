"""docs/guides/data.md, executed as it stands: every command, study and program, in order, on files as it names them."""

from __future__ import annotations

import hashlib
import http.server
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmfl.cli import main
from pmfl.world.sources import finding, known
from tests.world import makers

GUIDE = Path(__file__).parents[2] / "docs/guides/data.md"
BLOCK = re.compile(r"^```(sh|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"# exit code (\d)")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the guide takes for granted, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PMFL_DATA", raising=False)
    monkeypatch.setattr(finding, "SYSTEM", ())
    x, y, grey = makers.pixels(40, 32), makers.labels(40, 10), makers.pixels(40, 28, 1)
    (tmp_path / "svhn").mkdir()
    for split in ("train", "test"):
        makers.svhn_mat(tmp_path / f"svhn/{split}_32x32.mat", x, y)
    everything = makers.cifar100_members(makers.pixels(100, 32), np.arange(100), x, y)
    makers.tar_gz(tmp_path / "cifar-100-python.tar.gz", everything)
    for folder in ("fashion-mnist", "disk/mnist"):
        makers.idx_folder(tmp_path / folder, grey, y, grey, y)
    small, kinds = makers.pixels(120, 20), makers.labels(120)
    for split in ("birds/train", "birds/test", "hospitals/north", "hospitals/south"):
        makers.image_folder(tmp_path / split, small, kinds, ("cat", "dog", "owl"))
    shutil.make_archive("birds", "zip", tmp_path, "birds")
    np.savez(tmp_path / "arrays.npz", x_train=small, y_train=kinds, x_test=small, y_test=kinds)
    for split in ("train", "test"):
        makers.parquet(tmp_path / f"cells_{split}.parquet", small, kinds)
    makers.parquet(tmp_path / "notes.parquet", small, kinds, writer_id=[f"w{i % 8}" for i in range(120)])
    rows = [f"{i},{i % 7},{('good', 'bad')[i % 2]}" for i in range(60)]
    (tmp_path / "wine.csv").write_text("\n".join(["acid,sugar,quality", *rows]) + "\n")
    clients = [f"p{d},{60 * d},{86_400 + 60 * d}" for d in range(20)]
    (tmp_path / "phones_clients.csv").write_text("\n".join(["client_id,trace_start_s,trace_end_s", *clients]) + "\n")
    intervals = [f"p{d},{h * 3600},{h * 3600 + 1800 * (d % 3 + 1)}" for d in range(20) for h in range(d % 5, 20, 3)]
    (tmp_path / "phones_intervals.csv").write_text("\n".join(["client_id,start_s,end_s", *intervals]) + "\n")
    np.save(tmp_path / "attendance.npy", np.indices((60, 12)).sum(0) % 3 == 0)
    return tmp_path


@pytest.fixture
def downloads(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CIFAR-10's archive, as small as can be, from a server of this test."""
    folder = tmp_path_factory.mktemp("server")
    x, y = makers.pixels(20, 32), makers.labels(20, 10)
    archive = makers.tar_gz(folder / "cifar-10-python.tar.gz", makers.cifar10_members(x, y, x, y))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/{archive.name}"
        remote = known.Remote(url, hashlib.md5(archive.read_bytes()).hexdigest())
        monkeypatch.setitem(known.KNOWN, "cifar10", replace(known.KNOWN["cifar10"], remotes=(remote,)))
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One set on the hub, in two configurations; the network knows nothing else."""
    folder = tmp_path_factory.mktemp("hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(folder))
    datasets = pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    x, y = makers.pixels(30), makers.labels(30)
    file = makers.parquet(folder / "train.parquet", x, y, names=("cat", "dog", "eel"), mood=y[::-1].copy())
    read = datasets.load_dataset

    def load(name: str, config: str | None) -> Any:
        if name != "someone/animals":
            raise ConnectionError("no network")
        return read("parquet", data_files={"train": str(file)}, cache_dir=str(folder / "read"))

    monkeypatch.setattr(datasets, "load_dataset", load)


def play(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """One line of a shell block; returns its exit code."""
    words = shlex.split(line, comments=True)
    with monkeypatch.context() as patch:
        while words and re.match(r"[A-Z_]+=", words[0]):
            patch.setenv(*words.pop(0).split("=", 1))
        if words[0] != "pmfl":
            return subprocess.run(line, shell=True, check=False).returncode
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.mark.slow
@pytest.mark.usefixtures("downloads", "hub")
def test_the_guide_as_it_stands(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    seen: dict[str, str] = {}
    for language, content in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if language == "toml":
            name = content.partition("\n")[0].removeprefix("# ")
            (here / name).write_text(content)
        elif language == "python":
            exec(content, {})
            seen["python"] = capfd.readouterr().out
        else:
            for line in content.splitlines():
                expected = int(found[1]) if (found := CODE.search(line)) else 0
                code = play(line, monkeypatch)
                said = capfd.readouterr()
                assert code == expected, f"{line}\n{said.out}\n{said.err}"
                seen[line.partition("#")[0].strip()] = said.out + said.err
    assert len(seen) > 30
    assert "as published (same MD5)" in seen["pmfl data info cifar10"]
    assert (here / "cifar10.html").is_file()
    assert "16 x 16 x 3" in seen["pmfl data get birds-small --from birds.zip --size 16"]
    assert "240; " not in seen["pmfl data get hospitals --from hospitals/ --sites"]
    assert re.search(r"users +2; ", seen["pmfl data get hospitals --from hospitals/ --sites"])
    assert re.search(r"users +8; ", seen["pmfl data info notes"])
    assert "--from hub:" not in seen["pmfl data get hub:nobody/here"]
    for missing in ("pmfl run cinic10", "pmfl data get hub:nobody/here"):
        assert [f"{way}. " in seen[missing] for way in (1, 2, 3)] == [True] * 3
    assert "found in" in seen["PMFL_DATA=disk pmfl data list"]
    assert "8 x 8" not in seen["PMFL_CACHE=copied-cache pmfl data info birds"]
    assert "the recording ends after 60" in seen[next(line for line in seen if "rounds=500" in line)]
    for words in (
        "recorded availability: phones_intervals.csv: 20 devices",
        "the 12 clients are 12 of the 20 devices, drawn by key",
        "recordings repeat after their end: after 144 rounds",
    ):
        assert words in seen["pmfl run phones.toml --out phones"]
    assert seen["python"].startswith("('cat', 'dog', 'owl') (120, 20, 20, 3)")
    assert len(list((here / "cache/arrays").iterdir())) == 1  # all were cleared, and the program brought one back
