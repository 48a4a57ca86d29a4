"""Our attention for CPUs against the formula in float64: values, every gradient, what it leaves to torch."""

import copy
from contextlib import contextmanager

import pytest
import timm
import torch
import torch.nn.functional as F

import gmmvit
from gmmvit.core import native, ways
from gmmvit.core.masks import SpatialMask
from gmmvit.core.ways import EXPLICIT, NATIVE

needs_a_compiler = pytest.mark.skipif(native.library() is None, reason="there is no C compiler here")
VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 10}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}

SHAPES = {  # images, heads, queries, keys, width
    "a multiple of the vectors": (3, 2, 16, 32, 16),
    "one class token": (2, 3, 17, 17, 32),
    "pooled keys": (3, 2, 20, 5, 24),
    "one query": (2, 1, 1, 50, 7),
    "more heads than images": (1, 12, 9, 9, 16),
}


def literal(query, key, value, factor, bias, scale):
    """softmax(M * (scale Q K^T) + B) V, as the formula says it."""
    scores = scale * torch.einsum("bhqc,bhkc->bhqk", query, key)
    scores = scores if factor is None else scores * factor
    scores = scores if bias is None else scores + bias
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return torch.einsum("bhqk,bhkc->bhqc", weights / weights.sum(-1, keepdim=True), value)


def operands(shape, dtype, packed=False):
    images, heads, queries, keys, width = shape
    sizes = (queries, keys, keys)
    if packed:
        query, key, value = torch.randn(images, queries, 3, heads, width).to(dtype).permute(2, 0, 3, 1, 4)
    else:
        query, key, value = (torch.randn(images, n, heads, width).to(dtype).transpose(1, 2) for n in sizes)
    return [each.detach().requires_grad_() for each in (query, key, value)]


@needs_a_compiler
@pytest.mark.parametrize("masks", ("none", "factor", "shared factor", "bias", "bias of each image", "both"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_values_and_all_gradients_are_those_of_the_formula(dtype, masks):
    for case, shape in SHAPES.items():
        torch.manual_seed(0)
        images, heads, queries, keys, width = shape
        factor = bias = None
        if "factor" in masks or masks == "both":
            factor = torch.randn(1 if "shared" in masks else heads, queries, keys).requires_grad_()
        if "bias" in masks or masks == "both":
            bias = torch.randn(images if "image" in masks else 1, heads, queries, keys).requires_grad_()
        given = [*operands(shape, dtype), factor, bias]
        exact = [None if each is None else each.detach().double().requires_grad_() for each in given]
        out, wanted = native._Attention.apply(*given, width**-0.5), literal(*exact, width**-0.5)
        gradient = torch.randn(wanted.shape).to(dtype)
        mine = torch.autograd.grad(out, [each for each in given if each is not None], gradient)
        theirs = torch.autograd.grad(wanted, [each for each in exact if each is not None], gradient.double())
        for found, expected in zip((out, *mine), (wanted, *theirs), strict=True):
            assert found.shape == expected.shape
            off = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
            assert off < TOLERANCE[dtype], (case, float(off))


@needs_a_compiler
def test_scores_beyond_every_bound_and_hidden_keys():
    query, key, value = operands((2, 2, 5, 9, 16), torch.float32)
    out = native._Attention.apply(query, key, value, torch.full((1, 5, 9), 1e4), None, 1.0)
    wanted = literal(*(each.double() for each in (query, key, value)), 1e4, None, 1.0)
    assert torch.allclose(out.double(), wanted, atol=1e-5)
    hidden = torch.zeros(1, 1, 5, 9).masked_fill(torch.arange(9) > 3, -torch.inf)
    out = native._Attention.apply(query, key, value, None, hidden, 1.0)
    assert torch.allclose(out, native._Attention.apply(query, key[:, :, :4], value[:, :, :4], None, None, 1.0))


@needs_a_compiler
def test_what_is_not_a_number_stays_so_in_its_own_rows():
    query, key, value = (each.detach() for each in operands((2, 2, 9, 9, 16), torch.float32))
    query[0, 1, 3] = float("nan")
    broken = native._Attention.apply(query, key, value, None, None, 1.0).isnan()
    assert broken[0, 1, 3].all() and broken.sum() == 16
    query[0, 1, 3, :], query[1, 0, 2, 0] = 0.0, float("inf")
    assert native._Attention.apply(query, key, value, None, None, 1.0)[1, 0, 2].isnan().all()


@needs_a_compiler
def test_the_gradient_of_a_mask_has_the_same_bits_on_any_number_of_threads():
    given = [*operands((7, 3, 25, 25, 16), torch.bfloat16), torch.randn(3, 25, 25).requires_grad_(), None]
    before, bits = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out = native._Attention.apply(*given, 0.25)
        bits.append(torch.autograd.grad(out.float().square().sum(), given[:4]))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in bits[1:] for a, b in zip(bits[0], other, strict=True))


@needs_a_compiler
def test_parts_of_one_layer_get_their_gradient_without_a_copy():
    whole = torch.randn(2, 9, 3, 2, 16, requires_grad=True)
    kept = []

    def attended(parts, hook=None):
        query, key, value = (each.permute(0, 2, 1, 3) for each in parts)
        if hook:
            query.register_hook(hook)
        return native._Attention.apply(query, key, value, None, None, 0.25).square().sum()

    (mine,) = torch.autograd.grad(attended(native.in_parts(whole, 2), kept.append), whole)
    (theirs,) = torch.autograd.grad(attended(whole.unbind(2)), whole)
    assert torch.equal(mine, theirs) and mine.shape == whole.shape
    assert mine.untyped_storage().data_ptr() == kept[0].untyped_storage().data_ptr()
    (apart,) = torch.autograd.grad(sum((i + 1) * p.sum() for i, p in enumerate(native.in_parts(whole, 2))), whole)
    assert torch.equal(apart, torch.tensor([1.0, 2.0, 3.0])[:, None, None].expand_as(whole))


# ---- in models ------------------------------------------------------------------------------------------------------


def model(**options):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **VIT | options).train()


