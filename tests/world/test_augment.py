from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.errors import SpecError
from pmfl.world.augment import (
    AUGMENTS,
    PAD,
    Images,
    brighten,
    crop,
    crop_flip,
    equalise,
    fedau,
    mean_colour,
    sharpen,
    to_input,
    turn_hue,
)

few = settings(max_examples=25, deadline=None, database=None)
seeds = st.integers(0, 2**32)
sizes = st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]))


def pictures(seed: int, shape: tuple[int, ...]) -> Images:
    return Key.root(seed).fold("pictures").numpy().integers(0, 256, shape, dtype=np.uint8)


def windows(image: Images, fill: tuple[int, ...]) -> list[Images]:
    """Every window of the image's size out of the bordered image, by plain slicing."""
    height, width, channels = image.shape
    padded = np.empty((height + 2 * PAD, width + 2 * PAD, channels), np.uint8)
    padded[:] = fill
    padded[PAD : PAD + height, PAD : PAD + width] = image
    side = range(2 * PAD + 1)
    return [padded[i : i + height, j : j + width] for i in side for j in side]


def is_one_of(image: Images, candidates: list[Images]) -> bool:
    return any(np.array_equal(image, candidate) for candidate in candidates)


@few
@given(seeds, sizes)
def test_every_augmentation_keeps_shape_and_type_and_leaves_its_input_alone(seed: int, shape: tuple[int, ...]) -> None:
    x = pictures(seed, shape)
    for augment in AUGMENTS.values():
        before = x.copy()
        out = augment(x, Key.root(seed))
        assert out.shape == x.shape
        assert out.dtype == np.uint8
        assert np.array_equal(x, before)


@few
@given(seeds, sizes)
def test_the_same_key_gives_the_same_images(seed: int, shape: tuple[int, ...]) -> None:
    x = pictures(seed, shape)
    for augment in AUGMENTS.values():
        assert np.array_equal(augment(x, Key.root(seed)), augment(x, Key.root(seed)))


@few
@given(seeds, st.sampled_from(["crop", "crop-flip", "fedau"]))
def test_a_sample_is_changed_alike_whatever_the_others_are(seed: int, name: str) -> None:
    x, key = pictures(seed, (6, 8, 7, 3)), Key.root(seed)
    whole = AUGMENTS[name](x, key)
    other = pictures(seed + 1, x.shape)
    other[2] = x[2]
    assert np.array_equal(AUGMENTS[name](other, key)[2], whole[2])
    assert np.array_equal(AUGMENTS[name](x[:4], key), whole[:4])


@pytest.mark.parametrize("name", ["crop", "crop-flip", "fedau"])
def test_samples_and_keys_have_draws_of_their_own(name: str) -> None:
    x = np.repeat(pictures(0, (1, 8, 8, 3)), 40, axis=0)
    out = AUGMENTS[name](x, Key.root(0))
    assert len(np.unique(out.reshape(40, -1), axis=0)) > 20
    assert not np.array_equal(out, AUGMENTS[name](x, Key.root(1)))


@few
@given(seeds, sizes, st.tuples(*[st.integers(0, 255)] * 3))
def test_a_crop_is_a_window_of_the_bordered_image(
    seed: int, shape: tuple[int, ...], colour: tuple[int, int, int]
) -> None:
    x, fill = pictures(seed, shape), colour[: shape[-1]]
    for image, cut in zip(x, crop(x, Key.root(seed), fill), strict=True):
        assert is_one_of(cut, windows(image, fill))


@few
@given(seeds, sizes)
def test_a_flip_is_a_mirrored_crop(seed: int, shape: tuple[int, ...]) -> None:
    x, key = pictures(seed, shape), Key.root(seed)
    for plain, out in zip(crop(x, key), crop_flip(x, key), strict=True):
        assert is_one_of(out, [plain, plain[:, ::-1]])


