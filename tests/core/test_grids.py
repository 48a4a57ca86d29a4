"""Token grids against plain loops over rows and columns."""

import math

import pytest
import timm
import torch

from gmmvit.core.grids import grid_of, layout, patch_centres, squared_distances, unrolled_order

GRIDS = [((8, 8), None), ((3, 5), None), ((1, 4), None), ((4, 6), (2, 3)), ((4, 2), (2, 4)), ((6, 6), (1, 1))]


def centres(grid, cells):
    """Row-major centres of the patches, in cells."""
    return [
        ((i + 0.5) * cells[0] / grid[0], (j + 0.5) * cells[1] / grid[1]) for i in range(grid[0]) for j in range(grid[1])
    ]


def test_patch_centres():
    assert patch_centres((2, 3)).tolist() == [[i + 0.5, j + 0.5] for i in range(2) for j in range(3)]
    assert patch_centres((2, 3), (4, 3)).tolist() == [[2 * i + 1, j + 0.5] for i in range(2) for j in range(3)]
    assert patch_centres((2, 3), (4, 3)).dtype == torch.float64


@pytest.mark.parametrize(("grid", "key_grid"), GRIDS)
def test_squared_distances_are_those_between_patch_centres_in_steps_of_the_finer_grid(grid, key_grid):
    values, index = squared_distances(grid, key_grid)
    keys = key_grid or grid
    finer = max(grid[0], keys[0]), max(grid[1], keys[1])
    expected = [math.dist(q, k) ** 2 for q in centres(grid, finer) for k in centres(keys, finer)]
    torch.testing.assert_close(values[index], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert index.dtype == torch.int32 and values.dtype == torch.float64
    assert (values.diff() > 0).all() and set(index.tolist()) == set(range(len(values)))


def test_distances_of_one_grid_are_exact_and_few():
    """An 8 x 8 grid has 34 distinct distances between its 4,096 pairs; a 32 x 32 grid reaches 2 * 31^2."""
    values, index = squared_distances((8, 8))
    assert (len(values), len(index)) == (34, 4096)
    assert values.tolist() == sorted({float(y * y + x * x) for y in range(8) for x in range(8)})
    assert squared_distances((32, 32)).values[-1] == 2 * 31**2


def test_pooled_keys_stand_in_the_middle_of_their_patches():
    """Keys pooled 2 x 2 lie half a step from the four queries that they cover."""
    values, index = squared_distances((4, 4), (2, 2))
    d2 = values[index].view(4, 4, 2, 2)
    assert d2[:2, :2, 0, 0].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert d2[0, 0, 1, 1] == 2 * 2.5**2


def test_distances_made_in_inference_mode_serve_training_later():
    with torch.inference_mode():
        first = squared_distances((13, 7))
    assert not first.values.is_inference() and not first.index.is_inference()


def test_grid_of_a_token_count():
    for aspect in (1.0, 2.0, 0.5, 4 / 3, 224 / 320):
        for tokens in range(1, 600):
            rows = [r for r in range(1, tokens + 1) if tokens % r == 0 and math.isclose(r * r, tokens * aspect)]
            expected = (rows[0], tokens // rows[0]) if rows else None
            assert grid_of(tokens, aspect) == expected, (tokens, aspect)


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_tokens_have_no_grid(tokens):
    assert grid_of(tokens) is None


@pytest.mark.parametrize(("grid", "base"), [((16, 16), (4, 4)), ((16, 8), (4, 2)), ((4, 4), (4, 4)), ((2, 2), (1, 1))])
def test_unrolled_order_of_hiera(grid, base):
    """The order in which timm's Unroll leaves tokens that carry their own row-major position."""
    stages = round(math.log2(grid[0] / base[0]))
    unroll = timm.models.hiera.Unroll(grid, (1, 1), [(2, 2)] * stages)
    positions = torch.arange(grid[0] * grid[1], dtype=torch.float32).view(1, -1, 1)
    assert unrolled_order(grid, base).tolist() == unroll(positions).flatten().tolist()


@pytest.mark.parametrize(
    ("options", "tokens", "image", "expected"),
    [
        ({}, 17, None, ((4, 4), 1)),
        ({"class_token": False, "global_pool": "avg"}, 16, None, ((4, 4), 0)),
        ({"reg_tokens": 4}, 21, None, ((4, 4), 5)),
        ({"img_size": (32, 128)}, 17, None, ((2, 8), 1)),  # not 4 x 4
        ({"img_size": (40, 64), "patch_size": (8, 16)}, 21, None, ((5, 4), 1)),  # patches that are no squares
        ({"dynamic_img_size": True}, 9, (32, 64), ((2, 4), 1)),  # of another image than it was built for
        ({}, 18, None, ((4, 4), 2)),  # a distillation token that the model does not count
        ({}, 23, None, None),
    ],
)
def test_layout_of_a_models_tokens(options, tokens, image, expected):
    model = timm.create_model("vit_tiny_patch16_224", **{"img_size": 64, "depth": 1} | options)
    assert layout(model, tokens, image) == expected


def test_layout_of_windows_and_of_what_is_left_of_an_image_for_them():
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=(224, 448), embed_dim=24)
    layer = model.layers[0].blocks[0].attn
    assert layout(model, 49, (224, 448), layer) == ((7, 7), 0)
    assert layout(model, 16, (224, 448), torch.nn.Identity()) == ((4, 4), 0)
    assert layout(model, 16, (224, 448)) is None, "without a layer the tokens are the image's"
