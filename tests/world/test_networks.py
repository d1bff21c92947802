from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmfl.core.client import by_autograd, by_transform
from pmfl.core.keys import Key
from pmfl.core.types import Masks, Model, Scalar, Scalars, Vector
from pmfl.errors import SpecError
from pmfl.world.layout import Layout, Slot
from pmfl.world.masks import draw_masks
from pmfl.world.networks import MODELS

F64 = torch.float64
HIDDEN = {
    "cnn-fashion": (128,),
    "cnn-svhn": (128,),
    "cnn-cifar10": (256, 64),
    "cnn-cifar100": (512, 256),
    "cnn-cinic10": (512, 256),
}
SMALL = [
    ("cnn-fashion", (9, 8, 1)),
    ("cnn-cifar10", (9, 8, 3)),
    ("cnn-cinic10", (4, 5, 3)),
    ("mlp", (5,)),
    ("mlp", (3, 3, 2)),
]
LARGE = ("resnet18-gn", (4, 4, 3))


def images(key: Key, n: int, height: int, width: int, channels: int) -> Tensor:
    """Channels-last in memory, channels-first in shape, as ``to_input`` gives them."""
    return torch.randn((n, height, width, channels), generator=key.torch(), dtype=F64).permute(0, 3, 1, 2)


def inputs(shape: tuple[int, ...], n: int) -> Tensor:
    key = Key.root(7)
    return images(key, n, *shape) if len(shape) == 3 else torch.randn((n, *shape), generator=key.torch(), dtype=F64)


def labels(n: int, classes: int) -> Tensor:
    return torch.randint(classes, (n,), generator=Key.root(8).torch())


def unpack(w: Vector, *shapes: tuple[int, ...]) -> list[Tensor]:
    """The parameters in the order of the layers; kernels lie as (out, height, width, in)."""
    parts, at = [], 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        part = w[at : at + size]
        parts.append(
            part.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2) if len(shape) == 4 else part.view(shape)
        )
        at += size
    assert at == len(w)
    return parts


class Ordinary(nn.Module):
    """One of the paper's networks as anybody would write it: ReLU before pooling, channels first."""

    def __init__(self, shape: tuple[int, int, int], hidden: tuple[int, ...], classes: int, dropout: float) -> None:
        super().__init__()
        height, width, channels = shape
        self.conv = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.corner = (height // 4, width // 4)
        widths = (32 * self.corner[0] * self.corner[1], *hidden)
        layers: list[nn.Module] = []
        for before, after in zip(widths, hidden, strict=False):
            layers += [nn.Dropout(dropout), nn.Linear(before, after), nn.ReLU()]
        self.fc1, self.fc2 = nn.Sequential(*layers), nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden[-1], classes))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.contiguous())
        logits: Tensor = self.fc2(self.fc1(x.flatten(1)))
        return logits

    def load(self, w: Vector) -> None:
        """Parameters from the flat vector; the first hidden layer there reads pixels before channels."""
        params = list(self.parameters())
        for p, part in zip(params, unpack(w, *(tuple(p.shape) for p in params)), strict=True):
            if p is params[4]:
                part = part.view(-1, *self.corner, 32).permute(0, 3, 1, 2).reshape(p.shape)
            p.data = part.clone().contiguous()

    def flat_gradient(self) -> Vector:
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        grads[4] = grads[4].view(-1, 32, *self.corner).permute(0, 2, 3, 1)
        return torch.cat([(g.permute(0, 2, 3, 1) if i in (0, 2) else g).flatten() for i, g in enumerate(grads)])


