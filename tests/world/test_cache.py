"""The cache: built once, whole or not at all, opened quickly, shared, and never wrong in silence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import numpy as np
import pytest

from pmfl.errors import DataMissing, SpecError
from pmfl.world import cache
from pmfl.world.datasets import load
from pmfl.world.sources import fingerprint, opening, writing
from pmfl.world.sources.raw import Options, Raw, RawSplit, Source
from tests.world import makers

pytestmark = pytest.mark.usefixtures("own_cache")

X, Y = makers.pixels(60), makers.labels(60)
SHARED = Path(__file__).parents[2] / "../shared/data"


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """A small set of its own."""
    np.savez(tmp_path / "set.npz", x_train=X, y_train=Y, x_test=X[:9], y_test=Y[:9])
    return tmp_path / "set.npz"


def entry() -> Path:
    """The folder of the only entry."""
    (key,) = cache.stored()
    return cache.root() / "arrays" / key


class TestOpening:
    def test_arrays_are_mapped_and_cannot_be_changed(self, npz: Path) -> None:
        data = load("mine", npz)
        for array in (data.train.x, data.train.y, data.test.x, data.test.y):
            assert isinstance(array.base, np.memmap)
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0

    def test_the_second_time_neither_reads_nor_hashes_nor_decodes(
        self, npz: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fingerprint, "SETTLED", -1)
        load("mine", npz)
        monkeypatch.setattr(fingerprint, "of_file", lambda *_: pytest.fail("hashed again"))
        monkeypatch.setattr(writing, "write", lambda *_: pytest.fail("built again"))
        np.testing.assert_array_equal(load("mine", npz).train.x, X)

    def test_hashes_of_files_that_just_changed_are_not_remembered(self, npz: Path) -> None:
        load("mine", npz)
        assert not (cache.root() / "seen").exists()

    def test_same_content_elsewhere_is_the_same_entry(self, npz: Path, tmp_path: Path) -> None:
        load("mine", npz)
        (tmp_path / "copy").mkdir()
        shutil.copy(npz, tmp_path / "copy" / "set.npz")
        load("other", tmp_path / "copy" / "set.npz")
        assert len(cache.stored()) == 1

    def test_other_content_and_other_options_are_other_entries(self, tmp_path: Path) -> None:
        folder = makers.image_folder(tmp_path / "pets", X, Y, ("a", "b", "c"))
        load("pets", folder)
        load("pets", folder, size=4)
        (folder / "a" / "00000.png").write_bytes(makers.png(X[1]))
        load("pets", folder)
        assert len(cache.stored()) == 3

    def test_where_it_lies(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "mine"))
        assert cache.root() == tmp_path / "mine"
        monkeypatch.delenv("PMFL_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache.root().name == "pmfl"


class TestDamage:
    def spoil(self, how: str) -> Path:
        folder = entry()
        path = folder / "train_x.npy"
        if how == "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        elif how == "missing":
            path.unlink()
        elif how == "another header":
            content = path.read_bytes()
            path.write_bytes(content.replace(b"(60, 6, 6, 3)", b"(60, 6, 3, 6)"))
        elif how == "half a header":  # an open bracket
            content = path.read_bytes()
            path.write_bytes(content.replace(b"6, 3), }", b"6,  3   "))
        elif how == "no header":
            path.write_bytes(bytes(path.stat().st_size))
        elif how == "no manifest":
            path = folder / cache.MANIFEST
            path.unlink()
        elif how == "half a manifest":
            path = folder / cache.MANIFEST
            path.write_text(path.read_text()[:50])
        elif how == "a manifest of another format":
            path = folder / cache.MANIFEST
            path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
        return path

    @pytest.mark.parametrize(
        "how",
        [
            "truncated",
            "missing",
            "another header",
            "half a header",
            "no header",
            "no manifest",
            "half a manifest",
            "a manifest of another format",
        ],
    )
    def test_is_noticed_on_opening_and_cleared_as_the_hint_says(self, npz: Path, how: str) -> None:
        load("mine", npz)
        path = self.spoil(how)
        before = makers.snapshot(cache.root() / "arrays")
        with pytest.raises(DataMissing) as caught:
            load("mine", npz)
        assert caught.value.code == "D103"
        assert str(path) in caught.value.message
        assert "the cache is damaged" in caught.value.message
        assert f"pmfl data clear {path.parent.name}" in caught.value.hint
        assert makers.snapshot(cache.root() / "arrays") == before
        cache.remove(path.parent.name)
        np.testing.assert_array_equal(load("mine", npz).train.x, X)

    def test_one_flipped_bit_is_found_by_verify(self, npz: Path) -> None:
        load("mine", npz)
        cache.verify(entry().name)
        path = entry() / "test_x.npy"
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        load("mine", npz)  # sizes are right
        with pytest.raises(DataMissing, match=r"test_x.npy: the cache is damaged: its content"):
            cache.verify(entry().name)


class TestWriting:
    def test_a_full_disk_leaves_nothing_behind(self, npz: Path) -> None:
        """In a process of its own that may not write files of more than 4 kB."""
        program = (
            "import resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
            "from pmfl.errors import DataMissing\n"
            "from pmfl.world.datasets import load\n"
            "try:\n"
            f"    load('mine', {str(npz)!r})\n"
            "except DataMissing as error:\n"
            "    print(error.code, error)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("D104"), done.stderr
        assert "the disk is full" in done.stdout
        assert "PMFL_CACHE" in done.stdout
        assert cache.stored() == []
        assert list((cache.root() / "building").iterdir()) == []
        load("mine", npz)

    def test_room_is_asked_for_before_anything_is_written(self, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage("/")._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(DataMissing, match="6,480 bytes needed, 1,000 free"):
            load("mine", npz)
        assert cache.stored() == []

    def test_a_cache_that_cannot_be_written(self, npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(DataMissing, match="cannot be read or written") as caught:
            load("mine", npz)
        assert caught.value.code == "D104"
        assert "PMFL_CACHE" in caught.value.hint

    def test_a_source_that_changes_while_it_is_read(self, npz: Path) -> None:
        def read(scratch: Path) -> Raw:
            npz.write_bytes(npz.read_bytes() + b"more")
            return Raw(RawSplit("x", X, Y), RawSplit("x", X, Y))

        with pytest.raises(DataMissing, match="was changed while it was read"):
            cache.ensure(Source("test", npz.parent, (npz,), Options(), read))
        assert cache.stored() == []

    def test_fewer_images_than_announced(self, tmp_path: Path) -> None:
        from pmfl.world.sources.raw import Picture, Pictures

        pictures = Pictures(60, lambda: iter([[Picture("a", makers.png(X[0]))]]))
        with pytest.raises(DataMissing, match="holds 1 of 60 images"):
            writing.write(Raw(RawSplit("x", pictures, Y), RawSplit("x", X, Y)), tmp_path, Options())

    def test_grey_images_before_an_rgb_one_are_widened(self, tmp_path: Path) -> None:
        from pmfl.world.sources.raw import Picture, Pictures

        grey = makers.pixels(60, channels=1)
        mixed = [makers.png(grey[i]) if i not in (25, 26) else makers.png(X[i]) for i in range(60)]
        chunks = [[Picture(str(i), mixed[i]) for i in range(start, start + 10)] for start in range(0, 60, 10)]
        raw = Raw(RawSplit("x", Pictures(60, lambda: iter(chunks)), Y), RawSplit("x", X, Y))
        manifest = writing.write(raw, tmp_path, Options())
        written = np.load(tmp_path / "train_x.npy")
        expected = np.repeat(grey, 3, axis=3)
        expected[25:27] = X[25:27]
        np.testing.assert_array_equal(written, expected)
        assert fingerprint.of_file(tmp_path / "train_x.npy") == manifest["files"]["train_x"]["blake2b"]
        assert {p.name for p in tmp_path.iterdir()} == {
            "train_x.npy",
            "train_y.npy",
            "test_x.npy",
            "test_y.npy",
        }


RACER = """
import sys, time
from pathlib import Path
from pmfl.world.datasets import load
from pmfl.world.sources import writing
built, write = [], writing.write
def counted(*arguments):
    built.append(1)
    time.sleep(0.3)
    return write(*arguments)
