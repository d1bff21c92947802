from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.nn.utils.parametrizations import weight_norm

from pmfl.core.client import by_autograd, by_transform
from pmfl.core.keys import Key
from pmfl.core.types import Masks, Model, Scalar, Scalars, Vector
from pmfl.errors import SpecError
from pmfl.world.masks import draw_masks
from pmfl.world.models import as_model, replace_batchnorm

F64 = torch.float64


class Net(nn.Module):
    """Anybody's network: three named parts."""

    def __init__(self, *, norm: bool = False, p: float = 0.0) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.GroupNorm(2, 4) if norm else nn.Identity(),
            nn.ReLU(inplace=True),
            nn.Dropout2d(p),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Dropout(p), nn.Linear(4 * 3 * 2, 5), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(p), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.projector(self.encoder(x)))
        return logits


class Rows(nn.Module):
    """Rows of four features in; whatever parts are given."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.encoder: nn.Module = nn.Linear(4, 3)
        self.classifier: nn.Module = nn.Linear(3, 2)
        for name, part in parts.items():
            setattr(self, name, part)


class Doing(nn.Module):
    """A layer that does what it is told."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def images(n: int) -> Tensor:
    return torch.randn((n, 6, 4, 3), generator=Key.root(7).torch(), dtype=F64).permute(0, 3, 1, 2)


def rows(n: int) -> Tensor:
    return torch.randn((n, 4), generator=Key.root(8).torch(), dtype=F64)


def labels(n: int) -> Tensor:
    return torch.arange(n) % 2


def perturbed(model: Model, seed: int = 0) -> Vector:
    w = model.init(Key.root(seed))
    return w + 0.1 * torch.randn(w.shape, generator=Key.root(seed).torch(), dtype=w.dtype)


def objective(model: Model, x: Tensor, masks: Masks = ()) -> Callable[[Vector], tuple[Scalar, Scalars]]:
    return lambda w: (cross_entropy(model.logits(w, x, masks), labels(len(x))), {})


def gradient(model: Model, w: Vector, x: Tensor) -> Vector:
    return by_autograd(objective(model, x), w)[0]


@torch.no_grad()
def put_gradients(net: nn.Module) -> None:
    """Each parameter becomes its own gradient, so that ``read`` gives the flat gradient."""
    for p in net.parameters():
        assert p.grad is not None
        p.copy_(p.grad)


# The same numbers as the module


@pytest.mark.parametrize("norm", [False, True])
def test_a_model_computes_what_its_module_does(norm: bool) -> None:
    net = Net(norm=norm).double()
    model = as_model(net, example=images(1), dtype=F64)
    w, x = perturbed(model), images(5)
    model.write(w, net)
    assert torch.equal(model.read(net), w)
    assert torch.allclose(model.represent(w, x, ()), net.projector(net.encoder(x)), rtol=0, atol=1e-12)
    logits = net(x)
    assert torch.allclose(model.logits(w, x), logits, rtol=0, atol=1e-12)
    cross_entropy(logits, labels(5)).backward()
    put_gradients(net)
    assert torch.allclose(gradient(model, w, x), model.read(net), rtol=0, atol=1e-12)


def test_kernels_lie_channels_last_in_the_vector() -> None:
    net = Net()
    model = as_model(net, example=images(1))
    expected = torch.cat([(p.permute(0, 2, 3, 1) if p.ndim == 4 else p).detach().flatten() for p in net.parameters()])
    assert torch.equal(model.read(net), expected)