def objective(model: Model, x: Tensor, y: Tensor, masks: Masks = ()) -> Callable[[Vector], tuple[Scalar, Scalars]]:
    return lambda w: (cross_entropy(model.logits(w, x, masks), y), {})


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("cnn-fashion", (28, 28, 1), 10, 211690),
        ("cnn-svhn", (32, 32, 3), 10, 273706),
        ("cnn-cifar10", (32, 32, 3), 10, 551786),
        ("cnn-cinic10", (32, 32, 3), 10, 1193130),
        ("cnn-cifar100", (32, 32, 3), 100, 1216260),
        ("resnet18-gn", (32, 32, 3), 10, 11173962),
        ("mlp", (8, 8, 1), 10, 64 * 64 + 64 + 640 + 10),
    ],
)
def test_sizes_are_those_of_the_paper(name: str, shape: tuple[int, ...], classes: int, size: int) -> None:
    model = MODELS[name](shape, classes)
    assert model.size == size
    assert model.init(Key.root(0)).shape == (size,)
    assert model.init(Key.root(0)).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn-fashion", (28, 28, 1)), ("cnn-cifar10", (32, 32, 3)), *((name, (9, 6, 2)) for name in HIDDEN)],
)
def test_the_papers_networks_are_the_ordinary_ones(name: str, shape: tuple[int, int, int]) -> None:
    model, plain = MODELS[name](shape, 7, F64), Ordinary(shape, HIDDEN[name], 7, 0.2).eval()
    w, x, y = model.init(Key.root(1)), images(Key.root(2), 4, *shape), labels(4, 7)
    w = w + 0.05 * torch.randn(w.shape, generator=Key.root(3).torch(), dtype=F64)  # no bias at zero
    plain.load(w)
    logits = plain(x)
    assert torch.allclose(model.logits(w, x), logits, rtol=0, atol=1e-12)
    cross_entropy(logits, y).backward()
    gradient, _, _ = by_autograd(objective(model, x, y), w)
    assert torch.allclose(gradient, plain.flat_gradient(), rtol=0, atol=1e-12)


def test_the_representation_is_the_output_of_the_hidden_block() -> None:
    shape = (8, 8, 3)
    model, plain = MODELS["cnn-cifar10"](shape, 10, F64), Ordinary(shape, HIDDEN["cnn-cifar10"], 10, 0.0)
    w, x = model.init(Key.root(1)), images(Key.root(2), 3, *shape)
    plain.load(w)
    z = model.represent(w, x, ())
    assert torch.allclose(z, plain.fc1(plain.conv(x).flatten(1)), rtol=0, atol=1e-12)
    assert torch.allclose(model.classify(w, z, ()), plain.fc2(z), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "projection"), [*((*small, p) for small in SMALL for p in ("hidden", "moon")), (*LARGE, "hidden")]
)
def test_gradients_agree_and_vectors_can_be_vmapped(name: str, shape: tuple[int, ...], projection: str) -> None:
    model = MODELS[name](shape, 4, F64, projection=projection)
    x, y, masks = inputs(shape, 2), labels(2, 4), draw_masks(model, Key.root(5), (2,))
    ws = torch.stack([model.init(Key.root(seed)) for seed in range(1 if model.size > 1e7 else 2)])
    loss = objective(model, x, y, masks)
    single = [by_autograd(loss, w) for w in ws]
    for w, (gradient, value, _) in zip(ws, single, strict=True):
        transformed, same, _ = by_transform(loss, w)
        assert torch.allclose(transformed, gradient, rtol=0, atol=1e-12)
        assert torch.allclose(same, value, rtol=0, atol=1e-12)
    together, values, _ = torch.vmap(lambda w: by_transform(loss, w))(ws)
    assert torch.allclose(together, torch.stack([g for g, _, _ in single]), rtol=0, atol=1e-11)
    assert torch.allclose(values, torch.stack([v for _, v, _ in single]), rtol=0, atol=1e-11)


def test_a_gradient_is_put_together_once() -> None:
    model = MODELS["cnn-cifar10"]((8, 8, 3), 10)
    w = model.init(Key.root(0)).requires_grad_()
    x = inputs((8, 8, 3), 2).float()
    ways, seen = [model.logits(w, x).grad_fn], set()
    while ways:
        node = ways.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ways += [before for before, _ in node.next_functions]
    assert sum("Split" in type(node).__name__ for node in seen) == 1


