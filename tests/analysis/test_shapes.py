"""What any mask does, seen by the centre patch and by distance, against the formulas and against attention itself."""

import numpy as np
import pytest
import torch
import torch.nn as nn

import gmmvit
from gmmvit.analysis.shapes import after, at_start, seen, shape
from gmmvit.core.registry import MASKS
from gmmvit.train import learned
from gmmvit.train.rows import Row

D2 = np.add.outer((np.arange(8) - 3) ** 2, (np.arange(8) - 3) ** 2)  # of the centre patch, (3, 3) of 8 x 8
SLOPES = 2.0 ** (-8 * np.arange(1, 7) / 6)


def row(mask, **settings):
    return Row("cifar10-mini", "vit_xs", mask, set=settings)


class Near(nn.Module):
    """Adds 2 to the scores of a patch with itself, and leaves class tokens alone."""

    def __init__(self, grid, heads, prefix=0, key_grid=None):
        super().__init__()
        self.more = nn.Parameter(torch.tensor(2.0))
        self.first = prefix[0] if isinstance(prefix, tuple) else prefix

    def forward(self, scores):
        itself = torch.eye(scores.shape[-1])
        itself[: self.first] = 0
        return scores + self.more * itself


@pytest.fixture
def near():
    gmmvit.register_mask("near", Near)
    yield "near"
    del MASKS["near"]


@pytest.mark.parametrize(
    "mask, numbers, centre",
    [
        ("gab", "added to the score", 4 * np.exp(-D2 / 50)),
        ("alibi", "added to the score", -SLOPES.mean() * np.sqrt(D2)),
        ("diagonal", "added to the score", -1000.0 * (D2 == 0)),
        ("temperature", "factor of the score", np.ones((8, 8))),
        ("elm", "factor of the score", np.zeros((8, 8))),
    ],
)
def test_the_centre_sees_the_formula(mask, numbers, centre):
    found = at_start(row(mask))
    assert found.numbers == numbers and found.query == (3, 3)
    np.testing.assert_allclose(found.centre, centre, atol=1e-5)


def test_means_and_spreads_are_over_layers_and_heads():
    found = at_start(row("alibi"))
    np.testing.assert_allclose(found.distance[:2], [0, 4 * 7 * 8 * (1 + 2**0.5 * 7 / 8) / (4 * 7 * 8 * (1 + 7 / 8))])
    np.testing.assert_allclose(found.weight, -SLOPES.mean() * found.distance, atol=1e-6)
    np.testing.assert_allclose(found.spread, SLOPES.std() * found.distance, atol=1e-6)
    gmm = at_start(row("gmm", where="probabilities"))
    assert gmm.numbers == "factor of attention" and (gmm.spread > 0.5).all()


@pytest.mark.parametrize("settings", [{}, {"mixed": True}])
def test_equal_vectors_under_rope_score_the_mean_cosine_of_their_turns(settings):
    torch.manual_seed(0)
    model = gmmvit.create_model("vit_xs", mask="rope", readout="token", **settings)
    site = model.spatial_sites[0]
    numbers, found = seen(site.mask, site)
    assert numbers == "score of equal unit vectors" and found.shape == (6, 64, 64)
    np.testing.assert_allclose(np.diagonal(found, axis1=1, axis2=2), 1, atol=1e-6)
    vectors = nn.functional.normalize(torch.randn(4000, 1, 1, 16), dim=-1)
    vectors = vectors.expand(-1, 6, 65, -1)
    with torch.no_grad():
        query, key = site.mask.operands(vectors, vectors)
        drawn = (query[:, :, [1 + 27]] @ key.transpose(-2, -1)).mean(0)[:, 0, 1:]  # of the centre patch
    np.testing.assert_allclose(found[:, 27], drawn, atol=0.03)


def test_gpsa_is_its_attention_by_position():
    found = at_start(row("gpsa"))
    assert found.numbers == "attention by position" and found.centre.sum() == pytest.approx(1)


def test_a_mask_of_ones_own_without_weights_is_what_it_makes_of_scores(near, tmp_path):
    model = gmmvit.create_model("vit_xs", mask=near, readout="token")
    for mask in gmmvit.masks_of(model).values():
        mask.more.data += 1
    learned.save(model, tmp_path)
    began, ended = at_start(row(near, readout="token")), after(tmp_path)
    for found, more in ((began, 2), (ended, 3)):
        assert found.numbers == "made of scores of 0"
        np.testing.assert_allclose(found.centre, more * (D2 == 0))


@pytest.mark.parametrize("mask", ["gmb", "relmlp", "gpsa", "rope"])
def test_what_was_learned_is_that_of_the_masks_of_the_model(mask, tmp_path):
    torch.manual_seed(3)
    model = gmmvit.create_model("vit_xs", mask=mask)
    for each in gmmvit.masks_of(model).values():
        for parameter in each.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    learned.save(model, tmp_path)
    found, expected = after(tmp_path), shape((site.mask, site) for site in model.spatial_sites)
    for name in ("centre", "weight", "spread"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6)


def test_no_masks_have_no_shape_and_the_first_grid_of_several_is_taken():
    assert at_start(row("none")) is None
    assert at_start(Row("cifar10-mini", "pit", "gab")).centre.shape == (16, 16)
