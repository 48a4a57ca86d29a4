"""The priors of the field as masks, against literal transcriptions of their formulas, and on models."""

import copy
import itertools
import math

import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import redraw
from timm.layers import RelPosBias, RelPosMlp, resize_rel_pos_bias_table
from timm.models.vision_transformer_relpos import VisionTransformerRelPos

import gmmvit
from gmmvit.core import together
from gmmvit.core.grids import by_offset, offsets
from gmmvit.core.masks import MASKS, no_decay

SCALARS = {
    "gmb": {"sigma", "alpha"},
    "temperature": {"gain"},
    "diagonal": set(),
    "alibi": set(),
    "slope": {"slope"},
    "manhattan": set(),
    "kerple": {"a", "b"},
    "relbias": set(),
    "relmlp": set(),
}
ONE_GRID = ("diagonal", "relbias")  # whose keys cannot be pooled
NEUTRAL = [name for name in SCALARS if MASKS[name].neutral]
PLACES = [
    {"grid": (4, 4)},
    {"grid": (3, 5), "prefix": 1},
    {"grid": (1, 6), "prefix": (2, 1)},
    {"grid": (4, 6), "key_grid": (2, 3), "prefix": 1},
]


def drawn(name, seed=0, **place):
    """A mask of three heads with random parameters."""
    torch.manual_seed(seed)
    mask = MASKS[name](heads=3, **place)
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return mask


# ---- formulas -------------------------------------------------------------------------------------------------------


def softplus(x):
    return (1 + x.exp()).log()


def log_sign(x):
    return math.copysign(math.log(1 + abs(x)), x) if x else 0.0


def entry(name, values, heads, head, dy, dx):
    """One weight as the formula of its paper says it, of float64 parameters."""
    d = math.hypot(dy, dx)
    if name == "gmb":
        each = zip(values["alpha"][:, head], values["sigma"][:, head], strict=True)
        return sum(alpha * (-(d**2) / (2 * (sigma**2 + 1e-5))).exp() for alpha, sigma in each)
    if name == "temperature":
        return values["gain"][head]
    if name == "diagonal":
        return torch.tensor(-1000.0 if d == 0 else 0.0)
    if name == "alibi":
        return torch.tensor(-(2 ** (-8 * (head + 1) / heads)) * d)
    if name == "slope":
        return -softplus(values["slope"][head]) * d
    if name == "manhattan":
        return torch.tensor((abs(dy) + abs(dx)) * math.log(1 - 2 ** (-2 - 4 * head / heads)))
    if name == "kerple":
        return -softplus(values["a"][head]) * (1 + softplus(values["b"][head]) * d).log()
    hidden = values["mlp.fc1.weight"] @ torch.tensor([log_sign(dy), log_sign(dx)], dtype=torch.float64)
    hidden = (hidden + values["mlp.fc1.bias"]).relu()
    return values["mlp.fc2.weight"][head] @ hidden + values["mlp.fc2.bias"][head]


def literal(name, mask, values):
    """The weights pair by pair, (heads, Nq, Nk) float64."""
    (rows, columns), (key_rows, key_columns) = mask.grid, mask.key_grid
    down, across = max(rows, key_rows), max(columns, key_columns)  # distances are in steps of the finer grid
    weights = []
    for head, y, x, to_y, to_x in itertools.product(*map(range, (mask.heads, *mask.grid, *mask.key_grid))):
        dy = (y + 0.5) * down / rows - (to_y + 0.5) * down / key_rows
        dx = (x + 0.5) * across / columns - (to_x + 0.5) * across / key_columns
        if name == "relbias":  # the table holds -(n - 1) to n - 1, row by row
            weights.append(values["table"][round((dy + rows - 1) * (2 * columns - 1) + dx + columns - 1)][head])
        else:
            weights.append(entry(name, values, mask.heads, head, dy, dx).double())
    return torch.stack(weights).view(mask.heads, rows * columns, key_rows * key_columns)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", SCALARS)
def test_value_and_gradients_are_those_of_the_formula(name, place, monkeypatch):
    if "key_grid" in place and name in ONE_GRID:
        with pytest.raises(ValueError, match="expected keys on the grid of the queries, 4 x 6, got 2 x 3"):
            MASKS[name](heads=3, **place)
        return
    mask = drawn(name, **place)
    values = {each: p.detach().double().requires_grad_() for each, p in mask.named_parameters()}
    expected = literal(name, mask, values)
    torch.testing.assert_close(mask.weight().expand(3, -1, -1).double(), expected, rtol=1e-5, atol=1e-5)

    (before, key_before), (n_q, n_k) = mask.prefix, expected.shape[1:]
    scores = torch.randn(2, 3, before + n_q, key_before + n_k)
    result, patches = mask(scores), scores[..., before:, key_before:].double()
    wanted = patches * expected if name == "temperature" else patches + expected
    torch.testing.assert_close(result[..., before:, key_before:].double(), wanted, rtol=1e-5, atol=1e-4)
    assert torch.equal(result[..., :before, :], scores[..., :before, :]), "rows of prefix tokens are not left alone"
    assert torch.equal(result[..., :key_before], scores[..., :key_before]), "nor columns"

    upstream = torch.randn_like(wanted)
    for on_gpu in (False, True) if values else ():
        monkeypatch.setattr(together, "on_gpu", lambda tensor, there=on_gpu: there)
        ours = torch.autograd.grad((mask(scores)[..., before:, key_before:] * upstream).sum(), list(mask.parameters()))
        theirs = torch.autograd.grad((wanted * upstream).sum(), list(values.values()), retain_graph=True)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ("gmb", "kerple", "relbias"))
