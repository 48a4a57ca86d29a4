"""Keeping and sharing: timm's config.json and model.safetensors, with one block of ours: which masks are where.

Nothing is unpickled. A folder without masks (plain, detached or folded into a table) is one that timm itself reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import timm
import torch
import torch.nn as nn
from timm.models import load_state_dict, save_for_hf
from timm.models._hub import download_from_hf, save_config_for_hf

from .attach import Site, attach, detach
from .errors import first_line, unknown
from .fold import ConstantBias
from .freeze import Constant
from .grids import pair
from .masks import MASKS
from .rewrite import CHILD
from .trace import plain

BLOCK, FORMAT = "gmmvit", 1  # our key in config.json, and the newest form of it that this version reads
CONFIG, WEIGHTS, RUN = "config.json", "model.safetensors", "weights.pt"
SHOWN = 3  # names in a sentence
TYPES = {
    str(kind).removeprefix("torch."): kind for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def save(model: nn.Module, folder: str | Path, stored: torch.dtype | None = None, **model_args: Any) -> None:
    """Writes a model with its masks into a folder that `load` reads, and that can be uploaded to the Hugging Face hub.

    How the model was made is known where timm.create_model made it; `model_args` says it, or says it otherwise. With
    `stored` the file has numbers of that type, such as torch.float16, and what is loaded has the model's own again.
    """
    model, folder = plain(model), Path(folder)
    config = described(model, **model_args)
    if stored is not None:
        config[BLOCK]["type"] = _name_of(stored, _type_of(model.state_dict()))
    state = {name: value for name, value in model.state_dict().items() if CHILD not in name.split(".")}
    fits(_built(config).state_dict(), state, type(model).__name__, "what its options make")
    folder.mkdir(parents=True, exist_ok=True)
    handle = model.register_state_dict_post_hook(partial(_apart, stored))
    try:
        with TemporaryDirectory(dir=folder) as made:  # a file is there whole or not at all
            save_for_hf(model, made, {BLOCK: config[BLOCK]}, config["model_args"], safe_serialization=True)
            for name in (WEIGHTS, CONFIG):
                os.replace(Path(made, name), folder / name)
    finally:
        handle.remove()


def load(source: str | Path) -> nn.Module:
    """The model, at rest, that `save` put into a folder, that is at "hf-hub:user/name", or that a run left."""
    hub = str(source).startswith("hf-hub:")
    folder = _fetched(str(source).removeprefix("hf-hub:")) if hub else Path(source)
    config, state = _read(folder)
    block = config.get(BLOCK)
    if not isinstance(block, dict) or type(block.get("version")) is not int:
        raise ValueError(
            f"{source}: expected a folder of gmmvit.save, got a config.json without its block {BLOCK!r}; "
            f"timm.create_model('local-dir:...', pretrained=True) reads a folder of timm"
        )
    if block["version"] > FORMAT:
        raise ValueError(
            f"{source}: expected at most form {FORMAT} of gmmvit's folders, got {block['version']}: "
            "a newer gmmvit wrote it and can read it"
        )
    model = _built(config)
    with torch.random.fork_rng(devices=[]):
        for group in block["masks"]:
            _attach(model, group)
    fits(model.state_dict(), state, str(source), f"this {type(model).__name__}")
    model.to(_typed(block["type"], source) if "type" in block else _type_of(state)).load_state_dict(state)
    return model.eval()


def described(model: nn.Module, **model_args: Any) -> dict:
    """The content of a model's config.json: how timm makes it, and which masks are where."""
    kind, made = type(model).__name__, getattr(model, "_model_args", None)
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    if not timm.is_model(architecture):
        raise ValueError(f"{kind} has no name in timm: expected a model of timm.create_model or gmmvit.create_model")
    if made is None and not model_args:
        raise ValueError(
            f"{kind} does not tell which options it was made with: expected a model of timm.create_model, or "
            "save(model, folder, **model_args) with the options of its own"
        )
    rates = {name: value for name, value in (made or {}).items() if name.endswith("_rate")}  # which timm leaves out
    block = {"version": FORMAT, "masks": _groups(model)}
    constant = {n: list(m.bias.shape) for n, m in model.named_modules() if isinstance(m, ConstantBias)}
    block |= {"constant": constant} if constant else {}
    with TemporaryDirectory() as folder:
        save_config_for_hf(model, f"{folder}/{CONFIG}", {BLOCK: block}, rates | model_args)
        return json.loads(Path(folder, CONFIG).read_text())


def fits(own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor], source: str, kind: str) -> None:
    """Raises a sentence where weights do not fit a model name by name."""
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    wrong = [
        *(f"no {name}" for name in shapes if name not in state),
        *(f"{name}, which the model has not" for name in state if name not in shapes),
        *(
            f"{name} of shape {tuple(state[name].shape)} instead of {shape}"
            for name, shape in shapes.items()
            if name in state and tuple(state[name].shape) != shape
        ),
    ]
    if wrong:
        more = f", and {len(wrong) - SHOWN:,} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"{source}: expected the weights of {kind}, got {', '.join(wrong[:SHOWN])}{more}")


