"""Spatial priors for attention scores: Gaussian mixture mask, element-wise mask, Gaussian attention bias."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from . import sizes, together
from .errors import unknown
from .grids import Grid, by_offset, grid_of, squared_distances
from .trace import exported

MOST_KERNELS = 1000  # far above what a grid has distances for


class _Expand(torch.autograd.Function):
    """Tensor.expand over leading dimensions, whose backward sum is a product with ones: on a CPU faster than sum."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        ctx.shape = weight.shape
        return weight.expand(shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if gradient.device.type != "cpu":
            return gradient.sum_to_size(ctx.shape), None
        rows = gradient.reshape(-1, ctx.shape.numel())
        return (rows.new_ones(1, len(rows)) @ rows).view(ctx.shape), None


class SpatialMask(nn.Module):
    """A weight for every (query patch, key patch) that meets the attention scores; prefix tokens are left alone."""

    additive = False  # scores + weight instead of scores * weight
    takes_product = False  # may be handed query and key instead of their product
    takes_scale = False  # may be handed the scores before their constant factor (1 / sqrt(width)), and that factor
    where = "scores"  # or "probabilities": after the softmax
    taken_scale = 1.0  # that factor, where the rewritten attention leaves it to the mask
    scalars: tuple[str, ...] = ()  # learned scalars, which want no weight decay
    strengths: tuple[str, ...] = ()  # the options that say how much it does before it is trained
    remedy = "use the image size it was attached for, or gmmvit.regrid(model, img_size)"  # where scores do not fit
    neutral: Callable[..., dict] | None = None  # its options with those that make it do nothing yet, and able to learn

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = False,
    ):
        super().__init__()
        self.grid = _pair("grid", grid, least=1)
        self.key_grid = self.grid if key_grid is None else _pair("key_grid", key_grid, least=1)
        self.prefix = _pair("prefix", (prefix, prefix) if isinstance(prefix, int) else prefix, least=0)
        if type(heads) is not int or heads < 1:
            raise ValueError(f"heads: expected a whole number of at least 1, got {heads!r}")
        self.heads, self.share_heads = heads, share_heads
        self.rows = 1 if share_heads else heads
        self.register_buffer("arranged_rows", None, persistent=False)
        self.register_buffer("arranged_columns", None, persistent=False)
        self.made_of: tuple[str | None, dict] = (None, {})  # its name in MASKS and its options, as attach was told
        self.image: Grid | None = None  # the size of the images it was attached for
        self.learned_on = self.grid, self.key_grid  # of what is learned for each pair of patches
        self._met: dict[tuple, SpatialMask] = {}  # what it is for (size of images, queries, keys)

    def weight(self) -> torch.Tensor:
        """The mask without prefix tokens, (heads or 1, Nq, Nk)."""
        raise NotImplementedError

    def arrange(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Says which row-major positions the queries and keys of the scores have, where their order is another."""
        self.arranged_rows, self.arranged_columns = rows, columns

    def full_weight(self) -> torch.Tensor:
        """The mask with neutral rows and columns for the prefix tokens, (heads or 1, Pq + Nq, Pk + Nk)."""
        rows, columns = self.prefix
        weight = self.weight()
        if self.arranged_rows is not None:
            weight = weight[:, self.arranged_rows[:, None], self.arranged_columns]
        return F.pad(weight, (columns, 0, rows, 0), value=0.0 if self.additive else 1.0) if rows or columns else weight

    def forward(self, scores: torch.Tensor, scale: float = 1.0) -> torch.Tensor:  # (..., heads, Pq + Nq, Pk + Nk)
        """The scores with the mask in them, times `scale`, which costs a multiplicative mask nothing on the way."""
        plain = exported(scores)  # there any batch will do
        here = (self.met(sizes.now()) or self) if plain else self.fitting(scores.shape)
        weight = here.full_weight()
        if scale != 1.0:
            weight = weight * scale
        weight = weight.type_as(scores) if plain else weight.to(scores.dtype)
        if not plain and scores.shape[:-3].numel() > 1:  # a batch, and not a position bias, which is small
            weight = _Expand.apply(weight, scores.shape)
        return scores + weight if self.additive else scores * weight

    @torch.no_grad()
    def strength(self) -> float:
        """How far it is from doing nothing: the mean of |M - 1| over the pairs of patches, or of |B|."""
        weight = self.full_weight()[..., self.prefix[0] :, self.prefix[1] :]
        return (weight - (0 if self.additive else 1)).abs().mean().item()

    @property
    def counts(self) -> tuple[int, int]:
        """The queries and keys of the scores it was built for."""
        (rows, columns), (key_rows, key_columns), (before, key_before) = self.grid, self.key_grid, self.prefix
        return before + rows * columns, key_before + key_rows * key_columns

    def fitting(self, shape: torch.Size) -> SpatialMask:
        """This mask on the grid that scores of this shape come from: itself, or its like for another image size."""
        counts, size = tuple(shape[-2:]), sizes.now()
        own = counts == self.counts and (size == self.image or size is None and not self._met or self.image is None)
        key = (size, *counts)
        here = self if own else self._met[key] if key in self._met else self._meet(size, counts)
        here.check(shape)
        return here

    def _meet(self, size: Grid | None, counts: tuple[int, ...]) -> SpatialMask:
        """What it is for scores that it has not met at this size of images, which it keeps."""
        if size is None:  # a layer runs by itself, or once more for its gradients
            met = {id(like): like for (_, *each), like in self._met.items() if tuple(each) == counts}
            met |= {id(self): self} if counts == self.counts else {}
            if len(met) > 1:
                raise ValueError(f"{type(self).__name__}: {counts} scores come from several grids; run the whole model")
            return next(iter(met.values()), self)
        place, own = sizes.place_of(self, counts), sizes.Place(self.grid, self.prefix, self.key_grid)
        if place is None or (place != own and (self.made_of[0] not in MASKS or self.arranged_rows is not None)):
            return self  # which refuses what does not fit
        alike = (met for met in self._met.values() if (met.grid, met.prefix, met.key_grid) == place)
        here = self if place == own else next(alike, None) or self._like(place)
        if len(self._met) >= sizes.MOST:
            self._met.pop(next(iter(self._met)))
        self._met[(size, *counts)] = here
        return here

    def _like(self, place: sizes.Place) -> SpatialMask:
        """The same mask, with the same parameters, on another grid."""
        name, options = self.made_of
        build, options = MASKS[name], dict(options)
        if options.pop("start", None) == "neutral":
            options = build.neutral(**options)
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            made = build(place.grid, self.heads, prefix=place.prefix, key_grid=place.key_grid, **options)
        made._parameters, made._modules, made.training = self._parameters, self._modules, self.training
        made.made_of, made.image, made.learned_on = self.made_of, sizes.now(), self.learned_on
        device = next((each.device for each in self.parameters()), None)
        own = {name: each for name, each in self._buffers.items() if name not in self._non_persistent_buffers_set}
        places = {name: each for name, each in made._buffers.items() if name not in own}
        made._buffers = own | {name: each if each is None else each.to(device) for name, each in places.items()}
        return made

    def met(self, image: Grid | None) -> SpatialMask | None:
        """What this mask is for images of a size; None where it has not met them."""
        own = self if image in (self.image, None) else None
        return next((met for (size, *_), met in self._met.items() if size == image), own)

    def settle(self, image: Grid) -> None:
        """Makes what this mask is at a size it has met the mask itself."""
        made = self.met(image)
        if made is None:
            raise ValueError(f"{type(self).__name__} is not reached by an image of {image[0]} x {image[1]}")
        if made is not self:
            for name, value in vars(made).items():
                if name == "_buffers" or not name.startswith("_"):
                    vars(self)[name] = value
            self.learn_here()
        self.image, self.learned_on = image, (self.grid, self.key_grid)
        self._met.clear()

    def learn_here(self) -> None:
        """Makes parameters for each pair of patches of the present grid of those that were learned on another."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_met": {}}  # a copy has parameters of its own

    def _apply(self, *args: Any, **kwargs: Any) -> SpatialMask:
        self._met.clear()  # their buffers would stay where they are
        return super()._apply(*args, **kwargs)

    def check(self, shape: Sequence[int]) -> None:
        """Raises a sentence where scores of this shape do not fit."""
        kind, shape, (queries, keys) = type(self).__name__, tuple(shape), self.counts
        if len(shape) < 3 or shape[-2:] != (queries, keys):
            raise ValueError(
                f"{kind} was built for {queries} x {keys} scores ({self._place()}) and got scores of shape {shape}: "
                + self.remedy
            )
        if shape[-3] != self.heads and not self.share_heads:
            raise ValueError(f"{kind} has {self.heads} heads and got scores of {shape[-3]}: {shape}")

    def _place(self) -> str:
        (rows, columns), (key_rows, key_columns), (before, key_before) = self.grid, self.key_grid, self.prefix
        keys = f", key grid {key_rows} x {key_columns}" if self.key_grid != self.grid else ""
        prefix = f", prefix {before if before == key_before else self.prefix}" if any(self.prefix) else ""
        return f"grid {rows} x {columns}{keys}{prefix}"

    def extra_repr(self) -> str:
        return f"{self._place()}, heads={self.heads}{' (shared)' if self.share_heads else ''}"


