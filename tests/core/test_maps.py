"""Attention maps: equal to a hand computation from each module's input and weights, and the model is left as it was."""

import gc
import math
import weakref

import pytest
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from conftest import redraw
from timm.models.pit import PoolingVisionTransformer
from timm.models.volo import VOLO

import gmmvit
from gmmvit.core.maps import attention_maps

SIZE = {"img_size": 64, "num_classes": 5}
VIT = {**SIZE, "embed_dim": 48, "depth": 2, "num_heads": 3}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads only wait for each other over tensors as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def vit(**options):
    return timm.create_model("vit_tiny_patch16_224", **VIT | options)


def set_fused(model, fused):
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return model


def run(model, image, *args, **kwargs):
    """Output and maps of one call without gradients."""
    with torch.no_grad(), attention_maps(model, *args, **kwargs) as maps:
        return model(image), maps


def same_maps(first, second, **tolerance):
    assert list(first) == list(second)
    for name in first:
        torch.testing.assert_close(first[name], second[name], **tolerance)


# ---- maps by hand, in float64 ---------------------------------------------------------------------------------------


def project(linear, x, heads):
    """The parts (query, key, value) of a projection, (B, heads, N, d) each, for any number of parts."""
    weight = linear.weight.double()
    y = torch.einsum("bnc,oc->bno", x, weight) + (0 if linear.bias is None else linear.bias.double())
    width = x.shape[-1]
    parts = [y[..., i : i + width] for i in range(0, weight.shape[0], width)]
    return [part.unflatten(-1, (heads, width // heads)).transpose(1, 2) for part in parts]


def normalised(scores):
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def products(query, key):
    return torch.einsum("bhnd,bhmd->bhnm", query, key) / math.sqrt(query.shape[-1])


def self_attention(module, x, **_):
    query, key, _ = project(module.qkv, x.flatten(1, -2), module.num_heads)
    return normalised(products(query, key))


def talking_heads(module, x, **_):
    query, key, _ = project(module.qkv, x, module.num_heads)
    mix = module.proj_l
    mixed = torch.einsum("bhnm,gh->bgnm", products(query, key), mix.weight.double())
    return normalised(mixed + mix.bias.double()[:, None, None])


def class_attention(module, x, **_):
    (query,), (key,) = project(module.q, x[:, :1], module.num_heads), project(module.k, x, module.num_heads)
    return normalised(products(query, key))


def volo_class_attention(module, x, **_):
    (query,), (key, _) = project(module.q, x[:, :1], module.num_heads), project(module.kv, x, module.num_heads)
    return normalised(products(query, key))


def window_attention(module, x, mask=None):
    query, key, _ = project(module.qkv, x, module.num_heads)
    scores = products(query, key)
    side = module.window_size[0]
    for i in range(side * side):
        for j in range(side * side):
            dy, dx = i // side - j // side, i % side - j % side
            row = (dy + side - 1) * (2 * side - 1) + dx + side - 1
            scores[:, :, i, j] += module.relative_position_bias_table[row].double()
    if mask is not None:  # (windows of an image, n, n)
        scores += mask.double().repeat(len(x) // len(mask), 1, 1)[:, None]
    return normalised(scores)


def by_distance(mask, function, neutral):
    """A function of squared distances on a square grid, beside the neutral row and column of one prefix token."""
    side = mask.grid[0]
    full = torch.full((mask.rows, side * side + 1, side * side + 1), neutral, dtype=torch.float64)
    for i in range(side * side):
        for j in range(side * side):
            full[:, i + 1, j + 1] = function((i // side - j // side) ** 2 + (i % side - j % side) ** 2)
    return full.to(mask.sigma.device)


def mixture(mask):
    sigma, alpha = mask.sigma.double().cpu(), mask.alpha.double().cpu()  # (K, heads)
    return by_distance(mask, lambda d2: (alpha * torch.exp(-d2 / (2 * (sigma**2 + 1e-5)))).sum(0), 1.0)


def bias(mask):
    sigma, amplitude = mask.sigma.double().cpu(), mask.amplitude.double().cpu()  # (1,)
    return by_distance(mask, lambda d2: amplitude**2 * torch.exp(-d2 / (2 * sigma**2)), 0.0)


def masked_attention(module, x, **_):
    query, key, _ = project(module.qkv, x, module.num_heads)
    return normalised(products(query, key) * mixture(module.spatial_masks.gmm))


def biased_attention(module, x, **_):
    query, key, _ = project(module.qkv, x, module.num_heads)
    return normalised(products(query, key) + bias(module.spatial_masks.gab))


def afterwards_masked_attention(module, x, **_):
    return self_attention(module, x) * mixture(module.spatial_masks.gmm)


def torch_attention(module, query, key, value, **_):
    together = nn.Linear(1, 1)
    together.weight, together.bias = module.in_proj_weight, module.in_proj_bias
    query, key, _ = project(together, query, module.num_heads)
    return normalised(products(query, key))


def blocks(n, name="blocks.{}.attn"):
    return [name.format(i) for i in range(n)]


CASES = {  # how to build it; its attention layers and the reference of each
    "vit": (vit, dict.fromkeys(blocks(2), self_attention)),
    "vit, 16 channels, 16 tokens": (
        lambda: vit(class_token=False, global_pool="avg"),
        dict.fromkeys(blocks(2), self_attention),
    ),
    "deit, distilled": (
        lambda: timm.create_model("deit_tiny_distilled_patch16_224", **VIT),
        dict.fromkeys(blocks(2), self_attention),
    ),
    "pit": (
        lambda: PoolingVisionTransformer(
            **SIZE,
            patch_size=16,
            stride=8,
            stem_type="overlap",
            base_dims=(16, 16, 16),
            depth=(1, 1),
            heads=(2, 4),
            mlp_ratio=2,
        ),
        {f"transformers.{i}.blocks.0.attn": self_attention for i in range(2)},
    ),
    "cait": (
        lambda: timm.create_model("cait_xxs24_224", **SIZE, embed_dim=48, depth=2),
        dict.fromkeys(blocks(2), talking_heads)
        | dict.fromkeys(blocks(2, "blocks_token_only.{}.attn"), class_attention),
    ),
    "swin": (
        lambda: timm.create_model(
            "swin_tiny_patch4_window7_224", **SIZE, window_size=4, depths=(2, 2), embed_dim=24, num_heads=(3, 6)
        ),
        {f"layers.{i}.blocks.{j}.attn": window_attention for i in range(2) for j in range(2)},
    ),
    "xcit, 16 channels, 16 tokens": (  # its cross-covariances are 16 x 16 too, and are no maps over tokens
        lambda: timm.create_model("xcit_nano_12_p16_224", **SIZE, embed_dim=64, depth=2),
        dict.fromkeys(blocks(2, "cls_attn_blocks.{}.attn"), class_attention),
    ),
    "volo": (  # its outlook attention takes a softmax of no query-key product
        lambda: VOLO(
            layers=(1, 1, 1, 1),
            **SIZE,
            embed_dims=(24, 48, 48, 48),
            num_heads=(2, 3, 3, 3),
            mlp_ratio=(3, 3, 3, 3),
            downsamples=(True, False, False, False),
            outlook_attention=(True, False, False, False),
            post_layers=("ca", "ca"),
        ),
        {f"network.{i}.0.attn": self_attention for i in (2, 3, 4)}
        | dict.fromkeys(blocks(2, "post_network.{}.attn"), volo_class_attention),
    ),
    "torchvision": (
        lambda: torchvision.models.VisionTransformer(64, 16, 2, 2, 16, 32, num_classes=5),
        dict.fromkeys(blocks(2, "encoder.layers.encoder_layer_{}.self_attention"), torch_attention),
    ),
    "gmm on scores": (vit, dict.fromkeys(blocks(2), masked_attention)),
    "gmm on probabilities": (vit, dict.fromkeys(blocks(2), afterwards_masked_attention)),
    "gab": (vit, dict.fromkeys(blocks(2), biased_attention)),
}
ATTACHED = {"gmm on scores": {}, "gmm on probabilities": {"where": "probabilities"}, "gab": {}}


@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_maps_equal_a_hand_computation(case, fused, device):
    build, references = CASES[case]
    torch.manual_seed(0)
    model = set_fused(build(), fused).eval()
    if case in ATTACHED:
        gmmvit.attach(model, case[:3], **ATTACHED[case])
    image = torch.randn(2, 3, 64, 64)
    model, image = redraw(model, image).to(device), image.to(device)
    inputs, modules = {}, dict(model.named_modules())
    handles = [
        modules[name].register_forward_pre_hook(
            lambda module, args, kwargs, name=name: inputs.update({name: (args, kwargs)}), with_kwargs=True
        )
        for name in references
    ]
    with torch.no_grad():
        plain = model(image)
    for handle in handles:
        handle.remove()

    output, maps = run(model, image)
    if case == "torchvision" or (fused and case in ATTACHED):  # which have a kernel of their own outside
        torch.testing.assert_close(output, plain)
    else:
        assert torch.equal(output, plain)
    assert list(maps) == list(references)
    for name, reference in references.items():
        args, kwargs = inputs[name]
        args = [arg.double() if torch.is_tensor(arg) else arg for arg in args]
        expected = reference(modules[name], *args, **kwargs)
        assert maps[name].shape == expected.shape
        torch.testing.assert_close(maps[name].double(), expected, atol=1e-5, rtol=0)
        if case != "gmm on probabilities":
            assert (maps[name].sum(-1) - 1).abs().max() < 1e-5
        assert maps[name].std() > 1e-3, "the maps are flat: this test is empty"


@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
def test_the_model_is_left_as_it_was(fused, device):
    model = set_fused(vit(attn_drop_rate=0.5), fused).train().to(device)
    model.blocks[0].eval()
    image = torch.randn(2, 3, 64, 64, device=device)

    def state():
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        others = [(type(m), m.training, sorted(vars(m)), getattr(m, "fused_attn", None)) for m in model.modules()]
        return hooks, others, list(model.state_dict()), torch.overrides._get_current_function_mode_stack()

    def step():
        torch.manual_seed(1)
        model.zero_grad()
        output = model(image)
        output.square().sum().backward()
        return [output, *(p.grad for p in model.parameters())]

    before, plain = state(), step()
    with attention_maps(model) as maps:
        inside = step()
    assert state() == before
    assert all(torch.equal(a, b) for a, b in zip(inside, plain, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(step(), plain, strict=True))
    assert all((attention.sum(-1) - 1).abs().max() < 1e-5 for attention in maps.values()), "dropout is in the map"

    with pytest.raises(RuntimeError, match="halfway"), attention_maps(model):
        model(image)
        raise RuntimeError("halfway")
    with pytest.raises(RuntimeError), attention_maps(model):
        model(image[:, :1])  # fails inside a module
    assert state() == before


# ---- the tensors that are handed out --------------------------------------------------------------------------------


def test_a_map_is_the_live_tensor_that_meets_the_values():
    model, image = set_fused(vit(), False), torch.randn(2, 3, 64, 64)
    met = {}
    for i, block in enumerate(model.blocks):
        block.attn.attn_drop.register_forward_pre_hook(lambda _, args, i=i: met.update({f"blocks.{i}.attn": args[0]}))
    with attention_maps(model) as maps:
        output = model(image)
    assert all(maps[name] is met[name] for name in met) and len(met) == 2
    gradients = torch.autograd.grad(output.sum(), list(maps.values()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_maps_beside_fused_attention_have_the_gradients_of_explicit_ones():
    model, image = vit(), torch.randn(2, 3, 64, 64)
    gradients = []
    for fused in (False, True):
        with attention_maps(set_fused(model, fused), -1, rows="class") as maps:
            model(image)
        (attention,) = maps.values()
        loss = attention[..., 1:].square().sum()
        weights = [model.blocks[1].attn.qkv.weight, model.patch_embed.proj.weight]
        gradients.append(torch.autograd.grad(loss, weights, retain_graph=True))
    for explicit, beside in zip(*gradients, strict=True):
        assert explicit.abs().max() > 0
        torch.testing.assert_close(beside, explicit, rtol=1e-4, atol=1e-7)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(loss, weights, create_graph=True)


def test_the_last_call_wins():
    model, images = set_fused(vit(), False).eval(), torch.randn(2, 2, 3, 64, 64)
    with torch.no_grad(), attention_maps(model) as maps:
        model(images[0])
        first = dict(maps)
        model(images[1])
    _, expected = run(model, images[1])
    same_maps(maps, expected, rtol=0, atol=0)
    assert not torch.equal(first["blocks.1.attn"], maps["blocks.1.attn"])


def test_parts_of_a_model_may_be_called():
    model, image = vit().eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad(), attention_maps(model, rows="class") as maps:
        model.forward_features(image)
    same_maps(maps, run(model, image, rows="class")[1])


def test_nothing_but_the_wanted_maps_is_kept():
    model, image = set_fused(vit(depth=4), False).eval(), torch.randn(2, 3, 64, 64)
    alive = []
    for block in model.blocks:
        block.attn.attn_drop.register_forward_pre_hook(lambda _, args: alive.append(weakref.ref(args[0])))
        block.register_forward_pre_hook(lambda _, args: alive.append(weakref.ref(args[0])))

    def left():
        return sum(reference() is not None for reference in alive)

    gc.disable()
    try:
        with torch.no_grad(), attention_maps(model, -1) as maps:
            model(image)
            assert len(alive) == 8 and left() == 1
            model(image)
            assert left() == 1
        assert left() == 1
        maps.clear()
        assert left() == 0
        with torch.no_grad(), attention_maps(model, rows="class") as maps:
            model(image)
        assert left() == 0 and len(maps) == 4, "a class row keeps its whole map in memory"
    finally:
        gc.enable()


# ---- which layers, which rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("blocks.2.attn", [2]),
        ("blocks.[12].*", [1, 2]),
        (-1, [3]),
        (0, [0]),
        (-3, [1]),
        (2, [2]),
    ],
)
@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
def test_layers(layers, expected, fused):
    model, image = set_fused(vit(depth=4), fused).eval(), torch.randn(1, 3, 64, 64)
    everything = run(model, image)[1]
    with torch.no_grad(), attention_maps(model, layers) as maps:
        model(image + 1)
        model(image)  # a second call finds the order known
    same_maps(maps, {f"blocks.{i}.attn": everything[f"blocks.{i}.attn"] for i in expected}, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
@pytest.mark.parametrize("case", ["vit", "deit, distilled", "pit", "cait", "volo", "xcit, 16 channels, 16 tokens"])
def test_rows(case, fused):
    model = set_fused(CASES[case][0](), fused).eval()
    image = torch.randn(1, 3, 64, 64)
    output, everything = run(model, image)
    sliced = run(model, image, rows=slice(1, 4))[1]
    same_maps(sliced, {name: attention[..., 1:4, :] for name, attention in everything.items()})
    with_class = [n for n in everything if case in ("vit", "deit, distilled", "pit") or "token" in n or "cls" in n]
    with_class += [name for name in everything if "post_network" in name]
    same, rows = run(model, image, rows="class")
    assert torch.equal(same, output)
    same_maps(rows, {name: everything[name][..., :1, :] for name in with_class})


def test_class_rows_of_an_oblong_image():
    model = vit(img_size=(32, 64)).eval()
    _, rows = run(model, torch.randn(2, 3, 32, 64), rows="class")
    assert [tuple(attention.shape) for attention in rows.values()] == 2 * [(2, 3, 1, 9)]


def test_class_rows_beside_registers():
    model = vit(reg_tokens=4).eval()
    image = torch.randn(1, 3, 64, 64)
    same_maps(run(model, image, rows="class")[1], run(model, image, rows=slice(0, 1))[1])


def test_class_rows_need_a_class_token():
    image = torch.randn(1, 3, 64, 64)
    for model in (CASES["swin"][0](), vit(class_token=False, reg_tokens=4, global_pool="avg")):
        with pytest.raises(ValueError, match=f"no class token .* of {type(model).__name__}"):
            run(model, image, rows="class")
    cait = CASES["cait"][0]()
    with pytest.raises(ValueError, match="no class token"):
        run(cait, image, "blocks.*", rows="class")


# ---- what is a map over tokens --------------------------------------------------------------------------------------


class Gate(nn.Module):
    """A softmax of no query-key product."""

    def forward(self, x):
        return x * x.softmax(-1)


class OverQueries(nn.Module):
    """Products that meet softmaxes, but none over keys."""

    def forward(self, x):  # (B, N, C)
        scores = x @ x.transpose(1, 2)
        gates = scores.mean(2, keepdim=True).expand(-1, -1, 8).softmax(-1)  # over something that is not the keys
        return scores.softmax(1) @ x * gates.amax(-1, keepdim=True)


class Normed(nn.Module):
    """Attention over 16 tokens of 16 channels, behind a norm over all of them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(1, 16)

    def forward(self, x):  # (B, 16, 16)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


def test_other_softmaxes_are_no_maps():
    model = nn.Sequential(OverQueries(), Normed(), Gate())
    with attention_maps(model) as maps:
        model(torch.randn(2, 16, 16))
    assert list(maps) == ["1"]
    assert maps["1"].shape == (2, 1, 16, 16)


# ---- how maps are laid out ------------------------------------------------------------------------------------------


class Merged(nn.Module):
    """Two heads, merged with the batch or one after the other."""

    num_heads = 2

    def __init__(self, merged):
        super().__init__()
        self.merged = merged

    def forward(self, x):  # (B, N, C)
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)  # (B, 2, N, d)
        if self.merged:
            flat = heads.flatten(0, 1)
            return torch.bmm(torch.bmm(flat, flat.transpose(1, 2)).softmax(-1), flat)
        return torch.cat([(h @ h.transpose(1, 2)).softmax(-1) @ h for h in heads.unbind(1)], -1)


@pytest.mark.parametrize("merged", [True, False])
def test_heads_merged_with_the_batch_or_in_turn(merged):
    model, x = nn.Sequential(Merged(merged)), torch.randn(3, 5, 8)
    with attention_maps(model) as maps:
        model(x)
        model(x)
    for head in range(2):
        part = x[..., 4 * head : 4 * head + 4]
        expected = normalised(torch.einsum("bnd,bmd->bnm", part, part))
        torch.testing.assert_close(maps["0"][:, head], expected)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        (
            "samvit_base_patch16",
            {"img_size": 64, "depth": 1, "embed_dim": 48, "num_heads": 3, "global_attn_indexes": (), "window_size": 2},
            (8, 3, 4, 4),  # 4 windows for each of two images
        ),
        ("nest_tiny", {"img_size": 64}, (2, 3, 16, 16, 16)),
        ("twins_svt_small", {"embed_dims": (16, 32, 48, 64), "depths": (1, 1, 1, 1)}, (2, 2, 9, 49, 49)),
    ],
)
def test_heads_come_second_in_windows_of_every_layout(name, options, shape, device):
    """SAM merges heads with the batch, Twins has windows before the heads, Nest after them."""
    model = timm.create_model(name, num_classes=5, **options).eval().to(device)
    image = torch.randn(2, 3, 64, 64, device=device)
    explicit, fused = (run(set_fused(model, fused), image)[1] for fused in (False, True))
    assert next(iter(explicit.values())).shape == shape
    same_maps(fused, explicit, atol=1e-5, rtol=0)


class Fused(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


ALLOWED = torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) > 0.4
ALLOWED[:, 0] = True


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": ALLOWED},
        {"attn_mask": torch.randn(1, 4, 6, 7)},
        {"attn_mask": torch.randn(2, 1, 1, 7), "scale": 2.0},
        {"enable_gqa": True},
    ],
)
def test_the_map_beside_a_fused_kernel_times_the_values_is_its_output(options):
    heads = 2 if "enable_gqa" in options else 4
    query, key, value = torch.randn(2, 4, 6, 8), torch.randn(2, heads, 7, 8), torch.randn(2, heads, 7, 8)
    model = nn.Sequential(Fused(**options))
    with attention_maps(model) as maps, attention_maps(model, rows=slice(2, 4)) as some:
        output = model[0](query, key, value)
    together = maps["0"] @ value.repeat_interleave(4 // heads, 1)
    torch.testing.assert_close(together, output)
    torch.testing.assert_close(some["0"], maps["0"][..., 2:4, :])


# ---- precision, compilation, checkpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
def test_bfloat16_autocast(fused, device):
    model = set_fused(vit(), fused).train().to(device)
    image = torch.randn(2, 3, 64, 64, device=device)
    exact = run(model, image)[1]
    with torch.autocast(device.type, torch.bfloat16), attention_maps(model) as maps:
        model(image).sum().backward()
    same_maps({n: m.detach().float() for n, m in maps.items()}, exact, atol=0.01, rtol=0)


@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
def test_recomputing_for_backward(fused):
    model, image = set_fused(vit(), fused), torch.randn(2, 3, 64, 64)
    expected = run(model, image)[1]
    model.set_grad_checkpointing()
    with attention_maps(model) as maps:
        model(image).sum().backward()
    same_maps({n: m.detach() for n, m in maps.items()}, expected)


def test_compiled_models_give_maps_and_stay_compiled():
    model, image = vit(depth=1).eval(), torch.randn(2, 3, 64, 64)
    runs = []

    def backend(graph, inputs):
        return lambda *args: (runs.append(1), graph(*args))[1]

    compiled = torch.compile(model, backend=backend)
    try:
        with torch.no_grad():
            plain = compiled(image)
            once = len(runs)
            assert once > 0
            for called, watched in ((compiled, compiled), (compiled, model)):
                with attention_maps(watched) as maps:
                    called(image)
                same_maps(maps, run(model, image)[1])
            assert len(runs) == once
            torch.testing.assert_close(compiled(image), plain)
            assert len(runs) == 2 * once
    finally:
        torch.compiler.reset()


# ---- sentences ------------------------------------------------------------------------------------------------------


def test_unknown_layers_are_named_with_the_nearest():
    model, image = vit(), torch.randn(1, 3, 64, 64)
    with pytest.raises(ValueError, match="VisionTransformer 'block.1.attn'.*nearest is 'blocks.1.attn'"):
        with attention_maps(model, "block.1.attn"):
            raise AssertionError("entered")
    with pytest.raises(ValueError, match="layer of VisionTransformer 'blocks.1': .*nearest is 'blocks.1.attn'"):
        run(model, image, "blocks.1")
    for index in (2, -3):
        with pytest.raises(ValueError, match=f"index of the 2 attentions of VisionTransformer, got {index}"):
            run(model, image, index)
    for nothing in ([], 1.5, [0, -1], lambda name: True):
        with (
            pytest.raises(TypeError, match="layers: expected a pattern, an index or None"),
            attention_maps(model, nothing),
        ):
            raise AssertionError("entered")


def test_other_sentences():
    model, image = vit(), torch.randn(1, 3, 64, 64)
    with pytest.raises(ValueError, match="rows: expected a slice of queries or 'class', got 'cls'"):
        run(model, image, rows="cls")
    with pytest.raises(ValueError, match="a call of VisionTransformer inside the block"), attention_maps(model):
        pass
    with pytest.raises(ValueError, match="ResNet has no softmax attention"):
        run(timm.create_model("skresnet18").eval(), image)  # selective kernels are a softmax over branches