def test_a_module_that_needs_channels_first_gets_it() -> None:
    class Viewing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.encoder[-1] = Doing(lambda x: x.view(len(x), -1))

    net = Viewing().double()
    model = as_model(net, example=images(2), dtype=F64)
    w = perturbed(model)
    model.write(w, net)
    assert torch.equal(model.read(net), torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.allclose(model.logits(w, images(5)), net(images(5).contiguous()), rtol=0, atol=1e-12)


def test_parts_may_have_other_names_and_no_projector() -> None:
    net: Any = nn.ModuleDict({"body": nn.ModuleDict({"stem": nn.Linear(4, 3)}), "head": nn.Linear(3, 2)}).double()
    model = as_model(net, encoder="body.stem", classifier="head", example=rows(1), dtype=F64)
    w = perturbed(model)
    model.write(w, net)
    z = model.represent(w, rows(3), ())
    assert torch.allclose(z, net["body"]["stem"](rows(3)), rtol=0, atol=1e-12)
    assert torch.allclose(model.classify(w, z, ()), net["head"](z), rtol=0, atol=1e-12)
    other = nn.ModuleDict({"encoder": nn.Linear(4, 3), "pro": nn.Linear(3, 5), "classifier": nn.Linear(5, 2)})
    model = as_model(other, projector="pro", example=rows(1))
    assert model.represent(torch.ones(model.size), torch.ones(1, 4), ()).shape == (1, 5)


def test_tied_parameters_are_one_place_in_the_vector() -> None:
    net: Any = Rows(
        encoder=nn.Sequential(nn.Linear(4, 4), nn.Tanh()), projector=nn.Linear(4, 4), classifier=nn.Linear(4, 2)
    )
    net.projector.weight = net.encoder[0].weight
    net.double()
    model = as_model(net, example=rows(1), dtype=F64)
    assert model.size == 16 + 4 + 4 + 8 + 2
    w, x = perturbed(model), rows(3)
    model.write(w, net)
    logits = net.classifier(net.projector(net.encoder(x)))
    assert torch.allclose(model.logits(w, x), logits, rtol=0, atol=1e-12)
    cross_entropy(logits, labels(3)).backward()
    assert torch.allclose(gradient(model, w, x)[:16].view(4, 4), net.encoder[0].weight.grad, rtol=0, atol=1e-12)


def test_a_layer_used_twice_is_one_layer() -> None:
    shared = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    net = Rows(encoder=nn.Sequential(shared, shared), classifier=nn.Linear(4, 2)).double()
    model = as_model(net, example=rows(1), dtype=F64)
    assert model.size == 20 + 10
    assert model.masks == (((4,), 0.5), ((4,), 0.5))  # one dropout layer, used twice: two masks
    w, x, masks = perturbed(model), rows(3), draw_masks(model, Key.root(0), (3,))
    a, b = w[:16].view(4, 4), w[16:20]
    z = ((x @ a.T + b) * masks[0] * 2 @ a.T + b) * masks[1] * 2
    assert torch.allclose(model.represent(w, x, masks), z, rtol=0, atol=1e-12)


def test_recurrent_and_reparametrised_layers_follow_the_vector() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(2, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            last: Tensor = self.layer(x.unflatten(1, (2, 2)))[0][:, -1]
            return last

    net: Any = Rows(encoder=Recurrent(), projector=weight_norm(nn.Linear(3, 3))).double()
    model = as_model(net, example=rows(1), init=lambda key: model.read(net), dtype=F64)
    start = model.init(Key.root(0))
    w = start + 0.1 * torch.randn(start.shape, generator=Key.root(1).torch(), dtype=F64)
    before = model.logits(start, rows(3))
    model.write(w, net)
    logits = net.classifier(net.projector(net.encoder(rows(3))))
    assert torch.allclose(model.logits(w, rows(3)), logits, rtol=0, atol=1e-12)
    assert not torch.allclose(before, logits)
    cross_entropy(logits, labels(3)).backward()
    put_gradients(net)
    assert torch.allclose(gradient(model, w, rows(3)), model.read(net), rtol=0, atol=1e-12)


# Pure functions


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_agree_and_vectors_can_be_vmapped(norm: bool) -> None:
    model = as_model(Net(norm=norm, p=0.3), example=images(1), dtype=F64)
    ws = torch.stack([perturbed(model, seed) for seed in range(3)])
    loss = objective(model, images(4), draw_masks(model, Key.root(5), (4,)))
    single = [by_autograd(loss, w) for w in ws]
    for w, (grad, value, _) in zip(ws, single, strict=True):
        transformed, same, _ = by_transform(loss, w)
        assert torch.allclose(transformed, grad, rtol=0, atol=1e-12)
        assert torch.allclose(same, value, rtol=0, atol=1e-12)
    together, values, _ = torch.vmap(lambda w: by_transform(loss, w))(ws)
    assert torch.allclose(together, torch.stack([g for g, _, _ in single]), rtol=0, atol=1e-12)
    assert torch.allclose(values, torch.stack([v for _, v, _ in single]), rtol=0, atol=1e-12)


def test_inputs_and_masks_can_be_vmapped_with_the_vectors() -> None:
    model = as_model(Net(norm=True, p=0.3), example=images(1), dtype=F64)
    ws = torch.stack([perturbed(model, seed) for seed in range(2)])
    x, masks = images(6).unflatten(0, (2, 3)), draw_masks(model, Key.root(5), (2, 3))
    together = torch.vmap(model.logits)(ws, x, masks)
    for i in range(2):
        assert torch.allclose(
            together[i], model.logits(ws[i], x[i], tuple(mask[i] for mask in masks)), rtol=0, atol=1e-12
        )


def test_one_vector_can_meet_many_inputs_under_vmap() -> None:
    model = as_model(Net(norm=True), example=images(1), dtype=F64)
    w, x = perturbed(model), images(6)
    together = torch.vmap(lambda x: model.logits(w, x))(x.unflatten(0, (2, 3)))
    assert torch.allclose(together.flatten(0, 1), model.logits(w, x), rtol=0, atol=1e-12)


def test_threads_evaluate_one_model_with_vectors_of_their_own() -> None:
    model = as_model(Net(p=0.3), example=images(1), dtype=F64)
    x, masks = images(8), draw_masks(model, Key.root(0), (8,))
    ws = [perturbed(model, seed) for seed in range(6)]
    expected = [by_autograd(objective(model, x, masks), w)[0] for w in ws]
    barrier = threading.Barrier(6)

    def work(i: int) -> bool:
        barrier.wait()
        return all(torch.equal(by_autograd(objective(model, x, masks), ws[i])[0], expected[i]) for _ in range(30))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_the_users_module_stays_as_it_was() -> None:
    net = Net(p=0.3).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = as_model(net, example=images(1))
    by_autograd(objective(model, images(2).float()), model.init(Key.root(0)))
    assert not net.training
    assert isinstance(net.projector[0], nn.Dropout)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_nothing_of_a_call_is_kept() -> None:
    model = as_model(Net(p=0.3), example=images(1), dtype=F64)
    w, mask = perturbed(model).requires_grad_(), draw_masks(model, Key.root(0), (2,))
    model.logits(w, images(2), mask).sum().backward()
    gone = [weakref.ref(w), weakref.ref(mask[0])]
    del w, mask
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_an_error_in_the_module_leaves_no_trace() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 3:
                raise ValueError("three")
            return x

    model = as_model(Rows(encoder=nn.Sequential(nn.Linear(4, 3), Picky())), example=rows(1), dtype=F64)
    w = perturbed(model)
    expected = model.logits(w, rows(2))
    with pytest.raises(ValueError, match="three"):
        model.represent(w, rows(3), ())
    assert torch.equal(model.logits(w, rows(2)), expected)


# Dropout


def test_dropout_layers_read_masks_in_their_order() -> None:
    net = Net(p=0.25).double().eval()
    model = as_model(net, example=images(2), dtype=F64)
    assert model.masks == (((4, 1, 1), 0.75), ((24,), 0.75), ((5,), 0.75))
    w, x, masks = perturbed(model), images(6), draw_masks(model, Key.root(0), (6,))
    model.write(w, net)
    assert torch.allclose(model.logits(w, x), net(x), rtol=0, atol=1e-12)
    h = net.encoder[:3](x) * masks[0] / 0.75
    h = net.encoder[4:](h) * masks[1] / 0.75
    z = net.projector[1:](h)
    assert torch.allclose(model.represent(w, x, masks), z, rtol=0, atol=1e-12)
    assert torch.allclose(model.classify(w, z, masks), net.classifier[1](z * masks[2] / 0.75), rtol=0, atol=1e-12)
    as_bytes = tuple(mask.to(torch.uint8) for mask in masks)
    assert torch.equal(model.logits(w, x, as_bytes), model.logits(w, x, masks))


def test_dropout_of_nothing_and_of_everything() -> None:
    net = Rows(encoder=nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3), nn.Dropout(1.0)))
    model = as_model(net, example=rows(1), dtype=F64)
    assert model.masks == (((3,), 0.0),)
    w = perturbed(model)
    assert not model.represent(w, rows(2), draw_masks(model, Key.root(0), (2,))).any()
    assert model.represent(w, rows(2), ()).all()


