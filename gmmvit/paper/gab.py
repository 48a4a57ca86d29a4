"""The GAB paper: transfer, ImageNet and heads without and with the bias; what A and sigma became; fields and fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ..analysis.fields import GaussianFit, central_patch, fit_gaussian
from ..analysis.positions import grid_of_kernel, sliced
from ..train import learned
from ..train.rows import LENGTH, START_OPTIONS, Row
from .names import DATASETS, MODELS, SIZES, readable
from .published import table as published_table
from .runs import DONE, NOT_RUN, beside, gains, numbers, ordered, scores, where
from .tables import ABSENT, GAIN, MEAN, Column, Table, after, passes_of, span
from .views import LAST, LOOKED, RESET, View, summed

BASE = {"mask": "none", "reset_positions": True, "share_heads": True}  # what gains are measured against
KEYS = ("dataset", "model", "pretrained", *BASE)  # of the published numbers
ARM = (*KEYS, "recipe", "validation", "arm")
SCALARS = ("amplitude", "sigma")

# ---- arms -----------------------------------------------------------------------------------------------------------


def arms(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of models with a relative position bias, plain and with GAB; rows of other questions are left out."""
    settings = {*START_OPTIONS, *LENGTH, "share_heads"}
    rows = where(frame, lambda row: row.model.startswith("vit_relpos") and row.set.keys() <= settings)
    rows = rows[rows["mask"].isin(("none", "gab"))]
    found = pd.DataFrame([_keys(row) for row in rows.row], rows.index, ["pretrained", *list(BASE)[1:], "validation"])
    rows = rows.drop(columns=found.columns, errors="ignore").join(found)
    order = {"mask": ("none", "gab"), "reset_positions": (True, False), "share_heads": (True, False)}
    rows = ordered(rows, dataset=rows.dataset.unique(), model=rows.model.unique(), **order)
    return rows.assign(arm=[arm(keys) for keys in rows.to_dict("records")])


def _keys(row: Row) -> dict[str, bool]:
    """What a row is grouped by; a position bias that is trained from scratch begins like one that was drawn anew."""
    start = row.start_options
    pretrained = bool(start.get("pretrained") or start.get("pretrained_file"))
    return {
        "pretrained": pretrained,
        "reset_positions": not pretrained or start.get("reset_positions", False),
        "share_heads": row.set.get("share_heads", True),
        "validation": row.recipe_settings.select == "validation",
    }


def arm(keys: Mapping) -> str:
    """An arm in words; with GAB, a pretrained position bias was drawn anew where nothing is said of it."""
    if keys["mask"] == "gab":
        words = "GAB shared by the heads" if keys["share_heads"] else "GAB for each head"
    else:
        words = "no GAB" + (", position bias drawn anew" if keys["pretrained"] and keys["reset_positions"] else "")
    return words if keys["reset_positions"] else f"{words}, pretrained position bias kept"


def heads(rows: pd.DataFrame) -> pd.DataFrame:
    """The arms on data sets and models on which GAB for each head is compared."""
    shared = rows.share_heads.astype(bool).groupby([rows[key] for key in KEYS[:3]]).transform("all")
    return rows[~shared.astype(bool)]


def sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """The arms of Tables 2 and 3: the paper's models, a position bias drawn anew, none or a GAB that heads share."""
    return rows[rows.model.isin(SIZES) & rows.reset_positions.astype(bool) & rows.share_heads.astype(bool)]


def published(*tables: str, **which: str) -> pd.DataFrame:
    """The published numbers of some tables (split="test": of rows that have it), each of an arm once."""
    rows = [BASE | row for name in tables for row in published_table(name)["rows"]]
    rows = [row for row in rows if all(row.get(key, value) == value for key, value in which.items())]
    return numbers(rows).drop_duplicates([*KEYS])


# ---- accuracies -----------------------------------------------------------------------------------------------------


def heads_table(rows: pd.DataFrame) -> Table:
    """Validation and test, published | ours, of the arms on data sets and models with a GAB for each head."""
    rows = heads(rows)
    lines = scores(rows, ARM, test="top1", val="val_top1")
    ours = [key for key in lines if key.startswith("val_") or key == "val"]
    lines[ours] = lines[ours].astype(object).where(lines.validation.astype(bool), None)
    for split in ("val", "test"):
        lines = beside(lines, published("gab_heads", split=split), KEYS, f"{split}_published")
    lines = lines.assign(difference=lines.test - lines.test_published)
    columns = ["dataset", "model", "arm", Column("val_published", "validation: published", ".3f")]
    columns += [Column("val", f"validation: {MEAN}"), Column("test_published", "test: published", ".3f")]
    return Table([*columns, Column("test", f"test: {MEAN}"), "difference"], readable(lines))


