"""The file of learned masks: what is read back is what the model has, in equal bytes, small enough for git."""

import json
import subprocess
import sys

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
@pytest.mark.parametrize("start", ["paper", "neutral"])
def test_gaussian_masks_come_back_exactly(tmp_path, name, mask, start):
    model = drawn(gmmvit.create_model(name, mask=mask, start=start))
    learned.save(model, tmp_path)
    found = learned.read(tmp_path)
    for one, site, weight in zip(found, model.spatial_sites, weights(model), strict=True):
        assert (one.name, one.kind, one.grid, one.heads) == (site.name, mask, site.grid, site.heads)
        assert one.reaches_output == site.reaches_output
        np.testing.assert_array_equal(one.weight(), weight)


def test_masks_that_underflow_come_back_so(tmp_path):
    model = gmmvit.create_model("pit", mask="gmm", underflow=True)
    learned.save(model, tmp_path)
    found = learned.read(tmp_path)
    for one, weight in zip(found, weights(model), strict=True):
        np.testing.assert_array_equal(one.weight(), weight)
    assert (found[0].weight() == 0).mean() > 0.3


def test_the_place_of_a_mask_and_its_parameters_are_told(tmp_path):
    model = drawn(gmmvit.create_model("pit", mask="gmm", kernels=3, share_heads=True, where="probabilities"))
    learned.save(model, tmp_path)
    first, *_, last = learned.read(tmp_path)
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
    learned.save(model, tmp_path)
    found = learned.read(tmp_path)
    assert any(one.key_grid != one.grid for one in found)
    for one, weight in zip(found, weights(model), strict=True):
        np.testing.assert_array_equal(one.weight(), weight)


ELEMENTS = [("vit", 32), ("swin", 32), ("cait", 32), ("pit", 32), ("t2t", 32), ("t2t", 64)]


@pytest.mark.parametrize(("name", "size"), ELEMENTS)
def test_elements_come_back_to_the_precision_of_float16(tmp_path, name, size):
    model = drawn(gmmvit.create_model(name, size, mask="elm"))
    learned.save(model, tmp_path)
    assert (tmp_path / "masks.npz").stat().st_size < 2_500_000  # noise, the worst there is; t2t at 64 px: 2.1 MB
    for one, weight in zip(learned.read(tmp_path), weights(model), strict=True):
        np.testing.assert_allclose(one.weight(), weight, rtol=2**-11, atol=2**-25)


def test_a_model_without_masks_has_a_file_without_masks(tmp_path):
    learned.save(gmmvit.create_model("vit"), tmp_path)
    assert learned.read(tmp_path) == []


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


