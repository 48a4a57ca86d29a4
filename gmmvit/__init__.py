"""gmmvit: spatial priors (Gaussian mixture mask, element-wise mask, Gaussian attention bias) for vision transformers."""

from .masks import ElementMask, GaussianBias, GaussianMixtureMask
from .sites import Site, attach, detach, masks_of

__all__ = ["ElementMask", "GaussianBias", "GaussianMixtureMask", "Site", "attach", "detach", "masks_of"]
__version__ = "0.1.0"
