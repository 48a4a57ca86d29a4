"""attach, attention_maps and freeze on torchvision's, Hugging Face's and open_clip's vision transformers."""

import copy
import pickle

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import gmmvit
from gmmvit.core import ways

SIZE = 32
HEADS = 2


def hugging_face(name, **options):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32}
    config = getattr(transformers, f"{name}Config")(
        image_size=SIZE, num_labels=10, **(options.pop("small", small) | options)
    )
    return getattr(transformers, f"{name}ForImageClassification")(config)


def torchvision_vit():
    vision = pytest.importorskip("torchvision.models")
    return vision.VisionTransformer(SIZE, 8, 2, HEADS, hidden_dim=16, mlp_dim=32, num_classes=10)


def torchvision_swin(version=1):
    swin = pytest.importorskip("torchvision.models.swin_transformer")
    parts = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if version == 2 else {}
    return swin.SwinTransformer(
        [4, 4], 16, [2, 2], [HEADS, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=10, **parts
    )


def open_clip():
    return pytest.importorskip("open_clip.transformer").VisionTransformer(SIZE, 8, 16, 2, HEADS, 2.0, output_dim=10)


SWIN = {
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [HEADS, 4],
    "window_size": 4,
    "patch_size": 4,
    "drop_path_rate": 0.0,
}
MODELS = {
    "torchvision ViT": torchvision_vit,
    "torchvision Swin": torchvision_swin,
    "torchvision Swin 2": lambda: torchvision_swin(2),
    "Hugging Face ViT": lambda: hugging_face("ViT", patch_size=8),
    "Hugging Face ViT, eager": lambda: hugging_face("ViT", patch_size=8, attn_implementation="eager"),
    "Hugging Face DeiT": lambda: hugging_face("DeiT", patch_size=8),
    "Hugging Face Dinov2": lambda: hugging_face("Dinov2", patch_size=8),
    "Hugging Face Swin": lambda: hugging_face("Swin", small={}, **SWIN),
    "open_clip": open_clip,
}
PREFIX = {"torchvision ViT": 1, "Hugging Face DeiT": 2, "open_clip": 1} | dict.fromkeys(
    ("Hugging Face ViT", "Hugging Face ViT, eager", "Hugging Face Dinov2"), 1
)
each = pytest.mark.parametrize("name", MODELS)
IMAGES = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def built(name):
    """A small model of random weights, large enough for its attention to matter."""
    torch.manual_seed(0)
    return redrawn(MODELS[name]())


def redrawn(model):
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, 0.3)
    return model.eval()


def masked(name, mask, **options):
    model = built(name)
    sites = gmmvit.attach(model, mask, img_size=SIZE, **options)
    return model, sites


def logits(model):
    output = model(IMAGES)
    return output if torch.is_tensor(output) else output.logits