@pytest.mark.slow
def test_the_same_model_makes_the_same_bytes_in_another_process(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    subprocess.run([sys.executable, "-c", SAVED, str(tmp_path / "one")], check=True)
    monkeypatch.setattr(sys, "argv", ["here", str(tmp_path / "two")])
    exec(SAVED, {})
    one, two = (tmp_path / name / "masks.npz" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_numpy_alone_can_read_the_file(tmp_path):
    model = drawn(gmmvit.create_model("vit", mask="gmm"))
    learned.save(model, tmp_path)
    with np.load(tmp_path / "masks.npz", allow_pickle=False) as file:
        records = json.loads(str(file["masks"]))
        assert records[8]["name"] == "blocks.8.attn"
        alpha = list(gmmvit.masks_of(model).values())[8].alpha
        np.testing.assert_array_equal(file["masks/8/alpha"], alpha.detach().numpy())


def test_half_precision_and_compiled_models_are_saved(tmp_path):
    model = drawn(gmmvit.create_model("vit", mask="gmm")).bfloat16()
    learned.save(torch.compile(model), tmp_path)
    for one, weight in zip(learned.read(tmp_path), weights(model), strict=True):
        np.testing.assert_array_equal(one.weight(), weight)


def test_a_mask_that_cannot_be_rebuilt_is_refused(tmp_path):
    class Fade(torch.nn.Module):
        def forward(self, scores):
            return 0.5 * scores

    model = gmmvit.create_model("vit", mask=lambda *_, **__: Fade())
    with pytest.raises(TypeError, match="attached by its name .gmm.*got a Fade"):
        learned.save(model, tmp_path)


@pytest.fixture(scope="module")
def tiny():
    return timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1, embed_dim=48, num_heads=3)


@pytest.mark.parametrize("start", ["paper", "neutral"])
def test_every_mask_with_a_name_comes_back(tmp_path, tiny, start):
    for name, kind in gmmvit.MASKS.items():
        neutral = getattr(kind, "neutral", None) is not None
        if start == "neutral" and not neutral:
            continue
        sites = gmmvit.attach(tiny, name, **({"start": start} if neutral else {}))
        drawn(tiny)
        learned.save(tiny, tmp_path)
        (one,), (site,) = learned.read(tmp_path), sites
        state = site.mask.state_dict()
        assert (one.name, one.kind, set(one.parameters | one.buffers)) == ("blocks.0.attn", name, set(state))
        found, weight = one.weight(), site.mask.weight()
        if weight is None:
            assert found is None
        else:
            np.testing.assert_allclose(found, weight.detach().numpy(), rtol=2**-9, atol=2**-12)
        gmmvit.detach(tiny)


class Fading(gmmvit.SpatialMask):
    """A mask of one's own: a layer inside, a buffer that training changes, an option.

    - `height`: how high
    """

    def __init__(self, grid, heads, *, prefix=0, key_grid=None, height: float = 1.0):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.height, self.inside = height, torch.nn.Linear(1, heads)
        self.register_buffer("steps", torch.zeros(()))

    def weight(self):
        there = torch.arange(float(self.counts[1] - self.prefix[1]))[:, None]
        heads = self.inside(self.height * there + self.steps).mT  # (heads, Nk)
        return heads[:, None].expand(-1, self.counts[0] - self.prefix[0], -1)


def test_a_registered_mask_of_ones_own_comes_back_with_its_options_and_buffers(tmp_path, tiny, monkeypatch):
    monkeypatch.setitem(gmmvit.MASKS, "fading", Fading)
    (site,) = gmmvit.attach(tiny, "fading", height=2.5)
    site.mask.steps += 7
    learned.save(tiny, tmp_path)
    gmmvit.detach(tiny)
    (one,) = learned.read(tmp_path)
    assert set(one.parameters) == {"inside.weight", "inside.bias"} and one.buffers["steps"] == 7
    assert one.options == {"height": 2.5} and one.prefix == (1, 1)
    np.testing.assert_array_equal(one.weight(), site.mask.weight().detach().numpy())
    monkeypatch.delitem(gmmvit.MASKS, "fading")
    with pytest.raises(ValueError, match="unknown mask 'fading'"):
        one.weight()


class Doubled(torch.nn.Module):
    """No weights for pairs of patches."""

    def __init__(self, grid, heads, *, prefix=0, key_grid=None):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, scores):
        return self.factor * scores


def test_a_mask_without_weights_is_kept_too(tmp_path, tiny, monkeypatch):
    monkeypatch.setitem(gmmvit.MASKS, "doubled", Doubled)
    gmmvit.attach(tiny, "doubled")
    learned.save(tiny, tmp_path)
    gmmvit.detach(tiny)
    (one,) = learned.read(tmp_path)
    assert (one.grid, one.prefix, one.heads, one.where, one.weight()) == ((4, 4), (1, 1), 3, "scores", None)
    assert one.rebuilt().factor == one.parameters["factor"] == 2


def test_files_from_before_there_were_options_and_buffers_are_read(tmp_path):
    mask = gmmvit.MASKS["gmm"]((4, 4), 2, kernels=3, share_heads=True, prefix=1, base=1.0, underflow=True)
    record = {"name": "blocks.0.attn", "kind": "gmm", "grid": [4, 4], "key_grid": [4, 4], "prefix": [1, 1], "heads": 2}
    record |= {"share_heads": True, "reaches_output": True, "where": "scores", "parameters": ["sigma", "alpha"]}
    record |= {"options": {"underflow": True, "base": 1.0}}
    numbers = {f"masks/0/{name}": getattr(mask, name).detach().numpy() for name in record["parameters"]}
    np.savez_compressed(tmp_path / "masks.npz", masks=np.array(json.dumps([record])), **numbers)
    np.testing.assert_array_equal(learned.read(tmp_path)[0].weight(), mask.weight().detach().numpy())
