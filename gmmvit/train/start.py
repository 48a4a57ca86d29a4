"""A row's model: as its seed draws it, as its training begins, and with the row's mask on it.

The GAB paper fine-tunes pretrained models whose position MLP is re-initialised in every arm (erratum A2):
pretrained: true (timm's weights) or pretrained_file: <path>, and reset_positions: true.
"""

from __future__ import annotations

import re

import timm
import torch
import torch.nn as nn

from ..core.attach import attach
from ..core.trace import plain
from ..data.sets import DataSet, find
from ..models import BACKBONES, create_model, initialise
from ..models.parts import set_fused
from .rows import Row
from .weights import from_file, from_timm, take


def unmasked_model(row: Row) -> nn.Module:
    """The row's model for its data set's image size and classes, untrained and without its mask."""
    dataset, drop_path = find(row.dataset), row.recipe_settings.drop_path
    if row.model in BACKBONES:
        made = dict(img_size=dataset.size, num_classes=dataset.classes, drop_path=drop_path)
        return create_model(row.model, **made, **row.model_options)
    return timm.create_model(  # which leaves out what is None: some classes take no size, or no stochastic depth
        row.model,
        num_classes=dataset.classes,
        img_size=resized(row.model, dataset),
        drop_path_rate=drop_path or None,
        **row.model_options,
    )


def resized(model: str, dataset: DataSet) -> int | None:
    """The size a timm model is to be built for, where it is tied to one and that is not the data set's."""
    shipped = timm.get_pretrained_cfg(model)
    return dataset.size if shipped.fixed_input_size and shipped.input_size[-1] != dataset.size else None


def fresh_model(row: Row) -> nn.Module:
    """The row's model without its mask, as its seed draws it; the global stream is left where it was."""
    with torch.random.fork_rng(devices=[]):  # drawn on the CPU
        return _drawn(row)


def _drawn(row: Row) -> nn.Module:
    torch.manual_seed(row.seed)
    model, name = unmasked_model(row), row.start_options.get("init_weights")
    return initialise(model, name) if name else model


def starting_model(row: Row) -> nn.Module:
    """The row's model without its mask, as its training finds it: a function of the row."""
    model = _drawn(row)
    options = row.start_options
    if options.get("pretrained_file") or options.get("pretrained"):
        positions = position_parameters(model) if options.get("reset_positions") else ()
        fresh = {name: model.get_parameter(name).detach().clone() for name in positions}
        source = options.get("pretrained_file")
        if source:
            state = from_file(source, model)
        else:
            state = from_timm(row.model, img_size=resized(row.model, find(row.dataset)))
        take(model, state, source or f"timm's {row.model}")
        model.load_state_dict(fresh, strict=False)
    return model


def model_of(row: Row) -> nn.Module:
    """The row's model with its mask, as training finds it: a function of the row."""
    model = set_fused(starting_model(row), True)  # Swin's too, which timm leaves off; the engine sees to CPUs
    if row.mask != "none":
        attach(model, row.mask, img_size=find(row.dataset).size, **row.attached)
    return model


POSITIONS = re.compile(  # a part of a parameter's name, whole
    r"pos_embed.*|pos_embd|(patch|pixel)_pos|position_embedding_table|rope"  # absolute
    r"|(shared_)?rel_pos(_h|_w|_bias)?|relative_position_bias_table|(height|width)_rel"  # relative
    r"|pos_proj|(cpb|meta)_mlp|attention_biases"
)


def position_parameters(model: nn.Module) -> list[str]:
    """The names of the parameters that tell the model where patches are, absolutely or to each other.

    Convolutions that also serve as positions (Twins, CSATv2) are left out, and so are masks that gmmvit attached.
    """
    model = plain(model)
    return [
        name
        for name, _ in model.named_parameters()
        if any(POSITIONS.fullmatch(part) for part in name.split("."))
        and max(getattr(model.get_submodule(name.rpartition(".")[0]), "kernel_size", (1,))) == 1
    ]
