"""save and load: the same logits to the last bit, from any place, or a sentence."""

import json
import shutil

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torch.nn as nn
from conftest import redraw

import gmmvit
from gmmvit.core.keep import FORMAT, described
from gmmvit.paper.attachable import WORKS, build

QUICK = ("beit", "levit", "swin_transformer", "vision_transformer")
MASKS = {
    "gmm": {"kernels": 2, "sigma_init": (2.0, 0.3)},
    "elm": {"init": 0.5},
    "gab": {"share_heads": False, "start": "paper"},
}
VIT = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 10}


def vit(**options):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **VIT | options)
    return redraw(model, torch.randn(8, model.in_chans, *model.patch_embed.img_size))


def logits(model, image):
    with torch.no_grad():
        return model.eval()(image)


def same(model, other, size=(64, 64), channels=3):
    image = torch.randn(2, channels, *size)
    ours, theirs = logits(model, image), logits(other, image)
    return ours.isfinite().all() and torch.equal(ours, theirs)


@pytest.mark.parametrize("file", [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in WORKS])
def test_a_model_of_every_file_comes_back_to_the_last_bit(file, tmp_path):
    """With each mask alone in the quick files, and with all three on the same attentions in every one."""
    torch.manual_seed(0)
    model, size = build(WORKS[file])
    redraw(model, torch.randn(8, 3, *size))
    for masks in [[mask] for mask in MASKS if file in QUICK] + [list(MASKS)]:
        for mask in masks:
            gmmvit.attach(model, mask, img_size=size, **MASKS[mask])
        gmmvit.save(model, tmp_path)
        back = gmmvit.load(tmp_path)
        assert same(model, back, size) and type(back).__name__ == type(model).__name__
        gmmvit.detach(model)


OPTIONS = {
    "img_size": {"img_size": (48, 80)},
    "classes": {"num_classes": 3, "in_chans": 1},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers": {"reg_tokens": 4, "depth": 1, "init_values": 0.1},
    "heads": {"num_heads": 6, "qkv_bias": False},
    "no head": {"num_classes": 0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_options_of_a_model_are_kept(options, tmp_path):
    model = vit(**options)
    gmmvit.attach(model, "gmm")
    gmmvit.save(model, tmp_path)
    assert same(model, gmmvit.load(tmp_path), model.patch_embed.img_size, model.in_chans)


def test_what_was_done_to_a_model_is_kept(tmp_path):
    """Another head, another size, other masks in other layers, a mask that was taken off again."""
    model = timm.create_model("gmmvit_vit", mask="gmm", kernels=3, drop_path_rate=0.3, num_classes=10)
    gmmvit.detach(model)
    gmmvit.attach(model, "gmm", only="blocks.[0-2].*", kernels=1)
    gmmvit.attach(model, "elm", init=1.0)
    model.reset_classifier(4)
    gmmvit.save(model, tmp_path)
    back = gmmvit.load(tmp_path)
    assert same(model, back, (32, 32)) and list(gmmvit.masks_of(back)) == list(gmmvit.masks_of(model))
    rates = [[m.drop_prob for m in each.modules() if hasattr(m, "drop_prob")] for each in (model, back)]
    assert rates[0] == rates[1] and max(rates[0]) > 0.2
    resized = vit()
    resized.set_input_size((96, 32))
    gmmvit.attach(resized, "gmm")
    gmmvit.save(resized, tmp_path)
    assert same(resized, gmmvit.load(tmp_path), (96, 32))


def test_a_trained_model_of_another_type_and_memory_layout_comes_back(tmp_path):
    model = vit()
    gmmvit.attach(model, "gmm")
    model.to(memory_format=torch.channels_last).bfloat16()
    gmmvit.save(torch.compile(model), tmp_path)
    back = gmmvit.load(tmp_path)
    image = torch.randn(2, 3, 64, 64).bfloat16()
    assert torch.equal(logits(model, image), logits(back, image)) and not back.training
    assert {p.dtype for p in back.parameters()} == {torch.bfloat16}


def test_a_file_of_half_the_size_is_loaded_in_the_models_own_type(tmp_path):
    model, image = vit(), torch.randn(2, 3, 64, 64)
    gmmvit.attach(model, "gmm")
    gmmvit.save(model, tmp_path / "whole")
    gmmvit.save(model, tmp_path / "half", stored=torch.float16)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert 0.49 < sizes[0] / sizes[1] < 0.55
    back = gmmvit.load(tmp_path / "half")
    assert {p.dtype for p in back.parameters()} == {torch.float32} == {p.dtype for p in model.parameters()}
    for own, kept in zip(model.parameters(), back.parameters(), strict=True):
        assert torch.equal(own.half().float(), kept)
    torch.testing.assert_close(logits(model, image), logits(back, image), rtol=0, atol=0.02)


def test_a_type_that_is_none_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(
        TypeError, match="stored: expected one of torch.float16, .* got torch.int8 for a model of torch"
    ):
        gmmvit.save(vit(), tmp_path, stored=torch.int8)
    assert not list(tmp_path.iterdir())
    gmmvit.save(vit(), tmp_path, stored=torch.bfloat16)
    config = json.loads((tmp_path / "config.json").read_text())
    config["gmmvit"]["type"] = "float33"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="unknown type of numbers in .* 'float33'.*nearest is 'float32'"):
        gmmvit.load(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pit", "t2t", "vit_relpos"])
@pytest.mark.parametrize("saved", ["gmmvit", "timm"])
def test_timm_itself_loads_a_backbone_of_ours_with_its_mask(name, saved, tmp_path):
    model = timm.create_model(f"gmmvit_{name}", mask="gmm", kernels=3, num_classes=7)
    redraw(model, torch.randn(8, 3, 32, 32))
    gmmvit.save(model, tmp_path) if saved == "gmmvit" else timm.models.save_for_hf(model, tmp_path)
    back = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert same(model, back, (32, 32)) and len(gmmvit.masks_of(back)) == len(gmmvit.masks_of(model))
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=3)
    assert logits(other, torch.randn(1, 3, 32, 32)).shape == (1, 3)
    with pytest.raises(TypeError, match="global_pool: expected the readout 'mean' to say it, got 'max'"):
        timm.create_model(f"gmmvit_{name}", global_pool="max")


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "test_vit_relpos"])
def test_a_folded_model_is_one_that_timm_reads(name, tmp_path):
    """Where a position MLP became a constant there is no module of timm's for it: gmmvit.load reads that one."""
    small = {"embed_dim": 24, "depths": (1, 1, 1, 1)} if "swin" in name else {"rel_pos_type": "bias"}
    for options, by_timm in ((small, True), *([] if "swin" in name else [({"rel_pos_type": "mlp"}, False)])):
        model = timm.create_model(name, num_classes=10, **options)
        size = model.patch_embed.img_size
        redraw(model, torch.randn(8, 3, *size))
        gmmvit.attach(model, "gab")
        gmmvit.fold(model)
        gmmvit.save(model, tmp_path)
        assert same(model, gmmvit.load(tmp_path), size)
        if by_timm:
            assert same(model, timm.create_model(f"local-dir:{tmp_path}", pretrained=True), size)