@contextmanager
def computed():
    """What native.c is called for."""
    calls, run = [], native._run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_run", lambda name, *args, **made: calls.append(name) or run(name, *args, **made))
        yield calls


def passed(net, image):
    net.zero_grad()
    out = net(image)
    out.square().sum().backward()
    return out.detach(), {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@needs_a_compiler
@pytest.mark.parametrize("mask", gmmvit.MASKS)
@pytest.mark.parametrize("bfloat16", (False, True), ids=("float32", "autocast"))
def test_every_mask_does_the_same_by_both_ways(mask, bfloat16):
    net, image = model(), torch.randn(3, 3, 32, 32)
    sites = gmmvit.attach(net, mask, start="paper")
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        quick, its = passed(net, image)
        with ways.avoiding(NATIVE):
            slow, others = passed(net, image)
        with computed() as calls:
            net(image)
    assert calls == ["forward"] * 2 * (sites[0].mask.where != "probabilities")
    bound = 4e-2 if bfloat16 else 2e-5
    assert (quick - slow).norm() < bound * slow.norm() and its.keys() == others.keys()
    norm = max(each.norm() for each in others.values())
    assert all((its[name] - others[name]).norm() < bound * (others[name].norm() + norm / 10) for name in its)


@needs_a_compiler
def test_two_masks_act_in_the_order_they_came():
    net, image = model(), torch.randn(2, 3, 32, 32)
    for name in ("gab", "gmm", "alibi"):
        gmmvit.attach(net, name, start="paper")
    quick, its = passed(net, image)
    with ways.avoiding(NATIVE):
        slow, others = passed(net, image)
    assert torch.allclose(quick, slow, atol=1e-5)
    assert all(torch.allclose(its[name], others[name], rtol=1e-3, atol=1e-4) for name in its)


def way(net):
    return net.blocks[0].attn._way((torch.randn(2, 17, 32), None, False))


@needs_a_compiler
def test_who_reads_a_map_hooks_a_mask_or_wants_the_product_gets_it():
    net, image = model(), torch.randn(2, 3, 32, 32)
    gmmvit.attach(net, "gmm", start="paper")
    assert way(net) == NATIVE and way(net.double()) == NATIVE  # of float32 tokens
    assert net.blocks[0].attn._way((torch.randn(2, 17, 32).double(), None, False)) == EXPLICIT
    net.float()
    with gmmvit.attention_maps(net) as maps:
        net(image)
    assert all(torch.allclose(each.sum(-1), torch.ones(())) for each in maps.values())
    seen = []
    handle = net.spatial_sites[0].mask.register_forward_hook(lambda *call: seen.append(call[1][0].shape))
    net(image)
    handle.remove()
    assert seen == [(2, 2, 17, 17)] and way(net) == NATIVE
    net.blocks[0].attn.fused_attn = False  # timm's way to ask for the product, of which hooks see the dropout
    assert way(net) == EXPLICIT


@needs_a_compiler
def test_dropout_and_a_mask_of_ones_own_with_a_forward_are_computed_as_they_were():
    class Doubled(SpatialMask):
        def weight(self):
            return torch.ones(self.rows, 16, 16)

        def forward(self, scores, scale=1.0):
            return 2 * scale * scores

    for net, mask in ((model(attn_drop_rate=0.5), "gmm"), (model(), Doubled)):
        gmmvit.attach(net, mask)
        outs = []
        for avoided in ((), (NATIVE,)):
            torch.manual_seed(1)
            with ways.avoiding(*avoided):
                outs.append(net(torch.ones(2, 3, 32, 32)))
        assert torch.equal(*outs)


@needs_a_compiler
def test_models_without_masks_are_as_quick_inside_the_engine():
    net, image = model(), torch.randn(2, 3, 32, 32)
    before, kernel = passed(net, image), F.scaled_dot_product_attention
    with ways.own_attention(), ways.own_attention():
        assert F.scaled_dot_product_attention is not kernel
        with computed() as calls:
            after = passed(net, image)
        assert calls == ["forward"] * 2 + ["backward"] * 2
        copied = copy.deepcopy(net)
        gmmvit.attach(copied, "gab", start="neutral")  # which looks for torch's kernel
        assert torch.allclose(passed(copied, image)[0], before[0], atol=1e-5)
    assert F.scaled_dot_product_attention is kernel
    assert torch.allclose(before[0], after[0], atol=1e-5)
    assert all(torch.allclose(before[1][name], after[1][name], atol=1e-4) for name in before[1])


# ---- the library ----------------------------------------------------------------------------------------------------


@needs_a_compiler
def test_it_is_compiled_once_and_never_where_it_cannot_be(tmp_path, monkeypatch):
    def found(folder, **environment):
        with monkeypatch.context() as patch:
            for name, value in ({"XDG_CACHE_HOME": str(folder)} | environment).items():
                patch.setenv(name, value)
            return native.library.__wrapped__() is not None

    assert found(tmp_path)
    (made,) = tmp_path.glob("gmmvit/*")
    then = made.stat().st_mtime_ns
    assert found(tmp_path) and list(tmp_path.glob("gmmvit/*")) == [made] and made.stat().st_mtime_ns == then
    assert not found(tmp_path, GMMVIT_NATIVE="0") and not found(tmp_path, CC="no-such-compiler")
    (tmp_path / "file").write_text("")
    assert not found(tmp_path / "file")  # a cache that cannot be written
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert not found(tmp_path / "other", CC=str(broken)) and not list((tmp_path / "other/gmmvit").iterdir())


def test_without_a_compiler_everything_is_computed_as_elsewhere(monkeypatch):
    net, image = model(), torch.randn(2, 3, 32, 32)
    gmmvit.attach(net, "gmm", start="paper")
    with ways.avoiding(NATIVE):
        wanted = passed(net, image)
    monkeypatch.setattr(native, "library", lambda: None)
    assert way(net) == EXPLICIT
    with ways.own_attention():
        found = passed(net, image)
    assert torch.equal(wanted[0], found[0])
    assert all(torch.equal(wanted[1][name], found[1][name]) for name in wanted[1])
