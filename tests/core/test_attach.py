"""`attach` as its users meet it: options, order, copies, compilation, optimisers, windows, other sizes, sentences."""

import copy
import io
import pickle

import pytest
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from conftest import redraw
from timm.optim import param_groups_weight_decay
from timm.utils import ModelEmaV3

import gmmvit
import gmmvit.models  # registers gmmvit_pit
from gmmvit.core import ways
from gmmvit.core.masks import no_decay

FAMILIES = {
    "vit": (
        "vit_tiny_patch16_224",
        {"img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 3, "drop_path_rate": 0.5},
    ),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    "cait": ("cait_xxs24_224", {"img_size": 64, "embed_dim": 48, "depth": 3}),
    "pit": ("gmmvit_pit", {"img_size": 32}),
}


def small(family: str = "vit", **more) -> tuple[nn.Module, torch.Tensor]:
    name, options = FAMILIES[family]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **{**options, **more})
    image = (
        torch.randn(2, *model.pretrained_cfg["input_size"])
        if family == "pit"
        else torch.randn(2, 3, *model.patch_embed.img_size)
    )
    return redraw(model, image), image


@pytest.mark.parametrize("mask", ["gmm", "elm", "gab"])
def test_scores_follow_the_formula(mask):
    """A whole attention written out by hand, mask in the middle, equals the rewritten module."""
    model, _ = small()
    model.eval()
    (site, *_) = gmmvit.attach(model, mask, start="paper")
    with torch.no_grad():
        for parameter in site.mask.parameters():
            parameter.copy_(torch.randn_like(parameter) + 1.5)
    attention = model.blocks[0].attn
    x = torch.randn(2, 17, 48)
    q, k, v = attention.qkv(x).view(2, 17, 3, 3, 16).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / 16**0.5
    weight = site.mask.weight()
    scores[..., 1:, 1:] = scores[..., 1:, 1:] + weight if mask == "gab" else scores[..., 1:, 1:] * weight
    expected = attention.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 17, 48))
    assert torch.allclose(attention(x), expected, atol=1e-5)


def test_two_masks_act_in_the_order_they_were_attached():
    model, _ = small()
    model.eval()
    (first, *_), (second, *_) = gmmvit.attach(model, "gmm", start="paper"), gmmvit.attach(model, "gab", start="paper")
    assert list(model.blocks[0].attn.spatial_masks) == ["gmm", "gab"]
    attention, x = model.blocks[0].attn, torch.randn(1, 17, 48)
    q, k, v = attention.qkv(x).view(1, 17, 3, 3, 16).permute(2, 0, 3, 1, 4)
    scores = second.mask(first.mask(q @ k.transpose(-2, -1) / 16**0.5))
    expected = attention.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(1, 17, 48))
    assert torch.allclose(attention(x), expected, atol=1e-5)
    assert len(gmmvit.masks_of(model)) == 6


