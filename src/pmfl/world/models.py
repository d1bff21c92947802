"""From any ``nn.Module`` to a ``Model``: pure functions of one flat vector.

The module itself is never run. Each thread works on a copy without parameters: for the length of a call, views of the
vector take their places. So several threads can evaluate one model with different vectors at the same time, and
``torch.func`` transforms see plain tensors.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from pmfl.core.keys import Key
from pmfl.core.types import Masks, Model, Vector
from pmfl.errors import SpecError
from pmfl.world.fitness import Parts, find_parts, refuse_unfit, replace_layers, unfit
from pmfl.world.fitness import replace_batchnorm as replace_batchnorm
from pmfl.world.layout import Layout, Slot, Views, in_default_order, transformed
from pmfl.world.masks import Feed, key_dropout
from pmfl.world.masks import draw_masks as draw_masks

Read: TypeAlias = Callable[[nn.Module], Vector]

_GLOBAL_RNG = threading.Lock()  # layers can only draw from torch's global generator: one thread at a time


@dataclass(frozen=True, kw_only=True)
class ModuleModel(Model):
    """A model made from a module, with the way there and back."""

    read: Read  # the parameters of such a module, as a vector
    write: Callable[[Vector, nn.Module], None]  # a vector, into the parameters of such a module


def as_model(
    module: nn.Module,
    *,
    encoder: str = "encoder",
    projector: str = "projector",
    classifier: str = "classifier",
    example: Tensor,
    init: Callable[[Key], Vector] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ModuleModel:
    """A model from a module that names its encoder, its projector (if it has one) and its classifier.

    The representation is projector(encoder(x)), [B, D]; the class scores are classifier(representation). To start
    every run from the module's present parameters: ``model = as_model(net, …, init=lambda key: model.read(net))``.

    module: any module without buffers; its ``forward`` is not used, its dropout layers get masks drawn from keys
    encoder: attribute that holds the encoder; a path such as "body.features" will do
    projector: attribute that holds the projector; without a ``projector``, the encoder's output is the representation
    classifier: attribute that holds the classifier
    example: a mini-batch of inputs, [B, C, H, W] or [B, F]; only its shape counts
    init: the first vector, from a key; by default each layer's ``reset_parameters``, seeded by the key
    dtype: precision of the parameters

    >>> net = nn.ModuleDict({"encoder": nn.Linear(4, 3), "classifier": nn.Linear(3, 2)})
    >>> model = as_model(net, example=torch.zeros(1, 4))
    >>> model.size, tuple(model.logits(model.init(Key.root(0)), torch.zeros(5, 4)).shape)
    (23, (5, 2))
    """
    parts = find_parts(module, encoder, projector, classifier)
    refuse_unfit(module, parts)
    fitted, masks = _fit(module, parts, example, dtype)
    layout, names = fitted.layout, [name for name, _ in module.named_parameters()]
    read, write = partial(_read, layout, names, dtype), partial(_write, layout, names)
    first = partial(_given, init, layout.size) if init else _redraw(module)
    functions = (lambda key: first(key, read).to(dtype), fitted.represent, fitted.classify)

    def tensors(w: Vector) -> dict[str, Tensor]:
        return dict(zip(names, layout.views(w), strict=True))

    return ModuleModel(layout.size, *functions, masks, tensors, read=read, write=write)


def _given(init: Callable[[Key], Vector], size: int, key: Key, read: Read) -> Vector:
    """The user's own first vector, if it is one."""
    w = init(key)
    if not isinstance(w, Tensor) or w.shape != (size,):
        what = tuple(w.shape) if isinstance(w, Tensor) else type(w).__name__
        raise unfit(f"init gave {what}", f"give {size} numbers in a row; model.read(module) makes such a vector")
    return w


def _read(layout: Layout, names: Sequence[str], dtype: torch.dtype, module: nn.Module) -> Vector:
    held = dict(module.named_parameters())
    return layout.pack([held[name].detach() for name in names]).to(dtype)


@torch.no_grad()
def _write(layout: Layout, names: Sequence[str], w: Vector, module: nn.Module) -> None:
    held = dict(module.named_parameters())
    for name, view in zip(names, layout.views(w), strict=True):
        held[name].copy_(view)


class Place(NamedTuple):
    """A parameter: the path of the layer that holds it, its name there, and its slot in the layout."""

    layer: str
    name: str
    slot: int


class Stage:
    """Some parts of a copy, to be run one after the other, and the places of their parameters."""

    def __init__(self, module: nn.Module, paths: Sequence[str], places: Sequence[Place], feed: Feed) -> None:
        self.feed, self.parts = feed, [module.get_submodule(path) for path in paths]
        inside = {id(layer) for part in self.parts for layer in part.modules()}
        owners = [(module.get_submodule(place.layer), place) for place in places]
        self.held: list[tuple[dict[str, Any], str, int]] = [
            (layer._parameters, place.name, place.slot) for layer, place in owners if id(layer) in inside
        ]
        self.recurrent = [layer for part in self.parts for layer in part.modules() if isinstance(layer, nn.RNNBase)]

    def run(self, views: Views, x: Tensor, masks: Masks) -> Tensor:
        """The parts' output, with these parameters and dropout masks."""
        try:
            for held, name, slot in self.held:
                held[name] = views[slot]
            self._refresh()
            self.feed.masks = iter(masks) if masks else None
            for part in self.parts:
                x = part(x)
            return x
        finally:
            for held, name, _ in self.held:
                held[name] = None
            self._refresh()
            self.feed.masks = None

    def _refresh(self) -> None:
        for layer in self.recurrent:  # recurrent layers keep a second list of their own parameters
            layer._flat_weights = [layer._parameters[name] for name in layer._flat_weights_names]


