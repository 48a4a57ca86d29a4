"""`attach`: one spatial mask on the scaled query-key product of every spatial self-attention of a model, in place."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn as nn

from .cost import input_size
from .errors import first_line, unknown
from .grids import Grid, layout, prefixes, unrolled_order
from .masks import MASKS, SpatialMask, options_of
from .products import Call, Product, at_rest, softmax_callers, spatial_products
from .rewrite import CHILD
from .rewritten import Paths, Reporting, Rewritten, subclass
from .start import choose_start, refuse_wrapped, say_start
from .trace import plain, tensors_of
from .ways import WHOLE, avoiding

Place = tuple[Grid, Grid, int | tuple[int, int]]  # grid, key grid, prefix


@dataclass(frozen=True, eq=False)
class Site:
    """Where a mask sits: one query-key product of one attention module."""

    name: str  # of the attention module
    grid: Grid
    key_grid: Grid
    prefix: int | tuple[int, int]
    heads: int
    mask: nn.Module
    reaches_output: bool = True
    start: str = "own"  # of the mask: paper, neutral, or its own

    @property
    def strength(self) -> float | None:
        """How far the mask is from doing nothing now: mean |M - 1|, or |B|; None where the mask cannot tell."""
        return self.mask.strength() if isinstance(self.mask, SpatialMask) else None

    @property
    def parameters(self) -> int:
        """The number of learned parameters of the mask."""
        return sum(parameter.numel() for parameter in self.mask.parameters())


def attach(
    model: nn.Module,
    mask: str | Callable[..., nn.Module],
    *,
    start: str | None = None,
    only: str | Callable[[str], bool] | None = None,
    img_size: int | Grid | None = None,
    **options: Any,
) -> list[Site]:
    """The sites of a mask, by its name in MASKS or a callable that builds one, put on every spatial self-attention.

    `start` is "paper", for training from scratch, or "neutral": the model's output stays as it is until the mask has
    learned. By default it is neutral where the model's weights look trained, and logger `gmmvit` says what was taken.
    `only` is a pattern ("blocks.[0-3].*") or a predicate for names of attention modules; `img_size` is needed only
    where the model does not tell the image size it was built for. The mask "none" is none.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected an nn.Module, got {model!r}")
    if mask == "none":
        return []
    model, level = plain(model), logging.INFO if start else logging.WARNING
    refuse_wrapped(model)
    with torch.inference_mode(False):  # else the masks could never be trained
        start, why = choose_start(model, mask, start, options)
        build, name = _builder(mask, start, options)
        sites = _attach(model, build, name, start, only, img_size)
    say_start(model, name, sites, why, logging.INFO if start == "own" else level)
    return sites


def _attach(
    model: nn.Module, build: Callable, name: str, start: str, only: object, img_size: int | Grid | None
) -> list[Site]:
    chosen = only if callable(only) else lambda name: only is None or fnmatch.fnmatchcase(name, only)
    image = _image(model, img_size)
    places, reasons = [], []
    for call in _softmax_callers(model, image, told=img_size is not None):
        products, why_not = spatial_products(call)
        reasons += [(call.name, reason) for reason in why_not]
        for product in products:
            if not chosen(call.name):
                continue
            try:
                places.append((call, product, _place(model, call.module, product, image.shape[-2:])))
            except ValueError as error:
                reasons.append((call.name, str(error)))
    if not places:
        raise ValueError(_refusal(model, only, reasons))
    for call, *_ in places:
        if name in [key.partition("-")[0] for key in getattr(call.module, CHILD, ())]:
            raise ValueError(f"{call.name} already has a mask named {name!r}: detach(model) first, or attach another")

    made = [_made(build, model, *each).to(image.device) for each in places]
    for each in (each for each in made if isinstance(each, SpatialMask)):
        each.image = tuple(image.shape[-2:])
    with _all_or_nothing(model, [call.module for call, *_ in places]):
        sites = []
        for (call, product, place), built in zip(places, made, strict=True):
            _put(call.module, product, name, built)
            sites.append(Site(call.name, *place, product.heads, built, start=start))
        if not isinstance(model, Reporting):
            model.__class__ = subclass(type(model), Reporting)
        _ready([call for call, *_ in places])
        sites = _mark_unreached(model, image, sites)
        features = getattr(model, "forward_features", model)
        if not any(site.reaches_output or _reaches(model, features, image, site) for site in sites):
            raise ValueError(
                f"{type(model).__name__} has no spatial self-attention to put a mask on "
                f"({sites[0].name}: its patch rows are never read)"
            )
        model.spatial_sites = [*getattr(model, "spatial_sites", ()), *sites]
    return sites


