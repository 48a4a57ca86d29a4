"""Mask R-CNN (arXiv 1703.06870) of torchvision on a pyramid of timm's, with an FPN (arXiv 1612.03144) between them."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn as nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from ..core.attach import Site
from .backbone import Pyramid, sites_within
from .sets import ANCHORS

RATIOS = (0.5, 1.0, 2.0)


class Neck(nn.Module):
    """Pyramid and FPN: five maps of one width, as torchvision wants them named."""

    def __init__(self, pyramid: Pyramid, width: int):
        super().__init__()
        self.pyramid, self.out_channels = pyramid, width
        self.fpn = FeaturePyramidNetwork(pyramid.channels, width, extra_blocks=LastLevelMaxPool())

    def forward(self, images: torch.Tensor) -> OrderedDict[str, torch.Tensor]:
        maps = self.fpn(OrderedDict((str(level), each) for level, each in enumerate(self.pyramid(images))))
        return OrderedDict((level, each.float()) for level, each in maps.items())  # anchors take the dtype of the maps


def _in_float32(head: nn.Module, inputs: tuple, outputs: object) -> object:
    """Boxes are decoded in the dtype of what a head returns, and bfloat16 has steps of 4 pixels at 800."""
    if torch.is_tensor(outputs):
        return outputs.float()
    return type(outputs)(_in_float32(head, inputs, each) for each in outputs)


class OnTheHost(GeneralizedRCNNTransform):
    """Pastes masks into their images on the CPU: beside a GPU each of a hundred would wait for it eight times."""

    def postprocess(self, result: list[dict[str, torch.Tensor]], *sizes: list[tuple[int, int]]) -> list[dict]:
        if not self.training:
            result = [{key: values.cpu() for key, values in each.items()} for each in result]
        return super().postprocess(result, *sizes)


class Detector(MaskRCNN):
    """Images (3, H, W) in [0, 1] of any sizes -> losses where targets are given in training, else detections."""

    def __init__(
        self,
        pyramid: Pyramid,
        classes: int,
        *,
        short: int = 800,
        long: int = 1333,
        anchors: tuple[int, ...] = ANCHORS,
        width: int = 256,
        regions: int = 512,
    ):
        outputs = classes + 1  # class 0 is the background
        super().__init__(
            Neck(pyramid, width),
            outputs,
            min_size=short,
            max_size=long,
            image_mean=list(pyramid.pretrained_cfg["mean"]),
            image_std=list(pyramid.pretrained_cfg["std"]),
            rpn_anchor_generator=AnchorGenerator(tuple((side,) for side in anchors), (RATIOS,) * len(anchors)),
            box_batch_size_per_image=regions,
            mask_head=MaskRCNNHeads(width, (width,) * 4, dilation=1),
            _skip_resize=True,  # training images come in the sizes that the recipe drew
        )
        self.transform.__class__ = OnTheHost
        self.roi_heads.mask_predictor = MaskRCNNPredictor(width, width, outputs)
        for head in (self.rpn.head, self.roi_heads.box_predictor, self.roi_heads.mask_predictor):
            head.register_forward_hook(_in_float32)

    @property
    def pyramid(self) -> Pyramid:
        return self.backbone.pyramid

    @property
    def spatial_sites(self) -> list[Site]:
        """Where the masks are: what learned masks are saved and folded by."""
        return sites_within(self.pyramid, "backbone.pyramid")

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.pyramid.{name}" for name in self.pyramid.no_weight_decay()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.pyramid.set_grad_checkpointing(enable)