# Initialisation


def test_first_parameters_are_the_layers_own_draws_under_the_key() -> None:
    net = Net()
    model = as_model(net, example=images(1))
    w = model.init(Key.root(0))
    assert torch.equal(w, model.init(Key.root(0)))
    assert torch.equal(w, as_model(Net(), example=images(1)).init(Key.root(0)))  # whatever the module held before
    assert not torch.equal(w, model.init(Key.root(1)))
    assert torch.equal(w.double(), as_model(Net(), example=images(1), dtype=F64).init(Key.root(0)))
    assert 0 < float(w[108:112].abs().max()) <= 27**-0.5
    assert 0.5 * 24**-0.5 < float(w[112 : 112 + 120].abs().max()) <= 24**-0.5


def test_the_global_generators_are_left_alone() -> None:
    net = Net(p=0.5)
    before, numpys = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    model = as_model(net, example=images(1))
    model.logits(model.init(Key.root(0)), images(2).float(), draw_masks(model, Key.root(1), (2,)))
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda seed: model.init(Key.root(seed % 2)), range(16)))
    assert all(torch.equal(w, drawn[i % 2]) for i, w in enumerate(drawn))
    assert torch.equal(before, torch.get_rng_state())
    assert numpys == str(np.random.get_state())  # noqa: NPY002