def test_a_vector_meets_its_own_views_only() -> None:
    model = MODELS["mlp"]((5,), 3, F64)
    a, b = model.init(Key.root(0)).requires_grad_(), model.init(Key.root(1)).requires_grad_()
    x = inputs((5,), 2)
    z = model.represent(a, x, ())
    with torch.no_grad():
        expected = model.classify(b.detach().clone(), z, ())
    model.represent(a, x, ())
    assert torch.equal(model.classify(b, z, ()), expected)
    assert model.classify(b, z, ()).requires_grad
    with torch.no_grad():
        model.represent(a, x, ())
    logits = model.classify(a, z.detach(), ())  # views made without a graph are not taken for this call
    assert logits.requires_grad


def test_kernels_are_channels_last_views_of_the_vector() -> None:
    layout = Layout([Slot((4, 3, 2, 5), channels_last=True), Slot((4,)), Slot((2, 3))])
    w = torch.arange(float(layout.size))
    kernel, row, matrix = layout.views(w)
    assert kernel.shape == (4, 3, 2, 5)
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert {view.untyped_storage().data_ptr() for view in (kernel, row, matrix)} == {w.untyped_storage().data_ptr()}
    assert torch.equal(layout.pack([kernel, row, matrix]), w)
    assert Layout([]).pack([]).shape == (0,)


# Dropout


@pytest.mark.parametrize("projection", ["hidden", "moon"])
def test_masks_drop_inputs_of_the_fully_connected_layers(projection: str) -> None:
    shape = (8, 8, 3)
    model = MODELS["cnn-cifar100"](shape, 5, F64, dropout=0.25, projection=projection)
    assert model.masks == (((128,), 0.75), ((512,), 0.75), ((64 * 4 if projection == "moon" else 256,), 0.75))
    w, x = model.init(Key.root(0)), inputs(shape, 6)
    masks = draw_masks(model, Key.root(1), (6,))
    p = unpack(
        w, (32, 3, 3, 3), (32,), (32, 32, 3, 3), (32,), (512, 128), (512,), (256, 512), (256,),
        *([(256, 256), (256,), (256, 256), (256,)] if projection == "moon" else []), (5, 256), (5,),
    )  # fmt: skip
    h = torch.relu(torch.max_pool2d(torch.conv2d(x, p[0], p[1], padding=1), 2))
    h = torch.relu(torch.max_pool2d(torch.conv2d(h, p[2], p[3], padding=1), 2)).permute(0, 2, 3, 1).flatten(1)
    h = torch.relu((h * masks[0] / 0.75) @ p[4].T + p[5])
    h = torch.relu((h * masks[1] / 0.75) @ p[6].T + p[7])
    if projection == "moon":
        h = torch.relu(h @ p[8].T + p[9]) @ p[10].T + p[11]
    z = model.represent(w, x, masks)
    assert torch.allclose(z, h, rtol=0, atol=1e-12)
    assert torch.allclose(model.classify(w, z, masks), (h * masks[2] / 0.75) @ p[-2].T + p[-1], rtol=0, atol=1e-12)
    kept = tuple(torch.ones_like(mask, dtype=torch.uint8) for mask in masks)
    whole = MODELS["cnn-cifar100"](shape, 5, F64, dropout=0.0, projection=projection)
    assert whole.masks == ()
    assert torch.allclose(model.represent(w, x, ()), whole.represent(w, x, ()), rtol=0, atol=0)
    assert not torch.allclose(model.represent(w, x, kept), whole.represent(w, x, ()))  # scaled up, as if kept by luck