def test_windows_and_flips_are_uniform() -> None:
    n = 20000
    marked = np.zeros((n, 9, 9, 1), np.uint8)
    marked[:, 4, 4] = 255  # stays in view for every offset
    marked[:, 4, 3] = 128  # tells left from right while it is in view
    cut = crop(marked, Key.root(0))
    rows, columns = (cut[..., 0] == 255).any(2).argmax(1), (cut[..., 0] == 255).any(1).argmax(1)
    counts = np.histogram2d(rows, columns, bins=(9, 9), range=((0, 9), (0, 9)))[0]
    expected = n / 81
    assert ((counts - expected) ** 2 / expected).sum() < 140  # chi-square, 80 degrees of freedom
    flipped = (crop_flip(marked, Key.root(0)) != cut).any((1, 2, 3))
    assert abs(flipped.mean() - 0.5) < 0.02


def test_the_default_border_is_black_and_a_mean_border_becomes_zero() -> None:
    x, key = np.full((64, 4, 4, 3), 200, np.uint8), Key.root(0)
    assert set(np.unique(crop(x, key))) == {0, 200}
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    z = to_input(crop(x, key, mean_colour(mean)), mean, std)
    border = z[(z - to_input(x[:1], mean, std)[0, :, :1, :1]).abs() > 0.1]
    assert len(border) > 100
    assert border.abs().max() < 0.5 / 255 / 0.19


@pytest.mark.parametrize("name", ["crop", "crop-flip", "fedau"])
def test_rows_of_features_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"`{name}` is for images"):
        AUGMENTS[name](np.zeros((3, 5), np.uint8), Key.root(0))


# The parts of fedau, against literal loops over pixels.


def test_sharpening_doubles_the_difference_to_the_softened_image() -> None:
    x = pictures(1, (3, 6, 5, 3))
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])
    expected = x.copy()
    for n, i, j, c in np.ndindex(*x.shape):
        if 0 < i < 5 and 0 < j < 4:
            soft = round(float((x[n, i - 1 : i + 2, j - 1 : j + 2, c] * kernel).sum() / 13))
            expected[n, i, j, c] = min(max(2 * int(x[n, i, j, c]) - soft, 0), 255)
    assert np.array_equal(sharpen(x), expected)
    tiny = pictures(2, (2, 2, 2, 3))
    assert np.array_equal(sharpen(tiny), tiny)


def test_hues_turn_on_the_colour_circle() -> None:
    x = pictures(3, (4, 9, 9, 3))
    x[0, 0] = x[0, 0, :, :1]  # greys
    turns = np.array([-0.05, 0.05, 0.31, -0.5], np.float32)
    expected = np.empty_like(x)
    for n, i, j in np.ndindex(*x.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(x[n, i, j] / 255))
        turned = colorsys.hsv_to_rgb((hue + float(turns[n])) % 1.0, saturation, value)
        expected[n, i, j] = [int(level * 255.999) for level in turned]
    out = turn_hue(x, turns)
    assert np.abs(out.astype(int) - expected).max() <= 1
    assert (out != expected).mean() < 0.01  # a level on the edge of two, in single and double precision
    assert np.array_equal(out[0, 0], x[0, 0])
    assert np.array_equal(turn_hue(x, np.zeros(4, np.float32)), x)
    grey = pictures(4, (2, 3, 3, 1))
    assert turn_hue(grey, turns[:2]) is grey


def test_brightness_scales_and_saturates() -> None:
    x = np.array([0, 100, 250], np.uint8).reshape(1, 1, 3, 1)
    assert brighten(x, np.array([1.03125], np.float32)).ravel().tolist() == [0, 103, 255]
    assert brighten(x, np.array([0.96875], np.float32)).ravel().tolist() == [0, 96, 242]


