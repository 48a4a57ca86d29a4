"""timm's model files that have attention: those `attach` works on, with a small configuration, and those it refuses."""

from __future__ import annotations

from typing import NamedTuple

import timm
import torch.nn as nn


class Config(NamedTuple):
    """A small model of a file: its name, its options, and the image size where the model takes any."""

    name: str
    options: dict = {}
    size: int | None = None


SMALL_VIT = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}

WORKS: dict[str, Config] = {
    "beit": Config("beit_base_patch16_224", SMALL_VIT),
    "byoanet": Config("botnet26t_256", {"img_size": 128}),
    "cait": Config("cait_xxs24_224", {"img_size": 64, "embed_dim": 48, "depth": 2}),
    "convit": Config("convit_tiny", {"img_size": 64, "embed_dim": 12, "depth": 3, "local_up_to_layer": 2}),
    "cpubone": Config("cpubone_nano", size=128),
    "crossvit": Config("crossvit_tiny_240", {"embed_dim": (48, 96), "depth": ((1, 1, 0), (1, 2, 0))}),
    "csatv2": Config("csatv2", size=128),
    "davit": Config("davit_tiny", {"depths": (1, 1, 1, 1), "embed_dims": (24, 48, 96, 192)}),
    "deepseek_vit": Config("deepseek_vit_412m", {"depth": 2, "embed_dim": 64, "num_heads": 4}, size=56),
    "deit": Config("deit_tiny_distilled_patch16_224", SMALL_VIT),
    "efficientformer": Config("efficientformer_l1", {"embed_dims": (24, 32, 48, 64)}),
    "efficientformer_v2": Config("efficientformerv2_s0", {"img_size": 128, "depths": (1, 1, 2, 2)}),
    "efficientvit_msra": Config("efficientvit_m0", {"depth": (1, 1, 1)}),
    "eva": Config("eva02_tiny_patch14_224", {"img_size": 56, "embed_dim": 48, "depth": 2}),
    "fastvit": Config("fastvit_sa12", size=96),
    "gcvit": Config("gcvit_xxtiny", {"img_size": 64}),
    "gemma4_vit": Config("gemma4_vit_167m", {"depth": 2, "embed_dim": 64, "num_heads": 4}, size=96),
    "hiera": Config("hiera_tiny_224", {"img_size": (64, 64), "embed_dim": 24, "stages": (1, 1, 2, 1)}),
    "hieradet_sam2": Config(
        "sam2_hiera_tiny", {"embed_dim": 24, "stages": (1, 1, 2, 1), "global_att_blocks": (3,)}, size=128
    ),
    "iformer": Config("iformer_s", size=96),
    "levit": Config("levit_128s", {"img_size": 128, "embed_dim": (48, 64, 80)}),
    "lowformer": Config("lowformer_b0", size=96),
    "maxxvit": Config("test_maxvit", {"img_size": 64}),
    "metaformer": Config("caformer_s18", size=96),
    "mobilenetv3": Config("mobilenetv4_hybrid_medium", size=128),
    "mobilenetv5": Config("mobilenetv5_base", {"channel_multiplier": 0.25}, size=64),
    "mobilevit": Config("mobilevit_xxs", size=128),
    "mvitv2": Config("mvitv2_tiny", {"img_size": 64}),
    "naflexvit": Config("naflexvit_base_patch16_gap", {"embed_dim": 48, "depth": 2, "num_heads": 3}, size=96),
    "nest": Config("nest_tiny", {"img_size": 64}),
    "nextvit": Config("nextvit_small", size=96),
    "pit": Config("pit_ti_224", {"img_size": 96}),
    "pvt_v2": Config("pvt_v2_b0", size=64),
    "qwen3_vit": Config("qwen3_vit_88m", {"depth": 2, "embed_dim": 64, "num_heads": 4}, size=64),
    "shvit": Config("shvit_s1", {"embed_dim": (32, 64, 96), "depth": (1, 1, 1), "partial_dim": (8, 16, 24)}, size=128),
    "swin_transformer": Config(
        "swin_tiny_patch4_window7_224", {"img_size": 112, "embed_dim": 24, "depths": (2, 2, 1, 1)}
    ),
    "swin_transformer_v2": Config("swinv2_tiny_window8_256", {"img_size": 64, "embed_dim": 24, "depths": (1, 1, 2, 1)}),
    "swin_transformer_v2_cr": Config("swinv2_cr_tiny_224", {"img_size": 112, "embed_dim": 24, "depths": (1, 1, 2, 1)}),
    "tiny_vit": Config(
        "tiny_vit_5m_224", {"depths": (1, 1, 2, 1), "embed_dims": (24, 48, 96, 96), "num_heads": (1, 2, 3, 3)}, size=96
    ),
    "tnt": Config("tnt_s_patch16_224", {"img_size": 64, "embed_dim": 48, "inner_dim": 12, "depth": 2}),
    "twins": Config("twins_svt_small", {"embed_dims": (16, 32, 48, 64), "depths": (1, 1, 2, 1)}, size=128),
    "visformer": Config("visformer_tiny", {"img_size": 96, "embed_dim": 48, "num_heads": 3, "depth": (1, 2, 1)}),
    "vision_transformer": Config("test_vit"),
    "vision_transformer_hybrid": Config("vit_tiny_r_s16_p8_224", {"img_size": 128, "embed_dim": 48, "depth": 2}),
    "vision_transformer_relpos": Config("test_vit_relpos", {"img_size": 64}),
    "vision_transformer_sam": Config(
        "samvit_base_patch16",
        {"img_size": 128, "depth": 2, "embed_dim": 48, "num_heads": 3, "window_size": 5, "global_attn_indexes": (1,)},
    ),
    "vitamin": Config("vitamin_small_224", {"img_size": 64, "depth": 2}),
    "volo": Config("volo_d1_224", {"img_size": 64}),
}

