"""Data sets, models and masks by the names that readers know, in the order of the tables."""

import pandas as pd

DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "tiny-imagenet": "Tiny-ImageNet",
    "cifar10-mini": "CIFAR-10 mini",
    "pets": "Pets",
    "caltech101": "Caltech-101",
    "cars": "Cars",
    "dogs": "Dogs",
    "imagenet": "ImageNet-1K",
    "coco": "COCO",
    "ade20k": "ADE20K",
    "coco-shapes": "shapes like COCO",
    "ade20k-shapes": "shapes like ADE20K",
}
BACKBONES = {"vit": "ViT", "swin": "Swin", "cait": "CaiT", "pit": "PiT", "t2t": "T2T"}  # of the GMM paper
SIZES = {  # of the GAB paper
    "vit_relpos_small_patch16_224": "ViT-S/16 (R)",
    "vit_relpos_medium_patch16_224": "ViT-M/16 (R)",
    "vit_relpos_base_patch16_224": "ViT-B/16 (R)",
}
MODELS = (
    BACKBONES
    | SIZES
    | {"vit_xs": "ViT-XS", "vit_relpos": "ViT (R)", "vit_heat": "ViT, 16 × 16 patches", "vit_wide": "ViT, wide"}
    | {"swin_small_patch4_window7_224": "Swin-S", "swin_micro": "Swin micro"}
)
MASKS = {
    "none": "plain",
    "gmm": "GMM",
    "elm": "ELM",
    "gab": "GAB",
    "gmb": "GMB",
    "temperature": "temperature",
    "diagonal": "no diagonal",
    "alibi": "ALiBi",
    "slope": "learned slopes",
    "manhattan": "Manhattan decay",
    "kerple": "KERPLE",
    "relbias": "position table",
    "relmlp": "position MLP",
    "gpsa": "GPSA",
    "rope": "RoPE",
}
SCORES = {  # of metrics.json and history.csv, in per cent
    "top1": "top-1",
    "box_AP": "AP box",
    "box_AP50": "AP50 box",
    "mask_AP": "AP mask",
    "mask_AP50": "AP50 mask",
    "mIoU": "mIoU",
    "aAcc": "pixel accuracy",
}


def readable(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines with data set, model and mask as readers know them."""
    known = {"dataset": DATASETS, "model": MODELS, "mask": MASKS}
    known = {
        key: lines[key].map(lambda name, names=names: names.get(name, name))
        for key, names in known.items()
        if key in lines
    }
    return lines.assign(**known)