class _Mixture(torch.autograd.Function):
    """sum_k alpha_k exp(-d2 / (2 (sigma_k^2 + eps))) of all pairs: autograd's thirty small steps cost 1 ms a layer."""

    @staticmethod
    def forward(ctx, sigma, alpha, d2, pair, eps, grid):  # (K, rows), (K, rows), (U,), (Nq * Nk,)
        variance = sigma.square().add_(eps)
        gauss = torch.exp((-0.5 / variance)[..., None] * d2)  # (K, rows, U)
        ctx.grid = grid  # of queries and keys alike, else None
        ctx.save_for_backward(sigma, alpha, variance, gauss, d2, pair)
        return (alpha[..., None] * gauss).sum(0).index_select(1, pair)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # (rows, Nq * Nk)
        sigma, alpha, variance, gauss, d2, pair = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):  # of whoever calls backward
            if ctx.grid is not None and together.on_gpu(gradient):
                summed, corner = by_offset(gradient, ctx.grid), pair[: ctx.grid[0] * ctx.grid[1]]
                gauss, d2 = gauss.index_select(-1, corner), d2.index_select(0, corner)  # of the first query's keys
            else:  # scatter_add_ and not index_add_: the same bits, and 20 to 50 times as fast on a CPU
                summed = gradient.new_zeros(gauss.shape[1:]).scatter_add_(1, pair.expand_as(gradient), gradient)
            weighted = summed * gauss  # (K, rows, U)
            by_variance = weighted @ d2
        return by_variance * (alpha * sigma / variance.square()), weighted.sum(-1), None, None, None, None


