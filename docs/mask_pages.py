"""The pages of the masks, one for each that is registered, docs/gmm.md and so on, and their pictures.

python docs/mask_pages.py        # writes docs/NAME.md and docs/images/NAME.png from gmmvit.MASKS and reports/
"""

import inspect
import json
import re
import tomllib
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from matplotlib import style
from matplotlib.figure import Figure

import gmmvit
from gmmvit.analysis.masks import by_step
from gmmvit.analysis.shapes import seen
from gmmvit.core.masks import options_of
from gmmvit.train.learned import read
from gmmvit.train.rows import Row
from gmmvit.train.start import model_of

ROOT = Path(__file__).parents[1]
RUN, BENCH = "reports/cpu/runs/cpu-cifar10-vit-{}-s0", "reports/bench/masks.json"
LAYERS = (0, 2, 4, 8)
TRAINED = {  # of which the record keeps what a run of `vit` learned: what its row is called
    "gmm": "gmm",
    "elm": "elm",
    "gab": "gab",
    "gmb": "gmb-alpha_init1_1-sigma_init3_2",
}
SHOWN = {
    "temperature": {"init": (1.0, 0.5)},
    "rope": {"mixed": True},
}  # options of a picture, where the default shows nothing
WORDS = tomllib.loads(Path(__file__).with_name("mask_words.toml").read_text(encoding="utf-8"))


def page(name: str) -> str:
    """The page of a mask, from its class, its record and the texts above."""
    kind, words = gmmvit.MASKS[name], WORDS[name]
    formula, rest, more = re.match(
        r"(.*?), (\w+ \w+ \w+ \w+ \(.*?\))\.\n?(.*?)(?=\n- |\Z)", inspect.getdoc(kind), re.S
    ).groups()
    told = "\n\n".join(
        each for each in (f"`{formula}`, {rest}. [All masks beside each other](masks.md).", more.strip()) if each
    )
    cited = re.sub(r"arXiv ([\d.]+\d)", r"arXiv [\1](https://arxiv.org/abs/\1)", told)
    per_layer = sum(p.numel() for p in kind((14, 14), heads=3).parameters())
    listed = [f"| `{option}` | `{default!r}` | {words} |" for option, (default, words) in options_of(name).items()]
    options = "\n".join(["| option | default | |", "|---|---|---|", *listed]) if listed else "None."
    return f"""# {words["title"]}: `{name}`

<!-- written by docs/mask_pages.py -->

{cited}

```python
import timm
import gmmvit

model = timm.create_model("vit_tiny_patch16_224")
sites = gmmvit.attach(model, "{name}")
print(sites[0].mask, sites[0].strength)
```

{_pictured(name)}

## How it starts

{fill(words["start"], 120)}

What `attach` takes by default is told in [the library's page](library.md#from-scratch-fine-tuning-or-a-frozen-model).

## Options

{options}

## Another image size

{fill(words["regrid"], 120)}

## Cost

{fill(f"{per_layer:,} learned numbers a layer of a ViT-Ti/16 at 224 px (3 heads, 14 x 14 patches). {_cost(name)}", 120)}
More in [costs](costs.md).

## What it needs of a model

{fill(words["needs"], 120)}
"""


def _pictured(name: str) -> str:
    said = fill(WORDS[name]["seen"], 120)
    if name in TRAINED:
        return f"""## At the start and learned

![Weights of a patch for every other, as a run began and after its five epochs](images/{name}.png)

The weights of one patch (the cross) for every other, first head, in four of the nine layers of `vit` (8 x 8 patches):
as this run began, and after its five epochs on CIFAR-10 (`{RUN.format(TRAINED[name])}`). Red is above 0, blue below.
{said}"""
    mask = _shown(name, (2, 2), 1)
    return f"""## What it looks like

![Weights of the centre patch for every other in three heads, and the weights by distance](images/{name}.png)

The weights of the centre patch (the cross) for every other on a grid of 14 x 14 patches, in three heads, as they begin
({seen(mask, mask)[0]}); on the right the same by the distance in patches, averaged. Red is above 0, blue below.
{said}"""


def _cost(name: str) -> str:
    record = json.loads((ROOT / BENCH).read_text())
    if name not in record["time"]:
        return f"`{BENCH}` has no step with it yet."
    machine = f"{record['processor']}, {record['threads']} threads, batch {record['batch']}"
    return (
        f"A training step of the 2.7 M ViT: {record['time'][name]:+.1%} time, {record['bytes'][name]:+.1%} activations "
        f"in memory ({machine}, bfloat16; `{BENCH}`)."
    )


@torch.no_grad()
def draw_learned(name: str) -> Figure:
    """Above, the weights of one patch as the run began, layer by layer; below, as they were learned."""
    run = ROOT / RUN.format(TRAINED[name])
    row = json.loads((run / "metrics.json").read_text())["row"]
    began, learned = model_of(Row(**row)).spatial_sites, read(run)
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
    axes[0, 0].set_ylabel("start", fontsize=8)
    axes[1, 0].set_ylabel("learned, 5 epochs", fontsize=8)
    return figure


def _shown(name: str, grid: tuple[int, int], heads: int) -> torch.nn.Module:
    """The mask of a picture."""
    torch.manual_seed(1)
    return gmmvit.MASKS[name](grid, heads, **SHOWN.get(name, {}))


def draw(name: str) -> Figure:
    """The weights of the centre patch as they begin, head by head, and by distance."""
    side, heads = 14, 3
    mask = _shown(name, (side, side), heads)
    weight = np.broadcast_to(seen(mask, mask)[1], (heads, side**2, side**2))
    centre = side * side // 2 + side // 2
    figure = Figure(figsize=(7.2, 1.9), dpi=160, layout="constrained")
    axes = figure.subplots(1, heads + 1)
    for head, (upper, each) in enumerate(zip(axes[:heads], weight[:, centre], strict=True)):
        reach = float(abs(each).max()) or 1.0
        image = upper.imshow(each.reshape(side, side), cmap="RdBu_r", vmin=-reach, vmax=reach)
        upper.plot(side // 2, side // 2, "kx", markersize=5)
        upper.set(xticks=[], yticks=[])
        upper.set_title(f"head {head + 1}", fontsize=8)
        figure.colorbar(image, ax=upper, shrink=0.7).ax.tick_params(labelsize=6)
    steps = by_step(weight, (side, side))
    for head, each in enumerate(steps.weight):
        axes[-1].plot(steps.distance, each, linewidth=1, label=f"head {head + 1}")
    axes[-1].set_xlabel("distance", fontsize=8)
    axes[-1].tick_params(labelsize=6)
    axes[-1].legend(fontsize=6)
    return figure


if __name__ == "__main__":
    for each in gmmvit.MASKS:
        (ROOT / "docs" / f"{each}.md").write_text(page(each), encoding="utf-8")
        with style.context("default"):
            (draw_learned if each in TRAINED else draw)(each).savefig(ROOT / "docs" / "images" / f"{each}.png")
