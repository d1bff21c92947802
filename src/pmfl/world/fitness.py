"""Which modules can become models, what to say of the others, and the usual cure: group normalisation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from pmfl.core.params import Size
from pmfl.errors import SpecError, did_you_mean

OPTIONAL = "projector"  # the one part that may be missing, if nobody asked for another name


class Parts(NamedTuple):
    """Paths of the submodules a model is made of."""

    represent: tuple[str, ...]  # the encoder, and the projector if there is one
    classify: tuple[str, ...]


def unfit(message: str, hint: str) -> SpecError:
    """The error for a module that cannot become a model."""
    return SpecError(f"as_model: {message}", hint=hint, code="S130")


def find_parts(module: nn.Module, encoder: str, projector: str, classifier: str) -> Parts:
    """Where encoder, projector and classifier are; raises if one is missing."""
    if not isinstance(module, nn.Module):
        raise unfit(
            f"expected a torch.nn.Module, and got a {type(module).__name__}", "pass an instance of your network"
        )
    paths = {path: part for path, part in module.named_modules(remove_duplicate=False) if path}
    for role, path in (("encoder", encoder), ("projector", projector), ("classifier", classifier)):
        if path in paths or path == role == OPTIONAL:
            continue
        raise unfit(
            f"{type(module).__name__} has no submodule `{path}`, which should be its {role}",
            f"{did_you_mean(path, paths)}; name it with as_model(…, {role}=…)",
        )
    return Parts((encoder, projector) if projector in paths else (encoder,), (classifier,))


def refuse_unfit(module: nn.Module, parts: Parts) -> None:
    """Raise for anything in a module that one flat vector cannot carry."""
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise unfit(
                f"`{path}` is a {type(layer).__name__}, whose statistics depend on the other samples",
                "use replace_batchnorm(module), which puts group normalisation in its place",
            )
    for name, _buffer in module.named_buffers():
        raise unfit(
            f"buffer `{name}` is state that the parameter vector does not carry",
            "if it is a constant, make it a plain attribute; replace_batchnorm(module) helps with batch normalisation",
        )
    _refuse_unshaped(module)
    used = {id(p) for path in (*parts.represent, *parts.classify) for p in module.get_submodule(path).parameters()}
    for name, p in module.named_parameters():
        if not p.is_floating_point():
            raise unfit(f"parameter `{name}` is {p.dtype}", "only floating point numbers can be trained and averaged")
        if not p.requires_grad:
            raise unfit(f"parameter `{name}` is frozen", "compute its features beforehand, or let it be trained")
        if id(p) not in used:
            where = ", ".join((*parts.represent, *parts.classify))
            raise unfit(f"parameter `{name}` is in none of {where}", "move it into one of them, or delete it")


def replace_layers(module: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """``module`` with layers exchanged in place: those for which ``replacement`` gives another one."""
    exchanged: dict[int, nn.Module] = {}  # a layer used in two places stays one layer

    def visit(layer: nn.Module) -> nn.Module:
        if id(layer) not in exchanged:
            exchanged[id(layer)] = replacement(layer) or layer
            if exchanged[id(layer)] is layer:
                for name, child in layer._modules.items():
                    layer._modules[name] = child and visit(child)
        return exchanged[id(layer)]

    return visit(module)


def replace_batchnorm(module: nn.Module, *, groups: Size = 32) -> nn.Module:
    """A copy of ``module`` with group normalisation in place of every batch normalisation.

    Group normalisation looks at one sample at a time and keeps no statistics, so it suits clients whose data differ.
    Scales and shifts are taken over.

    groups: at most so many groups of at least two channels; layers for rows of features get one group

    >>> norm = replace_batchnorm(nn.BatchNorm2d(48))
    >>> type(norm).__name__, norm.num_groups, norm.num_channels
    ('GroupNorm', 24, 48)
    """

    def group_norm(layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, _BatchNorm):
            return None
        channels = layer.num_features
        most = 1 if isinstance(layer, nn.BatchNorm1d) else min(groups, max(channels // 2, 1))
        fitting = max(g for g in range(1, most + 1) if channels % g == 0)
        norm = nn.GroupNorm(fitting, channels, eps=layer.eps, affine=layer.affine)
        if layer.affine:
            norm = norm.to(layer.weight.device, layer.weight.dtype)
            with torch.no_grad():
                norm.weight.copy_(layer.weight)
                norm.bias.copy_(layer.bias)
        return norm

    _refuse_unshaped(module)
    return replace_layers(copy.deepcopy(module), group_norm)


def _refuse_unshaped(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise unfit(f"`{name}` has no shape yet", "run the module once before, on a mini-batch")