class GaussianMask(SpatialMask):
    """What the two Gaussian masks have in common: mixtures over the few distinct distances, gathered to pairs."""

    eps = 0.0
    underflow = False
    squared = False  # whether heights are squares of what is learned

    def __init__(self, grid: Grid, heads: int, base: float = 0.0, **place: Any):
        super().__init__(grid, heads, **place)
        # what a neutral start has beside the paper's formula: in state_dict, so that none is loaded as the other
        self.register_buffer("base", torch.tensor(_number("base", base)) if base else None)
        distances = squared_distances(self.grid, self.key_grid)
        # kept as bits, so that model.half() cannot round them: in bfloat16 neighbouring distances would be equal
        self.register_buffer("d2_bits", distances.values.float().view(torch.int32), persistent=False)  # (U,)
        self.register_buffer("pair", distances.index, persistent=False)  # (Nq * Nk,)

    def d2(self, plain: bool = False) -> torch.Tensor:
        """The distinct squared distances, (U,) float32; of plain operators where they are to be exported."""
        if not plain:
            return self.d2_bits.view(torch.float32)
        # ONNX cannot read one type as another: 2^(exponent - 150) times the 24 bits that float32 keeps, exactly
        kept = (self.d2_bits & 0x7FFFFF) + 0x800000
        return kept.float() * 2.0 ** ((self.d2_bits >> 23) - 150).float()

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What is learned of the Gaussians: their widths, and what their heights are made of, (K, heads or 1) each."""
        raise NotImplementedError

    @property
    def kind(self) -> tuple:
        """Equal for masks that differ in their numbers alone."""
        return (
            type(self),
            self.grid,
            self.key_grid,
            len(self.numbers()[0]),
            self.pair.device,
            self.underflow,
            self.base is None,
        )

    def weights_of(self, masks: Sequence[GaussianMask]) -> list[torch.Tensor]:
        """The weights (heads or 1, Nq, Nk) of masks of one kind, computed at once."""
        sigma, height = (torch.cat(each, 1).float() for each in zip(*(mask.numbers() for mask in masks), strict=True))
        base = None if self.base is None else torch.cat([mask.base.float().expand(mask.rows) for mask in masks])
        plain = exported(sigma)
        with nullcontext() if plain else torch.autocast(self.pair.device.type, enabled=False):
            height, d2 = height.square() if self.squared else height, self.d2(plain)
            height = height - base if self.squared and base is not None else height
            grid = self.grid if self.grid == self.key_grid else None
            if plain:
                gauss = torch.exp((-0.5 / (sigma.square() + self.eps))[..., None] * d2)  # (K, rows, U)
                flat = (height[..., None] * gauss).sum(0).index_select(1, self.pair)
            else:
                flat = _Mixture.apply(sigma, height, d2, self.pair, self.eps, grid)
            flat = flat if self.squared or base is None else flat + base[:, None]
        shape = -1, self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        parts = flat.split([mask.rows for mask in masks]) if len(masks) > 1 else [flat]
        return [part.view(shape) for part in parts]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.base is None else f", base={self.base.item():g}")

    def weight(self) -> torch.Tensor:
        computed = together.found(self)
        return self.weights_of([self])[0] if computed is None else computed


class GaussianMixtureMask(GaussianMask):
    """M_ij = sum_k alpha_k exp(-d2_ij / (2 (sigma_k^2 + 1e-5))), multiplied into the scores (GMM, arXiv 2309.05375).

    - `kernels`: how many Gaussians are mixed
    - `share_heads`: one mask for all heads
    - `sigma_init`: mean and standard deviation of the widths; None spreads them from about a patch to about the grid
    - `alpha_init`: mean and standard deviation of the heights
    - `where`: "scores", or "probabilities": after the softmax
    - `underflow`: as the paper's code, which takes powers of float32's sqrt(exp(-d2)), 0 from d2 = 104 on
    - `base`: what is added to the sum; 1 in a neutral start
    """

    takes_scale = True
    scalars = ("sigma", "alpha")
    strengths = ("alpha_init", "base")
    eps = 1e-5  # the paper's code has sigma^2 + 1e-5, so that a sigma of 0 is allowed

    def __init__(
        self,
        grid: Grid,
        heads: int,
        kernels: int = 5,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = False,
        sigma_init: tuple[float, float] | None = (10.0, 10.0),
        alpha_init: tuple[float, float] = (0.0, 2.0),
        where: str = "scores",
        underflow: bool = False,
        base: float = 0.0,
    ):
        super().__init__(grid, heads, base, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        if type(kernels) is not int or not 1 <= kernels <= MOST_KERNELS:
            raise ValueError(f"kernels: expected a whole number of at least 1 (most: {MOST_KERNELS}), got {kernels!r}")
        if where not in ("scores", "probabilities"):
            raise ValueError(unknown("place of the mask (where)", where, ("scores", "probabilities")))
        self.where, self.kernels, self.underflow = where, kernels, underflow
        if underflow:
            self.d2_bits = underflown(self.d2()).view(torch.int32)
        sigma = self._spread(kernels) if sigma_init is None else _normal("sigma_init", sigma_init, (kernels, self.rows))
        self.sigma = nn.Parameter(sigma)
        self.alpha = nn.Parameter(_normal("alpha_init", alpha_init, (kernels, self.rows)))

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"base": 1.0, "alpha_init": (0.0, 0.0), "sigma_init": None} | options

    def _spread(self, kernels: int) -> torch.Tensor:
        """Widths from about one patch to about the side of the grid, (K, heads or 1)."""
        steps = (torch.arange(kernels) + 0.5) / kernels
        return (max(*self.grid, *self.key_grid) ** steps)[:, None].repeat(1, self.rows)

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sigma, self.alpha

    def extra_repr(self) -> str:
        where, underflow = f", where={self.where}" * (self.where != "scores"), ", underflow" * self.underflow
        return f"{super().extra_repr()}, kernels={self.kernels}{where}{underflow}"


class ElementMask(SpatialMask):
    """M_ij free for every pair, multiplied into the scores (ELM, arXiv 2309.05375).

    - `share_heads`: one mask for all heads
    - `init`: what every weight begins with; 1 in a neutral start
    """

    takes_scale = True
    strengths = ("init",)

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = True,
        init: float = 0.0,
    ):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        n_q, n_k = self.grid[0] * self.grid[1], self.key_grid[0] * self.key_grid[1]
        self.element = nn.Parameter(torch.full((self.rows, n_q, n_k), _number("init", init)))
        if init:  # decay would draw it to 0, which is no longer where it began
            self.scalars = ("element",)

    @staticmethod
    def neutral(**options: Any) -> dict:
        return {"init": 1.0} | options

    def weight(self) -> torch.Tensor:
        return resampled(self.element, self.learned_on, (self.grid, self.key_grid))

    def learn_here(self) -> None:
        self.element = nn.Parameter(self.weight().detach(), self.element.requires_grad)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes what was learned on another grid, too, where it can only have been a square or one of this aspect."""
        theirs, own = state.get(f"{prefix}element"), self.element.shape
        if isinstance(theirs, torch.Tensor) and theirs.ndim == 3 and theirs.shape[1:] != own[1:]:
            pairs = zip(theirs.shape[1:], self.learned_on, strict=True)
            found = [{grid_of(n, grid[0] / grid[1]), grid_of(n)} - {None} for n, grid in pairs]
            if all(len(grids) == 1 for grids in found):  # else torch says that sizes differ
                state[f"{prefix}element"] = resampled(theirs, [grids.pop() for grids in found], self.learned_on)
        super()._load_from_state_dict(state, prefix, *args)


