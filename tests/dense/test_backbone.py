"""Pyramids of timm's backbones: any size, Gaussian biases on Swin's tables, local weights, and the two heads."""

import subprocess
import sys

import pytest
import timm
import torch
from conftest import redraw
from torchvision.models.detection import MaskRCNN

import gmmvit
from gmmvit.dense import backbone
from gmmvit.dense.backbone import pyramid
from gmmvit.dense.detector import Detector
from gmmvit.dense.recipes import RECIPES
from gmmvit.dense.segmenter import Segmenter, loss
from gmmvit.train import learned, recipes
from gmmvit.train.precision import Working
from gmmvit.train.weights import WeightsNotObtained

SMALL = {"width": 32}


def shapes(maps):
    return [tuple(each.shape[1:]) for each in maps]


def test_swin_s_gets_48_parameters_that_are_never_decayed():
    torch.manual_seed(0)
    made = pyramid("swin_small_patch4_window7_224", mask="gab")
    masks = gmmvit.masks_of(made)
    assert len(masks) == 24 and sum(p.numel() for mask in masks.values() for p in mask.parameters()) == 48
    model = Detector(made, 80, **SMALL)
    decayed = {
        id(p) for g in recipes.parameter_groups(model, RECIPES["coco-3x"]) if g["weight_decay"] for p in g["params"]
    }
    spared = [name for name, p in model.named_parameters() if id(p) not in decayed and p.ndim > 1]
    assert len(spared) == 24 and all(name.endswith("relative_position_bias_table") for name in spared)
    assert not any(id(p) in decayed for mask in masks.values() for p in mask.parameters())


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("swin_micro", (32, 64, 128, 256)),
        ("swinv2_tiny_window8_256", (96, 192, 384, 768)),
        ("resnet18", (64, 128, 256, 512)),
        ("pvt_v2_b0", (32, 64, 160, 256)),
    ],
)
def test_maps_have_the_strides_of_a_pyramid_at_any_size(name, widths):
    made = pyramid(name).eval()
    for rows, columns in ((64, 96), (70, 33)):
        padded = [-(-side // 32) * 32 for side in (rows, columns)]
        with torch.no_grad():
            maps = made(torch.rand(1, 3, rows, columns))
        expected = zip(widths, (4, 8, 16, 32), strict=True)
        assert shapes(maps) == [(width, padded[0] // stride, padded[1] // stride) for width, stride in expected]


def test_maps_of_swin_are_normalised_and_those_of_a_cnn_left_alone():
    torch.manual_seed(0)
    image = torch.rand(1, 3, 64, 64)
    for each in pyramid("swin_micro").eval()(image):
        torch.testing.assert_close(each.mean(1), torch.zeros_like(each[:, 0]), atol=1e-5, rtol=0)
        torch.testing.assert_close(each.var(1, correction=0), torch.ones_like(each[:, 0]), atol=1e-2, rtol=0)
    plain = pyramid("resnet18").eval()
    with torch.no_grad():
        for ours, theirs in zip(plain(image), plain.body(image), strict=True):
            assert torch.equal(ours, theirs)


def test_a_backbone_without_a_pyramid_is_refused_by_name():
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 has maps of strides 16, .*expected .* 4, 8"):
        pyramid("vit_tiny_patch16_224")


def test_at_the_size_it_was_made_for_a_swin_gives_the_maps_of_timm():
    torch.manual_seed(0)
    options = {"depths": (2, 1, 1, 1), "num_heads": (1, 2, 4, 8), "embed_dim": 32}
    made = pyramid("swin_tiny_patch4_window7_224", **options).eval()
    theirs = timm.create_model("swin_tiny_patch4_window7_224", features_only=True, **options).eval()
    image = torch.randn(1, 3, 224, 224)
    redraw(made.body, image)
    theirs.load_state_dict(made.body.state_dict())
    with torch.no_grad():
        for ours, expected in zip(made.body(image), theirs(image), strict=True):
            torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("rows", (8, 14, 16))
def test_the_two_ends_of_an_image_do_not_attend_to_each_other(rows):
    made = pyramid("swin_tiny_patch4_window7_224", depths=(2, 1, 1, 1), num_heads=(1, 2, 4, 8), embed_dim=32)
    block = made.body["layers_0"].blocks[1]
    assert block.shift_size == (3, 3)
    x = torch.randn(1, rows, rows, 32, requires_grad=True)
    block.eval()(x)[0, 0].sum().backward()  # the first row
    reached = x.grad.abs().amax((0, 2, 3)) > 0
    assert reached[:2].any() and not reached[7:].any()


def test_the_last_stage_shifts_its_windows_at_every_size():
    made = pyramid("swin_tiny_patch4_window7_224", embed_dim=32, depths=(1, 1, 1, 2), num_heads=(1, 2, 4, 8))
    assert [block.shift_size for block in made.body["layers_3"].blocks] == [(0, 0), (3, 3)]


def test_a_folded_bias_leaves_logits_and_boxes_as_they_are():
    torch.manual_seed(0)
    image = torch.rand(2, 3, 70, 96)
    for build in (
        lambda body: Segmenter(body, 5, **SMALL),
        lambda body: Detector(body, 3, short=64, long=128, **SMALL),
    ):
        made = pyramid("swin_micro", mask="gab")
        model = build(made).eval()
        redraw(made.body, image)
        for i, mask in enumerate(gmmvit.masks_of(made).values()):
            mask.amplitude.data += 0.5 * i
        with torch.no_grad():
            before, features = model(image), made(image)
            gmmvit.fold(model)
            after, folded = model(image), made(image)
            for ours, expected in zip(folded, features, strict=True):
                torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
        assert not gmmvit.masks_of(model)
        with pytest.raises(ValueError, match="has no mask to fold"):
            gmmvit.fold(model)
        if isinstance(model, MaskRCNN):
            before, after = (torch.cat([each["scores"] for each in found]) for found in (before, after))
        torch.testing.assert_close(after, before, atol=1e-3, rtol=1e-3)


def test_learned_biases_are_saved_from_the_whole_model(tmp_path):
    model = Detector(pyramid("swin_micro", mask="gab"), 3, **SMALL)
    for i, mask in enumerate(gmmvit.masks_of(model).values()):
        mask.sigma.data += i
    learned.save(model, tmp_path)
    assert [mask.parameters["sigma"].item() for mask in learned.read(tmp_path)] == [5, 6, 7, 8, 9]


def test_weights_of_a_local_file_are_all_taken(tmp_path):
    torch.manual_seed(0)
    options = {"depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8), "embed_dim": 32}
    plain = timm.create_model("swin_tiny_patch4_window7_224", num_classes=7, **options)
    redraw(plain, torch.zeros(1))
    torch.save({"row": "{}", "model": plain.state_dict()}, tmp_path / "weights.pt")
    made = pyramid("swin_tiny_patch4_window7_224", pretrained_file=tmp_path / "weights.pt", **options)
    state = plain.state_dict()
    for name, value in made.body.state_dict().items():
        assert torch.equal(value, state[name.replace("_", ".", 1) if name.startswith("layers") else name]), name

    torch.save({key: value for key, value in state.items() if "layers.2" not in key}, tmp_path / "less.pt")
    with pytest.raises(ValueError, match="less.pt: expected the weights of this SwinTransformer, got no layers.2"):
        pyramid("swin_tiny_patch4_window7_224", pretrained_file=tmp_path / "less.pt", **options)
    with pytest.raises(FileNotFoundError, match="none.pt, which is not there"):
        pyramid("swin_tiny_patch4_window7_224", pretrained_file=tmp_path / "none.pt", **options)


def test_weights_that_cannot_be_fetched_are_said_and_not_replaced_by_random_ones(monkeypatch):
    def unreachable(*args, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(timm.models._builder, "load_pretrained", unreachable)
    with pytest.raises(WeightsNotObtained, match="resnet18 .* could not be had .no route.*pretrained_file"):
        pyramid("resnet18", pretrained=True)


def test_boxes_are_decoded_in_float32_whatever_a_step_computes_in():
    torch.manual_seed(0)
    model = Detector(pyramid("swin_micro"), 3, short=512, long=512, **SMALL).eval()
    working = Working(model, torch.bfloat16, torch.device("cpu"))
    met = []
    working.module.rpn.anchor_generator.register_forward_hook(lambda module, inputs, anchors: met.extend(anchors))
    with torch.no_grad(), working.context():
        (found,) = working.module([torch.rand(3, 512, 500)])
    assert next(working.module.backbone.pyramid.body.parameters()).dtype == torch.bfloat16
    assert found["boxes"].dtype == torch.float32 and (found["boxes"] != found["boxes"].bfloat16()).any()
    assert torch.equal(met[0], met[0].round()) and (met[0] != met[0].bfloat16()).any()  # whole pixels beyond 256


def test_pixels_without_a_class_do_not_count_in_the_loss():
    torch.manual_seed(0)
    outputs = torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5)
    labels = torch.randint(0, 4, (2, 6, 5))
    ignored = labels.clone()
    ignored[:, 3:] = 255
    main, auxiliary = (-o.log_softmax(1).gather(1, labels[:, None])[:, 0, :3].mean() for o in outputs)
    torch.testing.assert_close(loss(outputs, ignored), main + 0.4 * auxiliary)
    assert loss(outputs, torch.full_like(labels, 255)) == 0


def test_a_segmenter_takes_any_size_and_learns_from_both_heads():
    torch.manual_seed(0)
    model = Segmenter(pyramid("swin_micro", mask="gab"), 5, **SMALL)
    logits = model(torch.randn(2, 3, 33, 70))
    assert [tuple(each.shape) for each in logits] == [(2, 5, 33, 70)] * 2
    loss(logits, torch.zeros(2, 33, 70, dtype=torch.long)).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.eval()(torch.randn(1, 3, 33, 70)).shape == (1, 5, 33, 70)


@pytest.mark.slow
def test_gmmvit_does_without_the_extra_and_this_package_says_what_to_install():
    script = """
import sys
sys.modules["pycocotools"] = sys.modules["segmentation_models_pytorch"] = None
import gmmvit, gmmvit.cli
assert not [name for name in sys.modules if name.startswith("gmmvit.dense")]
from gmmvit.dense import coco, recipes, tasks
from gmmvit.dense.backbone import pyramid
from gmmvit.dense.segmenter import Segmenter
for use in (lambda: coco.bitmap([[0, 0, 4, 0, 4, 4]], (8, 8)), lambda: Segmenter(pyramid("resnet18"), 3)):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pycocotools is not installed" in told and "segmentation_models_pytorch is not installed" in told
    assert told.count("pip install '.[dense]'") == 2


def test_small_backbones_are_those_of_timm_with_other_numbers():
    assert backbone.statistics("swin_micro") == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
