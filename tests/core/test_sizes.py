"""Another image size: masks follow the grid they are given, and are what attach would have made there."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import redraw
from torch._dynamo.testing import CompileCounterWithBackend

import gmmvit
from gmmvit.core.element import resampled

OPTIONS = {
    "gmm": {"kernels": 2, "sigma_init": (2.0, 0.5), "alpha_init": (0.5, 0.5)},
    "elm": {},
    "gab": {"share_heads": False},
}


def vit(size=64, **options):
    options = {"depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 10} | options
    model = timm.create_model("vit_tiny_patch16_224", img_size=size, **options)
    return redraw(model, torch.randn(8, 3, *model.patch_embed.img_size))


def swin(size=224, **options):
    options = {"depths": (2, 2, 1, 1), "embed_dim": 24, "num_classes": 10} | options
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=size, **options)
    return redraw(model, torch.randn(8, 3, *model.patch_embed.img_size))


def masked(model, mask, **options):
    torch.manual_seed(1)
    sites = gmmvit.attach(model, mask, **{"start": "paper"} | OPTIONS[mask] | options)
    if mask == "elm":
        for site in sites:
            torch.nn.init.normal_(site.mask.element, 1.0, 0.5)
    return model.eval()


def logits(model, size):
    torch.manual_seed(2)
    with torch.no_grad():
        return model(torch.randn(2, 3, *size))


def like(model, other):
    """The other model with the weights of the first one's masks."""
    state = {name: value for name, value in model.state_dict().items() if "spatial_masks" in name}
    missing = other.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and all("spatial_masks" not in name for name in missing.missing_keys)
    return other


def plain_state(model):
    return {name: value for name, value in model.state_dict().items() if "spatial_masks" not in name}


@pytest.mark.parametrize("size", [(96, 96), (48, 80), (80, 48), (32, 64)])
@pytest.mark.parametrize("mask", OPTIONS)
def test_a_vit_of_any_size_follows_its_images(mask, size):
    model = masked(vit(dynamic_img_size=True), mask)
    first, unmasked = logits(model, (64, 64)), copy.deepcopy(model)
    there = logits(model, size)
    assert torch.equal(logits(model, (64, 64)), first)
    assert torch.equal(logits(model, size), there)  # the grid that was kept
    anew = masked(gmmvit.detach(unmasked), mask, img_size=size)
    assert torch.equal(logits(like(model, anew), size), there)
    assert not torch.allclose(there, logits(gmmvit.detach(anew), size))
    assert {site.grid for site in model.spatial_sites} == {(4, 4)}


def test_a_neutral_start_is_one_at_every_size():
    for mask in OPTIONS:
        plain = vit(dynamic_img_size=True).eval()
        model = copy.deepcopy(plain)
        gmmvit.attach(model, mask, start="neutral")
        for size in ((64, 64), (96, 48)):
            assert torch.allclose(logits(model, size), logits(plain, size), atol=1e-4)


@pytest.mark.parametrize("mask", OPTIONS)
def test_oblong_images_of_as_many_tokens_are_told_apart(mask):
    model = masked(vit((32, 64), dynamic_img_size=True), mask)
    wide, tall = logits(model, (32, 64)), logits(model, (64, 32))
    for size, expected in (((64, 32), tall), ((32, 64), wide)):
        anew = masked(gmmvit.detach(copy.deepcopy(model)), mask, img_size=size)
        assert torch.equal(logits(like(model, anew) if size == (64, 32) and mask != "elm" else model, size), expected)


def test_a_layer_by_itself_does_not_guess_between_grids():
    model = masked(vit((32, 64), dynamic_img_size=True), "gmm")
    block, tokens = model.blocks[0], torch.randn(1, 9, 48)
    block(tokens)  # there is one grid of 8
    logits(model, (64, 32))
    with pytest.raises(ValueError, match=r"\(9, 9\) scores come from several grids; run the whole model"):
        block(tokens)
    logits(model, (64, 64))
    block(torch.randn(1, 17, 48))  # and one of 16
    with pytest.raises(ValueError, match=r"built for 9 x 9 scores .*use the image size .*gmmvit.regrid"):
        block(torch.randn(1, 26, 48))