class GaussianBias(GaussianMask):
    """B_ij = A^2 exp(-d2_ij / (2 sigma^2)), added to the scores (GAB, arXiv 2305.04722).

    - `share_heads`: one mask for all heads
    - `amplitude`: what A begins with
    - `sigma`: what the width begins with
    - `base`: what is taken off A^2; A^2 itself, as it begins, in a neutral start
    """

    additive = squared = True
    scalars = ("amplitude", "sigma")
    strengths = ("amplitude", "base")

    def __init__(
        self,
        grid: Grid,
        heads: int,
        *,
        prefix: int | tuple[int, int] = 0,
        key_grid: Grid | None = None,
        share_heads: bool = True,
        amplitude: float = 2.0,
        sigma: float = 5.0,
        base: float = 0.0,
    ):
        super().__init__(grid, heads, base, prefix=prefix, key_grid=key_grid, share_heads=share_heads)
        self.amplitude = nn.Parameter(torch.full((self.rows,), _number("amplitude", amplitude)))
        self.sigma = nn.Parameter(torch.full((self.rows,), _number("sigma", sigma)))
        if sigma <= 0:
            raise ValueError(f"sigma: expected a width above 0, got {sigma!r}")
        self.takes_product = share_heads  # a bias that all heads share costs less inside their product

    @staticmethod
    def neutral(**options: Any) -> dict:
        # A near 0 would do without a base, but A^2 has no slope there: from A = 1e-3, 200 steps of SGD (0.01) on a
        # trained ViT left mean |B| at 7e-7, AdamW (3e-4) at 1e-4; from A = 2 with base 4 both took it to 0.04
        return {"base": options.get("amplitude", 2.0) ** 2} | options

    def forward(self, scores: torch.Tensor, key: torch.Tensor | None = None) -> torch.Tensor:
        """The scores with the bias added; or, of a query (..., Nq, d) and a key (..., d, Nk), their product with it."""
        if key is None or exported(scores):
            return super().forward(scores if key is None else scores @ key)
        return biased_product(scores, key, self.fitting((*scores.shape[:-1], key.shape[-1])).full_weight())

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sigma[None], self.amplitude[None]

    def weight(self) -> torch.Tensor:
        if exported(self.amplitude) or together.on_gpu(self.pair):
            return super().weight()
        # one Gaussian: autograd's own steps are few, and cost less there than a function in Python
        sigma, height = self.sigma.float(), self.amplitude.float().square()
        height = height if self.base is None else height - self.base.float()
        gauss = torch.exp((-0.5 / sigma.square())[:, None] * self.d2())  # (rows, U)
        flat = (height[:, None] * gauss).gather(1, self.pair.expand(self.rows, -1))
        return flat.view(self.rows, self.grid[0] * self.grid[1], -1)


