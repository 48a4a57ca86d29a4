"""Obtains, verifies and lays out every data set; says what is to be put where by hand.

splits = gmmvit.fetch.obtain("cifar10")                      # {"train": ..., "test": ...}
"""

from .download import NotObtained
from .room import Row, check, obtain

__all__ = ["NotObtained", "Row", "check", "obtain"]