@pytest.mark.parametrize("way", ["forward_features", "forward_intermediates"])
def test_features_know_their_image_too(way):
    model = masked(vit((32, 64), dynamic_img_size=True), "gmm")
    image = torch.randn(1, 3, 64, 32)
    with torch.no_grad():
        found = getattr(model, way)(image)
        features = found[0] if isinstance(found, tuple) else found
        assert torch.equal(features, model.forward_features(image))
        model(image)
        assert torch.equal(model.head(model.fc_norm(model.pool(features))), model(image))


@pytest.mark.parametrize("size", [(256, 256), (224, 448), pytest.param((448, 448), marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", OPTIONS)
def test_swin_is_resized_by_timm_windows_included(mask, size):
    model = masked(swin(), mask)
    windows = [site.grid for site in model.spatial_sites]
    model.set_input_size(img_size=size)
    there, sites = logits(model, size), model.spatial_sites
    anew = swin()
    anew.load_state_dict(plain_state(masked(swin(), mask)))
    anew.set_input_size(img_size=size)
    masked(anew, mask)
    assert [site.grid for site in sites] == [site.grid for site in anew.spatial_sites] != windows
    assert torch.equal(logits(like(model, anew), size), there)
    model.set_input_size(img_size=size, window_size=8 if size == (256, 256) else 7)
    assert logits(model, size).isfinite().all()


@pytest.mark.parametrize("mask", ["gmm", "gab"])
def test_a_model_that_is_resized_and_resized_back_has_its_masks(mask):
    model = masked(vit(), mask)
    before = {name: value.clone() for name, value in model.state_dict().items() if "spatial_masks" in name}
    parameters = [p for p in gmmvit.masks_of(model)["blocks.0.attn.spatial_masks." + mask].parameters()]
    model.set_input_size((96, 64))
    assert {site.grid for site in model.spatial_sites} == {(6, 4)} and logits(model, (96, 64)).isfinite().all()
    model.set_input_size((64, 64))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    now = [p for p in gmmvit.masks_of(model)["blocks.0.attn.spatial_masks." + mask].parameters()]
    assert all(a is b for a, b in zip(parameters, now, strict=True)), "an optimiser would lose them"
    anew = like(model, masked(gmmvit.detach(copy.deepcopy(model)), mask))
    assert torch.equal(logits(model, (64, 64)), logits(anew, (64, 64)))


@pytest.mark.parametrize("mask", OPTIONS)
def test_regrid_makes_a_size_the_models_own(mask, tmp_path):
    for model in (masked(vit(dynamic_img_size=True), mask), masked(vit(), mask)):
        by_timm = model.patch_embed.strict_img_size
        there = None if by_timm else logits(model, (96, 48))
        sites = gmmvit.regrid(model, (96, 48))
        assert [site.grid for site in sites] == [(6, 3)] * 2 and sites == model.spatial_sites
        found = logits(model, (96, 48))
        assert by_timm or torch.allclose(found, there, atol=1e-6)
        elements = [m.element.shape for m in gmmvit.masks_of(model).values() if mask == "elm"]
        assert set(elements) <= {(1, 18, 18)}
        gmmvit.save(model, tmp_path)
        assert torch.equal(logits(gmmvit.load(tmp_path), (96, 48)), found)
        loss = model.train()(torch.randn(2, 3, 96, 48)).square().sum()
        loss.backward()
        assert all(
            p.grad is not None and p.grad.any() for p in next(iter(gmmvit.masks_of(model).values())).parameters()
        )


def test_what_cannot_be_resized_is_refused_with_the_models_reason():
    model = gmmvit.create_model("pit", mask="gmm")
    with pytest.raises(ValueError, match=r"PiT does not run on images of \(3, 64, 64\)"):
        gmmvit.regrid(model, 64)
    assert logits(model.eval(), (32, 32)).isfinite().all()
    with pytest.raises(ValueError, match="VisionTransformer has no masks"):
        gmmvit.regrid(vit(), 64)


def test_free_weights_are_resampled_bicubically_over_queries_and_keys():
    """A table that is a product of one of queries and one of keys becomes the product of both, resampled."""
    queries, keys = torch.rand(1, 1, 4, 4), torch.rand(1, 1, 4, 4)
    table = (queries.flatten()[:, None] * keys.flatten())[None]
    new = [F.interpolate(each, (6, 3), mode="bicubic", antialias=True).flatten() for each in (queries, keys)]
    found = resampled(table, ((4, 4), (4, 4)), ((6, 3), (6, 3)))
    assert torch.allclose(found[0], new[0][:, None] * new[1], atol=1e-6)
    assert resampled(table, ((4, 4), (4, 4)), ((4, 4), (4, 4))) is table


def test_a_state_of_free_weights_loads_at_another_size():
    large, small = masked(vit(96), "elm"), masked(vit(64), "elm")
    element = "blocks.0.attn.spatial_masks.elm.element"
    small.load_state_dict({element: large.state_dict()[element]}, strict=False)
    expected = resampled(large.state_dict()[element], ((6, 6), (6, 6)), ((4, 4), (4, 4)))
    assert torch.equal(small.state_dict()[element], expected)
    with pytest.raises(RuntimeError, match="size mismatch for blocks.0.attn.spatial_masks.elm.element"):
        small.load_state_dict({element: torch.zeros(1, 17, 17)}, strict=False)


@pytest.mark.parametrize("mask", OPTIONS)
def test_copies_share_nothing_and_forget_nothing(mask):
    model = masked(vit(dynamic_img_size=True), mask)
    there = logits(model, (96, 64))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(twin, (96, 64)), there)
        with torch.no_grad():
            for parameter in gmmvit.masks_of(twin)["blocks.0.attn.spatial_masks." + mask].parameters():
                parameter.add_(1.0)
        assert not torch.equal(logits(twin, (96, 64)), there) and torch.equal(logits(model, (96, 64)), there)
    assert list(model.state_dict()) == list(masked(vit(dynamic_img_size=True), mask).state_dict())


@pytest.mark.parametrize("mask", OPTIONS)
def test_gradients_at_another_size_are_those_of_the_mask(mask):
    model = masked(vit(dynamic_img_size=True), mask)
    image = torch.randn(2, 3, 96, 64)

    def gradients():
        masks = gmmvit.masks_of(model)["blocks.0.attn.spatial_masks." + mask]
        return torch.autograd.grad(model(image).square().sum(), list(masks.parameters()))

    plain = gradients()
    model.train()
    model.set_grad_checkpointing(True)
    for ours, theirs in zip(gradients(), plain, strict=True):
        assert ours.any() and torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mask", OPTIONS)
def test_a_compiled_model_is_compiled_once_for_each_size(mask):
    model = masked(vit(dynamic_img_size=True), mask)
    sizes = [(64, 64), (96, 64), (64, 96)]
    expected = [logits(model, size) for size in sizes]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(2):
        for size, theirs in zip(sizes, expected, strict=True):
            assert torch.allclose(logits(compiled, size), theirs, atol=1e-5)
    assert counter.frame_count == 3
    logits(model, (96, 96))  # a new size does not touch those that were compiled
    for size in sizes:
        logits(compiled, size)
    assert counter.frame_count == 3
    swun = masked(swin(), mask)
    swun.set_input_size((256, 256))
    torch._dynamo.reset()
    compiled = torch.compile(swun, backend="eager", fullgraph=True)
    assert torch.allclose(logits(compiled, (256, 256)), logits(swun, (256, 256)), atol=1e-4)


def test_grids_of_patches_that_do_not_divide_the_image():
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1, dynamic_img_size=True, dynamic_img_pad=True)
    masked(model, "gmm")
    logits(model, (100, 75))
    (mask,) = gmmvit.masks_of(model).values()
    assert mask.met((100, 75)).grid == (7, 5)


@pytest.mark.parametrize("mask", OPTIONS)
def test_another_size_on_a_gpu(mask, forward_gpu):
    model = masked(vit(dynamic_img_size=True), mask)
    images = [torch.randn(2, 3, *size) for size in ((64, 64), (96, 64), (64, 64), (96, 64))]
    with torch.no_grad():
        expected = [model(image) for image in images]
        with forward_gpu():
            model.to("cuda")
            for image, theirs in zip(images, expected, strict=True):
                assert torch.allclose(model(image.to("cuda")).cpu(), theirs, atol=1e-3)
            gmmvit.regrid(model, (96, 64))
            assert torch.allclose(model(images[1].to("cuda")).cpu(), expected[1], atol=1e-3)
