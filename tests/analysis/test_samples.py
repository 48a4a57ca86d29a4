"""What figures show of a classifier's images: heat maps, scores, receptive fields, position biases, mixed pairs."""

import numpy as np
import pytest
import torch

import gmmvit
from gmmvit.analysis import drawn
from gmmvit.analysis.fields import effective_receptive_field
from gmmvit.analysis.masks import STEPS, masking
from gmmvit.analysis.samples import IMAGES, attention_heat, samples
from gmmvit.core.maps import attention_maps
from gmmvit.paper import pictures
from gmmvit.paper import runs as results
from gmmvit.train import learned, train
from gmmvit.train.classify import Classification
from gmmvit.train.processes import World
from gmmvit.train.rows import Row
from gmmvit.train.start import fresh_model, unmasked_model


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr("gmmvit.analysis.samples.FIELD_IMAGES", 8)


def trained(**fields):
    """A task and its model, whose masks and weights are drawn from a seed."""
    task = Classification(Row(**{"dataset": "cifar10-mini", "model": "vit", "mask": "gmm", **fields}), World(), 0)
    return task, task.model()


def test_heat_maps_are_those_of_their_images():
    task, model = trained(model="vit_heat", mask="none")
    kept = samples(task, model)
    source = task.sources["test"]
    assert np.array_equal(kept["images"], source.images[list(IMAGES)])
    mean, sd = (np.array(values, np.float32) for values in (task.dataset.mean, task.dataset.std))
    images = torch.from_numpy((kept["images"] / 255 - mean) / sd).permute(0, 3, 1, 2).float()
    np.testing.assert_allclose(kept["heat"], attention_heat(model, images), rtol=2e-3)
    assert kept["heat"].shape == kept["images"].shape[:3]  # so that one lies on the other


@pytest.mark.parametrize("settings", [{"share_heads": False}, {"share_heads": True}, {"sigma_init": (2, 0.5)}])
def test_scores_are_what_the_mask_in_the_middle_met(settings, tmp_path):
    task, model = trained(set=settings)
    kept = samples(task, model)
    learned.save(model, tmp_path)
    steps = masking(kept["scores"], learned.read(tmp_path)[4])

    images = task.sources["test"].images[list(IMAGES)[:1]]
    mean, sd = (np.array(values, np.float32) for values in (task.dataset.mean, task.dataset.std))
    image = torch.from_numpy((images / 255 - mean) / sd).permute(0, 3, 1, 2).float()
    with torch.no_grad(), attention_maps(model.eval(), layers=4) as maps:
        model(image)
    (attention,) = maps.values()
    np.testing.assert_allclose(steps["softmax(M ⊙ S)"], attention[0, 0], atol=0.02)
    assert len(pictures.steps(steps, STEPS).axes) == 8
    assert "erf" in kept  # where it looks is shown of the same arm


@pytest.mark.parametrize("mask", ["none", "gab"])
def test_position_biases_are_those_of_the_layers_without_the_gaussian(mask):
    task, model = trained(model="vit_relpos", mask=mask)
    kept = samples(task, model)
    assert kept["position_bias"].shape == (9, 15, 15) and kept["position_bias"].std() > 1e-3
    bias = model.eval().blocks[4].attn.rel_pos.get_bias()[0].mean(0).detach().numpy()  # (N, N), mean over heads
    for query, key in ((0, 0), (0, 63), (27, 12), (50, 9)):
        down, right = key // 8 - query // 8, key % 8 - query % 8
        np.testing.assert_allclose(kept["position_bias"][4, 7 + down, 7 + right], bias[query, key], atol=1e-6)


@pytest.mark.parametrize("name", ["vit", "vit_relpos"])
def test_receptive_fields_are_of_the_trained_model_and_of_fresh_positions(name):
    task, model = trained(model=name, mask="none")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        for place, parameter in model.named_parameters():
            if "gamma" in place:
                parameter.fill_(0.5)  # LayerScale's 1e-6 would hide the attention
            elif "pos" in place:
                parameter.mul_(10)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    kept = samples(task, model)
    assert str(kept["erf_features"]) == "last" and kept["erf"].max() == kept["erf_reset"].max() == 1
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

    mean, sd = (np.array(values, np.float32) for values in (task.dataset.mean, task.dataset.std))
    images = torch.from_numpy((task.sources["test"].images[:8] / 255 - mean) / sd).permute(0, 3, 1, 2)
    torch.manual_seed(0)
    fresh = unmasked_model(task.row).state_dict()
    anew = {key: fresh[key] if "pos_embed" in key or "rel_pos.mlp" in key else before[key] for key in before}
    for key, state in (("erf", before), ("erf_reset", anew)):
        model.load_state_dict(state)
        field = effective_receptive_field(model, [images.float()])
        np.testing.assert_allclose(kept[key], field / field.max(), atol=1e-3)
    assert abs(kept["erf"].astype(float) - kept["erf_reset"]).max() > 0.01


