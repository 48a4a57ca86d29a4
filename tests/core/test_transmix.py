"""TransMix against a literal transcription of both formulas, and on the models it is for."""

import copy

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import redraw

import gmmvit
from gmmvit import TransMix
from gmmvit.core.class_attention import ClassAttention
from gmmvit.train.mixing import mixed_sample, shift_quantiles

CLASSES = 7


def mixed(definition, box, size=(32, 32), smoothing=0.1, batch=6):
    """A TransMix that has just pasted this box (top, bottom, left, right), and the labels of the batch."""
    options = {"num_classes": CLASSES, "label_smoothing": smoothing, "definition": definition}
    mix = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, **options)
    labels = torch.arange(batch) % CLASSES
    target = mix(torch.randn(batch, 3, *size), labels)[1]
    mix.box = box
    return mix, labels, target


def literal(definition, box, size, grid, attention, labels, smoothing):
    """The formulas, patch by patch: a patch is inside when its top left pixel is."""
    off, (top, bottom, left, right) = smoothing / CLASSES, box
    onehot = np.full((len(labels), CLASSES), off)
    onehot[np.arange(len(labels)), labels] = 1 - smoothing + off
    targets = []
    for b in range(len(labels)):
        inside = total = 0.0
        for row in range(grid[0]):
            for column in range(grid[1]):
                y, x = row * size[0] // grid[0], column * size[1] // grid[1]
                weight = float(attention[b, row * grid[1] + column])
                total += weight
                inside += weight * (top <= y < bottom and left <= x < right)
        share = inside
        if definition == "code":
            area = (bottom - top) * (right - left) / (size[0] * size[1])
            share = (area + inside / total) / 2
        targets.append((1 - share) * onehot[b] + share * onehot[len(labels) - 1 - b])
    return np.array(targets)


BOXES = {
    "aligned": (8, 24, 4, 12),
    "not aligned": (3, 18, 5, 31),
    "at the borders": (0, 9, 20, 32),
    "whole": (0, 32, 0, 32),
    "empty": (5, 5, 7, 7),
}


@pytest.mark.parametrize("smoothing", (0.0, 0.1))
@pytest.mark.parametrize("definition", ("code", "paper"))
@pytest.mark.parametrize("box", BOXES)
def test_labels_are_those_of_the_formulas(definition, box, smoothing):
    mix, labels, target = mixed(definition, BOXES[box], smoothing=smoothing)
    attention = torch.rand(6, 64, dtype=torch.float64).softmax(-1) * torch.rand(6, 1)  # what is left went to the token
    expected = literal(definition, BOXES[box], (32, 32), (8, 8), attention, labels.numpy(), smoothing)
    weighed = mix.weigh(target.double(), attention)
    np.testing.assert_allclose(weighed.numpy(), expected, atol=1e-6)
    assert torch.allclose(weighed.sum(1), torch.ones(6, dtype=torch.float64))


def test_random_boxes_of_an_image_that_is_not_square():
    generator = np.random.default_rng(0)
    for _ in range(20):
        top, left = generator.integers(0, 24), generator.integers(0, 48)
        box = (top, generator.integers(top, 33), left, generator.integers(left, 65))
        mix, labels, target = mixed("code", tuple(map(int, box)), size=(32, 64))
        attention = torch.rand(6, 8 * 16, dtype=torch.float64)
        expected = literal("code", box, (32, 64), (8, 16), attention, labels.numpy(), 0.1)
        np.testing.assert_allclose(mix.weigh(target.double(), attention).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("prefix", (1, 2, 5))
def test_uniform_attention_gives_the_area_of_an_aligned_box(prefix):
    area = 16 * 8 / 32**2
    for definition, expected in (("code", area), ("paper", area * 64 / (64 + prefix))):
        mix, _, _ = mixed(definition, BOXES["aligned"])
        uniform = torch.full((6, 64), 1 / (64 + prefix), dtype=torch.float64)
        torch.testing.assert_close(mix.share(uniform, (8, 8)), torch.full((6,), expected, dtype=torch.float64))


def test_mixup_and_clean_batches_keep_their_label():
    for options in ({"mixup_alpha": 1.0, "cutmix_alpha": 0.0}, {"mixup_alpha": 0.0, "cutmix_alpha": 1.0, "prob": 0.0}):
        mix = TransMix(num_classes=CLASSES, **options)
        _, target = mix(torch.randn(4, 3, 32, 32), torch.arange(4))
        assert mix.weigh(target, torch.rand(4, 64)) is target


def test_images_and_area_labels_are_timms():
    ours = TransMix(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=CLASSES)
    theirs = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=CLASSES)
    kinds = set()
    for seed in range(12):
        images, results = torch.randn(6, 3, 32, 32), []
        for mix in (ours, theirs):
            np.random.seed(seed)
            results.append(mix(images.clone(), torch.arange(6)))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)
        kinds.add(ours.box is None)
    assert kinds == {True, False}