def test_masks_are_drawn_per_layer_and_sample() -> None:
    model = MODELS["cnn-cinic10"]((32, 32, 3), 10)
    masks = draw_masks(model, Key.root(0), (5, 16))
    assert [tuple(mask.shape) for mask in masks] == [(5, 16, 2048), (5, 16, 512), (5, 16, 256)]
    assert all(mask.dtype == torch.bool for mask in masks)
    assert all(torch.equal(a, b) for a, b in zip(masks, draw_masks(model, Key.root(0), (5, 16)), strict=True))
    assert not torch.equal(masks[0], draw_masks(model, Key.root(1), (5, 16))[0])
    assert len(torch.unique(masks[2].flatten(0, 1), dim=0)) == 80
    many = draw_masks(model, Key.root(2), (500,))[0].double()
    assert abs(float(many.mean()) - 0.8) < 4 * sqrt(0.16 / many.numel())
    assert many.mean(0).sub(0.8).abs().max() < 5 * sqrt(0.16 / 500)
    assert draw_masks(MODELS["mlp"]((3,), 2), Key.root(0), (4,)) == ()
    assert draw_masks(model, Key.root(0), (0,))[0].shape == (0, 2048)


def test_everything_may_be_dropped() -> None:
    model = MODELS["cnn-cinic10"]((4, 4, 1), 3, F64, dropout=1.0)
    w, masks = model.init(Key.root(0)), draw_masks(model, Key.root(1), (2,))
    assert not any(bool(mask.any()) for mask in masks)
    assert torch.equal(model.logits(w, inputs((4, 4, 1), 2), masks), unpack_last_bias(w, 3).expand(2, 3))


def unpack_last_bias(w: Vector, classes: int) -> Tensor:
    return w[-classes:]


# The general networks


def test_mlp_is_linear_layers_with_relu() -> None:
    model = MODELS["mlp"]((4,), 3, F64, hidden=(6, 5))
    w, x = model.init(Key.root(0)), inputs((4,), 7)
    a, b, c, d, e, f = unpack(w, (6, 4), (6,), (5, 6), (5,), (3, 5), (3,))
    z = torch.relu(torch.relu(x @ a.T + b) @ c.T + d)
    assert torch.allclose(model.represent(w, x, ()), z, rtol=0, atol=1e-12)
    assert torch.allclose(model.logits(w, x), z @ e.T + f, rtol=0, atol=1e-12)
    linear = MODELS["mlp"]((4,), 3, F64, hidden=())
    w = linear.init(Key.root(0))
    assert torch.equal(linear.represent(w, x, ()), x)
    assert torch.allclose(linear.logits(w, x), x @ w[:12].view(3, 4).T + w[12:], rtol=0, atol=1e-12)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(groups, outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(groups, outputs)
        self.skip = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))) + self.skip(x))


def test_resnet_is_the_ordinary_one() -> None:
    model = MODELS["resnet18-gn"]((8, 8, 3), 4, F64, groups=16)
    w = model.init(Key.root(0))
    w = w + 0.02 * torch.randn(w.shape, generator=Key.root(1).torch(), dtype=F64)
    blocks = [
        Block(before, after, stride if first else 1, 16)
        for before, after, stride, first in [
            (64, 64, 1, True), (64, 64, 1, False), (64, 128, 2, True), (128, 128, 2, False),
            (128, 256, 2, True), (256, 256, 2, False), (256, 512, 2, True), (512, 512, 2, False),
        ]
    ]  # fmt: skip
    plain = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 4),
    ).double()  # fmt: skip
    params = list(plain.parameters())
    for p, part in zip(params, unpack(w, *(tuple(p.shape) for p in params)), strict=True):
        p.data = part.clone()
    x = inputs((6, 5, 3), 2)
    assert torch.allclose(model.logits(w, x), plain(x), rtol=0, atol=1e-11)


