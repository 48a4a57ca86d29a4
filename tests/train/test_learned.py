"""The file of learned masks: what is read back is what the model has, within 300 KB, in equal bytes."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import timm
import torch

import gmmvit
from gmmvit.train import learned


def drawn(model, seed=0):
    """The model with masks of random parameters, as noisy as a mask can be: nothing compresses them."""
    generator = torch.Generator().manual_seed(seed)
    for mask in gmmvit.masks_of(model).values():
        for parameter in mask.parameters():
            parameter.data = 0.1 + 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def weights(model):
    return [mask.weight().detach().numpy() for mask in gmmvit.masks_of(model).values()]


@pytest.mark.parametrize("name", ["vit", "swin", "pit", "cait", "t2t"])
@pytest.mark.parametrize("mask", ["gmm", "gab"])
def test_gaussian_masks_come_back_exactly(tmp_path, name, mask):
    model = drawn(gmmvit.create_model(name, mask=mask))
    learned.save(model, tmp_path / "learned.npz")
    found = learned.read(tmp_path / "learned.npz")
    for one, site, weight in zip(found, model.spatial_sites, weights(model), strict=True):
        assert (one.name, one.kind, one.grid, one.heads) == (site.name, mask, site.grid, site.heads)
        assert one.reaches_output == site.reaches_output
        np.testing.assert_array_equal(one.weight(), weight)


def test_masks_that_underflow_come_back_so(tmp_path):
    model = gmmvit.create_model("pit", mask="gmm", underflow=True)
    learned.save(model, tmp_path / "learned.npz")
    found = learned.read(tmp_path / "learned.npz")
    for one, weight in zip(found, weights(model), strict=True):
        np.testing.assert_array_equal(one.weight(), weight)
    assert (found[0].weight() == 0).mean() > 0.3


def test_the_place_of_a_mask_and_its_parameters_are_told(tmp_path):
    model = drawn(gmmvit.create_model("pit", mask="gmm", kernels=3, share_heads=True, where="probabilities"))
    learned.save(model, tmp_path / "learned.npz")
    first, *_, last = learned.read(tmp_path / "learned.npz")
    assert (first.name, first.grid, first.key_grid, first.prefix) == (
        "transformers.0.blocks.0.attn",
        (16, 16),
        (16, 16),
        (1, 1),
    )
    assert (first.heads, first.share_heads, first.where, first.reaches_output) == (2, True, "probabilities", True)
    assert not last.reaches_output  # only the class token is read
    mask = next(iter(gmmvit.masks_of(model).values()))
    assert set(first.parameters) == {"sigma", "alpha"}
    np.testing.assert_array_equal(first.parameters["sigma"], mask.sigma.detach().numpy())
    assert first.weight().shape == (1, 256, 256)


def test_pooled_keys_come_back(tmp_path):
    model = timm.create_model("pvt_v2_b0")
    gmmvit.attach(model, "gmm", img_size=64)
    learned.save(model, tmp_path / "learned.npz")
    found = learned.read(tmp_path / "learned.npz")
    assert any(one.key_grid != one.grid for one in found)
    for one, weight in zip(found, weights(model), strict=True):
        np.testing.assert_array_equal(one.weight(), weight)


ELEMENTS = [
    ("vit", 32, {}),
    ("swin", 32, {}),
    ("cait", 32, {}),
    ("pit", 32, {}),
    ("t2t", 32, {}),
]


@pytest.mark.parametrize(("name", "size", "options"), ELEMENTS, ids=str)
def test_elements_come_back_to_the_precision_of_float16(tmp_path, name, size, options):
    model = drawn(gmmvit.create_model(name, size, mask="elm", **options))
    learned.save(model, tmp_path / "learned.npz")
    assert (tmp_path / "learned.npz").stat().st_size <= 300_000
    for one, weight in zip(learned.read(tmp_path / "learned.npz"), weights(model), strict=True):
        assert one.steps.get("element", 0) == 0
        np.testing.assert_allclose(one.weight(), weight, rtol=2**-11, atol=2**-25)


@pytest.mark.parametrize(
    ("name", "size", "options", "error"),
    [
        ("vit", 32, {"share_heads": False}, 0.05),
        ("vit_heat", 64, {}, 0.1),
        ("vit_d60", 32, {}, 0.01),
        ("t2t", 64, {}, 0.8),
    ],
    ids=str,
)
def test_elements_too_large_for_the_limit_are_rounded_and_say_so(tmp_path, name, size, options, error):
    """`error`: of the largest element, as a share of its standard deviation (noise, the worst case)."""
    model = drawn(gmmvit.create_model(name, size, mask="elm", **options))
    learned.save(model, tmp_path / "learned.npz")
    assert 200_000 < (tmp_path / "learned.npz").stat().st_size <= 300_000
    found = learned.read(tmp_path / "learned.npz")
    assert any(one.steps["element"] for one in found)
    for one, weight in zip(found, weights(model), strict=True):
        off = one.weight() - weight
        step = one.steps["element"]
        assert np.abs(off).max() <= (step / 2 * 1.001 if step else 2e-3)
        assert off.std() <= error * weight.std()


def test_a_small_element_stays_exact_beside_one_that_is_rounded(tmp_path):
    model = drawn(gmmvit.create_model("t2t", 64, mask="elm"))
    learned.save(model, tmp_path / "learned.npz")
    steps = [one.steps["element"] for one in learned.read(tmp_path / "learned.npz")]
    assert steps[0] > 0 and steps[2:] == [0.0] * 12


def test_further_arrays_are_kept_within_the_limit(tmp_path):
    model = drawn(gmmvit.create_model("pit", mask="elm"))
    erf = np.random.default_rng(0).random((128, 128), dtype=np.float32)
    learned.save(model, tmp_path / "learned.npz", erf=erf, **{"bias/blocks.0": np.arange(3)})
    assert (tmp_path / "learned.npz").stat().st_size <= 300_000
    assert len(learned.read(tmp_path / "learned.npz")) == 12
    arrays = learned.read_arrays(tmp_path / "learned.npz")
    assert set(arrays) == {"erf", "bias/blocks.0"}
    np.testing.assert_array_equal(arrays["erf"], erf)
    with pytest.raises(ValueError, match="does not begin with 'masks'"):
        learned.save(model, tmp_path / "learned.npz", masks=erf)
    with pytest.raises(ValueError, match="expected at most 300,000 bytes"):
        learned.save(model, tmp_path / "learned.npz", erf=np.random.default_rng(0).random((512, 512)))


def test_a_model_without_masks_has_a_file_without_masks(tmp_path):
    learned.save(gmmvit.create_model("vit"), tmp_path / "learned.npz")
    assert learned.read(tmp_path / "learned.npz") == [] and learned.read_arrays(tmp_path / "learned.npz") == {}


SAVED = """
import sys, torch, gmmvit
from gmmvit.train import learned
torch.manual_seed(0)
model = gmmvit.create_model("vit", mask="elm", share_heads=False)
gmmvit.attach(model, "gmm")
for mask in gmmvit.masks_of(model).values():
    for parameter in mask.parameters():
        parameter.data.normal_()