def published_heads() -> Table:
    """Supplement, Table 4: validation and test of the three arms on four data sets."""
    lines = published("gab_heads", split="test")
    for split in ("val", "test"):
        lines = beside(lines, published("gab_heads", split=split), KEYS, split)
        without = lines[split].where(lines["mask"] == "none").groupby(lines.dataset).transform("first")
        lines[f"{split}_gain"] = (lines[split] - without).where(lines["mask"] != "none")
    lines["arm"] = [arm(keys) for keys in lines.to_dict("records")]
    columns = ["dataset", "arm", Column("val", "validation", ".3f"), Column("val_gain", "validation: gain", "+.3f")]
    columns += [Column("test", "test", ".3f"), Column("test_gain", "test: gain", "+.3f")]
    return Table(columns, readable(lines))


def sizes_table(rows: pd.DataFrame, name: str) -> Table:
    """Without and with GAB and the gain, each published | ours, of a published table (gab_transfer, gab_imagenet)."""
    theirs, rows = published(name), sizes(rows)
    lines = theirs[theirs["mask"] == "none"]
    for column, mask in (("without", "none"), ("with", "gab")):
        lines = beside(lines.assign(mask=mask), theirs, KEYS, f"{column}_published")
        lines = _joined(lines, scores(rows, ARM, **{column: "top1"}), KEYS)
        lines[f"{column}_state"] = lines[f"{column}_state"].fillna(ABSENT)
    lines = _joined(lines, gains(rows, BASE, ["dataset", "model", "pretrained", "recipe"]), KEYS)
    lines = lines.assign(gain_published=lines.with_published - lines.without_published)
    columns = ["dataset", "model"]
    for column in ("without", "with"):
        columns.append(Column(f"{column}_published", f"{column} GAB: published", ".3f"))
        columns.append(Column(column, f"{column} GAB: {MEAN}"))
    columns += [Column("gain_published", "gain: published", "+.3f"), Column("gain", GAIN)]
    return Table(columns, readable(lines), shown=True)


