"""Masks against a literal transcription of their formulas: plain loops in float64, differentiated by hand."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn as nn

import gmmvit
from gmmvit.core.masks import ElementMask, GaussianBias, GaussianMixtureMask, no_decay

KINDS = {
    "gmm": (GaussianMixtureMask, {"kernels": 3, "sigma_init": (2.0, 1.5)}),
    "elm": (ElementMask, {}),
    "gab": (GaussianBias, {}),
}
PLACES = [
    {"grid": (4, 4)},
    {"grid": (3, 5), "prefix": 1},
    {"grid": (5, 2), "prefix": (2, 1)},
    {"grid": (4, 6), "key_grid": (2, 3)},
    {"grid": (4, 2), "key_grid": (2, 4), "prefix": 1},
]


def build(kind, share_heads, **place):
    """A mask of two heads with random parameters."""
    torch.manual_seed(0)
    make, options = KINDS[kind]
    mask = make(heads=2, share_heads=share_heads, **place, **options)
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.copy_(1 + torch.rand_like(parameter) if kind == "gab" else torch.randn_like(parameter))
        if kind == "gmm":
            mask.sigma[0] = -2.5  # its sign does not matter
    return mask


def squared_distance(i, j, grid, key_grid):
    """Between the centres of query patch i and key patch j, in steps of the finer grid."""
    total = 0.0
    for axis, (a, b) in enumerate(((i // grid[1], j // key_grid[1]), (i % grid[1], j % key_grid[1]))):
        n, m = grid[axis], key_grid[axis]
        steps = max(n, m)
        total += ((a + 0.5) * steps / n - (b + 0.5) * steps / m) ** 2
    return total


def entry(kind, values, d2, place):
    """One weight, and its derivatives by the parameters' entries {(name, index): value}."""
    head, i, j = place
    if kind == "elm":
        return values["element"][head][i][j], {("element", (head, i, j)): 1.0}
    if kind == "gab":
        amplitude, sigma = values["amplitude"][head], values["sigma"][head]
        gaussian = math.exp(-d2 / (2 * sigma**2))
        return amplitude**2 * gaussian, {
            ("amplitude", (head,)): 2 * amplitude * gaussian,
            ("sigma", (head,)): amplitude**2 * gaussian * d2 / sigma**3,
        }
    weight, slopes = 0.0, {}
    for k in range(len(values["sigma"])):
        sigma, alpha = values["sigma"][k][head], values["alpha"][k][head]
        gaussian = math.exp(-d2 / (2 * (sigma**2 + 1e-5)))
        weight += alpha * gaussian
        slopes["alpha", (k, head)] = gaussian
        slopes["sigma", (k, head)] = alpha * gaussian * d2 * sigma / (sigma**2 + 1e-5) ** 2
    return weight, slopes


def by_hand(kind, mask, upstream):
    """The mask (heads, Nq, Nk), and the gradients of sum(upstream * mask) by every parameter."""
    values = {name: parameter.tolist() for name, parameter in mask.named_parameters()}
    gradients = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in mask.named_parameters()}
    weight = torch.zeros(upstream.shape, dtype=torch.float64)
    heads, n_q, n_k = upstream.shape
    for h, i, j in itertools.product(range(heads), range(n_q), range(n_k)):
        d2 = squared_distance(i, j, mask.grid, mask.key_grid)
        weight[h, i, j], slopes = entry(kind, values, d2, (0 if mask.share_heads else h, i, j))
        for (name, index), slope in slopes.items():
            gradients[name][index] += upstream[h, i, j].item() * slope
    return weight, gradients


