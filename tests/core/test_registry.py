"""The registry of masks: a name is given once, to a class that attach can build."""

import pytest
import torch
import torch.nn as nn

import gmmvit
from gmmvit.core.registry import options_of


@pytest.fixture
def registry(monkeypatch):
    """The registry, which is as it was afterwards."""
    before = dict(gmmvit.MASKS)
    yield gmmvit.MASKS
    gmmvit.MASKS.clear()
    gmmvit.MASKS.update(before)


class Ring(gmmvit.SpatialMask):
    """Nothing but options.

    - `radius`: how far
    """

    def __init__(self, grid, heads, *, prefix=0, key_grid=None, radius=2.0):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.radius = nn.Parameter(torch.tensor(radius))

    def weight(self):
        return self.radius.expand(self.rows, self.grid[0] * self.grid[1], -1)


class Placeless(gmmvit.SpatialMask):
    def __init__(self, grid, heads, prefix=0):
        super().__init__(grid, heads, prefix=prefix)


class Demanding(gmmvit.SpatialMask):
    def __init__(self, grid, heads, radius, prefix=0, key_grid=None):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)


def test_a_registered_mask_has_its_options(registry):
    gmmvit.register_mask("ring", Ring)
    assert registry["ring"] is Ring and options_of("ring") == {"radius": (2.0, "how far")}


@pytest.mark.parametrize(
    "name, cls, error, words",
    [
        ("gmm", Ring, ValueError, "'gmm', which stands for the mask GaussianMixtureMask"),
        ("none", Ring, ValueError, "'none', which stands for no mask"),
        ("my-ring", Ring, ValueError, "expected a word such as 'fade', got 'my-ring'"),
        (3, Ring, ValueError, "expected a word such as 'fade', got 3"),
        ("ring", Ring((2, 2), 1), TypeError, "expected a class of modules"),
        ("ring", dict, TypeError, "expected a class of modules"),
        ("ring", Placeless, TypeError, "got Placeless: no key_grid"),
        ("ring", Demanding, TypeError, "got Demanding: radius without a default"),
        ("ring", nn.Identity, TypeError, "got Identity: no grid, no heads, no prefix, no key_grid"),
    ],
)
def test_what_cannot_be_registered_is_refused_by_a_sentence(registry, name, cls, error, words):
    before = dict(registry)
    with pytest.raises(error, match=words) as raised:
        gmmvit.register_mask(name, cls)
    assert "\n" not in str(raised.value) and registry == before