def test_equalising_spreads_levels() -> None:
    x = pictures(5, (5, 40, 30, 3)) // 3 + 40
    x[1] = 7  # one level only: nothing to spread
    x[2] = x[2] // 64 * 64
    expected = np.empty_like(x)
    for n, c in np.ndindex(5, 3):
        plane = x[n, :, :, c]
        count = np.bincount(plane.ravel(), minlength=256)
        step = (count.sum() - count[count > 0][-1]) // 255
        for level in range(256):
            to = min((int(count[:level].sum()) + step // 2) // step, 255) if step else level
            expected[n, :, :, c][plane == level] = to
    out = equalise(x)
    assert np.array_equal(out, expected)
    assert np.array_equal(out[1], x[1])
    assert out[0].max() > 250 > x[0].max() > out[0].min() + 100


def test_fedau_uses_each_part_on_about_half_of_the_samples() -> None:
    # A narrow range of levels: two bits leave at most two of them, equalising stretches them to the full range.
    x = np.tile((100 + np.arange(64, dtype=np.uint8) % 40).reshape(1, 8, 8, 1), (2000, 4, 4, 3))
    out = fedau(x, Key.root(0), fill=(120, 120, 120))
    inner = out[:, 4:-4, 4:-4]
    few_levels = np.array([len(np.unique(image)) <= 4 for image in inner])
    wide = inner.max((1, 2, 3)) > 240
    assert abs(few_levels.mean() - 0.5) < 0.05
    assert abs(wide[~few_levels].mean() - 0.5) < 0.07
    no_pattern = np.full((400, 12, 12, 3), 100, np.uint8)
    levels = fedau(no_pattern, Key.root(1), fill=(100, 100, 100))[:, 5, 5, 0]
    assert {64, 95, 104} <= set(levels.tolist())
    assert set(levels.tolist()) <= {64, *range(95, 106)}


# Normalisation.


@few
@given(seeds, sizes, st.booleans())
def test_images_become_normalised_channels_first_views(seed: int, shape: tuple[int, ...], one_mean: bool) -> None:
    x = pictures(seed, shape)
    channels = 1 if one_mean else shape[-1]
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2023, 0.1994, 0.2010)[:channels]
    expected = ((x / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    exact = to_input(x, mean, std, torch.float64)
    assert exact.shape == expected.shape
    assert np.allclose(exact.numpy(), expected, rtol=0, atol=1e-12)
    assert exact.is_contiguous(memory_format=torch.channels_last)
    single = to_input(x, mean, std)
    assert single.dtype == torch.float32
    assert np.allclose(single.numpy(), expected, rtol=0, atol=2e-6)


def test_leading_axes_are_kept_and_tensors_are_taken() -> None:
    x = pictures(0, (2, 3, 4, 5, 3))
    flat = to_input(x.reshape(6, 4, 5, 3), (0.5,), (0.25,))
    assert torch.equal(to_input(x, (0.5,), (0.25,)), flat.unflatten(0, (2, 3)))
    assert torch.equal(to_input(torch.from_numpy(x), (0.5,), (0.25,)), flat.unflatten(0, (2, 3)))
    assert torch.equal(to_input(torch.from_numpy(x).transpose(2, 3), (0.5,), (0.25,)), flat.unflatten(0, (2, 3)).mT)
    assert flat.unflatten(0, (2, 3)).flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


def test_memory_that_is_not_writable_is_read() -> None:
    x = pictures(0, (2, 4, 4, 3))
    locked = x.copy()
    locked.flags.writeable = False
    assert torch.equal(to_input(locked, (0.0,), (1.0,)), to_input(x, (0.0,), (1.0,)))


@pytest.mark.parametrize("mean", [(0.0,), (1.0, 2.0, 3.0)])
def test_rows_keep_their_shape_and_are_not_scaled_by_255(mean: tuple[float, ...]) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    std = tuple(2.0 for _ in mean)
    out = to_input(rows, mean, std)
    assert torch.allclose(out, (torch.from_numpy(rows) - torch.tensor(mean)) / 2)
    assert to_input(rows, mean, std, torch.float64).dtype == torch.float64
    assert np.array_equal(rows, np.arange(12, dtype=np.float32).reshape(4, 3))
