"""gmmvit: spatial priors (Gaussian mixture and element-wise masks, Gaussian attention bias) for vision transformers."""

from .attention import attention_maps
from .folding import fold
from .masks import ElementMask, GaussianBias, GaussianMixtureMask
from .models import create_model
from .sites import Site, attach, detach, masks_of
from .transmix import TransMix

__all__ = [
    "ElementMask",
    "GaussianBias",
    "GaussianMixtureMask",
    "Site",
    "TransMix",
    "attach",
    "attention_maps",
    "create_model",
    "detach",
    "fold",
    "masks_of",
]
__version__ = "0.1.0"