# ---- on models ------------------------------------------------------------------------------------------------------

MODELS = {
    "deit_tiny_patch16_224": 1,
    "deit_tiny_distilled_patch16_224": 2,
    "vit_tiny_patch16_224": 1,
    "cait_xxs24_224": 1,
    "xcit_nano_12_p16_224": 1,
    "pit_ti_224": 1,
    "pit_ti_distilled_224": 2,
    "gmmvit_cait": 0,
    "gmmvit_pit": 1,
    "gmmvit_vit": 0,
    "gmmvit_swin": 0,
}
STAND_INS = ("gmmvit_vit", "gmmvit_swin")


def built(name, **options):
    torch.manual_seed(0)
    size = {} if "gmmvit" in name or "xcit" in name else {"img_size": 64}
    model = timm.create_model(name, num_classes=CLASSES, **size, **options)
    images = torch.randn(4, 3, 32, 32) if "gmmvit" in name else torch.randn(4, 3, 64, 64)
    return redraw(model, images), images


@pytest.mark.parametrize("name", MODELS)
def test_the_models_it_is_for(name):
    model, images = built(name)
    model.eval()
    reader = ClassAttention(model, images[:1])
    assert reader.prefix == MODELS[name] and reader.stand_in == (name in STAND_INS)
    with reader.reading():
        read = model(images)
    assert torch.equal(read, model(images))
    attention = reader.attention()
    assert attention.shape == (4, reader.grid[0] * reader.grid[1])
    assert not attention.requires_grad and (attention >= 0).all()
    total = attention.sum(1)
    assert (total <= 1 + 1e-5).all() and (MODELS[name] or torch.allclose(total, torch.ones(4), atol=1e-5))
    with torch.no_grad(), gmmvit.attention_maps(model, layers=-1) as maps:
        model(images)
    (whole,) = maps.values()
    rows = whole.mean(1)
    if name not in STAND_INS:
        expected = rows[:, 0, MODELS[name] :]
        torch.testing.assert_close(attention, expected, atol=1e-6, rtol=1e-5)


def test_the_stand_in_of_a_windowed_model_covers_the_whole_image():
    torch.manual_seed(0)
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=CLASSES, img_size=448, window_size=7)
    image = redraw(model, torch.randn(1, 3, 448, 448)) and torch.randn(2, 3, 448, 448)
    reader = ClassAttention(model.eval(), image[:1])
    assert reader.windows == 4 and reader.grid == (14, 14) and reader.shift != (0, 0)
    handles, seen = [], {}
    block = model.layers[-1].blocks[-1]
    handles.append(block.attn.register_forward_hook(lambda m, args, out: seen.update(windows=args[0])))
    with torch.no_grad(), reader.reading():
        model(image)
    attention = reader.attention()
    torch.testing.assert_close(attention.sum(1), torch.ones(2))
    columns = next(iter(reader.maps.values())).mean((1, 2))  # (B * 4, 49): what each token of a window receives
    # token (row 10, column 3) of the image is, after the shift, in some window at some place: find it by hand
    shift = reader.shift
    row, column = (10 - shift[0]) % 14, (3 - shift[1]) % 14
    window, place = row // 7 * 2 + column // 7, row % 7 * 7 + column % 7
    torch.testing.assert_close(attention[:, 10 * 14 + 3], columns.view(2, 4, 49)[:, window, place] / 4)


def test_an_image_that_is_not_square_goes_through_the_loss():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=(32, 96), depth=2)
    images = torch.randn(4, 3, 32, 96)
    redraw(model, images)
    reader = ClassAttention(model.eval(), images[:1])
    with reader.reading():
        model(images)
    assert reader.grid == (2, 6) and reader.attention().shape == (4, 12)
    mix = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=CLASSES)
    np.random.seed(3)
    loss = mix.loss(model, images.clone(), torch.arange(4))
    np.random.seed(3)
    pasted, target = mix(images.clone(), torch.arange(4))
    with reader.reading():
        logits = model(pasted)
    expected = literal("code", mix.box, (32, 96), (2, 6), reader.attention(), np.arange(4), 0.1)
    assert abs(expected - target.numpy()).max() > 1e-3
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.from_numpy(expected).float()))