def by_hand(site):
    """The weight of a site's mask, pair by pair from its formula, (heads or 1, Nq, Nk)."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in site.grid), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], -1).float()
    d2 = (places[:, None] - places).square().sum(-1)
    mask, pad = site.mask, (site.prefix, 0, site.prefix, 0)
    if isinstance(mask, gmmvit.GaussianBias):
        height, width = mask.amplitude.square(), 2 * mask.sigma.square()
        return F.pad(height[:, None, None] * torch.exp(-d2 / width[:, None, None]), pad)
    if isinstance(mask, gmmvit.ElementMask):
        return F.pad(mask.element, pad, value=1.0)
    width = 2 * (mask.sigma.square() + 1e-5)[..., None, None]
    return F.pad((mask.alpha[..., None, None] * torch.exp(-d2 / width)).sum(0), pad, value=1.0)


def dense(model, sites, patch):
    """The logits of a model without masks, in whose attentions these masks meet the scores, layer by layer."""
    weights, additive = iter([by_hand(site) for site in sites]), sites[0].mask.additive
    matmul, softmax = torch.matmul, F.softmax

    def put(scores):
        return scores + next(weights) if additive else scores * next(weights)

    def kernel(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = put(matmul(query * scale, key.transpose(-2, -1)))
        scores = scores if attn_mask is None else scores + attn_mask
        return matmul(softmax(scores, -1), value)

    def product(left, right):  # of queries and keys, where the right one is a transpose
        scores = matmul(left, right)
        of_scores = not additive and scores.shape[-2:] == (tokens, tokens) and left.shape[-1] != tokens
        return put(scores) if of_scores else scores

    def added(scores, *args, **options):  # after the scale
        return softmax(put(scores) if additive else scores, *args, **options)

    tokens = sites[0].grid[0] * sites[0].grid[1] + sites[0].prefix
    patch.setattr(F, "scaled_dot_product_attention", kernel)
    patch.setattr(F, "softmax", added)
    patch.setattr(torch, "matmul", product)
    patch.setattr(torch.Tensor, "matmul", product)
    patch.setattr(torch.Tensor, "__matmul__", product)
    output = logits(model)
    assert next(weights, None) is None
    return output


@each
@pytest.mark.parametrize("mask", ("gmm", "elm", "gab"))
def test_logits_and_gradients_are_those_of_attention_recomputed_with_the_mask(name, mask, monkeypatch):
    plain = built(name)
    model, sites = masked(name, mask, **({"init": 0.7} if mask == "elm" else {}))
    with torch.no_grad():
        for site in sites:
            for parameter in site.mask.parameters():
                parameter.add_(torch.rand_like(parameter))
    for training in (False, True):
        for each in (model, plain):
            each.train(training)
            each.zero_grad()
        got = logits(model)
        got.square().sum().backward()
        ours = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        of_masks = [parameter for site in sites for parameter in site.mask.parameters()]
        theirs = [parameter.grad for parameter in of_masks]
        for parameter in of_masks:
            parameter.grad = None
        with monkeypatch.context() as patch, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            want = dense(plain, sites, patch)
            want.square().sum().backward()
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        assert want.std() > 0.05
        for name, parameter in plain.named_parameters():
            if parameter.grad is not None:
                scale = parameter.grad.abs().max().item()
                torch.testing.assert_close(ours[name], parameter.grad, atol=1e-4 * scale + 1e-6, rtol=1e-3, msg=name)
        for parameter, gradient in zip(of_masks, theirs, strict=True):
            assert gradient.isfinite().all()
            torch.testing.assert_close(
                gradient, parameter.grad, atol=1e-4 * parameter.grad.abs().max().item() + 1e-6, rtol=1e-3
            )
        reached = [site for site in sites if site.reaches_output]
        assert reached and all(p.grad.any() for site in reached for p in site.mask.parameters())


@each
def test_a_mask_that_does_nothing_leaves_the_logits_and_detach_brings_them_back(name):
    plain = built(name)
    with torch.no_grad():
        want = logits(plain)
        model, sites = masked(name, "elm", init=1.0)
        torch.testing.assert_close(logits(model), want, atol=2e-5, rtol=1e-4)
        assert {site.prefix for site in sites} == {PREFIX.get(name, 0)} and {site.grid for site in sites} == {(4, 4)}
        assert torch.equal(logits(gmmvit.detach(model)), want) and type(model) is type(plain)
        for mask in ("gmm", "elm", "gab"):
            gmmvit.attach(model, mask, start="neutral", img_size=SIZE)
            torch.testing.assert_close(logits(model), want, atol=2e-5 * want.std().item() + 2e-6, rtol=0)
            gmmvit.detach(model)


@pytest.mark.slow
@each
def test_a_masked_model_is_copied_pickled_compiled_and_frozen(name):
    model, _ = masked(name, "gmm")
    with torch.no_grad():
        want = logits(model)
        if not name.startswith("open_clip"):  # which keeps a lambda
            assert torch.equal(logits(pickle.loads(pickle.dumps(model))), want)
        torch.testing.assert_close(torch.compile(copy.deepcopy(model), backend="eager")(IMAGES), model(IMAGES))
        assert torch.equal(logits(gmmvit.freeze(copy.deepcopy(model))), want)


@each
def test_attention_maps_are_the_softmaxes_with_the_mask_in_them(name):
    model, sites = masked(name, "gab")
    with gmmvit.attention_maps(model) as before, torch.no_grad():
        logits(model)
    assert list(before) == [site.name for site in sites]
    for map, site in zip(before.values(), sites, strict=True):
        tokens = 16 + site.prefix
        assert map.shape[1:] == (site.heads, tokens, tokens)
        torch.testing.assert_close(map.sum(-1), torch.ones_like(map.sum(-1)))
    gmmvit.detach(model)
    with gmmvit.attention_maps(model) as plain, torch.no_grad():
        logits(model)
    first, p = sites[0], sites[0].prefix
    without, weight = plain[first.name], by_hand(first).detach()
    want = (without.log() + weight).softmax(-1)  # of the first layer, whose input is the same
    torch.testing.assert_close(before[first.name], want, atol=1e-5, rtol=1e-3)
    assert (before[first.name] - without)[..., p:, p:].abs().max() > 1e-3


class Kernels(TorchFunctionMode):
    """Keeps the attention masks of the fused kernels that are called."""

    def __init__(self):
        super().__init__()
        self.masks = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.masks.append(kwargs["attn_mask"])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ("torchvision ViT", "Hugging Face ViT", "Hugging Face Swin"))
def test_a_bias_goes_into_the_fused_kernel_as_its_attention_mask_where_the_device_is_faster_so(name, monkeypatch):
    model, sites = masked(name, "gab")
    with torch.no_grad():
        want = logits(model)
        monkeypatch.setitem(ways.TABLE, "cpu", {"additive": [[0, "fused"]]})
        with Kernels() as kernels:
            torch.testing.assert_close(logits(model), want, atol=1e-5, rtol=1e-4)
    assert [mask.shape[-3] for mask in kernels.masks] == [1] * len(sites) or name == "Hugging Face Swin"
    assert len(kernels.masks) == len(sites)


@pytest.mark.parametrize("name", ("BeitModel", "CLIPVisionModel", "SiglipVisionModel", "Swinv2Model"))
def test_a_neutral_mask_leaves_other_models_of_hugging_face_as_they_are(name):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32}
    options = SWIN if name == "Swinv2Model" else small | {"patch_size": 8}
    torch.manual_seed(0)
    model = getattr(transformers, name)(
        getattr(transformers, name.replace("Model", "Config"))(image_size=SIZE, **options)
    )
    with torch.no_grad():
        want = redrawn(model)(IMAGES).last_hidden_state
        sites = gmmvit.attach(model, "elm", init=1.0)
        torch.testing.assert_close(model(IMAGES).last_hidden_state, want, atol=2e-5, rtol=1e-4)
        for site in sites:
            site.mask.element.zero_()
        assert (model(IMAGES).last_hidden_state - want).abs().max() > 1e-3


def test_register_tokens_are_left_alone():
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_register_tokens": 4}
    config = transformers.Dinov2WithRegistersConfig(image_size=SIZE, patch_size=8, **small)
    sites = gmmvit.attach(transformers.Dinov2WithRegistersModel(config), "gmm")
    assert [(site.grid, site.prefix) for site in sites] == [((4, 4), 5)] * 2


def test_an_attention_that_may_be_causal_is_refused():
    class Causal(nn.Module):
        image_size = SIZE

        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 8, 8)

        def forward(self, images):
            tokens = self.stem(images).flatten(2).transpose(1, 2)[:, None]
            return F.scaled_dot_product_attention(tokens, tokens, tokens, is_causal=True)

    with pytest.raises(ValueError, match="is causal"):
        gmmvit.attach(Causal(), "gmm")


def test_what_multi_head_attention_hides_or_adds_is_refused():
    class Padded(nn.Module):
        image_size = SIZE

        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 8, 8)
            self.attention = nn.MultiheadAttention(16, HEADS, add_zero_attn=True, batch_first=True)

        def forward(self, images):
            tokens = self.stem(images).flatten(2).transpose(1, 2)
            return self.attention(tokens, tokens, tokens)[0]

    with pytest.raises(ValueError, match="expected plain self-attention"):
        gmmvit.attach(Padded(), "gmm")


def test_weights_that_are_asked_for_are_those_with_the_mask():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, HEADS, batch_first=True)

    class Model(nn.Module):
        image_size = SIZE

        def __init__(self):
            super().__init__()
            self.stem, self.attention = nn.Conv2d(3, 16, 8, 8), layer

        def forward(self, images):
            tokens = self.stem(images).flatten(2).transpose(1, 2)
            return self.attention(tokens, tokens, tokens, average_attn_weights=False)[1]

    model = Model().eval()
    want = model(IMAGES)
    (site,) = gmmvit.attach(model, "gab")
    torch.testing.assert_close(model(IMAGES), (want.log() + by_hand(site)).softmax(-1))