def test_random_numbers_and_the_model_are_left_alone(tmp_path):
    model = timm.create_model("gmmvit_vit", mask="gmm").train()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    gmmvit.save(model, tmp_path)
    gmmvit.load(tmp_path)
    assert torch.equal(torch.rand(3), expected) and model.training and len(gmmvit.masks_of(model)) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


class Fade(gmmvit.SpatialMask):
    """A mask of a user's own: weights fade with the distance."""

    def __init__(self, grid, heads, *, prefix=0, key_grid=None, slope=1.0):
        super().__init__(grid, heads, prefix=prefix, key_grid=key_grid)
        self.slope = nn.Parameter(torch.full((self.rows,), slope))

    def weight(self):
        n_q, n_k = np.prod(self.grid), np.prod(self.key_grid)
        return torch.exp(-self.slope[:, None, None] * (torch.arange(n_q)[:, None] - torch.arange(n_k)).abs() / n_k)


def test_a_mask_of_ones_own_comes_back_where_it_has_a_name(tmp_path, monkeypatch):
    model = vit()
    gmmvit.attach(model, Fade)
    with pytest.raises(ValueError, match=r"a Fade has no name .* gmmvit.register_mask\('name', Fade\)"):
        gmmvit.save(model, tmp_path)
    gmmvit.detach(model)
    with monkeypatch.context() as registered:
        registered.setitem(gmmvit.MASKS, "fade", None)  # so that the name goes again
        gmmvit.MASKS.pop("fade")
        gmmvit.register_mask("fade", Fade)
        _comes_back(model, tmp_path)