def test_a_device_gives_what_the_cpu_gives(name, device):
    mask = drawn(name, grid=(3, 4), prefix=1)
    scores, upstream = torch.randn(2, 3, 13, 13), torch.randn(2, 3, 13, 13)
    there = copy.deepcopy(mask).to(device)
    for each, place in ((mask, "cpu"), (there, device)):
        (each(scores.to(place)) * upstream.to(place)).sum().backward()
    for one, other in zip(mask.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-4, atol=1e-4)


def test_one_kernel_of_a_positive_height_is_gab():
    mixture, gab = MASKS["gmb"]((3, 5), 2, kernels=1), MASKS["gab"]((3, 5), 2, share_heads=False)
    with torch.no_grad():
        gab.amplitude.copy_(torch.tensor([1.5, 2.0]))
        mixture.sigma.copy_(gab.sigma[None])
        mixture.alpha.copy_(gab.amplitude.square()[None])
    torch.testing.assert_close(mixture.weight(), gab.weight())


def test_relative_biases_are_those_of_timms_modules():
    table, mlp = drawn("relbias", grid=(3, 5)), drawn("relmlp", grid=(3, 5))
    theirs, other = RelPosBias((3, 5), 3), RelPosMlp((3, 5), 3).eval()
    theirs.relative_position_bias_table.data = table.table.data
    other.mlp.load_state_dict(mlp.mlp.state_dict())
    torch.testing.assert_close(table.weight()[None], theirs.get_bias())
    torch.testing.assert_close(mlp.weight()[None], other.get_bias())


@pytest.mark.parametrize("grid", ((1, 1), (3, 5), (4, 4)))
def test_sums_by_signed_offset_are_in_the_order_of_the_offsets(grid):
    torch.manual_seed(0)
    values, index = offsets(grid, signed=True)
    pairs = torch.randn(2, len(index), dtype=torch.float64)
    expected = torch.zeros(2, len(values), dtype=torch.float64).index_add_(1, index.long(), pairs)
    torch.testing.assert_close(by_offset(pairs, grid, signed=True), expected)
    assert values.tolist() == [[y, x] for y in range(1 - grid[0], grid[0]) for x in range(1 - grid[1], grid[1])]


def test_rounded_weights_do_not_round_distances():
    for name in ("alibi", "manhattan"):
        mask = MASKS[name]((20, 20), 3)
        before = mask.weight()
        assert torch.equal(mask.bfloat16().weight(), before)


# ---- starts ---------------------------------------------------------------------------------------------------------


def test_starts_are_those_that_the_pages_state():
    torch.manual_seed(0)
    gmb, kerple = MASKS["gmb"]((4, 4), 64, kernels=64), MASKS["kerple"]((4, 4), 2000)
    assert gmb.alpha.mean().item() == pytest.approx(1, abs=0.1) and gmb.alpha.std().item() == pytest.approx(1, abs=0.1)
    assert gmb.sigma.mean().item() == pytest.approx(3, abs=0.2) and gmb.sigma.std().item() == pytest.approx(2, abs=0.2)
    for learned, most in ((kerple.a, 2), (kerple.b, 1)):
        values = F.softplus(learned)
        assert (
            0.0099 < values.min() and values.max() < most and values.mean().item() == pytest.approx(most / 2, rel=0.1)
        )
    torch.testing.assert_close(MASKS["slope"]((4, 4), 4).weight(), MASKS["alibi"]((4, 4), 4).weight())
    assert MASKS["relbias"]((8, 8), 8).table.std().item() == pytest.approx(0.02, rel=0.1)
    assert MASKS["temperature"]((4, 4), 4).strength() == 0
    assert MASKS["temperature"]((4, 4), 4, init=(0, 0)).weight().abs().max() == 0
    assert MASKS["temperature"]((4, 4), 4000, init=(0, 4.7)).gain.std().item() == pytest.approx(4.7, rel=0.1)


