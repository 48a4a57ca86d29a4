"""The spatial priors for attention scores that have a name."""

from .element import ElementMask
from .gaussians import GaussianBias, GaussianMixtureMask
from .registry import MASKS, options_of, register_mask
from .spatial import SpatialMask, no_decay

__all__ = [
    "MASKS",
    "ElementMask",
    "GaussianBias",
    "GaussianMixtureMask",
    "SpatialMask",
    "no_decay",
    "options_of",
    "register_mask",
]

for _name, _kind in {"gmm": GaussianMixtureMask, "elm": ElementMask, "gab": GaussianBias}.items():
    register_mask(_name, _kind)