def _comes_back(model, tmp_path):
    gmmvit.attach(model, "fade", slope=0.5)
    gmmvit.save(model, tmp_path)
    assert same(model, gmmvit.load(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    config["gmmvit"] |= {"img_size": [64, 64], "masks": [{"mask": "fad", "options": {}, "sites": ["blocks.0.attn"]}]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"unknown mask 'fad': the nearest is 'fade'.*gmmvit.register_mask\('fad', its class\)"
    ):
        gmmvit.load(tmp_path)


@pytest.fixture
def folder(tmp_path):
    model = vit()
    gmmvit.attach(model, "gmm")
    gmmvit.save(model, tmp_path)
    return tmp_path


def change(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def weights(folder, missing=(), **more):
    state = safetensors.torch.load_file(folder / "model.safetensors")
    state = {name: value for name, value in state.items() if name not in missing}
    safetensors.torch.save_file(state | more, folder / "model.safetensors")


def other_weights(folder):
    other = vit(num_heads=6, embed_dim=96)
    safetensors.torch.save_file(other.state_dict(), folder / "model.safetensors")


WRONG = {
    "newer": (
        lambda folder: change(folder, gmmvit={"version": FORMAT + 1, "masks": []}),
        f"at most form {FORMAT} .* got {FORMAT + 1}: a newer gmmvit wrote it",
    ),
    "timm's": (lambda folder: change(folder, gmmvit=None), "without its block 'gmmvit'"),
    "missing": (
        lambda folder: weights(folder, ["norm.weight"]),
        "weights of this VisionTransformer, got no norm.weight$",
    ),
    "surplus": (lambda folder: weights(folder, odd=torch.ones(1)), "got odd, which the model has not$"),
    "others": (other_weights, r"got no blocks.0.attn.spatial_masks.gmm.sigma.*and \d+ more"),
    "architecture": (lambda folder: change(folder, architecture="vit_tyny"), "name of a model of this timm .*vit_tyny"),
    "options": (lambda folder: change(folder, model_args={"dept": 3}), "cannot be made of .*dept"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "got no model.safetensors"),
    "broken": (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "cannot be read"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "got no config.json"),
    "nothing": (shutil.rmtree, "got no config.json"),
}


@pytest.mark.parametrize("spoil, sentence", WRONG.values(), ids=WRONG)
def test_a_folder_that_is_none_of_ours_gets_a_sentence(spoil, sentence, folder):
    spoil(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        gmmvit.load(folder)


def test_pickles_are_not_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(vit().state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="got no model.safetensors"):
        gmmvit.load(folder)


def test_a_model_that_cannot_tell_how_it_was_made_gets_the_remedy(tmp_path):
    direct = timm.models.vision_transformer.vit_tiny_patch16_224(img_size=64, depth=2, num_heads=6)
    gmmvit.attach(direct, "gmm")
    with pytest.raises(ValueError, match=r"does not tell which options .*save\(model, folder, \*\*model_args\)"):
        gmmvit.save(direct, tmp_path / "direct")
    with pytest.raises(
        ValueError, match="VisionTransformer: expected the weights of what its options make, got blocks.1"
    ):
        gmmvit.save(direct, tmp_path / "direct", depth=1)
    assert not (tmp_path / "direct").exists()
    gmmvit.save(direct, tmp_path / "direct", depth=2, num_heads=6)
    assert same(direct, gmmvit.load(tmp_path / "direct"))
    with pytest.raises(ValueError, match="Linear has no name in timm"):
        gmmvit.save(nn.Linear(2, 2), tmp_path)
    grown = vit()
    grown.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="extra.weight, which the model has not"):
        gmmvit.save(grown, tmp_path)


def test_the_hub_is_asked_for_two_files_of_a_revision(folder, monkeypatch):
    asked = []

    def fetched(name, file, **options):
        asked.append((name, file, options["revision"]))
        return str(folder / file)

    monkeypatch.setattr("timm.models._hub.hf_hub_download", fetched)
    model = gmmvit.load("hf-hub:user/name@v2")
    assert len(gmmvit.masks_of(model)) == 2
    assert asked == [("user/name", "model.safetensors", "v2"), ("user/name", "config.json", "v2")]


def test_the_run_of_a_row_is_a_model(tmp_path):
    """Of weights.pt alone: neither the data nor the rooms that trained it are needed."""
    model = gmmvit.create_model("vit", num_classes=10)
    gmmvit.attach(model, "gmm", kernels=3)
    content = {"row": "{}", "model": model.state_dict(), "config": json.dumps(described(model))}
    torch.save(content, tmp_path / "weights.pt")
    assert same(model, gmmvit.load(tmp_path), (32, 32))
    torch.save({"row": "{}", "model": model.state_dict()}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="does not describe its model"):
        gmmvit.load(tmp_path)


def test_a_loaded_model_runs_on_a_gpu(folder, forward_gpu):
    image = torch.randn(2, 3, 64, 64)
    expected = logits(gmmvit.load(folder), image)
    with forward_gpu():
        model = gmmvit.load(folder).to("cuda")
        assert torch.allclose(logits(model, image.to("cuda")).cpu(), expected, atol=1e-3)