writing.write = counted
Path(sys.argv[2] + ".ready").touch()
while not Path(sys.argv[3]).exists():
    time.sleep(0.005)
data = load("mine", sys.argv[1])
print(len(built), int(data.train.x.sum()), data.train.y.tolist() == list(range(3)) * 20)
"""


class TestManyProcesses:
    def test_builders_that_race_build_once(self, npz: Path, tmp_path: Path) -> None:
        start = tmp_path / "start"
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", RACER, str(npz), str(tmp_path / str(i)), str(start)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(3)
        ]
        while not all((tmp_path / f"{i}.ready").exists() for i in range(3)):
            time.sleep(0.01)
        start.touch()
        answers = [racer.communicate(timeout=60)[0].split() for racer in racers]
        assert sorted(int(a[0]) for a in answers) == [0, 0, 1]
        assert {(a[1], a[2]) for a in answers} == {(str(X.sum()), "True")}
        assert list((cache.root() / "building").iterdir()) == []
        cache.verify(entry().name)

    def test_what_a_killed_builder_left_is_cleared_away(self, npz: Path, tmp_path: Path) -> None:
        program = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from pmfl.world.sources import writing\n"
            "def hang(raw, folder, options):\n"
            "    (folder / 'train_x.npy').write_bytes(b'half')\n"
            "    Path(sys.argv[2]).touch()\n"
            "    time.sleep(60)\n"
            "writing.write = hang\n"
            "from pmfl.world.datasets import load\n"
            "load('mine', sys.argv[1])\n"
        )
        sign = tmp_path / "hangs"
        builder = subprocess.Popen([sys.executable, "-c", program, str(npz), str(sign)])
        while not sign.exists():
            time.sleep(0.01)
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        assert len(list((cache.root() / "building").iterdir())) == 1
        np.testing.assert_array_equal(load("mine", npz).train.x, X)
        assert list((cache.root() / "building").iterdir()) == []

    def test_who_waits_is_told_so(
        self, npz: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import threading

        monkeypatch.setattr(cache, "PATIENCE", 0.05)
        source = Source("test", npz.parent, (npz,), Options(), lambda _: Raw(RawSplit("x", X, Y), RawSplit("x", X, Y)))
        path = cache.root() / "locks" / f"{fingerprint.key(source)}.lock"
        path.parent.mkdir(parents=True)
        holds = threading.Event()

        def hold() -> None:
            with filelock.FileLock(path):
                holds.set()
                time.sleep(0.4)

        holder = threading.Thread(target=hold)
        holder.start()
        holds.wait()
        cache.ensure(source)
        holder.join()
        assert "waiting for another process" in capsys.readouterr().err


class TestNames:
    def test_opens_without_its_source(self, npz: Path) -> None:
        opening.get("mine", str(npz))
        npz.unlink()
        data = load("mine")
        np.testing.assert_array_equal(data.train.x, X)
        assert data.name == "mine"
        assert data.notes["source"] == str(npz)

    def test_names_with_any_letters(self, npz: Path) -> None:
        opening.get("hub:owner/näme:config", str(npz))
        assert list(cache.names()) == ["hub:owner/näme:config"]
        assert load("hub:owner/näme:config").classes == 3

    def test_other_options_go_back_to_the_source(self, tmp_path: Path) -> None:
        folder = makers.image_folder(tmp_path / "pets", X, Y, ("a", "b", "c"))
        opening.get("pets", str(folder), size=4)
        assert load("pets").train.x.shape[1:] == (4, 4, 3)
        assert load("pets", size=4).train.x.shape[1:] == (4, 4, 3)
        assert load("pets", size=5).train.x.shape[1:] == (5, 5, 3)
        shutil.rmtree(folder)
        with pytest.raises(SpecError, match='"pets" is not a known set'):
            load("pets", size=6)

    def test_removing_an_entry_forgets_its_name(self, npz: Path) -> None:
        opening.get("mine", str(npz))
        cache.remove(entry().name)
        assert cache.names() == {}
        assert cache.stored() == []
        cache.remove("0" * 32)  # not there: nothing to do

    def test_a_damaged_note_of_a_name_is_no_name(self, npz: Path) -> None:
        opening.get("mine", str(npz))
        next((cache.root() / "names").iterdir()).write_text("{")
        assert cache.names() == {}
        with pytest.raises(SpecError):
            load("mine")


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not on this machine")
OPEN = """
import resource, sys, time
from pmfl.world import datasets
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3  # MB
before, began = peak(), time.perf_counter()
data = datasets.load(sys.argv[1], sys.argv[2])
took = time.perf_counter() - began
print(took, peak() - before, len(data.train), "torch" in sys.modules)
"""


@needs_shared
class TestRealData:
    @pytest.mark.slow
    def test_svhn_first_in_a_minute_then_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        began = time.perf_counter()
        data = load("svhn", SHARED / "svhn_train.parquet")
        assert time.perf_counter() - began < 60
        assert np.bincount(data.train.y).tolist() == [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
        assert (len(data.train), len(data.test)) == (73_257, 24_878)
        manifest = json.loads((entry() / cache.MANIFEST).read_text())
        np.testing.assert_allclose(manifest["mean"], data.mean, atol=1e-4)
        np.testing.assert_allclose(manifest["std"], data.std, atol=2e-4)
        took, extra, samples, torch = [], [], 0, ""
        for _ in range(3):
            arguments = [sys.executable, "-c", OPEN, "svhn", str(SHARED / "svhn_train.parquet")]
            out = subprocess.run(arguments, capture_output=True, text=True, check=True, env=os.environ).stdout.split()
            took.append(float(out[0]))
            extra.append(float(out[1]))
            samples, torch = int(out[2]), out[3]
        assert min(took) < 0.3
        assert min(extra) < 50
        assert (samples, torch) == (73_257, "False")
        import io

        import pyarrow.parquet as pq
        from PIL import Image

        rows = pq.ParquetFile(SHARED / "svhn_test.parquet").read_row_group(4)
        for i in (0, 17, len(rows) - 1):
            picture = Image.open(io.BytesIO(rows["image"][i]["bytes"].as_py()))
            np.testing.assert_array_equal(np.asarray(picture), data.test.x[20_000 + i])
            assert rows["label"][i].as_py() == data.test.y[20_000 + i]

    @pytest.mark.parametrize(
        ("name", "train", "test", "per_class", "labels"),
        [
            ("cifar100", 5000, 1000, (50, 50), {0: "apple", 99: "worm"}),
            ("cinic10", 5837, 1000, (578, 589), {0: "airplane", 9: "truck"}),
        ],
    )
    def test_slices(self, name: str, train: int, test: int, per_class: tuple[int, int], labels: dict[int, str]) -> None:
        data = load(name, SHARED)
        assert (len(data.train), len(data.test)) == (train, test)
        counts = np.bincount(data.train.y)
        assert (counts.min(), counts.max()) == per_class
        assert {i: data.labels[i] for i in labels} == labels
        assert data.train.x.shape[1:] == (32, 32, 3)


DEBIAN = [
    Path(p) / "fashion-mnist" for p in ("/usr/share/datasets", *os.environ.get("PMFL_DATA", "").split(os.pathsep))
]
FASHION = next((folder for folder in DEBIAN if folder.is_dir()), None)


@pytest.mark.skipif(FASHION is None, reason="Debian's dataset-fashion-mnist is not installed, nor in $PMFL_DATA")
def test_fashion_mnist_from_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    from pmfl.world.sources import finding

    assert FASHION is not None
    monkeypatch.setattr(finding, "SYSTEM", (FASHION.parent,))
    data = load("fashion")
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    assert data.labels[0] == "T-shirt/top"
    assert data.labels[9] == "Ankle boot"
    assert data.train.y[:4].tolist() == [9, 0, 0, 3]
    assert abs(data.train.x[::50].mean() / 255 - 0.286) < 0.01