for _name in filter(options_of, MASKS):
    _said = (f"    - `{option}` ({default!r}): {words}" for option, (default, words) in options_of(_name).items())
    attach.__doc__ = (attach.__doc__ or "") + "\n".join(["", f"    Options of {_name!r}:", "", *_said, "    "])


def masks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The attached masks by their names in the model."""
    return {
        f"{name}.{CHILD}.{key}": mask
        for name, module in plain(model).named_modules()
        if isinstance(module, Rewritten)
        for key, mask in getattr(module, CHILD).items()
    }


def detach(model: nn.Module) -> nn.Module:
    """The model with all masks taken off again: classes, attributes and attention paths are as they were."""
    wrapped, model = model, plain(model)
    for module in list(model.modules()):
        if isinstance(module, Rewritten):
            for attribute in (CHILD, "_sites", "_paths"):
                delattr(module, attribute)
            module.__class__ = module._base
    if isinstance(model, Reporting):
        model.__class__ = model._base
        vars(model).pop("spatial_sites", None)
    return wrapped


# ---- finding the places ---------------------------------------------------------------------------------------------


def _image(model: nn.Module, img_size: int | Grid | None) -> torch.Tensor:
    """Two random images of the kind the model takes: two, so that heads and images can be told apart."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        raise ValueError(f"{type(model).__name__} has no parameters: expected a vision transformer")
    for name, each in model.named_parameters():  # places are found by following NaN
        if each.is_floating_point() and not each.isfinite().all():
            raise ValueError(f"{name} of {type(model).__name__} is not finite: expected weights without NaN")
    return torch.rand(2, *input_size(model, img_size), device=like.device, dtype=like.dtype)


def _softmax_callers(model: nn.Module, image: torch.Tensor, told: bool) -> list[Call]:
    try:
        with avoiding(*WHOLE):  # of masks that are there already
            calls = softmax_callers(model, image)
            return [call for call in calls if CHILD not in call.name.split(".")]  # a mask may take a softmax itself
    except (RuntimeError, AssertionError, IndexError, ValueError) as error:  # each model refuses in its own way
        says = "which img_size asks for: expected" if told else "the size it reports: pass attach(..., img_size=) with"
        kind, size = type(model).__name__, tuple(image.shape[1:])
        sentence = f"{kind} does not run on images of {size}, {says} the size it was built for ({first_line(error)})"
        raise ValueError(sentence) from error


def _refusal(model: nn.Module, only: object, reasons: list[tuple[str, str]]) -> str:
    kind = type(model).__name__
    if only is not None and not reasons:
        return f"only={only!r} matches none of the spatial self-attentions of {kind}"
    if not reasons:
        return f"{kind} has no softmax attention to put a mask on"
    listed: dict[str, list[str]] = {}
    for name, reason in reasons:
        listed.setdefault(reason, []).append(name)
    more = {reason: f" and {len(names) - 1} more" if len(names) > 1 else "" for reason, names in listed.items()}
    told = "; ".join(f"{names[0]}{more[reason]}: {reason}" for reason, names in listed.items())
    return f"{kind} has no spatial self-attention to put a mask on ({told})"


def _made(build: Callable, model: nn.Module, call: Call, product: Product, place: Place) -> nn.Module:
    grid, key_grid, prefix = place
    mask = build(grid, product.heads, prefix=prefix, key_grid=key_grid, width=product.width)
    if type(call.module).__name__ == "MaskUnitAttention":  # Hiera keeps its tokens unrolled, not in row-major order
        if not isinstance(mask, SpatialMask):
            raise ValueError(f"{call.name} does not keep its tokens row by row, as {type(mask).__name__} expects")
        base = (1, 1) if call.module.use_mask_unit_attn else tuple(model.mask_spatial_shape)
        mask.arrange(unrolled_order(grid, base), unrolled_order(key_grid, base))
    return mask.train(call.module.training)