def test_a_mixture_after_the_softmax():
    model, _ = small()
    model.eval()
    (site, *_) = gmmvit.attach(model, "gmm", start="paper", where="probabilities")
    attention, x = model.blocks[0].attn, torch.randn(1, 17, 48)
    q, k, v = attention.qkv(x).view(1, 17, 3, 3, 16).permute(2, 0, 3, 1, 4)
    probabilities = site.mask((q @ k.transpose(-2, -1) / 16**0.5).softmax(-1))
    expected = attention.proj((probabilities @ v).transpose(1, 2).reshape(1, 17, 48))
    assert torch.allclose(attention(x), expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_module_stays_itself(family):
    model, image = small(family)
    kinds, keys = {n: type(m) for n, m in model.named_modules()}, list(model.state_dict())
    fused = {n: m.fused_attn for n, m in model.named_modules() if hasattr(m, "fused_attn")}
    sites = gmmvit.attach(model, "gmm")
    modules = dict(model.named_modules())
    assert all(isinstance(modules[name], kind) for name, kind in kinds.items())
    assert [key for key in model.state_dict() if "spatial_masks" not in key] == keys
    assert {f"{site.name}.spatial_masks.gmm" for site in sites} == set(gmmvit.masks_of(model))
    gmmvit.detach(model)
    assert {n: type(m) for n, m in model.named_modules()} == kinds and list(model.state_dict()) == keys
    assert {n: m.fused_attn for n, m in model.named_modules() if hasattr(m, "fused_attn")} == fused
    assert not gmmvit.masks_of(model)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mask", ["gmm", "gab"])
def test_compile_gives_the_same_values_and_gradients(family, mask):
    model, image = small(family, drop_path_rate=0.0)
    sites = gmmvit.attach(model, mask)
    scalar = sites[0].mask.sigma
    for mode in (model.train, model.eval):
        mode()
        eager = model(image)
        (gradient,) = torch.autograd.grad(eager.square().sum(), scalar)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(image)
        (same,) = torch.autograd.grad(compiled.square().sum(), scalar)
        assert torch.allclose(eager, compiled, atol=1e-4 * eager.std().item())
        assert torch.allclose(gradient, same, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_gives_the_same_gradients(family):
    model, image = small(family, drop_path_rate=0.0)
    mask = gmmvit.attach(model, "gmm")[0].mask
    model.train()
    (plain,) = torch.autograd.grad(model(image).square().sum(), mask.alpha)
    model.set_grad_checkpointing(True)
    (checkpointed,) = torch.autograd.grad(model(image).square().sum(), mask.alpha)
    assert torch.allclose(plain, checkpointed, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_average_of_the_weights_follows_the_masks(family):
    model, image = small(family)
    gmmvit.attach(model, "gmm")
    average = ModelEmaV3(model, decay=0.5)
    start = {name: mask.alpha.detach().clone() for name, mask in gmmvit.masks_of(model).items()}
    with torch.no_grad():
        for mask in gmmvit.masks_of(model).values():
            mask.alpha.add_(2.0)
    average.update(model)
    for name, mask in gmmvit.masks_of(average.module).items():
        assert torch.allclose(mask.alpha, start[name] + 1.0, atol=1e-6)
    assert torch.isfinite(average.module.eval()(image)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_model_comes_back(family):
    model, image = small(family)
    gmmvit.attach(model, "gmm")
    model.eval()
    back = pickle.loads(pickle.dumps(model))
    assert torch.equal(back(image), model(image)) and isinstance(back, type(small(family)[0]))
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    fresh = small(family)[0].eval()
    gmmvit.attach(fresh, "gmm")
    fresh.load_state_dict(torch.load(stored, weights_only=True))
    assert torch.allclose(fresh(image), model(image), atol=1e-5)


def test_dropout_and_drop_path_still_obey_the_mode():
    model, image = small(attn_drop_rate=0.5)
    gmmvit.attach(model, "gmm")
    model.train()
    assert not torch.equal(model(image), model(image))
    model.eval()
    assert torch.equal(model(image), model(image))
    model.train()
    assert not torch.equal(model(image), model(image))


def test_attach_leaves_modes_gradients_and_random_state_of_the_model():
    model, image = small()
    model.train()
    model.blocks[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    gmmvit.attach(model, "gab")
    assert {name: m.training for name, m in model.named_modules() if name in before} == before
    assert all(p.grad is None for p in model.parameters())
    modes = {name: mask.training for name, mask in gmmvit.masks_of(model).items()}
    assert modes == {f"blocks.{n}.attn.spatial_masks.gab": n != 1 for n in range(3)}


def test_only_some_layers():
    model, _ = small()
    assert [s.name for s in gmmvit.attach(model, "gmm", only="blocks.[01].*")] == ["blocks.0.attn", "blocks.1.attn"]
    assert [s.name for s in gmmvit.attach(model, "gab", only=lambda name: "2" in name)] == ["blocks.2.attn"]
    with pytest.raises(ValueError, match="matches none"):
        gmmvit.attach(model, "elm", only="layers.*")


def test_a_mask_of_ones_own():
    class Scale(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(factor))

        def forward(self, scores):
            return scores * self.factor

    model, image = small()
    model.eval()
    plain = model(image)
    sites = gmmvit.attach(model, lambda grid, heads, prefix, key_grid, factor: Scale(factor), factor=1.0)
    assert torch.allclose(model(image), plain, atol=1e-4) and sites[0].parameters == 1
    with pytest.raises(TypeError, match="nn.Module"):
        gmmvit.attach(small()[0], lambda grid, heads, **place: None)


def test_grids_of_an_oblong_image_and_its_windows():
    model, image = small("vit", img_size=(48, 80))
    assert {(s.grid, s.prefix, s.heads) for s in gmmvit.attach(model, "gmm")} == {((3, 5), 1, 3)}
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=(56, 112), embed_dim=24, num_classes=10)
    assert [s.grid for s in gmmvit.attach(swin, "gab")][::2] == [(7, 7), (7, 7), (4, 7), (4, 7), (4, 7), (2, 4)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_no_probability_crosses_a_shifted_window(sign):
    """Tokens of another image region, brought into the window by the shift, keep a probability of 0."""
    model, image = small("swin")
    block = model.layers[0].blocks[1]
    region = block.attn_mask  # (windows, N, N): 0 inside a region, -100 across
    assert (region < 0).any()
    gmmvit.attach(model, "elm", init=sign * 3.0)
    seen = []
    block.attn.softmax.register_forward_hook(lambda module, args, output: seen.append(output))
    model.eval()(image)
    probabilities = seen[0].view(image.shape[0], region.shape[0], -1, *region.shape[1:])
    assert probabilities[:, (region < 0)[:, None].expand(-1, probabilities.shape[2], -1, -1)].max() < 1e-12


def test_windows_take_images_of_any_size():
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", embed_dim=24, depths=(2, 2), num_heads=(2, 4), strict_img_size=False
    )
    gmmvit.attach(swin, "gmm")
    assert swin(torch.randn(1, 3, 280, 224)).isfinite().all()


@pytest.mark.parametrize("weight_decay_groups", [param_groups_weight_decay])
def test_sigma_alpha_and_amplitude_are_not_decayed(weight_decay_groups):
    model, _ = small("swin")
    gmmvit.attach(model, "gmm")
    gmmvit.attach(model, "gab")
    scalars = no_decay(model)
    assert len(scalars) == 4 * 4 and scalars <= set(model.no_weight_decay())
    assert "layers.0.blocks.0.attn.relative_position_bias_table" in model.no_weight_decay()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", weight_decay=0.05)
    decayed = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert decayed and not decayed & scalars


class FusedKernel:
    """torch's fused attention, counting its calls."""

    def __init__(self, original):
        self.original, self.calls = original, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.original(*args, **kwargs)


def test_a_bias_on_the_fused_path_equals_the_explicit_one(monkeypatch):
    """The path CUDA takes, run on the CPU: the bias goes into the fused kernel's attention mask."""
    from gmmvit.core import rewrite, ways

    for family in ("vit", "swin", "pit"):
        model, image = small(family)
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = True
        gmmvit.attach(model, "gab", share_heads=False)
        model.eval()
        explicit = model(image)
        monkeypatch.setitem(ways.TABLE, "cpu", {"additive": [[0, "fused"]]})
        kernel = FusedKernel(F.scaled_dot_product_attention)
        monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
        twin = copy.deepcopy(model)
        for module in twin.modules():
            if hasattr(module, "_paths"):
                module._paths.clear()
        monkeypatch.setattr(rewrite, "FUSED_CALLS", {kernel.original})
        fused = twin(image)
        monkeypatch.undo()
        assert kernel.calls and torch.allclose(fused, explicit, atol=1e-4 * explicit.std().item())


def test_bad_input_gets_a_sentence():
    model, _ = small()
    with pytest.raises(ValueError, match="unknown mask 'gnm'.*nearest is 'gmm'"):
        gmmvit.attach(model, "gnm")
    with pytest.raises(TypeError, match="unknown option of the mask 'gmm' 'kernel'.*nearest is 'kernels'"):
        gmmvit.attach(model, "gmm", kernel=3)
    with pytest.raises(TypeError, match="expected one of gmm, elm, gab,.* or a callable"):
        gmmvit.attach(model, 3)
    for nothing in (None, "vit"):
        with pytest.raises(TypeError, match="model: expected an nn.Module, got"):
            gmmvit.attach(nothing, "gmm")
    for size in (0, -64, (64,), (64, 64.0), "64"):
        with pytest.raises(ValueError, match="img_size: expected one side of an image, or"):
            gmmvit.attach(model, "gmm", img_size=size)
    gmmvit.attach(model, "gmm")
    with pytest.raises(ValueError, match="already has a mask named 'gmm'"):
        gmmvit.attach(model, "gmm")
    gcvit = timm.create_model("gcvit_xxtiny", img_size=64)
    with pytest.raises(ValueError, match=r"does not run on images of \(3, 224, 224\).*img_size="):
        gmmvit.attach(gcvit, "gmm")
    assert not gmmvit.masks_of(gcvit)
    with pytest.raises(
        ValueError, match=r"\(3, 64, 128\), which img_size asks for: expected the size it was built for"
    ):
        gmmvit.attach(small()[0], "elm", img_size=(64, 128))


class Fickle(nn.Module):
    """An attention mask of a user that fails in one way or another."""

    def __init__(self, failure):
        super().__init__()
        self.failure, self.factor = failure, nn.Parameter(torch.ones(()))

    def forward(self, scores):
        if self.failure == "raises":
            raise RuntimeError("a mask of one's own failed")
        if self.failure == "bare assert":
            assert scores is None
        return {"shape": scores[..., :1], "none": None}[self.failure]


def state_of(model):
    classes = {name: (type(module), sorted(vars(module))) for name, module in model.named_modules()}
    return classes, list(model.state_dict())


@pytest.mark.parametrize("failure", ("raises", "bare assert", "shape", "none"))
@pytest.mark.parametrize("before", (None, "gab"))
def test_a_mask_that_fails_leaves_the_model_as_it_was(failure, before):
    model, image = small()
    if before:
        gmmvit.attach(model, before)
    model.eval()
    expected, state, masks = model(image), state_of(model), gmmvit.masks_of(model)
    with pytest.raises(Exception):  # noqa: B017  each of its own kind
        gmmvit.attach(model, lambda grid, heads, **place: Fickle(failure))
    assert state_of(model) == state and gmmvit.masks_of(model) == masks
    assert torch.equal(model(image), expected)
    gmmvit.attach(model, "gmm")


def test_an_attention_that_cannot_be_rewritten_leaves_the_layers_before_it_alone():
    model, image = small()

    class AnyArguments(type(model.blocks[1].attn)):
        def forward(self, x, *args, **kwargs):
            return super().forward(x)

    model.blocks[1].attn.__class__ = AnyArguments
    model.eval()
    expected, state = model(image), state_of(model)
    with pytest.raises(ValueError, match="takes a variable number of arguments"):
        gmmvit.attach(model, "gmm")
    assert state_of(model) == state and torch.equal(model(image), expected)


def test_a_model_that_cannot_have_masks_gets_a_sentence():
    with pytest.raises(ValueError, match="Sequential has no parameters"):
        gmmvit.attach(nn.Sequential(nn.ReLU()), "gmm")
    model, image = small()
    model.blocks[0].attn.qkv.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="blocks.0.attn.qkv.weight .*is not finite"):
        gmmvit.attach(model, "gmm")
    compiled = torch.compile(small()[0])
    assert len(gmmvit.attach(compiled, "gmm")) == 3 and len(gmmvit.masks_of(compiled._orig_mod)) == 3


def test_masks_that_are_attached_in_inference_mode_can_be_trained():
    model, image = small()
    with torch.inference_mode():
        sites = gmmvit.attach(model, "gmm")
    model.train()(image).square().sum().backward()
    assert sites[0].mask.alpha.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "mask, option, value",
    (
        ("gmm", "sigma_init", (float("nan"), 1.0)),
        ("gmm", "alpha_init", (0.0, float("inf"))),
        ("elm", "init", float("nan")),
        ("gab", "sigma", float("nan")),
        ("gab", "sigma", "5"),
        ("gab", "amplitude", float("inf")),
        ("gab", "amplitude", 1e300),
        ("gmm", "kernels", 4611686018427387904),
    ),
)
def test_an_option_that_makes_no_mask_is_refused(mask, option, value):
    model, _ = small()
    state = state_of(model)
    with pytest.raises(ValueError, match=option):
        gmmvit.attach(model, mask, **{option: value})
    assert state_of(model) == state


def pairs_of(node, seen=None):
    """(name of a step of backward, name of the step after it), of a whole graph."""
    seen = set() if seen is None else seen
    if node is None or node in seen:
        return
    seen.add(node)
    for following, _ in node.next_functions:
        if following is not None:
            yield node.name(), following.name()
            yield from pairs_of(following, seen)


@pytest.mark.parametrize("mask", ("gmm", "gab"))
def test_gradients_of_query_key_and_value_are_put_together_in_one_copy(mask):
    """timm permutes the three as one tensor before it takes them apart: backward then copies the whole once more."""
    model, image = small(drop_path_rate=0.0)
    expected = model.train()(image)
    pair = ("UnbindBackward0", "PermuteBackward0")
    assert pair in set(pairs_of(expected.sum().grad_fn))
    gmmvit.attach(model, mask)
    with ways.avoiding(ways.NATIVE):  # which takes them apart in its own way (test_native.py)
        steps = set(pairs_of(model(image).sum().grad_fn))
    assert pair not in steps and pair[::-1] in steps


@pytest.mark.parametrize(
    "name", ('q"), print("run", file=open("run", "w")), getattr(self, "q', "class", "None", "two words")
)
def test_a_modules_name_is_never_run_as_code(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, _ = small()
    for block in model.blocks:
        block.attn.add_module(name, nn.Identity())
    state = state_of(model)
    with pytest.raises(ValueError, match="expected names of modules that Python can write"):
        gmmvit.attach(model, "gmm")
    assert state_of(model) == state and not list(tmp_path.iterdir())


def test_an_attention_that_is_called_with_new_numbers_keeps_few_graphs(monkeypatch):
    from gmmvit.core import rewritten

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x, factor=1.0):
            q, k, v = self.qkv(x).chunk(3, -1)
            return (factor * (q @ k.transpose(-2, -1))).softmax(-1) @ v

    class Model(nn.Module):
        pretrained_cfg = {"input_size": (3, 32, 32)}

        def __init__(self):
            super().__init__()
            self.patches, self.attn = nn.Conv2d(3, 8, 8, 8), Scaled()

        def forward(self, x, factor=1.0):
            return self.attn(self.patches(x).flatten(2).transpose(1, 2), factor).sum(1)

    monkeypatch.setattr(rewritten, "MOST_PATHS", 10)
    model = Model()
    gmmvit.attach(model, "gmm")
    image = torch.randn(2, 3, 32, 32)
    first = model(image, 0.5)
    for number in range(30):
        model(image, float(number))
    assert len(model.attn._paths) <= 10 and torch.equal(model(image, 0.5), first)
