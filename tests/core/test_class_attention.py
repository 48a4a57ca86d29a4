"""TransMix on a compiled model: one graph without breaks, and the loss of the uncompiled one."""

import numpy as np
import pytest
import timm
import torch
from conftest import redraw
from torch._dynamo.utils import counters

import gmmvit

SMALL = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}
SWIN = {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
MODELS = {
    "class token": ("vit_tiny_patch16_224", SMALL),
    "stand-in": ("vit_tiny_patch16_224", SMALL | {"class_token": False, "global_pool": "avg"}),
    "class layers": ("cait_xxs24_224", SMALL | {"num_heads": 4}),
    "windows": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "own": ("gmmvit_vit_d6", {"readout": "token", "img_size": 32}),
}


def mixed_loss(model, images, labels, seed=0):
    np.random.seed(seed)
    mix = gmmvit.TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
    return mix.loss(model, images.clone(), labels)


@pytest.mark.slow
@pytest.mark.parametrize("mask", (None, "gmm", "elm", "gab"))
@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_model_reads_its_map_in_one_graph(kind, mask):
    name, options = MODELS[kind]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, drop_path_rate=0.0, **options)
    images, labels = torch.randn(4, 3, *2 * [options["img_size"]]), torch.tensor([1, 2, 3, 4])
    redraw(model, images)
    if mask:
        gmmvit.attach(model, mask, start="paper")
        for parameter in (p for each in gmmvit.masks_of(model).values() for p in each.parameters()):
            torch.nn.init.normal_(parameter, mean=1.0)
    expected = mixed_loss(model.train(), images, labels)
    wanted = torch.autograd.grad(expected, next(model.parameters()))[0]
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    np.random.seed(0)
    mix = gmmvit.TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
    found = mix.loss(compiled, images.clone(), labels)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found, next(model.parameters()))[0], wanted, rtol=1e-3, atol=1e-5)
    mix.loss(compiled, images.clone(), labels)  # other boxes, the same graph
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert "forward" not in vars(model.get_submodule(mix._read[2].name))  # the tap is taken off again


def test_a_compiled_model_that_cannot_be_tapped_is_read_uncompiled():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **SMALL)
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])
    gmmvit.attach(model, "gmm", start="paper", where="probabilities")
    expected = mixed_loss(model.eval(), images, labels)
    found = mixed_loss(torch.compile(model, backend="eager"), images, labels)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("readout", ("mean", "token"))
def test_the_attention_of_a_tap_is_the_recorded_one(readout):
    torch.manual_seed(0)
    model = gmmvit.create_model("vit_d6", mask="gmm", readout=readout).eval()
    images = torch.randn(4, 3, 32, 32)
    reader = gmmvit.core.class_attention.ClassAttention(model, images[:1])
    logits, attention = reader.beside(model, images)
    compiled = torch.compile(model, backend="eager")
    same_logits, same = reader.beside(compiled, images)
    torch.testing.assert_close(same_logits, logits)
    torch.testing.assert_close(same, attention)
    assert attention.shape == (4, 64)