def test_a_layer_is_redrawn_after_those_inside_it() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            attended: Tensor = self.attention(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
            return attended

    net: Any = Rows(encoder=Attending(), classifier=nn.Linear(4, 2))
    model = as_model(net, example=rows(1))
    model.write(model.init(Key.root(0)), net)
    assert not net.encoder.attention.out_proj.bias.any()  # as the attention layer sets it, not as its Linear draws it
    assert net.encoder.attention.out_proj.weight.all()


def returning(value: Any, key: Key) -> Any:
    return value


def test_first_parameters_can_be_given() -> None:
    net = Rows()
    model = as_model(net, example=rows(1), init=lambda key: model.read(net), dtype=F64)
    assert torch.equal(model.init(Key.root(3)), torch.cat([p.detach().flatten() for p in net.parameters()]).double())
    for wrong, message in ((torch.zeros(3), r"init gave \(3,\)"), ([0.0], "init gave list")):
        refused = as_model(net, example=rows(1), init=partial(returning, wrong))
        with pytest.raises(SpecError, match=message):
            refused.init(Key.root(0))


# Refusals


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def frozen() -> Any:
    net: Any = Rows()
    net.encoder.weight.requires_grad_(False)
    return net


def with_extra_parameter() -> nn.Module:
    net = Rows()
    net.register_parameter("extra", nn.Parameter(torch.zeros(2)))
    return net


def with_other_numbers(dtype: torch.dtype) -> Any:
    net: Any = Rows(projector=nn.Identity())
    net.projector.register_parameter("code", nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=dtype.is_complex))
    return net


def with_buffer() -> Any:
    net: Any = Rows()
    net.encoder.register_buffer("mean", torch.zeros(4))
    return net


def uncopyable() -> Any:
    net: Any = Rows()
    net.lock = threading.Lock()
    return net