def test_drawing_a_model_anew_asks_no_gpu_for_its_state(monkeypatch):
    def asked(*_):
        raise AssertionError("a GPU was asked for its generator")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", asked)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one, two = (fresh_model(Row("cifar10-mini", "test_vit")) for _ in range(2))
    assert torch.equal(one.head.weight, two.head.weight) and torch.equal(before, torch.random.get_rng_state())


def test_transmix_keeps_its_pairs_and_how_far_it_shifts_labels(tmp_path):
    settings = {"epochs": 2, "warmup_epochs": 1, "batch": 500, "mixup": 0.8, "cutmix": 1.0}
    row = Row("cifar10-mini", "test_vit", set=settings | {"transmix": True})
    run = tmp_path / "runs" / "mixed"
    metrics = train(row, run, say=lambda line: None)
    lines = results.history(run)
    quantiles = np.array([lines[f"shift_q{q}"] for q in ("05", "25", "50", "75", "95")])  # (5, epochs)
    assert quantiles.shape == (5, 2) and (np.diff(quantiles, axis=0) >= 0).all() and (quantiles[0] < 0).all()
    assert metrics["shift_q95"] == lines["shift_q95"][-1] > 0

    kept = drawn.analyse(run)
    task = Classification(row, World(), 0)
    assert np.abs(kept["mix_images"].astype(int) - task.sources["test"].images[:8]).max() <= 1
    for pair, (top, bottom, left, right) in enumerate(kept["mix_box"]):
        area = (bottom - top) * (right - left) / 32**2
        np.testing.assert_allclose(kept["mix_share"][2 * pair : 2 * pair + 2, 0], area, atol=1e-6)
    assert kept["mix_attention"].shape == (8, *task.model().patch_embed.grid_size)


def test_rows_of_an_ablation_are_not_drawn():
    assert samples(*trained(set={"kernels": 3})) == {}


@pytest.mark.parametrize(
    "fields", [{"model": "swin"}, {"mask": "elm"}, {"mask": "none"}, {"set": {"where": "probabilities"}}]
)
def test_other_rows_keep_neither_heat_nor_scores(fields):
    assert not {"images", "heat", "scores", "mix_images"} & samples(*trained(**fields)).keys()


# ---- heat maps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readout", ["mean", "token"])
def test_heat_is_the_last_attention_averaged_over_queries_then_heads(readout):
    torch.manual_seed(0)
    model, images = gmmvit.create_model("vit", mask="gmm", readout=readout), torch.randn(3, 3, 32, 32)
    model.train()
    heat = attention_heat(model, images)
    assert model.training and heat.shape == (3, 32, 32)
    model.eval()
    with gmmvit.attention_maps(model, "blocks.8.attn") as maps:
        model(images)
    skip = int(readout == "token")
    attention = maps["blocks.8.attn"].detach()[..., skip:, skip:]
    for image, row, column in ((0, 0, 0), (1, 3, 5), (2, 7, 7)):
        patch = heat[image, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        np.testing.assert_allclose(patch, attention[image, :, :, 8 * row + column].mean().item(), rtol=1e-5)
    assert heat.std() > 0


def test_heat_of_a_class_attention_and_refusal_of_windows():
    images = torch.randn(2, 3, 32, 32)
    assert attention_heat(gmmvit.create_model("cait"), images).shape == (2, 32, 32)
    with pytest.raises(ValueError, match="no map over 2 images of 32 x 32"):
        attention_heat(gmmvit.create_model("swin"), images, layer=0)
    with pytest.raises(ValueError, match="expected one attention layer, got 9"):
        attention_heat(gmmvit.create_model("vit"), images, layer="*")