def test_the_map_is_read_before_dropout():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=64, depth=1, attn_drop_rate=0.5)
    images = torch.randn(4, 3, 64, 64)
    redraw(model, images)
    reader, maps = ClassAttention(model, images[:1]), []
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # else dropout is inside the kernel, where no map could be read after it
    for training in (True, False):
        with reader.reading():
            model.train(training)(images)
        maps.append(reader.attention())
    torch.testing.assert_close(*maps)


def test_maps_whose_tokens_are_not_tiles_of_the_image_are_refused():
    model = timm.create_model("maxvit_rmlp_pico_rw_256", num_classes=CLASSES)  # with grids of 8 x 8 tokens
    with pytest.raises(ValueError, match="MaxxVit: TransMix needs a map .*scattered over the image"):
        ClassAttention(model, torch.randn(1, 3, 512, 512))


@pytest.mark.parametrize("mask", ("gmm", "elm", "gab"))
def test_the_loss_is_one_pass_with_masks_in_it_and_no_gradient_through_the_labels(mask):
    model, images = built("gmmvit_vit", readout="token", mask=mask, drop_path_rate=0.0)
    mix = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=CLASSES)
    labels, calls = torch.arange(4), []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    np.random.seed(3)
    mix.loss(model, images.clone(), labels)  # looks at the model once, to find the layer
    calls.clear()
    model.zero_grad()
    np.random.seed(3)
    loss = mix.loss(model, images.clone(), labels)
    loss.backward()
    handle.remove()
    assert len(calls) == 1
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    np.random.seed(3)
    pasted, target = mix(images.clone(), labels)
    with torch.no_grad(), gmmvit.attention_maps(model, layers=-1) as maps:
        model(pasted)
    weighed = mix.weigh(target, next(iter(maps.values())).mean(1)[:, 0, 1:])
    assert not torch.allclose(weighed, target, atol=1e-3)
    model.zero_grad()
    again = F.cross_entropy(model(pasted), weighed)
    again.backward()
    torch.testing.assert_close(loss, again)
    for one, other in zip(gradients, (p.grad for p in model.parameters() if p.grad is not None), strict=True):
        torch.testing.assert_close(one, other)


def test_it_reads_beside_a_fused_kernel_and_under_bfloat16():
    model, images = built("gmmvit_vit", readout="token")
    shares = []
    for fused in (False, True):
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
        reader = ClassAttention(model.eval(), images[:1])
        with torch.autocast("cpu", dtype=torch.bfloat16), reader.reading():
            model(images)
        shares.append(reader.attention())
    assert shares[0].dtype == torch.float32
    torch.testing.assert_close(*shares, atol=2e-2, rtol=5e-2)


def test_what_does_not_fit_is_a_sentence():
    mix = TransMix(cutmix_alpha=1.0, mixup_alpha=0.0, num_classes=CLASSES)
    with pytest.raises(ValueError, match="expected an even batch.*got 3"):
        mix(torch.randn(3, 3, 32, 32), torch.arange(3))
    with pytest.raises(ValueError, match="labels: expected 0 to 6 .*got 0 to 7"):
        mix(torch.randn(8, 3, 32, 32), torch.arange(8))
    _, target = mix(torch.randn(4, 3, 32, 32), torch.arange(4))
    mix.box = (0, 8, 0, 8)
    with pytest.raises(ValueError, match=r"expected \(batch, patches\), 4 by .*got \(4, 65\)"):
        mix.weigh(target, torch.rand(4, 65))
    with pytest.raises(ValueError, match="multi_label: expected False"):
        TransMix(num_classes=3, multi_label=True)
    with pytest.raises(ValueError, match="mode: expected 'batch'.*got 'pair'"):
        TransMix(num_classes=3, mode="pair")
    with pytest.raises(TypeError, match="num_classes"):
        TransMix(cutmix_alpha=1.0)
    with pytest.raises(ValueError, match="the nearest is 'paper'"):
        TransMix(num_classes=3, definition="papr")
    with pytest.raises(ValueError, match="has no softmax attention"):
        mix_model = timm.create_model("resnet18", num_classes=CLASSES)
        ClassAttention(mix_model, torch.randn(1, 3, 64, 64))


def test_a_mixer_can_be_copied_and_used_with_another_model():
    mix = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=CLASSES)
    for name in ("gmmvit_cait", "gmmvit_pit"):
        model, images = built(name)
        assert copy.copy(mix).loss(model, images, torch.arange(4)).isfinite()
        assert mix.loss(model, images, torch.arange(4)).isfinite()