def _joined(lines: pd.DataFrame, ours: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """The lines with the columns of ours that agree in `on`: of the first arm, where two recipes have it."""
    ours = ours.drop_duplicates([*on])
    ours = ours[[*on, *(key for key in ours if key not in lines)]].astype(dict.fromkeys(on, object))
    return lines.astype(dict.fromkeys(on, object)).merge(ours, on=list(on), how="left")


def gain_points(rows: pd.DataFrame) -> pd.DataFrame:
    """What each arm gains on the test part over no GAB with a position bias drawn anew (gmmvit.paper.runs.gains).

    With "arm" and "label" in words, and "published", the published gain.
    """
    theirs = published("gab_transfer", "gab_imagenet", "gab_heads", split="test")
    found = beside(gains(rows, BASE, ["dataset", "model", "pretrained", "recipe"]), theirs, KEYS)
    found["published"] -= beside(found.assign(**BASE), theirs, KEYS, "plain").plain
    words = [arm(keys) for keys in found.to_dict("records")]
    return found.assign(arm=words, label=words)


# ---- what was learned -----------------------------------------------------------------------------------------------


def learned_layers(rows: pd.DataFrame) -> list[dict]:
    """|A| and |sigma| of every run with GAB, (layers, heads or 1) each; the bias does not see their signs.

    Where their published means over layers are known, they are <name>_published.
    """
    rows = _beside_learned(rows[rows["mask"] == "gab"])
    found = []
    for line in readable(rows[rows.state == DONE]).to_dict("records"):
        masks = learned.read(line["folder"])
        found.append(line | {name: np.abs([mask.parameters[name] for mask in masks]) for name in SCALARS})
    return found


def learned_table(rows: pd.DataFrame) -> Table:
    """Means of A and sigma over layers (and heads), published | ours, as in the supplement's Table 3."""
    rows, layers = rows[rows["mask"] == "gab"], learned_layers(rows)
    for name in SCALARS:
        means = iter([line[name].mean() for line in layers])
        rows = rows.assign(**{name: [next(means) if state == DONE else None for state in rows.state]})
    lines = scores(rows, ARM, **{name: name for name in SCALARS})
    printed = published("gab_learned")[[*KEYS]]
    printed = printed[~printed.apply(tuple, axis=1).isin(lines[[*KEYS]].apply(tuple, axis=1))]
    printed = printed.assign(arm=list(map(arm, printed.to_dict("records"))), amplitude_state=ABSENT, sigma_state=ABSENT)
    lines = _beside_learned(pd.concat([lines.astype(object), printed.astype(object)]))
    columns = ["dataset", "model", "arm"]
    for name, symbol in zip(SCALARS, "Aσ", strict=True):
        columns.append(Column(f"{name}_published", f"mean {symbol}: published", ".3f"))
        columns.append(Column(name, f"mean {symbol}: {MEAN}", ".3f"))
    return Table(columns, readable(lines), shown=True)


def _beside_learned(rows: pd.DataFrame) -> pd.DataFrame:
    for name in SCALARS:
        rows = beside(rows, published("gab_learned", parameter=name), KEYS, f"{name}_published")
    return rows


# ---- receptive fields and position biases, and Gaussians fitted to them (both Tables 1) -----------------------------

GAUSSIAN = 0.5  # the R2 from which on something looks like a Gaussian
NEAR = 1.5  # patches from the query within which a Gaussian is centred on it
ALIKE, UNLIKE = 0.9, 0.5  # correlations from which on two maps are the same, and below which they are not
FIT = (("r2", "R²", ".3f"), ("sigma_x", "σx", ".3f"), ("sigma_y", "σy", ".3f"))


def fit_field(field: np.ndarray) -> GaussianFit:
    """A Gaussian fitted to a receptive field that sums to one, in pixels."""
    field = np.asarray(field, dtype=np.float64)
    return fit_gaussian(field / field.sum(), subtract_minimum=False)


def centre_fits(kernels: Mapping[str, np.ndarray]) -> dict[str, GaussianFit]:
    """A 2-D Gaussian fitted to what the central query sees, averaged over heads, for each layer (Table 1)."""
    fits = {}
    for name, kernel in kernels.items():
        mean = np.asarray(kernel, dtype=np.float64).reshape(-1, *np.shape(kernel)[-2:]).mean(0)
        fits[name] = fit_gaussian(sliced(mean, central_patch(grid_of_kernel(mean))))  # minus its minimum
    return fits


def fields_table(found: Iterable[View]) -> Table:
    """The fits of our receptive fields, and of the published ones, of ImageNet weights."""
    found = [view for view in found if view.fields]
    same = {view.model: view for view in found if view.dataset == "imagenet" and view.arm == "plain"}
    lines = []
    for view in found:
        for name, field in view.fields.items():
            if view is same.get(view.model) and name == LAST:
                continue
            model = view.label + ("" if name == LAST else ", positions re-initialised")
            place = {"model": model, "dataset": DATASETS.get(view.dataset, view.dataset), "pixels": len(field)}
            lines.append(place | {"features": view.features} | _fit(fit_field(field), "ours"))
    for row in published_table("gab_erf")["rows"]:
        ours = _fit(fit_field(same[row["model"]].fields[LAST]), "ours") if row["model"] in same else {}
        theirs = {f"published_{key}": row[key] for key, *_ in FIT}
        missing = {f"ours_{key}_state": NOT_RUN for key, *_ in FIT}
        place = {"model": row["model"], "dataset": DATASETS["imagenet"], "pixels": row["size"]}
        lines.append(place | theirs | missing | ours)
    columns = ["model", Column("dataset", "images"), Column("pixels", "px", "d"), "features"]
    return Table([*columns, *_columns("published", "published"), *_columns("ours", "ours")], lines, shown=True)


def fields_found(found: Iterable[View]) -> str:
    """A sentence on our receptive fields: whether they are Gaussian, and whether they go with the positions."""
    found = [view for view in found if LAST in view.fields]
    if not found:
        return ""
    fields = [view.fields for view in found]
    r2 = [fit_field(each[LAST]).r2 for each in fields]
    like = [float(np.corrcoef(np.ravel(each[LAST]), np.ravel(each[RESET]))[0, 1]) for each in fields if RESET in each]
    good = sum(each >= GAUSSIAN for each in r2)
    (theirs,) = (row for row in published_table("gab_erf")["rows"] if row["model"] == "vit_relpos_small_patch16_224")
    words = (
        f"{_ours(found)}: a Gaussian explains R² = {span(r2)} of the trained fields (published for "
        f"{MODELS[theirs['model']]}: {theirs['r2']:.2f}), so {_of(good, len(r2))} fall off like one."
    )
    if not like:
        return words
    if min(like) >= ALIKE:
        verdict = "nothing disappears, not as published"
    elif max(like) < UNLIKE:
        verdict = "the fields are others, as published"
    else:
        verdict = "the fields change in part"
    return f"{words} With positions drawn anew the maps correlate with the trained ones by {span(like)}: {verdict}."


def _ours(found: Iterable[View]) -> str:
    """Ours, and how long the runs among the views trained; published weights (no row) are trained to their end."""
    lengths = {passes_of(view.row) for view in found if view.row}
    return f"Ours, {after(lengths)}" if lengths else "Ours"


def biases_found(found: Iterable[View]) -> str:
    """A sentence on our position biases: whether the trained ones look like Gaussians around the query."""
    found = list(found)
    fits = [(fit, _beside(fit, view)) for view in found for fit in centre_fits(view.biases).values()]
    if not fits:
        return ""
    rows = published_table("gab_fits")["rows"]
    theirs = [row["r2"] for row in rows if row["model"] == "vit_relpos_small_patch16_224" and row["layer"] <= 10]
    good = sum(fit.r2 >= GAUSSIAN and beside <= NEAR for fit, beside in fits)
    agrees = {len(fits): "as published", 0: "not as published"}.get(good, "in part as published")
    return (
        f"{_ours(found)}: a Gaussian explains R² = {span(fit.r2 for fit, _ in fits)} of the trained biases "
        f"(published for layers 1 to 10 of ViT-S/16 (R): {span(theirs)}), "
        f"its centre {span((beside for _, beside in fits), '.0f')} patches from the query: "
        f"{_of(good, len(fits))} look like one around the query, {agrees}."
    )


def _beside(fit: GaussianFit, view: View) -> float:
    """How many patches the centre of a fit of centre_fits lies from the query."""
    row, column = central_patch(grid_of_kernel(next(iter(view.biases.values()))))
    return float(np.hypot(fit.y - row, fit.x - column))


def _of(some: int, count: int) -> str:
    return f"{some or 'none'} of {count}"


def published_fits_table(found: Iterable[View]) -> Table:
    """The paper's Table 1, the bias of each layer at the centre; ours where the published weights were looked at."""
    trained = [view for view in found if view.biases and (view.row is None or view.dataset == "imagenet")]
    same = {view.model: centre_fits(view.biases) for view in trained if view.arm in ("plain", LOOKED)}
    lines: dict[int, dict] = {}
    for row in published_table("gab_fits")["rows"]:
        line = lines.setdefault(row["layer"], {"layer": row["layer"]})
        model, layer = row["model"], f"layer {row['layer']}"
        line |= {f"{model}_{key}": row[key] for key, *_ in FIT}
        line |= _fit(same[model][layer], f"{model}_ours") if model in same else {f"{model}_ours_state": NOT_RUN}
    columns: list = ["layer"]
    for model, title in SIZES.items():
        ours = f"{title} ours"
        ours = _columns(f"{model}_ours", ours) if model in same else [Column(f"{model}_ours", f"{ours} R²")]
        columns += [*_columns(model, f"{title} published"), *ours]
    return Table(columns, list(lines.values()), shown=True)


def fits_table(found: Iterable[View]) -> Table:
    """The same fits of our own models: the bias alone, and with the Gaussian beside it."""
    lines = [
        {"bias": words, "layer": layer.removeprefix("layer ")} | _fit(fit, "")
        for words, kernels in summed(found).items()
        for layer, fit in centre_fits(kernels).items()
    ]
    return Table([Column("bias", "model and bias"), "layer", *_columns("", "")], lines)


def _fit(fit: GaussianFit, who: str) -> dict[str, float]:
    return {f"{who}_{key}": getattr(fit, key) for key, *_ in FIT}


def _columns(who: str, title: str) -> list[Column]:
    return [Column(f"{who}_{key}", f"{title} {name}".strip(), form) for key, name, form in FIT]
