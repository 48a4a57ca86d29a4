"""The spatial priors for attention scores that have a name."""

from .element import ElementMask
from .gaussians import GaussianBias, GaussianMixtureMask
from .registry import MASKS, options_of
from .spatial import SpatialMask, no_decay

__all__ = ["MASKS", "ElementMask", "GaussianBias", "GaussianMixtureMask", "SpatialMask", "no_decay", "options_of"]

MASKS |= {"gmm": GaussianMixtureMask, "elm": ElementMask, "gab": GaussianBias}