@pytest.mark.parametrize("name", ("slope", "kerple"))
def test_a_neutral_start_takes_off_what_it_began_with(name):
    mask = MASKS[name]((3, 4), 3, **MASKS[name].neutral())
    plain = MASKS[name]((3, 4), 3)
    plain.load_state_dict({each: value for each, value in mask.state_dict().items() if each != "base"})
    first = plain.weight().detach()
    assert mask.strength() == 0
    with torch.no_grad():
        for each in (mask, plain):
            next(each.parameters()).add_(0.5)
    torch.testing.assert_close(mask.weight(), plain.weight() - first, rtol=1e-4, atol=1e-5)


# ---- models ---------------------------------------------------------------------------------------------------------

SMALL = {"img_size": 32, "num_classes": 5, "embed_dim": 24}
MODELS = {
    "vit": ("vit_tiny_patch16_224", {"patch_size": 8, "depth": 2, "num_heads": 3, "dynamic_img_size": True}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"window_size": 4, "patch_size": 2, "depths": (1, 2), "num_heads": (2, 3)},
    ),
    "deit3": ("deit3_small_patch16_224", {"patch_size": 8, "depth": 1, "num_heads": 3}),
    "cait": ("cait_xxs24_224", {"patch_size": 8, "depth": 1, "num_heads": 3}),
    "pit": ("pit_ti_224", {"patch_size": 8, "stride": 4, "base_dims": (12, 12), "depth": (1, 1), "heads": (2, 2)}),
}


@pytest.fixture(scope="module")
def models():
    """Small models with weights that let attention matter, by name."""
    made = {}
    for name, (timm_name, options) in MODELS.items():
        torch.manual_seed(0)
        size = {key: SMALL[key] for key in SMALL if (key, name) != ("embed_dim", "pit")}
        made[name] = redraw(timm.create_model(timm_name, **size | options), torch.randn(8, 3, 32, 32)).eval()
    return made


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


def backward(model, images):
    """The logits after a backward pass, all finite."""
    output = model(images)
    output.square().sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert output.isfinite().all() and all(each.isfinite().all() for each in gradients)
    model.zero_grad()
    return output.detach()


@pytest.mark.parametrize("kind", ("vit", "swin"))
@pytest.mark.parametrize("name", SCALARS)
def test_each_is_attached_learns_and_goes_again(name, kind, models):
    model, images = copy.deepcopy(models[kind]), torch.randn(2, 3, 32, 32)
    plain = logits(model, images)
    torch.manual_seed(1)
    sites = gmmvit.attach(model, name, **({"init": (1.0, 1.0)} if name == "temperature" else {}), start="paper")
    assert {site.start for site in sites} == {"paper" if name in NEUTRAL else "own"}
    assert (backward(model, images) - plain).abs().max() > 1e-4
    assert {each.rpartition(".")[2] for each in no_decay(model)} == SCALARS[name]
    other = copy.deepcopy(model)
    for site in other.spatial_sites:
        for parameter in site.mask.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    moved = logits(other, images)
    assert (moved - logits(model, images)).abs().max() > 1e-5 or not sites[0].parameters
    model.load_state_dict(other.state_dict())
    assert torch.equal(logits(model, images), moved)
    torch.testing.assert_close(logits(gmmvit.detach(model), images), plain)


@pytest.mark.parametrize("kind", ("deit3", "cait", "pit"))
def test_all_are_attached_and_their_gradients_are_finite(kind, models):
    images = torch.randn(2, 3, 32, 32)
    for names in (list(SCALARS)[:3], list(SCALARS)[3:6], list(SCALARS)[6:]):  # three on one product
        model = copy.deepcopy(models[kind])
        for name in names:
            gmmvit.attach(model, name, start="paper")
        backward(model.train(), images)


@pytest.mark.parametrize("kind", ("vit", "swin"))
@pytest.mark.parametrize("name", NEUTRAL)
def test_a_neutral_start_leaves_a_model_as_it_is_and_can_learn(name, kind, models):
    model, images = copy.deepcopy(models[kind]), torch.randn(2, 3, 32, 32)
    plain = logits(model, images)
    sites = gmmvit.attach(model, name)
    assert {site.start for site in sites} == {"neutral"} and max(site.strength for site in sites) == 0
    torch.testing.assert_close(logits(model, images), plain, rtol=1e-4, atol=1e-5)
    useful, learned = (
        set(),
        {f"{s.name} {n}": p for s in sites if s.reaches_output for n, p in s.mask.named_parameters()},
    )
    for _ in range(2):  # a width has a gradient as soon as its Gaussian has a height
        total = model(images).square().mean() + model.forward_features(images).square().mean()
        for each, gradient in zip(learned, torch.autograd.grad(total, list(learned.values())), strict=True):
            if gradient.any():
                useful.add(each)
                learned[each].data.sub_(1e-2 * gradient.sign())
    assert useful == set(learned)


