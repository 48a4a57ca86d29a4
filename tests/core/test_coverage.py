"""`attach` on every timm model file that has attention: it works, or it refuses with its reason."""

import copy
import re
from pathlib import Path

import pytest
import timm
import torch
import torch.nn as nn
from conftest import devices, redraw

import gmmvit
from gmmvit.core.start import looks_trained
from gmmvit.paper.attachable import REFUSED, WORKS, build

LARGE = (
    "byoanet convit crossvit csatv2 fastvit gcvit hieradet_sam2 iformer lowformer metaformer mobilenetv3 mobilenetv5 "
    "mvitv2 nest nextvit pvt_v2 tiny_vit vision_transformer_sam volo".split()
)  # slow
FILES = Path(timm.models.__file__).parent


def files_with_attention() -> set[str]:
    """Model files that define an attention or import one (their own words, not our lists)."""
    pattern = re.compile(r"attn|attention|softmax", re.IGNORECASE)
    paths = [FILES / f"{name}.py" for name in timm.models.list_modules()]  # ours are registered too, elsewhere
    return {path.stem for path in paths if path.exists() and pattern.search(path.read_text())}


def test_every_model_file_with_attention_is_in_exactly_one_list():
    listed = set(WORKS) | set(REFUSED)
    assert not set(WORKS) & set(REFUSED)
    missing = {name for name in files_with_attention() - listed if not name.startswith("_")}
    assert not missing, f"timm's model files with attention in neither list: {sorted(missing)}"
    assert listed <= set(timm.models.list_modules())
    for file, (name, *_) in {**WORKS, **REFUSED}.items():
        assert name in timm.list_models(module=file), f"{name} is not a model of {file}.py"
    assert len(WORKS) >= 40
    page = " ".join((Path(__file__).parents[2] / "docs" / "library.md").read_text().split())
    told = f"Of the {len(listed)} model files of timm that mention attention, `attach` works on **{len(WORKS)}** and "
    assert f"{told}refuses {len(REFUSED)}," in page


@pytest.mark.parametrize("file", REFUSED)
def test_a_model_without_spatial_attention_is_refused_with_its_reason(file):
    name, reason = REFUSED[file]
    model = timm.create_model(name, num_classes=10)
    before = {n: type(m) for n, m in model.named_modules()}
    with pytest.raises(ValueError, match=re.escape(reason)):
        gmmvit.attach(model, "gmm")
    assert {n: type(m) for n, m in model.named_modules()} == before


def test_a_stem_that_folds_pixels_into_channels_is_no_wrong_size_of_image():
    """TResNet's first convolution has 48 channels, 4 x 4 pixels of 3; what it lacks is attention."""
    with pytest.raises(ValueError, match="^TResNet has no softmax attention to put a mask on"):
        gmmvit.attach(timm.create_model("tresnet_m", num_classes=10), "gmm")
    one = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, in_chans=1)
    assert len(gmmvit.attach(one, "gmm")) == 1