def _place(model: nn.Module, module: nn.Module, product: Product, size: Grid) -> Place:
    found = []
    for tokens in (product.queries, product.keys):
        if (each := layout(model, tokens, size, module)) is None:
            raise ValueError(f"cannot tell the grid of its {tokens} tokens for an image of {size[0]} x {size[1]}")
        found.append(each)
    (grid, rows), (key_grid, columns) = found
    return grid, key_grid, rows if rows == columns else (rows, columns)


# ---- putting masks in -----------------------------------------------------------------------------------------------


def _builder(mask: str | Callable[..., nn.Module], start: str, options: dict) -> tuple[Callable[..., nn.Module], str]:
    if isinstance(mask, str):
        if mask not in MASKS:
            raise ValueError(unknown("mask", mask, MASKS))
        valid = options_of(mask)
        for option in options:
            if option not in valid:
                raise TypeError(unknown(f"option of the mask {mask!r}", option, valid))
        build, name = MASKS[mask], mask
    elif callable(mask):
        build, name = mask, getattr(mask, "__name__", "")
        name = name if name.isidentifier() else "mask"
    else:
        raise TypeError(f"mask: expected one of {', '.join(MASKS)} or a callable that builds a mask, got {mask!r}")

    starting = build.neutral(**options) if start == "neutral" else options
    written = options if start == "own" else {"start": start, **options}

    def checked(grid: Grid, heads: int, width: int | None, **place: Any) -> nn.Module:
        told = {"width": width} if getattr(build, "needs_width", False) else {}
        built = build(grid, heads, **place, **told, **starting)
        if not isinstance(built, nn.Module):
            raise TypeError(f"mask: expected {name} to build an nn.Module, got {type(built).__name__}")
        built.made_of = name if isinstance(mask, str) else None, written  # what `save` writes down
        return built

    return checked, name


def _put(module: nn.Module, product: Product, name: str, mask: nn.Module) -> None:
    if not isinstance(module, Rewritten):
        kind = subclass(type(module), Rewritten)
        module._sites = []
        module.add_module(CHILD, nn.ModuleDict())
        module.__class__ = kind
    masks = getattr(module, CHILD)
    key = name if name not in masks else f"{name}-{product.ordinal}"  # several products in one module
    masks[key] = mask
    module._sites, module._paths = [*module._sites, (product, key)], Paths()


@contextmanager
def _all_or_nothing(model: nn.Module, attentions: list[nn.Module]) -> Iterator[None]:
    """Whatever fails inside, the model and these modules of it are as they were, earlier masks included."""
    touched = [model, *attentions, *(getattr(module, CHILD) for module in attentions if hasattr(module, CHILD))]
    before = [(module, type(module), dict(vars(module)), dict(module._modules)) for module in touched]
    try:
        yield
    except BaseException:
        for module, kind, attributes, children in before:
            module.__class__ = kind
            for now, then in ((vars(module), attributes), (module._modules, children)):
                now.clear()
                now.update(then)
        raise


def _ready(calls: list[Call]) -> None:
    """Builds the graphs for training and evaluation on any device now, so that torch.compile finds them."""
    for call in {id(call.module): call for call in calls}.values():
        mode = call.module.training
        for training in (True, False):
            call.module.training = training
            with torch.no_grad():
                call.module._prepare_everywhere(call.arguments)
        call.module.training = mode


def _mark_unreached(model: nn.Module, image: torch.Tensor, sites: list[Site]) -> list[Site]:
    """Finds the masks that cannot change the output, going back from the last layer."""
    marked = list(sites)
    for i in range(len(sites) - 1, -1, -1):
        if _reaches(model, model, image, sites[i]):
            break
        marked[i] = replace(sites[i], reaches_output=False)
    return marked


def _reaches(model: nn.Module, run: Callable[[torch.Tensor], object], image: torch.Tensor, site: Site) -> bool:
    """Whether the patch-patch block of a site reaches what `run` returns.

    NaN in that block tells it exactly, whatever LayerScale or a head initialised to zero would hide.
    """
    rows, columns = prefixes(site.prefix)

    def poison(mask: nn.Module, args: tuple, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[..., rows:, columns:] = float("nan")
        return scores

    handle = site.mask.register_forward_hook(poison)
    try:
        with at_rest(model), avoiding(*WHOLE):  # they do not call the mask
            output = run(image)
    finally:
        handle.remove()
    return any(bool(tensor.isnan().any()) for tensor in tensors_of(output))