@pytest.mark.parametrize("share_heads", [False, True], ids=["per head", "shared"])
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradients_are_those_of_the_formula(kind, place, share_heads, device):
    mask = build(kind, share_heads, **place).to(device)
    (n_q, n_k), (p_q, p_k) = (math.prod(mask.grid), math.prod(mask.key_grid)), mask.prefix
    scores = torch.randn(3, 2, p_q + n_q, p_k + n_k, device=device)
    upstream = torch.randn_like(scores)
    inner = upstream[..., p_q:, p_k:].double()
    weight, gradients = by_hand(
        kind, mask, (inner if mask.additive else inner * scores[..., p_q:, p_k:].double()).sum(0).cpu()
    )

    assert mask.weight().shape == (1 if share_heads else 2, n_q, n_k)
    torch.testing.assert_close(mask.weight().expand(2, -1, -1).double().cpu(), weight, rtol=1e-5, atol=1e-6)
    result = mask(scores)
    expected = scores.double().cpu()
    expected[..., p_q:, p_k:] = (torch.add if kind == "gab" else torch.mul)(expected[..., p_q:, p_k:], weight)
    torch.testing.assert_close(result.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(result[..., :p_q, :], scores[..., :p_q, :]), "rows of prefix tokens are not left alone"
    assert torch.equal(result[..., :p_k], scores[..., :p_k]), "columns of prefix tokens are not left alone"

    (result * upstream).sum().backward()
    for name, parameter in mask.named_parameters():
        assert gradients[name].abs().max() > 0.1
        torch.testing.assert_close(parameter.grad.double().cpu(), gradients[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_it_is_given_are_left_alone(kind):
    scores = torch.randn(1, 2, 6, 6, requires_grad=True)
    before = scores.detach().clone()
    build(kind, share_heads=False, grid=(2, 3))(scores)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("kind", KINDS)
def test_leading_dimensions_are_free(kind):
    mask = build(kind, share_heads=False, grid=(2, 3))
    scores = torch.randn(2, 5, 2, 6, 6)
    expected = torch.stack([mask(scores[:, i]) for i in range(5)], 1)
    assert torch.equal(mask(scores), expected)
    assert torch.equal(mask(scores[0, 0]), expected[0, 0])


def test_tokens_in_another_order():
    mask = build("gmm", share_heads=False, grid=(2, 3), key_grid=(1, 3), prefix=1)
    scores = torch.randn(2, 2, 7, 4)
    rows, columns = torch.tensor([3, 0, 5, 1, 4, 2]), torch.tensor([2, 0, 1])
    at_rows, at_columns = torch.cat([torch.zeros(1).long(), 1 + rows]), torch.cat([torch.zeros(1).long(), 1 + columns])
    expected = mask(scores)[:, :, at_rows][..., at_columns]
    mask.arrange(rows, columns)
    assert torch.equal(mask(scores[:, :, at_rows][..., at_columns]), expected)


def test_a_sigma_of_zero_keeps_the_diagonal():
    mask = GaussianMixtureMask((3, 3), 1, kernels=1, sigma_init=(0.0, 0.0), alpha_init=(2.0, 0.0))
    torch.testing.assert_close(mask.weight()[0], 2 * torch.eye(9))
    mask.weight().sum().backward()
    assert mask.sigma.grad.isfinite().all()


# ---- precision ------------------------------------------------------------------------------------------------------

CORNER = math.exp(-2 * 31**2 / (2 * (10.0**2 + 1e-5)))  # of a 32 x 32 grid with sigma 10


def unit_mixture():
    return GaussianMixtureMask((32, 32), 1, kernels=1, sigma_init=(10.0, 0.0), alpha_init=(1.0, 0.0))


def test_far_corners_of_a_large_grid_do_not_underflow(device):
    corner = unit_mixture().to(device).weight()[0, 0, -1].item()
    assert corner == pytest.approx(CORNER, rel=1e-6)
    exponent_first = torch.exp(torch.tensor(-2.0 * 31**2)) ** (1 / (2 * (10.0**2 + 1e-5)))
    assert exponent_first == 0, "what the public code computes"
    bias = GaussianBias((32, 32), 1, amplitude=1.0, sigma=10.0).to(device)
    assert bias.weight()[0, 0, -1].item() == pytest.approx(math.exp(-2 * 31**2 / 200), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_keep_their_dtype(kind, dtype):
    mask = build(kind, share_heads=False, grid=(3, 4), prefix=1)
    scores = torch.randn(2, 2, 13, 13)
    masked = mask(scores.to(dtype))
    assert masked.dtype == dtype
    torch.testing.assert_close(masked.float(), mask(scores), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_distances_stay_exact_in_a_model_of_another_dtype(dtype):
    """bfloat16 would round a squared distance of 1922 to 1920 and 961 to 960, and the mixture by 2 %."""
    exact, mask = unit_mixture().weight(), nn.Sequential(unit_mixture()).to(dtype)[0]
    assert mask.sigma.dtype == mask.alpha.dtype == dtype
    resolution = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    torch.testing.assert_close(mask.weight().float(), exact, rtol=2 * resolution, atol=0)
    assert mask(torch.ones(1, 1024, 1024, dtype=dtype)).dtype == dtype


def test_a_mixture_stays_exact_under_autocast(device):
    mask = unit_mixture().to(device)
    with torch.autocast(device.type, torch.bfloat16):
        assert mask.weight()[0, 0, -1].item() == pytest.approx(CORNER, rel=1e-6)


# ---- parameters, copies, states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (lambda: GaussianMixtureMask((4, 5), 3), 2 * 5 * 3),
        (lambda: GaussianMixtureMask((4, 5), 3, kernels=2, share_heads=True), 2 * 2),
        (lambda: ElementMask((4, 5), 3), 20 * 20),
        (lambda: ElementMask((4, 5), 3, prefix=2, key_grid=(2, 5), share_heads=False), 3 * 20 * 10),
        (lambda: GaussianBias((4, 5), 3), 2),
        (lambda: GaussianBias((4, 5), 3, share_heads=False), 2 * 3),
    ],
)
def test_number_of_parameters(mask, count):
    assert sum(p.numel() for p in mask().parameters()) == count


def test_initial_values():
    torch.manual_seed(0)
    mask = GaussianMixtureMask((1, 1), 400, kernels=100)  # 40,000 draws: standard errors of 0.05 and 0.01
    assert mask.sigma.mean().item() == pytest.approx(10, abs=0.25) and mask.sigma.std().item() == pytest.approx(
        10, 0.02
    )
    assert mask.alpha.mean().item() == pytest.approx(0, abs=0.05) and mask.alpha.std().item() == pytest.approx(2, 0.02)
    mask = GaussianMixtureMask((1, 1), 400, kernels=100, sigma_init=(3.0, 0.5), alpha_init=(1.0, 0.0))
    assert mask.sigma.mean().item() == pytest.approx(3, abs=0.02) and mask.sigma.std().item() == pytest.approx(
        0.5, 0.02
    )
    assert (mask.alpha == 1).all()
    assert (ElementMask((2, 2), 1).element == 0).all() and (ElementMask((2, 2), 1, init=1.0).element == 1).all()
    bias = GaussianBias((2, 2), 1)
    assert (bias.amplitude.item(), bias.sigma.item()) == (2, 5)


@pytest.mark.parametrize(
    ("kind", "names"), [("gmm", ["alpha", "sigma"]), ("elm", ["element"]), ("gab", ["amplitude", "sigma"])]
)
def test_copies_and_states(kind, names):
    mask = build(kind, share_heads=False, grid=(2, 3), prefix=1)
    scores = torch.randn(1, 2, 7, 7)
    expected = mask(scores)
    assert sorted(mask.state_dict()) == names, "constants are in the state"
    fresh = KINDS[kind][0]((2, 3), 2, prefix=1, share_heads=False, **KINDS[kind][1])
    fresh.load_state_dict(mask.state_dict())
    assert torch.equal(fresh(scores), expected)
    twin = copy.deepcopy(mask)
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert torch.equal(mask(scores), expected) and not torch.equal(twin(scores), expected)


def test_masks_built_in_inference_mode_do_not_spoil_later_ones():
    with torch.inference_mode():
        GaussianMixtureMask((5, 13), 1)
    mask = GaussianMixtureMask((5, 13), 1)
    mask.weight().sum().backward()
    assert mask.sigma.grad is not None


def test_no_decay_names_the_scalars():
    model = nn.ModuleDict({kind: build(kind, False, grid=(2, 2)) for kind in KINDS} | {"other": nn.Linear(2, 2)})
    assert no_decay(model) == {"gmm.sigma", "gmm.alpha", "gab.amplitude", "gab.sigma"}
    assert no_decay(model["gmm"]) == {"sigma", "alpha"}


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (
            lambda: GaussianMixtureMask((4, 6), 3, prefix=1, key_grid=(2, 3)),
            "GaussianMixtureMask(grid 4 x 6, key grid 2 x 3, prefix 1, heads=3, kernels=5)",
        ),
        (
            lambda: GaussianMixtureMask((8, 8), 12, 3, where="probabilities"),
            "GaussianMixtureMask(grid 8 x 8, heads=12, kernels=3, where=probabilities)",
        ),
        (lambda: ElementMask((4, 4), 3, prefix=(1, 2)), "ElementMask(grid 4 x 4, prefix (1, 2), heads=3 (shared))"),
        (lambda: GaussianBias((4, 4), 2, share_heads=False), "GaussianBias(grid 4 x 4, heads=2)"),
    ],
)
def test_masks_print_what_they_are(mask, text):
    assert repr(mask()) == text


# ---- sentences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GaussianMixtureMask(8, 1), "grid: expected two whole numbers of at least 1 .*got 8"),
        (lambda: GaussianMixtureMask((0, 8), 1), r"grid: expected .*got \(0, 8\)"),
        (lambda: GaussianMixtureMask((8.0, 8), 1), r"grid: expected .*got \(8.0, 8\)"),
        (lambda: ElementMask((8, 8), 1, key_grid=(4,)), r"key_grid: expected .*got \(4,\)"),
        (lambda: ElementMask((8, 8), 1, prefix=-1), r"prefix: expected .*at least 0 .*got \(-1, -1\)"),
        (lambda: ElementMask((8, 8), 1, prefix="one"), "prefix: expected .*got 'one'"),
        (lambda: GaussianBias((8, 8), 0), "heads: expected a whole number of at least 1, got 0"),
        (lambda: GaussianBias((8, 8), 2.0), "heads: expected a whole number of at least 1, got 2.0"),
        (lambda: GaussianBias((8, 8), 1, sigma=0), "sigma: expected a width above 0, got 0"),
        (lambda: GaussianBias((8, 8), 1, sigma=-1.0), "sigma: expected a width above 0, got -1.0"),
        (lambda: GaussianMixtureMask((8, 8), 1, kernels=0), "kernels: expected .*at least 1 .*got 0"),
        (lambda: GaussianMixtureMask((8, 8), 1, sigma_init=10.0), r"sigma_init: expected \(mean, sta.*, got 10.0"),
        (lambda: GaussianMixtureMask((8, 8), 1, alpha_init=(0, -1)), r"alpha_init: expected .*, got \(0, -1\)"),
        (
            lambda: GaussianMixtureMask((8, 8), 1, where="probability"),
            "'probability': the nearest is 'probabilities'; expected one of probabilities, scores",
        ),
    ],
)
def test_options_that_do_not_fit(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        make()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_that_do_not_fit(kind):
    mask = build(kind, share_heads=False, grid=(2, 3), prefix=1)
    for shape in ((1, 2, 6, 6), (1, 2, 7, 6), (1, 2, 10, 10), (7, 7)):
        with pytest.raises(ValueError, match=r"7 x 7 scores \(grid 2 x 3, prefix 1\) and got .*") as caught:
            mask(torch.zeros(shape))
        assert str(shape) in str(caught.value)
    with pytest.raises(ValueError, match=r"has 2 heads and got scores of 3: \(1, 3, 7, 7\)"):
        mask(torch.zeros(1, 3, 7, 7))


# ---- the public code's float32 underflow -----------------------------------------------------------------------------


class Literal(nn.Module):
    """The public code's mixture written down as it stands there: exp(-d2) in float32, its root, its power."""

    def __init__(self, side, sigma, alpha, prefix=0):
        super().__init__()
        self.sigma, self.alpha, self.prefix = nn.Parameter(sigma), nn.Parameter(alpha), prefix  # (K, heads)
        rows, columns = torch.arange(side**2) // side, torch.arange(side**2) % side
        d2 = (rows[:, None] - rows) ** 2 + (columns[:, None] - columns) ** 2
        self.base = torch.exp(-d2.float()) ** 0.5  # (N, N)

    def weight(self):
        power = 1 / (self.sigma.float()[..., None, None] ** 2 + 1e-5)
        return (self.alpha.float()[..., None, None] * self.base**power).sum(0)  # (heads, N, N)

    def forward(self, scores):
        scores = scores.clone()
        scores[..., self.prefix :, self.prefix :] *= self.weight().to(scores.dtype)
        return scores


@pytest.mark.parametrize("side, zeros", [(8, 0.0), (16, 0.333), (32, 0.763)])
def test_underflow_is_that_of_the_public_code(side, zeros):
    torch.manual_seed(0)
    mask = GaussianMixtureMask((side, side), 3, kernels=4, underflow=True)
    with torch.no_grad():
        mask.sigma.view(-1)[:2] = torch.tensor([0.3, -1.0])  # narrow ones too
    literal = Literal(side, mask.sigma.detach().clone(), mask.alpha.detach().clone())
    weight, expected = mask.weight(), literal.weight()
    assert ((weight == 0).all(0)).double().mean().item() == pytest.approx(zeros, abs=1e-3)
    assert torch.equal(weight == 0, expected == 0)
    assert (weight - expected).abs().max() <= 1e-6 * expected.abs().max()
    upstream = torch.rand_like(expected)  # of one sign: else a million terms cancel, and their rounding is left
    (weight * upstream).sum().backward()
    (expected * upstream).sum().backward()
    for name in ("sigma", "alpha"):
        ours, theirs = getattr(mask, name).grad, getattr(literal, name).grad
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max(), name
    exact = GaussianMixtureMask((side, side), 3, kernels=4)
    exact.load_state_dict(mask.state_dict())
    assert ((exact.weight() - expected).abs().max() > 0.1) == (side > 8)


def test_underflow_keeps_the_inexact_end_of_float32():
    """From d2 = 87.3 to 103.9 float32 has few bits left for exp(-d2), and powers of it are off."""
    ones = {"kernels": 1, "sigma_init": (3.0, 0.0), "alpha_init": (1.0, 0.0)}
    mask, exact = (GaussianMixtureMask((11, 11), 1, underflow=flag, **ones) for flag in (True, False))
    literal = Literal(11, mask.sigma.detach(), mask.alpha.detach())
    first = [each.weight()[0, 0].detach().double() for each in (mask, literal, exact)]  # of the token in a corner
    torch.testing.assert_close(first[0], first[1], rtol=2e-6, atol=0)
    off = (first[0] / first[2] - 1).abs().view(11, 11)
    assert off[1, 10] > 1e-3 and off[2, 10] == 1 and off[0, 9] < 1e-5  # d2 = 101, 104 and 81


@pytest.mark.parametrize(
    "name, size", [("pit", 32), ("pit", 64), ("t2t", 32), pytest.param("t2t", 64, marks=pytest.mark.slow)]
)
def test_underflow_in_a_model_is_the_public_mask_in_that_model(name, size):
    torch.manual_seed(0)
    models = [gmmvit.create_model(name, size, mask="gmm", underflow=flag).eval() for flag in (True, False)]
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    models[1].load_state_dict(models[0].state_dict())
    masks = iter(gmmvit.masks_of(models[0]).values())

    def literal(grid, heads, prefix, key_grid):
        mask = next(masks)
        assert (mask.grid, mask.heads, mask.prefix) == (grid, heads, (prefix, prefix))
        return Literal(grid[0], mask.sigma.detach().clone(), mask.alpha.detach().clone(), prefix)

    public = gmmvit.create_model(name, size).eval()
    public.load_state_dict(models[0].state_dict(), strict=False)
    gmmvit.attach(public, literal, img_size=size)
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        ours, exact, expected = (model.double()(images) for model in (*models, public))
    scale = expected.abs().max()
    assert (ours - expected).abs().max() <= 1e-6 * scale
    assert (exact - expected).abs().max() > 1e-4 * scale