NO_SOFTMAX = "has no softmax attention to put a mask on"
NO_PRODUCT = "no query-key product reaches its softmax"
CHANNELS = "its scores mix channels, not tokens"

REFUSED: dict[str, tuple[str, str]] = {
    "byobnet": ("test_byobnet", NO_SOFTMAX),
    "coat": ("coat_tiny", NO_PRODUCT),
    "cspnet": ("cs3darknet_s", NO_SOFTMAX),
    "cspnext": ("cspnext_tiny", NO_SOFTMAX),
    "edgenext": ("edgenext_xx_small", CHANNELS),
    "efficientnet": ("test_efficientnet", NO_SOFTMAX),
    "efficientvim": ("efficientvim_m1", NO_PRODUCT),
    "efficientvit_mit": ("efficientvit_b0", NO_SOFTMAX),
    "ghostnet": ("ghostnet_050", NO_SOFTMAX),
    "mlp_mixer": ("gmlp_s16_224", NO_SOFTMAX),
    "nfnet": ("test_nfnet", NO_SOFTMAX),
    "res2net": ("res2net50_14w_8s", NO_SOFTMAX),
    "resnest": ("resnest14d", NO_PRODUCT),
    "resnet": ("test_resnet", NO_SOFTMAX),
    "sknet": ("skresnet18", NO_PRODUCT),
    "swiftformer": ("swiftformer_xs", NO_SOFTMAX),
    "vovnet": ("ese_vovnet19b_slim", NO_SOFTMAX),
    "xcit": ("xcit_nano_12_p16_224", CHANNELS),
}


def build(config: Config, num_classes: int = 10) -> tuple[nn.Module, tuple[int, int]]:
    """A model of the list and its image size."""
    model = timm.create_model(config.name, num_classes=num_classes, **config.options)
    size = config.size or config.options.get("img_size", model.pretrained_cfg["input_size"][1:])
    return model, (size, size) if isinstance(size, int) else tuple(size)


def listed() -> str:
    """timm's model files with attention: where masks attach, and where not and why."""
    lines = [f"gmmvit.attach works on {len(WORKS)} of timm's model files (tried with):"]
    lines += [f"  {file:28} {config.name}" for file, config in sorted(WORKS.items())]
    lines += [f"and refuses {len(REFUSED)} that mention attention but have no spatial self-attention with a softmax:"]
    lines += [f"  {file:28} {reason}" for file, (_, reason) in sorted(REFUSED.items())]
    return "\n".join(lines)