def test_a_mixer_meets_images_of_another_size_and_a_model_at_the_same_address():
    mix = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=CLASSES)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, depth=1, img_size=64, dynamic_img_size=True)
    for size in (64, 96):
        assert mix.loss(model, torch.randn(4, 3, size, size), torch.arange(4)).isfinite()
    for _ in range(3):  # each may be built where the last one was
        del model
        model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, depth=1, img_size=64)
        assert mix.loss(model, torch.randn(4, 3, 64, 64), torch.arange(4)).isfinite()


# ---- what it makes of a fixed batch ---------------------------------------------------------------------------------


def test_a_mixed_sample_says_what_was_pasted_seen_and_weighed():
    model, images = built("gmmvit_vit", readout="token")
    images, labels = torch.randn(12, 3, 32, 32), torch.arange(12) % CLASSES
    mix = TransMix(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.3, num_classes=CLASSES)
    model.train()
    untouched, found = images.clone(), []
    for _ in range(2):
        np.random.seed(4)
        found.append(mixed_sample(mix, model, images, labels, boxes=3))
    assert all((one == found[1][name]).all() for name, one in found[0].items())
    assert torch.equal(images, untouched) and model.training and mix.mix_prob == 0.3 and mix.box is None
    boxes, attention, share = (found[0][name] for name in ("box", "attention", "share"))
    assert boxes.shape == (3, 4) and attention.shape == (12, 8, 8) and share.shape == (12, 2)
    pasted = images.clone()
    for part, (top, bottom, left, right) in enumerate(boxes):
        rows = slice(4 * part, 4 * part + 4)
        pasted[rows, :, top:bottom, left:right] = images[rows].flip(0)[:, :, top:bottom, left:right]
        np.testing.assert_allclose(share[rows, 0], (bottom - top) * (right - left) / 1024, rtol=1e-6)
        halves = np.array([0, 0, 1, 1])  # the label of the pasted image is the other one
        weighed = literal("code", boxes[part], (32, 32), (8, 8), attention[rows].reshape(4, 64), halves, 0.0)
        np.testing.assert_allclose(share[rows, 1], weighed[np.arange(4), 1 - halves], rtol=1e-5)
    with torch.no_grad(), gmmvit.attention_maps(model.eval(), layers=-1) as maps:
        model(pasted)
    rows = next(iter(maps.values())).mean(1)[:, 0, 1:]
    np.testing.assert_allclose(attention.reshape(12, 64), rows, atol=1e-6)
    with pytest.raises(ValueError, match="even number of images for each of 4 boxes, got 12"):
        mixed_sample(mix, model, images, labels, boxes=4)


def test_quantiles_of_the_shifts():
    share = np.stack([np.zeros(101), np.linspace(-0.5, 0.5, 101)], 1)
    found = shift_quantiles(share)
    assert list(found) == ["shift_q05", "shift_q25", "shift_q50", "shift_q75", "shift_q95"]
    np.testing.assert_allclose(list(found.values()), [-0.45, -0.25, 0.0, 0.25, 0.45], atol=1e-6)


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_loss():
    model, images = built("gmmvit_vit", readout="token", mask="gmm", drop_path_rate=0.0)
    mix, losses = TransMix(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=CLASSES), []
    compiled = torch.compile(model)
    compiled(images)
    for each in (model, compiled):
        np.random.seed(3)
        losses.append(mix.loss(each, images.clone(), torch.arange(4)))
    torch.testing.assert_close(*losses)


def quiet(line):
    pass


@pytest.mark.slow
def test_the_engine_trains_with_it_in_parts_and_in_two_processes(tmp_path):
    from gmmvit.train import launch, train

    settings = {
        "epochs": 2,
        "batch": 100,
        "warmup_epochs": 0.5,
        "cutmix": 1.0,
        "transmix": True,
        "precision": "float32",
    }
    row = {"dataset": "cifar10-mini", "model": "test_vit", "mask": "gmm", "recipe": "short", "seed": 1}
    curves = {}
    for name, changed in {"one": {}, "parts": {"accumulate": 5}, "area": {"transmix": False}}.items():
        train({**row, "set": {**settings, **changed}}, tmp_path / name, say=quiet)
    launch({**row, "set": settings}, 2, tmp_path / "two", say=quiet)
    for name in ("one", "parts", "two", "area"):
        curves[name] = np.loadtxt(tmp_path / name / "history.csv", delimiter=",", skiprows=1)[:, 2]
    np.testing.assert_allclose(curves["parts"], curves["one"], atol=1e-3)
    np.testing.assert_allclose(curves["two"], curves["one"], atol=1e-3)
    assert abs(curves["area"] - curves["one"]).max() > 1e-5
