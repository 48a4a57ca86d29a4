"""The picture of README's first screen: what each mask does to the scores of one query.

python docs/pictures.py          # writes docs/images/masks.png
"""

from pathlib import Path

import torch
from matplotlib import style
from matplotlib.figure import Figure

import gmmvit

SIDE = 14
N = SIDE * SIDE
GRID, CENTRE = (SIDE, SIDE), N // 2 + SIDE // 2
OUT = Path(__file__).parent / "images" / "masks.png"
COLUMNS = {
    "no mask": "softmax(S)",
    "GMM: a mixture of Gaussians\nmultiplies the scores": "softmax(M ⊙ S)",
    "ELM: a free weight\nmultiplies each score": "softmax(M ⊙ S)",
    "GAB: a Gaussian\nis added to the scores": "softmax(S + B)",
}


def gaussian_mixture() -> torch.nn.Module:
    """A narrow negative Gaussian in a wide positive one: a patch looks around itself and not at itself."""
    mask = gmmvit.GaussianMixtureMask(GRID, heads=1, kernels=2)
    mask.sigma.data = torch.tensor([[0.8], [3.0]])  # (kernels, heads)
    mask.alpha.data = torch.tensor([[-1.5], [2.0]])
    return mask


def element_wise() -> torch.nn.Module:
    """Row and column of the query, which no function of the distance can be."""
    mask = gmmvit.ElementMask(GRID, heads=1)
    y, x = torch.arange(N) // SIDE, torch.arange(N) % SIDE
    across = ((y[:, None] - y).abs() <= 1) | ((x[:, None] - x).abs() <= 1)  # (N, N)
    (weights,) = mask.parameters()
    weights.data = across.float().expand_as(weights).clone()
    return mask


def gaussian_bias() -> torch.nn.Module:
    """One Gaussian, 4 high and 2.5 patches wide."""
    mask = gmmvit.GaussianBias(GRID, heads=1)
    mask.amplitude.data.fill_(2.0)
    mask.sigma.data.fill_(2.5)
    return mask


@torch.no_grad()
def draw() -> Figure:
    """Above, the weight of every key for the query in the centre; below, the attention that comes of it."""
    torch.manual_seed(1)
    scores = 2 + 0.7 * torch.randn(1, 1, N, N)  # made up: contents that know nothing of places
    masks = [torch.nn.Identity(), gaussian_mixture(), element_wise(), gaussian_bias()]
    figure = Figure(figsize=(7.2, 3.9), dpi=160, layout="constrained")
    axes = figure.subplots(2, 4)
    for column, (mask, (title, formula)) in enumerate(zip(masks, COLUMNS.items(), strict=True)):
        upper, lower = axes[:, column]
        upper.set_title(title, fontsize=8)
        attention = mask(scores)[0, 0, CENTRE].softmax(-1).reshape(GRID)
        if column:
            weight = mask.weight()[0, CENTRE].reshape(GRID)
            reach = float(weight.abs().max())
            upper.imshow(weight, cmap="RdBu_r", vmin=-reach, vmax=reach)
        else:
            upper.imshow(scores[0, 0, CENTRE].reshape(GRID), cmap="gray")
        lower.imshow(attention, cmap="viridis", vmin=0)
        lower.set_xlabel(formula, fontsize=8)
    axes[0, 0].set_ylabel("scores S (left) and weights\nof the centre patch", fontsize=8)
    axes[1, 0].set_ylabel("its attention", fontsize=8)
    for each in axes.flat:
        each.set(xticks=[], yticks=[])
    return figure


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    with style.context("default"):
        draw().savefig(OUT)
