"""The spatial priors for attention scores that have a name."""

from .distance import AlibiBias, KerpleBias, ManhattanBias, SlopeBias
from .element import ElementMask
from .gaussian_bias import GaussianBias
from .gpsa import GatedPositions
from .lsa import DiagonalBias, Temperature
from .mixtures import GaussianMixtureBias, GaussianMixtureMask
from .registry import MASKS, options_of, register_mask
from .relative import RelativeBias, RelativeMlp
from .rope import RotaryPositions
from .spatial import SpatialMask, no_decay

__all__ = [
    "MASKS",
    "ElementMask",
    "GatedPositions",
    "GaussianBias",
    "GaussianMixtureBias",
    "GaussianMixtureMask",
    "RotaryPositions",
    "SpatialMask",
    "no_decay",
    "options_of",
    "register_mask",
]

for _name, _kind in {
    "gmm": GaussianMixtureMask,
    "elm": ElementMask,
    "gab": GaussianBias,
    "gmb": GaussianMixtureBias,
    "temperature": Temperature,
    "diagonal": DiagonalBias,
    "alibi": AlibiBias,
    "slope": SlopeBias,
    "manhattan": ManhattanBias,
    "kerple": KerpleBias,
    "relbias": RelativeBias,
    "relmlp": RelativeMlp,
    "gpsa": GatedPositions,
    "rope": RotaryPositions,
}.items():
    register_mask(_name, _kind)
