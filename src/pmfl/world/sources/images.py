"""Encoded images to uint8 arrays, by one rule: an image is converted only when nothing is lost.

Grey, RGB, palette and black-and-white images are taken; an alpha channel is dropped when it is opaque everywhere.
Everything else (transparency, 16 bits, CMYK, animations, truncated files, more than 64 million pixels) is refused by
name. In a set that mixes grey and RGB, grey is repeated three times. Photographs are turned as their EXIF says.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pmfl.errors import DataMissing
from pmfl.world.datasets import Array
from pmfl.world.sources.raw import Picture, refuse

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
LARGEST = 1 << 26  # pixels
ORIENTATION = 0x0112  # the EXIF tag
AGAIN = "get the file again from where it came, or remove it"


def decode(picture: Picture, size: int | None = None) -> Array:
    """One image as uint8 [h, w] (grey) or [h, w, 3]."""
    try:
        data = picture.data.read_bytes() if isinstance(picture.data, Path) else picture.data
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            return _pixels(image, data, picture.place, size)
    except DataMissing:
        raise
    except UnidentifiedImageError:
        raise refuse(picture.place, f"is not an image ({', '.join(FORMATS)})", AGAIN) from None
    except Image.DecompressionBombError as error:
        raise refuse(picture.place, f"decompression bomb: {error}", "remove it, or make it smaller") from None
    except Exception as error:  # Pillow raises a dozen kinds for damaged files
        raise refuse(picture.place, f"cannot be decoded: {error}", AGAIN) from error


def _pixels(image: Image.Image, data: bytes, place: str, size: int | None) -> Array:
    width, height = image.size
    if width * height > LARGEST:
        raise refuse(
            place,
            f"decompression bomb: {width} x {height} pixels, more than 64 million",
            "make it smaller or remove it",
        )
    if getattr(image, "n_frames", 1) > 1:
        raise refuse(place, f"is an animation of {image.n_frames} frames", "keep one frame of it")  # type: ignore[attr-defined]
    if image.mode.startswith(("I", "F")) or (image.format == "PNG" and data[24] == 16):
        raise refuse(place, "has 16 bits or more per channel, and 8 would lose detail", "convert it to 8 bits yourself")
    if image.format in ("JPEG", "WEBP") and image.getexif().get(ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = _opaque(image, place)
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode == "P":
        image = image.convert("RGB")
    if image.mode not in ("L", "RGB"):
        raise refuse(place, f"is {image.mode}, neither grey nor RGB", "convert it to RGB yourself")
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _opaque(image: Image.Image, place: str) -> Image.Image:
    grey = image.mode in ("L", "LA", "1")
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() != (255, 255):
        raise refuse(place, "is transparent in places", "paste it on a background and save it as RGB")
    return image.convert("L" if grey else "RGB")


def decode_chunk(pictures: Sequence[Picture], size: int | None, side: tuple[int, int] | None) -> Array:
    """Images as one array [n, h, w, 1 or 3]; all must have the height and width of ``side`` (or of the first)."""
    decoded = []
    for picture in pictures:
        pixels = decode(picture, size)
        side = side or pixels.shape[:2]
        if pixels.shape[:2] != side:
            raise refuse(
                picture.place,
                f"is {pixels.shape[1]} x {pixels.shape[0]} pixels, the images before it are {side[1]} x {side[0]}",
                "bring all images to one size, or let it be done: size=32 resizes every image to 32 x 32",
            )
        decoded.append(pixels)
    if all(pixels.ndim == 2 for pixels in decoded):
        return np.stack(decoded)[..., None]
    return np.stack([p if p.ndim == 3 else np.repeat(p[..., None], 3, axis=2) for p in decoded])