@pytest.mark.parametrize(
    ("build", "message", "hint"),
    [
        (lambda: Rows, "expected a torch.nn.Module, and got a type", "instance"),
        (lambda: nn.ModuleDict({"encoded": nn.Linear(4, 3)}), "no submodule `encoder`", "did you mean `encoded`"),
        (lambda: nn.ModuleDict({"encoder": nn.Linear(4, 3)}), "no submodule `classifier`", "as_model(…, classifier=…)"),
        (
            lambda: Rows(encoder=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
            "`encoder.1` is a BatchNorm1d",
            "replace_batchnorm(module)",
        ),
        (
            lambda: Rows(encoder=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))),
            "statistics",
            "replace_batchnorm",
        ),
        (with_buffer, "buffer `encoder.mean`", "replace_batchnorm(module)"),
        (frozen, "`encoder.weight` is frozen", "trained"),
        (with_extra_parameter, "`extra` is in none of encoder, classifier", "move it"),
        (lambda: with_other_numbers(torch.complex64), "`projector.code` is torch.complex64", "floating point"),
        (lambda: with_other_numbers(torch.int64), "`projector.code` is torch.int64", "floating point"),
        (lambda: Rows(encoder=nn.LazyLinear(3)), "has no shape yet", "run the module once"),
        (lambda: Rows(projector=Bare()), "`projector` (Bare) has parameters, and no reset_parameters()", "init="),
        (
            lambda: Rows(projector=Doing(lambda x: dropout(x, training=True))),
            "random numbers that no key controls",
            "torch.nn.Dropout",
        ),
        (lambda: Rows(projector=nn.AlphaDropout(0.5)), "random numbers", "torch.nn.Dropout"),
        (
            lambda: Rows(projector=Doing(lambda x: x[:, None])),
            r"the representation of 2 samples has shape (2, 1, 3)",
            "nn.Flatten()",
        ),
        (lambda: Rows(projector=Doing(lambda x: (x, x))), "the representation of 2 samples is a tuple", "one row each"),
        (
            lambda: Rows(classifier=Doing(lambda x: x.sum(1))),
            "the class scores of 2 samples has shape (2,)",
            "one row each",
        ),
        (lambda: Rows(projector=Doing(lambda x: x[:1])), "has shape (1, 3)", "[2, …]"),
        (lambda: Rows(encoder=nn.Linear(5, 3)), "raised RuntimeError: mat1 and mat2", "mini-batch"),
        (uncopyable, "cannot be copied", "plain values"),
    ],
)
def test_what_a_vector_cannot_carry_is_refused(build: Callable[[], Any], message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        as_model(build(), example=rows(2))
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.code == "S130"


def test_a_projector_asked_for_by_name_must_be_there() -> None:
    with pytest.raises(SpecError, match="no submodule `head`, which should be its projector"):
        as_model(Rows(), projector="head", example=rows(1))


def test_the_example_must_be_a_tensor() -> None:
    with pytest.raises(SpecError, match="example is a ndarray"):
        as_model(Rows(), example=np.zeros((1, 4)))  # type: ignore[arg-type]


# Batch normalisation


def test_batch_normalisation_gives_way_to_group_normalisation() -> None:
    shared = nn.BatchNorm2d(48, eps=1e-3)
    net: Any = nn.Sequential(
        nn.Conv2d(3, 48, 3), shared, shared, nn.Sequential(nn.BatchNorm2d(64, affine=False)), nn.BatchNorm1d(6)
    )
    with torch.no_grad():
        shared.weight.fill_(2.0)
        shared.bias.fill_(3.0)
    new: Any = replace_batchnorm(net)
    assert isinstance(net[1], nn.BatchNorm2d)  # the original is left alone
    assert isinstance(new[1], nn.GroupNorm)
    assert new[1] is new[2]
    assert (new[1].num_groups, new[1].num_channels, new[1].eps) == (24, 48, 1e-3)
    assert bool((new[1].weight == 2).all())
    assert bool((new[1].bias == 3).all())
    assert new[3][0].weight is None
    assert (new[3][0].num_groups, new[4].num_groups) == (32, 1)
    assert torch.equal(new[0].weight, net[0].weight)
    assert not list(new.buffers())


@pytest.mark.parametrize(
    ("channels", "groups", "expected"), [(8, 32, 4), (1, 32, 1), (30, 32, 15), (64, 2, 2), (7, 32, 1)]
)
def test_groups_divide_the_channels_and_hold_at_least_two(channels: int, groups: int, expected: int) -> None:
    norm = replace_batchnorm(nn.BatchNorm2d(channels), groups=groups)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == expected


def test_a_module_with_batch_normalisation_can_be_cured() -> None:
    net = Net().double()
    net.encoder[1] = nn.BatchNorm2d(4).double()
    with pytest.raises(SpecError, match="BatchNorm2d"):
        as_model(net, example=images(1))
    model = as_model(replace_batchnorm(net), example=images(1), dtype=F64)
    w, x = perturbed(model), images(4)
    alone = torch.cat([model.logits(w, sample) for sample in x.split(1)])
    assert torch.allclose(model.logits(w, x), alone, rtol=0, atol=1e-12)


def test_batch_normalisation_without_channels_yet_is_refused() -> None:
    with pytest.raises(SpecError, match="has no shape yet"):
        replace_batchnorm(nn.LazyBatchNorm2d())
