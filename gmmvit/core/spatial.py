"""What all masks have in common: grids, class tokens, another image size, the scores' batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import sizes
from .batched import Expand
from .grids import Grid, prefixes
from .registry import MASKS
from .trace import exported
from .values import whole_pair


class SpatialMask(nn.Module):
    """A weight for every (query patch, key patch) that meets the attention scores; prefix tokens are left alone."""

    additive = False  # scores + weight instead of scores * weight
    takes_product = False  # may be handed query and key instead of their product
    takes_scale = False  # may be handed the scores before their constant factor (1 / sqrt(width)), and that factor
    where = "scores"  # or "probabilities": after the softmax; or "product": `operands` changes query and key before it
    needs_width = False  # whether it is told the channels of a head, as `width`
    by_weight = True  # whether `full_weight` says all that `forward` does, as a class with a forward of its own tells
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
        self.grid = whole_pair("grid", grid, least=1)
        self.key_grid = self.grid if key_grid is None else whole_pair("key_grid", key_grid, least=1)
        self.prefix = whole_pair("prefix", prefixes(prefix), least=0)
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

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forward" in vars(cls):
            cls.by_weight = vars(cls).get("by_weight", False)

    @classmethod
    def words(cls) -> tuple[str, str, str]:
        """What is done with it, what its strength is the mean of, and when it does nothing, for tables and logs."""
        return ("added", "|B|", "B = 0") if cls.additive else ("multiplied", "|M - 1|", "M = 1")

    def weight(self) -> torch.Tensor | None:
        """The mask without prefix tokens, (heads or 1, Nq, Nk); None of one that has no weight for a pair."""
        raise NotImplementedError

    def arrange(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Says which row-major positions the queries and keys of the scores have, where their order is another."""
        self.arranged_rows, self.arranged_columns = rows, columns

    def full_weight(self) -> torch.Tensor:
        """The mask with neutral rows and columns for the prefix tokens, (heads or 1, Pq + Nq, Pk + Nk)."""
        return self.padded(self.weight(), 0.0 if self.additive else 1.0)

    def padded(self, weight: torch.Tensor, value: float) -> torch.Tensor:
        """What pairs of patches have (rows, Nq, Nk), in the order of the scores, and a value for pairs of others."""
        rows, columns = self.prefix
        if self.arranged_rows is not None:
            weight = weight[:, self.arranged_rows[:, None], self.arranged_columns]
        return F.pad(weight, (columns, 0, rows, 0), value=value) if rows or columns else weight

    def here(self, scores: torch.Tensor, key: torch.Tensor | None = None) -> SpatialMask:
        """This mask on the grid of scores, or of those that a query makes with a key (..., N, d)."""
        if exported(scores):  # there any batch will do
            return self.met(sizes.now()) or self
        return self.fitting(scores.shape if key is None else (*scores.shape[:-1], key.shape[-2]))

    def forward(self, scores: torch.Tensor, scale: float = 1.0) -> torch.Tensor:  # (..., heads, Pq + Nq, Pk + Nk)
        """The scores with the mask in them, times `scale`, which costs a multiplicative mask nothing on the way."""
        plain = exported(scores)
        weight = self.here(scores).full_weight()
        if scale != 1.0:
            weight = weight * scale
        weight = weight.type_as(scores) if plain else weight.to(scores.dtype)
        if not plain and scores.shape[:-3].numel() > 1:  # a batch, and not a position bias, which is small
            weight = Expand.apply(weight, scores.shape)
        return scores + weight if self.additive else scores * weight

    @torch.no_grad()
    def strength(self) -> float | None:
        """How far it is from doing nothing, if that can be told: the mean of |M - 1| over pairs of patches, or |B|."""
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
            told = {"width": self.width} if self.needs_width else {}
            made = build(place.grid, self.heads, prefix=place.prefix, key_grid=place.key_grid, **told, **options)
        made._parameters, made._modules, made.training = self._parameters, self._modules, self.training
        made.made_of, made.image, made.learned_on = self.made_of, sizes.now(), self.learned_on
        device = next((each.device for each in (*self.parameters(), *self.buffers())), None)
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


def no_decay(model: nn.Module) -> set[str]:
    """Names of the masks' learned scalars (sigma, alpha, amplitude), which should not be decayed towards 0."""
    return {
        f"{name}.{scalar}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, SpatialMask)
        for scalar in module.scalars
    }
