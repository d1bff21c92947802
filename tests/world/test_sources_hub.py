"""The Hugging Face hub: its layout read through `datasets` from local files, and what is said without network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pmfl.errors import DataMissing
from pmfl.world.datasets import Dataset, load
from pmfl.world.sources import hub, opening
from pmfl.world.sources.raw import Options
from tests.world import makers

pytestmark = pytest.mark.usefixtures("own_cache")

X, X_TEST = makers.pixels(30), makers.pixels(15, seed=1)
Y, Y_TEST = makers.labels(30), makers.labels(15)
NAMES = ("cat", "dog", "eel")
OFFLINE = """
import sys
from pmfl.errors import PmflError
from pmfl.world.sources import opening
try:
    opening.get(*sys.argv[1:])
except PmflError as error:
    print(error.code, error)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The package, told to stay off the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return pytest.importorskip("datasets", reason="the extra `hub` is not installed")


class TestThroughDatasets:
    def loaded(self, datasets: Any, folder: Path, **splits: Path) -> dict[str, object]:
        files = {split: str(path) for split, path in splits.items()}
        return dict(datasets.load_dataset("parquet", data_files=files, cache_dir=str(folder / "hf")))

    def dataset(self, datasets: Any, folder: Path, options: Options, **splits: Path) -> Dataset:
        from pmfl.world import cache

        source = hub.of_datasets(self.loaded(datasets, folder, **splits), options, "hub:owner/pets")
        return opening.as_dataset(cache.ensure(source), "hub:owner/pets", "the hub")

    def test_columns_are_found_by_feature_type(self, tmp_path: Path, datasets: Any) -> None:
        train = makers.parquet(tmp_path / "a.parquet", X, Y, names=NAMES)
        test = makers.parquet(tmp_path / "b.parquet", X_TEST, Y_TEST, names=NAMES)
        data = self.dataset(datasets, tmp_path, Options(), train=train, test=test)
        np.testing.assert_array_equal(data.train.x, X)
        np.testing.assert_array_equal(data.train.y, Y)
        np.testing.assert_array_equal(data.test.x, X_TEST)
        assert data.labels == NAMES

    def test_natural_users_and_a_keyed_share(self, tmp_path: Path, datasets: Any) -> None:
        train = makers.parquet(tmp_path / "a.parquet", X, Y, names=NAMES, writer_id=[f"f{i % 5}" for i in range(30)])
        data = self.dataset(datasets, tmp_path, Options(), train=train)
        assert data.user_names == ("f0", "f1", "f2", "f3", "f4")
        assert (len(data.train), len(data.test)) == (24, 6)
        by_pixels = {x.tobytes(): i % 5 for i, x in enumerate(X)}
        assert data.train.users is not None
        assert [by_pixels[x.tobytes()] for x in data.train.x] == data.train.users.tolist()

    def test_columns_and_splits_named_by_the_user(self, tmp_path: Path, datasets: Any) -> None:
        files = {
            name: makers.parquet(tmp_path / f"{name}.parquet", x, Y_TEST * 0, names=NAMES, mood=Y_TEST)
            for name, x in (("dev", X_TEST), ("exam", X[:15]))
        }
        data = self.dataset(datasets, tmp_path, Options(train="exam", test="dev", label="mood"), **files)
        np.testing.assert_array_equal(data.train.x, X[:15])
        np.testing.assert_array_equal(data.train.y, Y_TEST)

    def test_images_in_folders_are_embedded(self, tmp_path: Path, datasets: Any) -> None:
        makers.image_folder(tmp_path / "pets" / "train", X, Y, NAMES)
        loaded = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "pets"), cache_dir=str(tmp_path / "hf"))
        raw = hub.of_datasets(dict(loaded), Options(), "hub:pets").read(tmp_path)
        from pmfl.world.sources.crew import decode_all
        from pmfl.world.sources.raw import Pictures

        assert isinstance(raw.train.x, Pictures)
        decoded = np.concatenate(list(decode_all(raw.train.x, None)))
        assert {x.tobytes() for x in decoded} == {x.tobytes() for x in X}

    @pytest.mark.usefixtures("datasets")
    def test_a_local_folder_by_its_hub_name(self, tmp_path: Path) -> None:
        makers.parquet(tmp_path / "pets" / "train.parquet", X, Y, names=NAMES)
        data = opening.get("pets", f"hub:{tmp_path / 'pets'}")
        assert len(data.train) == 24
        assert load("pets").labels == NAMES

    def test_what_lies_in_memory_has_no_name(self, datasets: Any) -> None:
        with pytest.raises(DataMissing, match="lies in memory only"):
            hub.of_datasets({"train": datasets.Dataset.from_dict({"x": [1]})}, Options(), "hub:x")


class TestWithoutNetwork:
    @pytest.mark.parametrize("name", ["hub:nobody/nothing", "hub:ufldl-stanford/svhn:cropped_digits"])
    def test_loading_never_asks_the_network(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataMissing, match="not on this machine") as caught:
            load(name)
        assert caught.value.exit_code == 3
        repository = name.split(":")[1]
        for way in (f"pmfl data get {name} ", f"hf download {repository} ", f"pmfl data get {name} --from PATH"):
            assert way in caught.value.hint

    def test_getting_needs_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataMissing, match="needs the package `datasets`") as caught:
            opening.get("hub:nobody/nothing")
        assert "pip install 'pmfl[hub]'" in caught.value.hint

    @pytest.mark.usefixtures("datasets")
    def test_getting_without_network_exits_with_3_and_three_ways(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", OFFLINE, "hub:nobody/nothing"],
            capture_output=True,
            text=True,
            env=os.environ,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert done.stdout.startswith("D100 hub:nobody/nothing: the hub did not give it")
        assert [f"{i}. " in done.stdout for i in (1, 2, 3)] == [True] * 3

    @pytest.mark.parametrize(("says", "shown"), [("offline\nmore", "offline"), ("", "ConnectionError")])
    def test_whatever_the_hub_raises_ends_in_three_ways(
        self, says: str, shown: str, datasets: Any, monkeypatch: pytest.MonkeyPatch, own_cache: Path
    ) -> None:
        def fails(*_: object) -> None:
            raise ConnectionError(says)

        monkeypatch.setattr(datasets, "load_dataset", fails)
        with pytest.raises(DataMissing, match="the hub did not give it") as caught:
            opening.get("hub:a/b:c")
        assert caught.value.message == f"hub:a/b:c: the hub did not give it: {shown}"
        assert caught.value.exit_code == 3
        assert [f"{i}. " in caught.value.hint for i in (1, 2, 3)] == [True] * 3
        assert "pmfl data get hub:a/b:c --from DIR/c" in caught.value.hint
        assert list(own_cache.iterdir()) == []

    def test_femnist_comes_from_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def asked(name: str, options: Options) -> None:
            raise RuntimeError(name)

        monkeypatch.setattr(hub, "find", asked)
        with pytest.raises(RuntimeError, match=r"^hub:flwrlabs/femnist$"):
            opening.get("femnist")