@pytest.mark.parametrize("name", ("gmb", "temperature"))
def test_a_model_on_a_device_gives_what_the_cpu_gives(name, models, device):
    model, images = copy.deepcopy(models["vit"]), torch.randn(2, 3, 32, 32)
    torch.manual_seed(1)
    for site in gmmvit.attach(model, name, start="paper"):
        for parameter in site.mask.parameters():
            torch.nn.init.normal_(parameter, 1, 0.5)
    other = copy.deepcopy(model).to(device)
    expected, found = backward(model, images), backward(other, images.to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_no_patch_attends_to_itself_and_mixed_heads_stay_finite(models):
    model = copy.deepcopy(models["vit"])
    gmmvit.attach(model, "diagonal")
    with gmmvit.attention_maps(model) as maps:
        model(torch.randn(2, 3, 32, 32))
    patches = maps["blocks.0.attn"][..., 1:, 1:]
    assert patches.diagonal(dim1=-2, dim2=-1).max() == 0 and patches.sum(-1).min() > 0
    mixed = copy.deepcopy(models["cait"]).half()
    gmmvit.attach(mixed, "diagonal")
    assert logits(mixed, torch.randn(2, 3, 32, 32).half()).isfinite().all()


# ---- other image sizes, folding, refusals ---------------------------------------------------------------------------


def test_another_image_size(models):
    """Formulas are those of the new grid, the table is timm's interpolation, while learning and after `regrid`."""
    for name in SCALARS:
        model, images = copy.deepcopy(models["vit"]), torch.randn(1, 3, 48, 40)  # 6 x 5 patches
        sites = gmmvit.attach(model, name, start="paper")
        mask = sites[0].mask
        fresh = MASKS[name]((6, 5), 3, prefix=1)
        state = mask.state_dict()
        if name == "relbias":
            state["table"] = resize_rel_pos_bias_table(state["table"], (6, 5), (99, 3), old_window_size=(4, 4))
        fresh.load_state_dict(state)
        torch.testing.assert_close(backward(model, images), logits(model, images), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mask.met((48, 40)).weight(), fresh.weight(), rtol=1e-5, atol=1e-5)
        expected = logits(model, images)
        gmmvit.regrid(model, (48, 40))
        assert mask.grid == (6, 5) and torch.equal(logits(model, images), expected)
        if name == "relbias":
            assert mask.table.shape == (99, 3) and mask.table.is_leaf and mask.table.requires_grad


def test_a_table_learned_on_another_square_is_taken():
    large, small = drawn("relbias", grid=(6, 6)), MASKS["relbias"]((4, 4), 3)
    small.load_state_dict(large.state_dict())
    expected = resize_rel_pos_bias_table(large.table.detach(), (4, 4), (49, 3))
    torch.testing.assert_close(small.table.detach(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="size mismatch"):
        small.load_state_dict({"table": torch.zeros(50, 3)})


@pytest.mark.parametrize("kind", ("mlp", "bias"))
def test_every_bias_of_relative_positions_folds(kind):
    torch.manual_seed(0)
    small = dict(img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3, num_classes=5, rel_pos_type=kind)
    images = torch.randn(2, 3, 32, 32)
    plain = redraw(VisionTransformerRelPos(**small), images).eval()
    for name in ("gmb", "alibi", "slope", "manhattan", "kerple", "relbias", "relmlp", "diagonal"):
        model = copy.deepcopy(plain)
        gmmvit.attach(model, name, start="paper", img_size=32)
        expected = logits(model, images)
        torch.testing.assert_close(logits(gmmvit.fold(model), images), expected, rtol=1e-4, atol=1e-4)
        assert not gmmvit.masks_of(model)
    gmmvit.attach(plain, "temperature", img_size=32)
    with pytest.raises(ValueError, match="a Temperature cannot be folded: expected a bias of relative positions"):
        gmmvit.fold(plain)


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("temperature", {"init": 1.0}, "init: expected \\(mean, standard deviation\\), got 1.0"),
        ("temperature", {"init": (1, -1)}, "init: expected a standard deviation of at least 0"),
        ("relbias", {"std": -0.1}, "std: expected a standard deviation of at least 0, got -0.1"),
        ("relmlp", {"init": "much"}, "init: expected a finite number"),
        ("slope", {"base": math.nan}, "base: expected a finite number"),
        ("gmb", {"kernels": 0}, "kernels: expected a whole number of at least 1"),
    ],
)
def test_what_an_option_cannot_be_is_said_in_a_sentence(name, options, words):
    with pytest.raises(ValueError, match=words):
        MASKS[name]((2, 2), 1, **options)


def test_what_learns_nothing_has_no_neutral_start(models):
    with pytest.raises(ValueError, match="the mask 'alibi' has no neutral start"):
        gmmvit.attach(copy.deepcopy(models["vit"]), "alibi", start="neutral")