PLACE = ("grid", "heads", "prefix", "key_grid")  # what a site tells its mask; the rest are options
MASKS = {"gmm": GaussianMixtureMask, "elm": ElementMask, "gab": GaussianBias}


def biased_product(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Q K + B with one B for all heads, (..., heads, Nq, Nk), in one operator."""
    shape = *query.shape[:-1], key.shape[-1]
    keys = key.expand(*shape[:-2], *key.shape[-2:]).reshape(-1, *key.shape[-2:])  # fewer heads than the query's
    queries = query.reshape(-1, *query.shape[-2:])
    bias = _Expand.apply(bias.to(query.dtype), (len(queries), *shape[-2:]))
    return torch.baddbmm(bias, queries, keys).view(shape)


def options_of(name: str) -> dict[str, tuple[object, str]]:
    """The options of a registered mask: what each is by default, and what the mask's docstring says of it."""
    said = dict(re.findall(r"^- `(\w+)`: (.*)$", inspect.getdoc(MASKS[name]) or "", re.M))
    parameters = inspect.signature(MASKS[name]).parameters.values()
    return {each.name: (each.default, said.get(each.name, "")) for each in parameters if each.name not in PLACE}


def resampled(table: torch.Tensor, grids: Sequence[Grid], to: Sequence[Grid]) -> torch.Tensor:
    """A value for each pair of patches (rows, Nq, Nk) on other grids of queries and keys, bicubic as timm does it."""
    if tuple(grids) == tuple(to):
        return table
    (grid, key_grid), (new, new_keys) = grids, to
    values = table.float().unflatten(-1, key_grid)  # (rows, Nq, y, x)
    values = F.interpolate(values, new_keys, mode="bicubic", antialias=True).flatten(-2)
    values = values.transpose(-2, -1).unflatten(-1, grid)  # (rows, Nk', y, x)
    values = F.interpolate(values, new, mode="bicubic", antialias=True).flatten(-2)
    return values.transpose(-2, -1).to(table.dtype)


def underflown(d2: torch.Tensor) -> torch.Tensor:
    """The squared distances for which the exact Gaussians are those of float32's sqrt(exp(-d2)) (erratum G7), (U,)."""
    base = torch.exp(-d2).sqrt()  # denormal and so inexact before the root from d2 = 87.3 on
    never = 1e30  # exp(-never / ...) is 0 for any sigma, and so is its gradient; with inf that would be NaN
    return torch.where(base > 0, -2 * base.double().log(), never).float()


def no_decay(model: nn.Module) -> set[str]:
    """Names of the masks' learned scalars (sigma, alpha, amplitude), which should not be decayed towards 0."""
    return {
        f"{name}.{scalar}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, SpatialMask)
        for scalar in module.scalars
    }


def _pair(name: str, value: object, least: int) -> tuple[int, int]:
    numbers = value if isinstance(value, (tuple, list)) else ()
    if len(numbers) != 2 or not all(isinstance(n, int) and n >= least for n in numbers):
        raise ValueError(f"{name}: expected two whole numbers of at least {least} (rows, columns), got {value!r}")
    return numbers[0], numbers[1]


def _normal(name: str, mean_sd: tuple[float, float], shape: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(mean_sd, (tuple, list)) or len(mean_sd) != 2:
        raise ValueError(f"{name}: expected (mean, standard deviation), got {mean_sd!r}")
    mean, sd = (_number(name, value) for value in mean_sd)
    if sd < 0:
        raise ValueError(f"{name}: expected a standard deviation of at least 0, got {mean_sd!r}")
    return mean + sd * torch.randn(shape)


def _number(name: str, value: object) -> float:
    """A number whose square float32 can hold, too."""
    most = torch.finfo(torch.float32).max ** 0.5
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < most:
        raise ValueError(f"{name}: expected a finite number below {most:.1e}, got {value!r}")
    return float(value)
