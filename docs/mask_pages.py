"""The pages of the masks, one for each that is registered: docs/gmm.md, docs/elm.md, docs/gab.md, and their pictures.

python docs/mask_pages.py        # writes docs/NAME.md and docs/images/NAME.png from gmmvit.MASKS and reports/
"""

import inspect
import json
import re
from pathlib import Path

import torch
from matplotlib import style
from matplotlib.figure import Figure

import gmmvit
from gmmvit.core.masks import options_of
from gmmvit.train.learned import read
from gmmvit.train.rows import Row
from gmmvit.train.start import model_of

ROOT = Path(__file__).parents[1]
RUN, BENCH = "reports/cpu/runs/cpu-cifar10-vit-{}-s0", "reports/bench/masks.json"
LAYERS = (0, 2, 4, 8)
TITLES = {"gmm": "Gaussian mixture mask", "elm": "Element-wise mask", "gab": "Gaussian attention bias"}
SEEN = {
    "gmm": "Each layer and head draws its Gaussians anew: most masks begin as a wide hill or hollow of a few\n"
    "times the scores, which is what spoils a trained model, and five epochs change them little.",
    "elm": "Every weight begins at 0, where the attention is uniform; after five epochs the weights are small, and\n"
    "of no form that an eye would see.",
    "gab": "Every layer begins with one Gaussian, 4 high, and makes it a little higher in five epochs.",
}
NEEDS = {
    "gmm": "Any spatial self-attention that `attach` finds. Its weights are a function of the distance of two patches.",
    "elm": "Any spatial self-attention that `attach` finds. Its weights are as many as pairs of patches.",
    "gab": "Any spatial self-attention that `attach` finds; to be folded away, a position bias of the layer's own\n"
    "(Swin's table, timm's RelPosBias or RelPosMlp).",
}


def page(name: str) -> str:
    """The page of a mask, from its class, its record and the texts above."""
    kind = gmmvit.MASKS[name]
    formula, rest = re.match(r"(.*?), (\w+ \w+ \w+ \w+)", inspect.getdoc(kind)).groups()
    arxiv = re.search(r"arXiv ([\d.]+)", kind.__doc__)[1]
    record = json.loads((ROOT / BENCH).read_text())
    nothing = "B = 0" if kind.additive else "M = 1"
    machine = f"{record['processor']}, {record['threads']} threads, batch {record['batch']}"
    per_layer = sum(p.numel() for p in kind((14, 14), heads=3).parameters())
    listed = [f"| `{option}` | `{default!r}` | {words} |" for option, (default, words) in options_of(name).items()]
    return f"""# {TITLES[name]}: `{name}`

<!-- written by docs/mask_pages.py -->

`{formula}`, {rest}; from arXiv [{arxiv}](https://arxiv.org/abs/{arxiv}). [All masks beside each other](masks.md).

```python
import timm
import gmmvit

model = timm.create_model("vit_tiny_patch16_224")
sites = gmmvit.attach(model, "{name}")
print(sites[0].mask, sites[0].strength)
```

## At the start and learned

![Weights of a patch for every other, at the paper's start and after five epochs](images/{name}.png)

The weights of one patch (the cross) for every other, first head, in four of the nine layers of `vit` (8 x 8 patches):
as this run began, and after its five epochs on CIFAR-10 (`{RUN.format(name)}`). Red is above 0, blue below.
{SEEN[name]}

A [neutral start](library.md#from-scratch-fine-tuning-or-a-frozen-model) has {nothing} everywhere.

## Options

| option | default | |
|---|---|---|
{chr(10).join(listed)}

## Cost

{per_layer:,} learned numbers a layer of a ViT-Ti/16 at 224 px (3 heads, 14 x 14 patches). A training step of the
2.7 M ViT: {record["time"][name]:+.1%} time, {record["bytes"][name]:+.1%} activations in memory ({machine}, bfloat16;
`{BENCH}`). More in [costs](costs.md).

## What it needs of a model

{NEEDS[name]}
"""


@torch.no_grad()
def draw(name: str) -> Figure:
    """Above, the weights of one patch as the run began, layer by layer; below, as they were learned."""
    run = ROOT / RUN.format(name)
    row = json.loads((run / "metrics.json").read_text())["row"]
    began, learned = model_of(Row(**row), torch.device("cpu")).spatial_sites, read(run)
    figure = Figure(figsize=(7.2, 3.3), dpi=160, layout="constrained")
    axes = figure.subplots(2, len(LAYERS))
    for column, layer in enumerate(LAYERS):
        fresh, mask = began[layer].mask, learned[layer]
        rows, columns = mask.grid
        y, x = rows // 2 - 1, columns // 2 - 1
        for upper, weight in zip(axes[:, column], (fresh.weight().numpy(), mask.weight()), strict=True):
            seen = weight[0, y * columns + x].reshape(mask.grid)
            reach = float(abs(seen).max()) or 1.0
            image = upper.imshow(seen, cmap="RdBu_r", vmin=-reach, vmax=reach)
            upper.plot(x, y, "kx", markersize=5)
            upper.set(xticks=[], yticks=[])
            figure.colorbar(image, ax=upper, shrink=0.7).ax.tick_params(labelsize=6)
        axes[0, column].set_title(f"layer {layer + 1}", fontsize=8)
    axes[0, 0].set_ylabel("paper's start", fontsize=8)
    axes[1, 0].set_ylabel("learned, 5 epochs", fontsize=8)
    return figure


if __name__ == "__main__":
    for each in gmmvit.MASKS:
        (ROOT / "docs" / f"{each}.md").write_text(page(each), encoding="utf-8")
        with style.context("default"):
            draw(each).savefig(ROOT / "docs" / "images" / f"{each}.png")