def test_moon_head_is_two_layers_before_the_classifier() -> None:
    plain, moon = MODELS["mlp"]((6,), 3, F64, hidden=10), MODELS["mlp"]((6,), 3, F64, hidden=10, projection="moon")
    assert moon.size - plain.size == (100 + 10) + (10 * 256 + 256) + (256 - 10) * 3
    w, x = moon.init(Key.root(0)), inputs((6,), 4)
    a, b, c, d, e, f, _, _ = unpack(w, (10, 6), (10,), (10, 10), (10,), (256, 10), (256,), (3, 256), (3,))
    h = torch.relu(x @ a.T + b)
    assert torch.allclose(moon.represent(w, x, ()), torch.relu(h @ c.T + d) @ e.T + f, rtol=0, atol=1e-12)


# Initialisation


def test_first_parameters_follow_the_table() -> None:
    w = MODELS["cnn-cinic10"]((32, 32, 3), 100).init(Key.root(3))
    p = unpack(
        w, (32, 3, 3, 3), (32,), (32, 32, 3, 3), (32,), (512, 2048), (512,), (256, 512), (256,), (100, 256), (100,)
    )
    for weight, inputs_of_a_unit in zip(p[0:8:2], (27, 288, 2048, 512), strict=True):
        deviation = sqrt(2 / inputs_of_a_unit)
        assert float(weight.std()) == pytest.approx(deviation, rel=4 / sqrt(2 * weight.numel()))
        assert abs(float(weight.mean())) < 4 * deviation / sqrt(weight.numel())
        assert float(weight.abs().max()) > 2.5 * deviation  # normal, not uniform
    assert not any(bool(bias.any()) for bias in p[1:8:2])
    for last in p[8:]:
        assert float(last.abs().max()) <= 1 / 16
        assert float(last.std()) == pytest.approx(1 / 16 / sqrt(3), rel=0.15)
    assert not torch.equal(p[4][:256, :512], p[6])


def test_norms_start_as_identities() -> None:
    model = MODELS["resnet18-gn"]((8, 8, 3), 10)
    w = model.init(Key.root(0))
    start = 64 * 27
    assert torch.equal(w[start : start + 128], torch.cat([torch.ones(64), torch.zeros(64)]))


@pytest.mark.parametrize(("name", "shape"), [*SMALL, LARGE])
def test_first_parameters_are_a_function_of_the_key(name: str, shape: tuple[int, ...]) -> None:
    before = torch.get_rng_state()
    model = MODELS[name](shape, 4)
    w = model.init(Key.root(0))
    assert torch.equal(w, MODELS[name](shape, 4).init(Key.root(0)))
    assert not torch.equal(w, model.init(Key.root(1)))
    assert torch.equal(MODELS[name](shape, 4, F64).init(Key.root(0)), w.double())
    assert torch.equal(before, torch.get_rng_state())


# Refusals and documentation


@pytest.mark.parametrize(
    ("name", "shape", "params", "message"),
    [
        ("cnn-cifar10", (64,), {}, r"cnn-cifar10 needs images of at least 4 x 4 pixels.*\(64,\)"),
        ("cnn-svhn", (3, 32, 3), {}, "cnn-svhn needs images"),
        ("resnet18-gn", (64,), {}, "resnet18-gn needs images of at least 1 x 1"),
        ("resnet18-gn", (8, 8, 3), {"groups": 24}, "groups = 24"),
        ("mlp", (4,), {"hidden": 0}, "hidden = 0"),
        ("mlp", (4,), {"hidden": (8, -1)}, r"hidden = \(8, -1\)"),
        ("mlp", (4,), {"projection": "none"}, "projection = 'none'"),
    ],
)
def test_what_cannot_be_built_is_refused(
    name: str, shape: tuple[int, ...], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        MODELS[name](shape, 10, **params)
    assert caught.value.hint


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_documented(name: str) -> None:
    build = MODELS[name]
    words = dict(re.findall(r"^\s*(\w+): (.+)$", inspect.getdoc(build) or "", flags=re.MULTILINE))
    own = [p.name for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert own
    assert sorted(words) == sorted(own)
