"""Decoding: what is converted, what is refused, and that worker processes give the same pixels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pmfl.errors import DataMissing
from pmfl.world.sources import crew
from pmfl.world.sources.images import decode, decode_chunk
from pmfl.world.sources.raw import Picture, Pictures
from tests.world import makers

RGB, GREY = makers.pixels(1)[0], makers.pixels(1, channels=1)[0]


def read(content: bytes, size: int | None = None) -> makers.Array:
    return decode(Picture("x.png", content), size)


def saved(image: Image.Image, kind: str = "PNG", **how: object) -> bytes:
    packed = io.BytesIO()
    image.save(packed, kind, **how)
    return packed.getvalue()


class TestModes:
    def test_rgb_and_grey_as_they_are(self) -> None:
        np.testing.assert_array_equal(read(makers.png(RGB)), RGB)
        np.testing.assert_array_equal(read(makers.png(GREY)), GREY[..., 0])

    def test_opaque_alpha_is_dropped(self) -> None:
        np.testing.assert_array_equal(read(makers.png(RGB, "RGBA")), RGB)
        np.testing.assert_array_equal(read(makers.png(GREY, "LA")), GREY[..., 0])

    def test_palette_becomes_rgb(self) -> None:
        flags = np.zeros((6, 6, 3), np.uint8)
        flags[:3], flags[3:] = (255, 0, 10), (3, 4, 5)
        np.testing.assert_array_equal(read(saved(Image.fromarray(flags).quantize(2))), flags)

    def test_black_and_white_becomes_grey(self) -> None:
        bits = Image.fromarray(GREY[..., 0]).point(lambda v: 255 * (v > 127)).convert("1")
        np.testing.assert_array_equal(read(saved(bits)), np.where(GREY[..., 0] > 127, 255, 0))

    def test_photographs_are_turned_as_their_exif_says(self) -> None:
        image = Image.fromarray(np.kron(RGB, np.ones((8, 4, 1), np.uint8)))  # 48 high, 24 wide
        exif = Image.Exif()
        exif[0x0112] = 6  # turn clockwise
        turned = read(saved(image, "JPEG", exif=exif, quality=100, subsampling=0))
        assert turned.shape == (24, 48, 3)
        assert np.abs(turned.astype(int) - np.rot90(np.asarray(image), -1)).mean() < 4

    def test_resizing(self) -> None:
        big = np.kron(RGB, np.ones((5, 5, 1), np.uint8))
        np.testing.assert_array_equal(read(makers.png(big), 3).shape, (3, 3, 3))
        flat = np.full((9, 4, 3), 77, np.uint8)
        assert (read(makers.png(flat), 5) == 77).all()

    def test_a_mixed_chunk_is_rgb(self) -> None:
        mixed = decode_chunk([Picture("a", makers.png(RGB)), Picture("b", makers.png(GREY))], None, None)
        np.testing.assert_array_equal(mixed[1], np.repeat(GREY, 3, axis=2))
        grey = decode_chunk([Picture("b", makers.png(GREY))], None, None)
        assert grey.shape == (1, 6, 6, 1)


class TestCrew:
    x = makers.pixels(60)

    def pictures(self, encoded: list[bytes | Path]) -> Pictures:
        def chunks() -> Iterator[list[Picture]]:
            for start in range(0, len(encoded), 7):
                yield [Picture(f"p{i}", encoded[i]) for i in range(start, min(start + 7, len(encoded)))]
            yield []

        return Pictures(len(encoded), chunks)

    def test_workers_give_the_same_pixels_in_order(self, tmp_path: Path) -> None:
        encoded: list[bytes | Path] = [makers.png(x) for x in self.x]
        for i in (3, 20, 50):
            (tmp_path / f"{i}.png").write_bytes(makers.png(self.x[i]))
            encoded[i] = tmp_path / f"{i}.png"
        for workers in (1, 2):
            decoded = np.concatenate(list(crew.decode_all(self.pictures(encoded), None, workers)))
            np.testing.assert_array_equal(decoded, self.x)

    def test_a_worker_names_what_is_wrong(self) -> None:
        encoded: list[bytes | Path] = [makers.png(x) for x in self.x]
        encoded[40] = encoded[40][:60]  # type: ignore[index]
        with pytest.raises(DataMissing, match="p40: cannot be decoded") as caught:
            list(crew.decode_all(self.pictures(encoded), None, 2))
        assert caught.value.code == "D101"
        assert "get the file again" in caught.value.hint

    def test_a_worker_that_dies_is_not_missed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(crew.sys, "executable", "/bin/true")  # type: ignore[attr-defined]
        encoded: list[bytes | Path] = [makers.png(x) for x in self.x]
        decoded = np.concatenate(list(crew.decode_all(self.pictures(encoded), None, 2)))
        np.testing.assert_array_equal(decoded, self.x)

    def test_large_sets_are_worth_a_crew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(crew, "WORTH_A_CREW", 10)

        def started(workers: int) -> None:
            raise RuntimeError(f"started {workers}")

        monkeypatch.setattr(crew, "_Crew", started)
        monkeypatch.setattr(crew, "_cores", lambda: 1)
        assert len(np.concatenate(list(crew.decode_all(self.pictures([makers.png(x) for x in self.x]), None)))) == 60
        monkeypatch.setattr(crew, "_cores", lambda: 3)
        with pytest.raises(RuntimeError, match="started 3"):
            list(crew.decode_all(self.pictures([makers.png(x) for x in self.x]), None))

    def test_nothing_to_decode(self) -> None:
        assert list(crew.decode_all(self.pictures([]), None)) == []

    def test_serving_is_a_conversation_over_two_pipes(self) -> None:
        requests, replies = io.BytesIO(), io.BytesIO()
        crew._write_request(requests, [Picture("a", makers.png(RGB))], None, (6, 6))
        crew._write_request(requests, [Picture("b", b"?")], None, (6, 6))
        requests.seek(0)
        crew.serve(requests, replies)
        replies.seek(0)
        np.testing.assert_array_equal(crew._read_reply(replies)[0], RGB)
        with pytest.raises(DataMissing, match="b: is not an image"):
            crew._read_reply(replies)
        with pytest.raises(EOFError):
            crew._read_reply(replies)
        cut = io.BytesIO(replies.getvalue()[:60])
        with pytest.raises(EOFError):
            crew._read_reply(cut)
