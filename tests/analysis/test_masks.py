"""Regularities and fits against masks whose answer is known beforehand."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import softmax

import gmmvit
from gmmvit.analysis.masks import BIASED, by_distance, fit_mixtures, masking, mixing, regularities, relative_kernel
from gmmvit.train import learned

GRID = (6, 8)
PLACES = list(itertools.product(range(GRID[0]), range(GRID[1])))
DISTANCE = np.array([[math.dist(a, b) for b in PLACES] for a in PLACES])  # (N, N)
NOISE = np.random.default_rng(0).normal(size=DISTANCE.shape)


def mixture(*kernels):
    return sum(alpha * np.exp(-(DISTANCE**2) / (2 * sigma**2)) for alpha, sigma in kernels)


# ---- regularities ---------------------------------------------------------------------------------------------------


def test_self_inhibition_is_the_diagonal_against_the_rest():
    weight = 0.5 + 0 * DISTANCE
    np.fill_diagonal(weight, -1.0)
    found = regularities(np.stack([weight, -weight]), GRID)
    np.testing.assert_allclose(found.self_difference, [-1.5, 1.5])
    share = 1 / len(PLACES)  # of the diagonal; the sd of two values with these shares
    z = -(1 - share) / math.sqrt(share * (1 - share))
    np.testing.assert_allclose(found.self_z, [z, -z])


def test_decay_is_a_rank_correlation_without_the_diagonal():
    falling = np.exp(-DISTANCE)
    np.fill_diagonal(falling, -5.0)  # self-inhibition is the other regularity
    found = regularities(np.stack([falling, -falling, NOISE]), GRID)
    np.testing.assert_allclose(found.decay_weight[:2], [-1, 1], atol=1e-12)
    np.testing.assert_allclose(found.decay_size[:2], [-1, -1], atol=1e-12)
    rest = ~np.eye(len(PLACES), dtype=bool)
    assert found.decay_weight[2] == pytest.approx(stats.spearmanr(DISTANCE[rest], NOISE[rest]).statistic)
    assert abs(found.decay_weight[2]) < 0.1


def test_mean_weight_by_distance():
    found = regularities(NOISE[None], GRID)
    for step in range(len(found.distance)):
        there = np.rint(DISTANCE) == step
        assert found.distance[step] == pytest.approx(DISTANCE[there].mean())
        assert found.weight[0, step] == pytest.approx(NOISE[there].mean())
        assert found.spread[0, step] == pytest.approx(NOISE[there].std())
    assert found.distance[0] == 0 and len(found.distance) == 1 + round(math.hypot(5, 7))


def test_a_constant_mask_has_no_regularities_and_no_warning(recwarn):
    found = regularities(np.zeros((1, 48, 48)), GRID)
    assert np.isnan([found.self_z, found.decay_weight, found.decay_size]).all() and found.self_difference == 0
    assert np.isnan(by_distance(np.zeros((48, 48)), GRID).r2)
    assert not recwarn.list


def test_a_mask_of_another_grid_is_a_sentence():
    with pytest.raises(ValueError, match=r"expected masks of shape \(heads, 48, 48\).*got \(1, 64, 64\)"):
        regularities(np.zeros((1, 64, 64)), GRID)
    with pytest.raises(ValueError, match=r"expected a mask of shape \(48, 48\)"):
        fit_mixtures(np.zeros((64, 64)), GRID)


# ---- what explains a mask -------------------------------------------------------------------------------------------


def test_what_distance_explains():
    assert by_distance(np.sin(DISTANCE), GRID).r2 == pytest.approx(1)
    rightwards = np.array([[b[1] - a[1] for b in PLACES] for a in PLACES])  # of the position, not of its distance
    assert by_distance(rightwards, GRID).r2 == pytest.approx(0, abs=1e-12)
    half = np.sin(DISTANCE) / np.sin(DISTANCE).std() + NOISE / NOISE.std()  # as much of distance as of anything else
    assert by_distance(half, GRID).r2 == pytest.approx(0.5, abs=0.05)


def test_what_free_values_explain_of_noise():
    draws = np.random.default_rng(1).normal(size=(40, *DISTANCE.shape))
    found = [by_distance(draw, GRID) for draw in draws]
    assert found[0].on_noise == pytest.approx((len(np.unique(DISTANCE.round(9))) - 1) / (48**2 - 1))
    assert np.mean([each.r2 for each in found]) == pytest.approx(found[0].on_noise, rel=0.15)


def test_relative_kernel_slides_back_over_the_grid():
    kernel = np.random.default_rng(2).normal(size=(11, 15))
    slid = np.array([[kernel[5 + b[0] - a[0], 7 + b[1] - a[1]] for b in PLACES] for a in PLACES])
    np.testing.assert_allclose(relative_kernel(slid, GRID), kernel)


# ---- mixtures -------------------------------------------------------------------------------------------------------


def test_a_mixture_is_recovered():
    fits = fit_mixtures(mixture((0.6, 2.0), (-0.8, 0.5)), GRID, most=3)
    order = np.argsort(fits[1].sigma)
    np.testing.assert_allclose(fits[1].sigma[order], [0.5, 2.0], rtol=1e-4)
    np.testing.assert_allclose(fits[1].alpha[order], [-0.8, 0.6], rtol=1e-4)
    assert fits[0].r2 < 0.9 and fits[1].r2 == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(fits[1].at(DISTANCE), mixture((0.6, 2.0), (-0.8, 0.5)), atol=1e-5)


def test_a_mixture_is_recovered_from_noise_to_the_noise():
    clean = mixture((1.0, 1.0), (-0.7, 4.0))
    fits = fit_mixtures(clean + 0.1 * NOISE, GRID, most=2)
    assert np.abs(fits[1].at(DISTANCE) - clean).max() < 0.03
    assert fits[1].r2 == pytest.approx(1 - 0.1**2 / (clean + 0.1 * NOISE).var(), abs=0.01)


MASKS = {"noise": NOISE, "ripple": np.cos(2 * DISTANCE) + 0.2 * NOISE, "high": 1 + 1e-3 * NOISE, "decay": -DISTANCE}


@pytest.mark.parametrize("name", MASKS)
def test_r2_is_that_of_all_entries_never_falls_and_stays_below_the_bound(name):
    weight = MASKS[name]
    fits = fit_mixtures(weight, GRID)
    r2 = [fit.r2 for fit in fits]
    assert [len(fit.sigma) for fit in fits] == list(range(1, 11))
    for fit in fits:
        left = weight - fit.at(DISTANCE)
        assert fit.r2 == pytest.approx(1 - np.sum(left**2) / np.sum((weight - weight.mean()) ** 2), abs=1e-6)
    assert (np.diff(r2) >= 0).all() and r2[-1] <= by_distance(weight, GRID).r2 + 1e-9
    assert r2[-1] < 0.02 if name in ("noise", "high") else r2[-1] > (0.95 if name == "decay" else 0.3)


def test_fits_are_as_good_as_the_best_of_many_random_starts():
    from scipy.optimize import least_squares

    weight = mixture((1.0, 0.8), (-1.5, 2.0), (0.8, 5.0)) + 0.2 * NOISE
    total = np.sum((weight - weight.mean()) ** 2)
    random = np.random.default_rng(3)

    def residual(values):
        return (mixture(*zip(values[:2], np.exp(values[2:]), strict=True)) - weight).ravel()

    starts = (np.append(random.normal(size=2), np.log(random.uniform(0.3, 8, 2))) for _ in range(12))
    best = max(1 - 2 * least_squares(residual, start).cost / total for start in starts)
    assert fit_mixtures(weight, GRID, most=2)[1].r2 >= best - 1e-4


def test_a_learned_gmm_is_a_mixture_of_as_many_kernels():
    torch.manual_seed(0)
    mask = gmmvit.GaussianMixtureMask((8, 8), 1, kernels=2, sigma_init=(2.0, 1.0))
    assert fit_mixtures(mask.weight()[0].detach().numpy(), (8, 8), most=2)[1].r2 > 0.9999


def test_a_constant_mask_cannot_be_fitted():
    with pytest.raises(ValueError, match="no variance to explain"):
        fit_mixtures(np.ones((48, 48)), GRID)


def learned_masks(folder, mask, **options):
    """The masks of a small model, as a run of it would leave them."""
    torch.manual_seed(0)
    model = gmmvit.create_model("vit_xs", mask=mask, **options)
    for parameter in (each for name, each in model.named_parameters() if "alpha" in name):
        parameter.data.normal_()
    learned.save(model, folder)
    return learned.read(folder)


@pytest.mark.parametrize("mask, start, last", [("gmm", "paper", "M"), ("gmm", "neutral", "M"), ("gmb", "neutral", "B")])
def test_kernels_of_a_mixture_add_up_to_the_mask(mask, start, last, tmp_path):
    found = learned_masks(tmp_path, mask, kernels=3, start=start)[0]
    *parts, whole = (kernels := mixing(found, head=2)).values()
    base = ["base = 1"] if (mask, start) == ("gmm", "neutral") else []
    assert list(kernels)[3:] == [*base, f"their sum {last}"] and whole.shape == (15, 15)
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole[7:, 7:], found.weight()[2, 0].reshape(8, 8), rtol=1e-4, atol=1e-5)
    alpha, sigma = found.parameters["alpha"][1, 2], found.parameters["sigma"][1, 2]
    d2 = np.add.outer(np.arange(-7, 8) ** 2, np.arange(-7, 8) ** 2)
    np.testing.assert_allclose(parts[1], alpha * np.exp(-d2 / (2 * (sigma**2 + 1e-5))), rtol=1e-4, atol=1e-5)


def test_what_is_no_mixture_has_no_kernels_and_what_has_no_weights_no_steps(tmp_path):
    with pytest.raises(ValueError, match=r"expected a mixture of Gaussians \(gmm or gmb\), got 'alibi'"):
        mixing(learned_masks(tmp_path, "alibi")[0])
    with pytest.raises(ValueError, match="expected a mask of weights on the scores, got 'rope'"):
        masking(np.zeros((64, 64)), learned_masks(tmp_path, "rope")[0])


def test_a_bias_is_added_to_the_scores(tmp_path):
    scores = np.random.default_rng(0).normal(size=(64, 64))
    bias = learned_masks(tmp_path, "alibi")[0]
    steps = masking(scores, bias, head=1)
    assert list(steps) == list(BIASED)
    np.testing.assert_allclose(steps["S + B"], scores + bias.weight()[1])
    np.testing.assert_allclose(steps["softmax(S + B)"], softmax(scores + bias.weight()[1], axis=-1))
