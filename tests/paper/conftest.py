"""What the tests of charts and pictures share."""

import pytest
import torch

import gmmvit
from gmmvit.train import learned


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    """Learned masks of small ViTs by kind, as a notebook reads them."""
    folder, found = tmp_path_factory.mktemp("learned"), {}
    torch.manual_seed(0)
    for kind in ("gmm", "elm", "gab"):
        model = gmmvit.create_model("vit_d6", mask=kind)
        for mask in gmmvit.masks_of(model).values():
            if kind == "elm":
                mask.element.data.normal_()
        learned.save(model, folder)
        found[kind] = learned.read(folder)
    return found
