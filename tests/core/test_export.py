"""Models with masks leave torch: as exported programs, ONNX files, jit traces and fx graphs, with the same logits."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn as nn
from torch.export import Dim, export
from torchvision.models.feature_extraction import create_feature_extractor

import gmmvit

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's own exporters
SMALL = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (1, 2)}),
    "relpos": ("vit_relpos_small_patch16_224", {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
}
QUICK = [("vit", "gmm"), ("vit", "frozen gab")]
MASKED = [
    pytest.param(kind, mask, marks=[] if (kind, mask) in QUICK else pytest.mark.slow)
    for kind in ("vit", "swin")
    for mask in ("gmm", "elm", "gab", "frozen gmm", "frozen gab")
]
OTHERS = [pytest.param("vit", mask, marks=pytest.mark.slow) for mask in ("gmb", "alibi", "gpsa", "rope")]
ONNX = [*MASKED, *OTHERS]
each = pytest.mark.parametrize("kind, mask", [*MASKED, *OTHERS[-2:]])


def masked(kind, mask, **options):
    """A small model with large weights and a mask of random numbers, so that the mask shows, and two images."""
    torch.manual_seed(0)
    name, size = SMALL[kind]
    model = timm.create_model(name, num_classes=10, **size)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, 0.3)
    gmmvit.attach(model, mask.split()[-1], **options)
    with torch.no_grad():
        for each in gmmvit.masks_of(model).values():
            for parameter in each.parameters():
                parameter.add_(torch.rand_like(parameter))
    model.eval()
    return gmmvit.freeze(model) if mask.startswith("frozen") else model, torch.rand(2, 3, *[size["img_size"]] * 2)


def logits(model, images):
    with torch.no_grad():
        return model(images)


def same(got, want, atol=1e-5):
    torch.testing.assert_close(got, want, atol=atol, rtol=0)


@each
def test_torch_export_holds_for_one_batch_and_for_any(kind, mask):
    model, images = masked(kind, mask)
    more = torch.rand(5, *images.shape[1:])
    same(export(model, (images,)).module()(images), logits(model, images))
    program = export(model, (images,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},)).module()
    same(program(more), logits(model, more))


@pytest.mark.parametrize("kind, mask", ONNX)
def test_onnx_has_the_same_logits(kind, mask, tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")
    model, images = masked(kind, mask)
    file = tmp_path / "model.onnx"
    torch.onnx.export(model, (images,), file, dynamo=True, verbose=False, dynamic_shapes=({0: Dim("batch")},))
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch in (images, torch.rand(3, *images.shape[1:])):
        (got,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        same(torch.from_numpy(got), logits(model, batch), atol=1e-4)


@each
def test_a_jit_trace_holds_for_any_batch(kind, mask):
    model, images = masked(kind, mask)
    more = torch.rand(3, *images.shape[1:])
    same(torch.jit.trace(model, images)(more), logits(model, more))


@each
def test_a_feature_extractor_gives_what_the_layers_give_and_gradients_for_the_mask(kind, mask):
    model, images = masked(kind, mask)
    layer = "blocks.0.attn" if kind == "vit" else "layers.0.blocks.1.attn"
    seen = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: seen.append(output))
    want = logits(model, images)
    handle.remove()
    nodes = {f"{layer}.proj_drop": "attention", next(reversed(dict(model.named_modules()))): "logits"}
    extractor = create_feature_extractor(model, nodes).eval()
    got = extractor(images)
    same(got["attention"], seen[0])
    same(got["logits"], want)
    if not mask.startswith("frozen"):
        got["logits"].square().sum().backward()
        first = next(iter(gmmvit.masks_of(model).values()))
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in first.parameters())


@each
def test_a_masked_model_compiles_to_one_graph(kind, mask):
    model, images = masked(kind, mask)
    torch._dynamo.reset()
    same(torch.compile(model, fullgraph=True, backend="eager")(images), logits(model, images))


def test_distances_are_exported_to_the_last_bit():
    for options in ({}, {"underflow": True}, {"key_grid": (3, 2)}):
        mask = gmmvit.GaussianMixtureMask((5, 7), 1, **options)
        assert torch.equal(mask.d2(plain=True), mask.d2())


def test_an_unpickled_model_says_that_torch_fx_comes_after_a_first_call():
    model, images = masked("vit", "gmm")
    model = pickle.loads(pickle.dumps(model))
    with pytest.raises(ValueError, match="call the model once"):
        create_feature_extractor(model, ["head"])
    model.train()(images), model.eval()(images)
    same(create_feature_extractor(model, ["head"]).eval()(images)["head"], logits(model, images))


# ---- freeze ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize(
    "mask, options",
    [
        ("gmm", {}),
        ("gmm", {"share_heads": True}),
        ("gmm", {"where": "probabilities"}),
        ("elm", {}),
        ("gab", {}),
        ("gab", {"share_heads": False}),
    ],
)
def test_freezing_leaves_the_logits_as_they_are_to_the_last_bit(kind, mask, options):
    model, images = masked(kind, mask, **options)
    want = logits(model, images)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            frozen = gmmvit.freeze(copy.deepcopy(model))
            assert torch.equal(logits(frozen, images), logits(model, images))
    assert not any(isinstance(each, gmmvit.core.gaussians.GaussianMask) for each in frozen.modules())
    assert [site.parameters for site in frozen.spatial_sites] == [0] * len(model.spatial_sites)
    assert [site.mask for site in frozen.spatial_sites] == list(gmmvit.masks_of(frozen).values())
    assert torch.equal(logits(model, images), want)
    again = pickle.loads(pickle.dumps(frozen))
    assert torch.equal(logits(again, images), want)
    assert not torch.equal(logits(gmmvit.detach(frozen), images), want)


def test_two_masks_of_one_attention_are_frozen_together():
    model, images = masked("vit", "gmm")
    gmmvit.attach(model, "gab")
    want = logits(model, images)
    assert gmmvit.freeze(model) is model
    assert torch.equal(logits(model, images), want)


def test_a_frozen_model_trains_its_own_weights_alone():
    model, images = masked("vit", "frozen gmm")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()(images).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_what_cannot_be_frozen_is_refused_and_left_as_it_was():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL["vit"][1])
    with pytest.raises(ValueError, match="no mask to freeze"):
        gmmvit.freeze(model)

    class Mine(nn.Module):
        def __init__(self, grid, heads, **place):
            super().__init__()

        def forward(self, scores):
            return scores

    gmmvit.attach(model, "gmm", only="blocks.0*")
    gmmvit.attach(model, Mine)
    with pytest.raises(ValueError, match="Mine cannot be frozen"):
        gmmvit.freeze(model)
    assert {type(mask) for mask in gmmvit.masks_of(model).values()} == {gmmvit.GaussianMixtureMask, Mine}


def test_a_frozen_model_says_what_comes_before_freezing(tmp_path):
    model = gmmvit.freeze(gmmvit.create_model("vit", mask="gmm"))
    with pytest.raises(ValueError, match="save before gmmvit.freeze"):
        gmmvit.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match=r"regrid\(model, img_size\) before gmmvit.freeze"):
        model.blocks[0].attn(torch.rand(1, 16, model.embed_dim))