learned.save(model, sys.argv[1])
"""


def test_the_same_model_makes_the_same_bytes_in_another_process(tmp_path, monkeypatch):
    files = [tmp_path / "one.npz", tmp_path / "two.npz"]
    subprocess.run([sys.executable, "-c", SAVED, str(files[0])], check=True)
    monkeypatch.setattr(sys, "argv", ["here", str(files[1])])
    exec(SAVED, {})
    assert files[0].read_bytes() == files[1].read_bytes()
    with zipfile.ZipFile(files[0]) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_numpy_alone_can_read_the_file(tmp_path):
    model = drawn(gmmvit.create_model("vit", mask="gmm"))
    learned.save(model, tmp_path / "learned.npz")
    with np.load(tmp_path / "learned.npz", allow_pickle=False) as file:
        records = json.loads(str(file["masks"]))
        assert records[8]["name"] == "blocks.8.attn"
        alpha = list(gmmvit.masks_of(model).values())[8].alpha
        np.testing.assert_array_equal(file["masks/8/alpha"], alpha.detach().numpy())


def test_half_precision_and_compiled_models_are_saved(tmp_path):
    model = drawn(gmmvit.create_model("vit", mask="gmm")).bfloat16()
    learned.save(torch.compile(model), tmp_path / "learned.npz")
    for one, weight in zip(learned.read(tmp_path / "learned.npz"), weights(model), strict=True):
        np.testing.assert_array_equal(one.weight(), weight)


def test_a_mask_that_cannot_be_rebuilt_is_refused(tmp_path):
    class Fade(torch.nn.Module):
        def forward(self, scores):
            return 0.5 * scores

    model = gmmvit.create_model("vit", mask=lambda *_, **__: Fade())
    with pytest.raises(TypeError, match="GaussianMixtureMask.*got Fade"):
        learned.save(model, tmp_path / "learned.npz")