def logits(model: nn.Module, image: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(image)


def spread(values: torch.Tensor) -> float:
    return values.std().item()


@pytest.mark.parametrize("device", devices(pytest.mark.slow), indirect=True)
@pytest.mark.parametrize("file", [pytest.param(f, marks=pytest.mark.slow) if f in LARGE else f for f in WORKS])
def test_masks_on_a_model_of_every_file(file, device):
    torch.manual_seed(0)
    model, size = build(WORKS[file])
    image = torch.randn(2, 3, *size)
    redraw(model, torch.randn(8, 3, *size))
    model, image = model.to(device), image.to(device)
    plain = logits(model, image)
    scale = spread(plain)
    parameters = sum(p.numel() for p in model.parameters())

    sites = gmmvit.attach(model, "elm", init=1.0, img_size=size)
    assert (logits(model, image) - plain).abs().max() < 1e-4 * scale, "a neutral ElementMask changes the logits"
    assert sum(p.numel() for p in model.parameters()) - parameters == sum(site.parameters for site in sites)

    modules = dict(model.named_modules())
    handles = [modules[name].register_forward_hook(zeroed) for name in {s.name for s in sites}]
    assert (logits(model, image) - plain).abs().max() > 1e-2 * scale, "attention does not matter: this test is empty"
    for handle in handles:
        handle.remove()

    gmmvit.detach(model)
    gmmvit.attach(model, "gab", amplitude=0.0, img_size=size)
    assert (logits(model, image) - plain).abs().max() < 1e-4 * scale, "a neutral GaussianBias changes the logits"

    gmmvit.detach(model)
    assert "spatial_masks" not in "".join(model.state_dict())
    # moderate values: a sigma near 0 or a saturated softmax has gradients that underflow to 0
    sites = gmmvit.attach(model, "gmm", img_size=size, sigma_init=(2.0, 0.3), alpha_init=(0.3, 0.3))
    masked = logits(model, image)
    assert (masked - plain).abs().max() > 1e-2 * scale, "a random mixture does not change the logits"

    model.forward_features(image)  # a model may keep caches from here on
    features = model.forward_features(image)
    total = sum(leaf.float().square().sum() for leaf in leaves(features))
    total.backward()
    for site in [site for site in sites if site.reaches_output or site.mask.alpha.grad is not None]:
        for name, parameter in site.mask.named_parameters():
            if not site.reaches_output and not parameter.grad.any():
                continue  # features that hold the class token alone
            assert parameter.grad is not None and (parameter.grad != 0).all(), f"{site.name}: {name} has zero gradients"
    reached = torch.autograd.grad(model(image).square().sum(), [s.mask.alpha for s in sites], allow_unused=True)
    for site, gradient in zip(sites, reached, strict=True):
        has_gradient = gradient is not None and bool((gradient != 0).any())
        assert has_gradient == site.reaches_output, f"{site.name}: reaches_output={site.reaches_output}"

    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin, image), masked)
    with torch.no_grad():
        next(iter(gmmvit.masks_of(twin).values())).alpha.add_(1.0)
    assert torch.equal(logits(model, image), masked), "a deepcopy shares its masks with the original"

    fresh = build(WORKS[file])[0].to(device)
    gmmvit.attach(fresh, "gmm", img_size=size)
    fresh.load_state_dict(model.state_dict())
    assert torch.allclose(logits(fresh, image), masked, atol=1e-5 * scale)


PAPERS = ("gmm", "elm", "gab")  # test_priors.py tries the others, on a few models
EVERYWHERE = ("cait", "pit", "swin_transformer", "vision_transformer")  # the others' neutral start is tried on the CPU
NEUTRAL = [
    pytest.param(file, *device.values, marks=device.marks)
    for file in WORKS
    for device in (pytest.param("cpu"), *(devices()[1:] if file in EVERYWHERE else ()))
]


@pytest.mark.slow
@pytest.mark.parametrize("file, device", NEUTRAL, indirect=["device"])
def test_a_neutral_mask_leaves_a_model_of_every_file_as_it_is_and_can_learn(file, device):
    torch.manual_seed(0)
    model, size = build(WORKS[file])
    assert not looks_trained(model), "a fresh model is taken for a trained one"
    image = torch.randn(2, 3, *size)
    redraw(model, torch.randn(8, 3, *size))
    model, image = model.to(device), image.to(device)
    assert looks_trained(model)
    plain = logits(model, image)
    for mask in PAPERS:
        sites = gmmvit.attach(model, mask, img_size=size)
        assert {site.start for site in sites} == {"neutral"} and max(site.strength for site in sites) == 0
        moved = ((logits(model, image) - plain).abs().max() / spread(plain)).item()
        assert moved < 1e-5, f"{mask} moves the logits by {moved:.1e} of their spread"
        learned = {f"{site.name} {name}": p for site in sites for name, p in site.mask.named_parameters()}
        useful = set()
        for _ in range(2):  # a width has a gradient as soon as its Gaussian has a height
            outputs = [model(image), model.forward_features(image)]
            total = sum(leaf.float().square().mean() for output in outputs for leaf in leaves(output))
            gradients = torch.autograd.grad(total, list(learned.values()), allow_unused=True)
            for (name, parameter), gradient in zip(learned.items(), gradients, strict=True):
                if gradient is not None and gradient.any():
                    useful.add(name)
                    parameter.data.sub_(1e-2 * gradient.sign())
        reached = {
            f"{site.name} {name}" for site in sites if site.reaches_output for name, _ in site.mask.named_parameters()
        }
        assert reached <= useful, f"without a gradient: {sorted(reached - useful)}"
        gmmvit.detach(model)


def zeroed(module, args, output):
    return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0


def leaves(values) -> list[torch.Tensor]:
    if isinstance(values, dict):
        values = values.values()
    return [values] if torch.is_tensor(values) else [leaf for value in values for leaf in leaves(value)]