def _groups(model: nn.Module) -> list[dict]:
    """What was attached where, in order: masks of one name and one set of options together."""
    groups: dict[str, dict] = {}
    for site in getattr(model, "spatial_sites", ()):
        name, options = getattr(site.mask, "made_of", (None, {}))
        kind = type(site.mask).__name__
        if isinstance(site.mask, Constant):
            raise ValueError(
                f"{site.name}: expected a mask that can learn, got a frozen one: save before gmmvit.freeze"
            )
        if MASKS.get(name) is not type(site.mask):
            raise ValueError(
                f"{site.name}: a {kind} has no name to be found by: expected one of {', '.join(MASKS)}; "
                f"gmmvit.register_mask('name', {kind}), here and where it is loaded, and attach(model, 'name') do"
            )
        try:
            size = getattr(site.mask, "image", None)
            key = json.dumps([name, options, size])
        except TypeError as error:
            raise ValueError(f"{site.name}: an option of its mask cannot be written as JSON ({error})") from error
        group = groups.setdefault(key, {"mask": name, "options": options, "img_size": size, "sites": []})
        group["sites"].append(site.name)
    return list(groups.values())


def _attach(model: nn.Module, group: Mapping) -> list[Site]:
    if group["mask"] not in MASKS:
        said = unknown("mask", group["mask"], MASKS)
        raise ValueError(f"{said}; gmmvit.register_mask({group['mask']!r}, its class) tells gmmvit of another")
    chosen = set(group["sites"])
    size, options = pair(group["img_size"]), group["options"]
    sites = attach(model, group["mask"], only=lambda name: name in chosen, img_size=size, **options)
    if sorted(site.name for site in sites) != sorted(group["sites"]):
        missing = next(iter(chosen - {site.name for site in sites}), sites[0].name)
        raise ValueError(f"{missing}: attach finds other products than when this was saved (timm {timm.__version__})")
    return sites


def _built(config: Mapping) -> nn.Module:
    """The model that a config.json describes, with weights of its own and without masks."""
    architecture, args = config.get("architecture"), dict(config.get("model_args", {}))
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise ValueError(
            f"{CONFIG}: expected the name of a model of this timm ({timm.__version__}), got {architecture!r}"
        )
    own = {**config["pretrained_cfg"], "architecture": architecture, "num_classes": config["num_classes"]}
    args.pop("checkpoint_path", None)  # a file that timm would read
    try:
        with torch.random.fork_rng(devices=[]):
            model = timm.create_model(architecture, pretrained=False, pretrained_cfg=own, **args)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:  # each model refuses in its own way
        raise ValueError(f"{architecture} cannot be made of {args} ({first_line(error)})") from error
    detach(model)
    for name, shape in config.get(BLOCK, {}).get("constant", {}).items():
        model.set_submodule(name, ConstantBias(torch.zeros(shape)))
    return model


def _read(folder: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """What a folder says of its model, and the weights."""
    if not (folder / CONFIG).is_file() and (folder / RUN).is_file():
        content = torch.load(folder / RUN, map_location="cpu", weights_only=True)
        if not content.get("config"):
            raise ValueError(
                f"{folder / RUN} does not describe its model: expected the run of a classifier by this version"
            )
        return json.loads(content["config"]), content["model"]
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: expected {CONFIG} and {WEIGHTS} of gmmvit.save, got no {name}")
    try:
        return json.loads((folder / CONFIG).read_text()), load_state_dict(str(folder / WEIGHTS))
    except Exception as error:  # of the readers of JSON and of safetensors, which has its own
        raise ValueError(f"{folder}: {CONFIG} or {WEIGHTS} cannot be read ({first_line(error)})") from error


def _fetched(name: str) -> Path:
    """The folder of a hub's files on this machine."""
    return [Path(download_from_hf(name, file)).parent for file in (WEIGHTS, CONFIG)][-1]


def _apart(stored: torch.dtype | None, model: nn.Module, state: dict[str, torch.Tensor], *_: Any) -> None:
    """Each tensor in memory of its own and in plain order, as safetensors wants them, in the type that is told."""
    for name, value in state.items():
        value = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        state[name] = value.to(stored) if stored and value.is_floating_point() else value


def _type_of(state: Mapping[str, torch.Tensor]) -> torch.dtype | None:
    """The type of a model's numbers."""
    return next((value.dtype for value in state.values() if value.is_floating_point()), None)


def _typed(name: object, source: str | Path) -> torch.dtype:
    """The type of a name in config.json."""
    if name not in TYPES:
        raise ValueError(unknown(f"type of numbers in {source}", str(name), TYPES))
    return TYPES[name]


def _name_of(stored: torch.dtype, own: torch.dtype | None) -> str:
    """How config.json names a model's own type, where its file has another."""
    names = {kind: name for name, kind in TYPES.items()}
    if stored not in names or own not in names:
        raise TypeError(f"stored: expected one of {', '.join(map(str, names))}, got {stored!r} for a model of {own}")
    return names[own]
