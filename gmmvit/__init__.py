"""gmmvit: spatial priors (Gaussian mixture and element-wise masks, Gaussian attention bias) for vision transformers."""

from .core.attach import Site, attach, detach, masks_of
from .core.cost import cost
from .core.fold import fold
from .core.freeze import freeze
from .core.keep import load, save
from .core.maps import attention_maps
from .core.masks import MASKS, ElementMask, GaussianBias, GaussianMixtureMask, SpatialMask, register_mask
from .core.regrid import regrid
from .core.transmix import TransMix
from .models import create_model

__all__ = [
    "MASKS",
    "ElementMask",
    "GaussianBias",
    "GaussianMixtureMask",
    "Site",
    "SpatialMask",
    "TransMix",
    "attach",
    "attention_maps",
    "cost",
    "create_model",
    "detach",
    "fold",
    "freeze",
    "load",
    "masks_of",
    "register_mask",
    "regrid",
    "save",
]
__version__ = "0.1.0"
