"""gmmvit: spatial priors (Gaussian mixture and element-wise masks, Gaussian attention bias) for vision transformers."""

from .core.attach import Site, attach, detach, masks_of
from .core.fold import fold
from .core.maps import attention_maps
from .core.masks import ElementMask, GaussianBias, GaussianMixtureMask
from .core.transmix import TransMix
from .models import create_model

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