class Mine(threading.local):
    """One thread's copy of the module, made when the thread first needs it."""

    def __init__(self, bare: nn.Module, parts: Parts, places: Sequence[Place], feed: Feed) -> None:
        module, self.feed = copy.deepcopy((bare, feed))
        self.represent = Stage(module, parts.represent, places, self.feed)
        self.classify = Stage(module, parts.classify, places, self.feed)


class Fitted:
    """A module as two pure functions of a vector."""

    def __init__(self, module: nn.Module, parts: Parts, channels_last: bool) -> None:
        feed = Feed()
        bare = replace_layers(_copy(module), lambda layer: key_dropout(layer, feed))
        # Always as in training: whatever else draws at random is refused, so only dropout could tell the two apart.
        bare.train()
        slots = {id(p): i for i, p in enumerate(bare.parameters())}  # a parameter used in two places has one slot
        owners = {
            Place(path, name, slots[id(p)]): layer
            for path, layer in bare.named_modules()
            for name, p in layer._parameters.items()
            if p is not None
        }
        kernels = {
            place.slot
            for place, layer in owners.items()
            if channels_last and isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and place.name == "weight"
        }
        self.layout = Layout([Slot(tuple(p.shape), i in kernels) for i, p in enumerate(bare.parameters())])
        for place, layer in owners.items():
            layer._parameters[place.name] = None
        self.mine = Mine(bare, parts, tuple(owners), feed)
        self.channels_last = channels_last
        self.masks_before = 0  # how many of the dropout masks `represent` takes

    def represent(self, w: Vector, x: Tensor, masks: Masks) -> Tensor:
        """z = projector(encoder(x))."""
        p, transforming = self.layout.open(w), transformed(w, x)
        x = x.contiguous() if transforming or not self.channels_last else x
        return self.mine.represent.run(in_default_order(p) if transforming else p, x, masks)

    def classify(self, w: Vector, z: Tensor, masks: Masks) -> Tensor:
        """The class scores of z."""
        p = self.layout.close(w)
        p = in_default_order(p) if transformed(w, z) else p
        return self.mine.classify.run(p, z, masks[self.masks_before :])


def _fit(
    module: nn.Module, parts: Parts, example: Tensor, dtype: torch.dtype
) -> tuple[Fitted, tuple[tuple[tuple[int, ...], float], ...]]:
    """The module with its images and kernels channels-last if it can take them so, and the dropout masks it takes."""
    if not isinstance(example, Tensor):
        raise unfit(f"example is a {type(example).__name__}", "pass a mini-batch of inputs as a tensor")
    x = example.detach().cpu().to(dtype)
    why: Exception | None = None
    for channels_last in (True, False):
        fitted = Fitted(module, parts, channels_last)
        try:
            return fitted, _watch(fitted, x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)
        except SpecError:
            raise
        except Exception as error:  # whatever the user's layers raise; `x.view(…)` does on channels-last images
            why = error
    raise unfit(
        f"running it on an example of shape {tuple(x.shape)} raised {type(why).__name__}: {why}",
        "the encoder takes a mini-batch of inputs, each part the output of the one before, and only its own parameters",
    ) from why


def _watch(fitted: Fitted, x: Tensor) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Which dropout masks a forward takes; raises if its outputs are no representations and class scores."""
    w, feed = torch.zeros(fitted.layout.size, dtype=x.dtype), fitted.mine.feed
    seen: list[tuple[tuple[int, ...], float]] = []
    with _GLOBAL_RNG, torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        feed.seen = seen
        z = fitted.represent(w, x, ())
        _check_rows("the representation", z, len(x))
        fitted.masks_before = len(seen)
        _check_rows("the class scores", fitted.classify(w, z, ()), len(x))
        feed.seen = None
        if not torch.equal(before, torch.get_rng_state()):
            raise unfit(
                "a layer draws random numbers that no key controls",
                "drop with torch.nn.Dropout layers, which are given masks; set every other `dropout=` to 0",
            )
    return tuple(seen)


def _check_rows(what: str, output: Any, samples: int) -> None:
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != samples:
        found = f"has shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"is a {type(output).__name__}"
        raise unfit(f"{what} of {samples} samples {found}", f"return one row each, [{samples}, …]; nn.Flatten() helps")


def _redraw(module: nn.Module) -> Callable[[Key, Read], Vector]:
    """Fresh parameters by the layers' own ``reset_parameters``, as a function of a key."""
    fresh, resets = _copy(module), []
    for path, layer in reversed(list(fresh.named_modules())):  # a layer after those inside it, as when it was made
        reset = getattr(layer, "reset_parameters", getattr(layer, "_reset_parameters", None))
        if callable(reset):
            resets.append(reset)
        elif any(True for _ in layer.parameters(recurse=False)):
            raise unfit(
                f"`{path or 'the module'}` ({type(layer).__name__}) has parameters, and no reset_parameters()",
                "give its class one, or pass init=…: `lambda key: model.read(module)` takes the present parameters",
            )

    def redraw(key: Key, read: Read) -> Vector:
        with _GLOBAL_RNG, torch.random.fork_rng(devices=[]):
            # Layers draw from torch's global generator; it is seeded here, and back in its old state afterwards.
            torch.default_generator.manual_seed(key.bits & (2**63 - 1))
            for reset in resets:
                reset()
            return read(fresh)

    return redraw


def _copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU, where every draw is made."""
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:  # modules may hold anything
        raise unfit(f"it cannot be copied: {error}", "keep only layers, parameters and plain values in it") from error
