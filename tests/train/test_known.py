"""What rows may say of masks, known without torch: the file says what the masks say."""

import pytest
import torch

import gmmvit
from gmmvit.core.masks import MASKS
from gmmvit.train import known
from gmmvit.train.rows import mask_hints


def test_the_file_says_what_the_masks_say():
    assert known.FILE.read_text() == known.text(), "python -m gmmvit.train.known writes it anew"


def test_what_is_read_of_the_file_is_what_the_masks_answer(monkeypatch):
    asked = dict(known.masks())
    monkeypatch.delitem(known.sys.modules, "gmmvit.core.masks")
    assert dict(known.masks()) == asked and asked.keys() == MASKS.keys()
    assert mask_hints("gmm")["sigma_init"] == tuple[float, float]


def test_a_mask_of_ones_own_is_asked_for_its_options(monkeypatch):
    class Fade(torch.nn.Module):
        def __init__(self, grid, heads, prefix=0, key_grid=None, speed: float = 1.0):
            super().__init__()

    monkeypatch.setitem(MASKS, "fade", Fade)
    assert known.masks()["fade"] == ({"speed": float}, False)
    monkeypatch.delitem(MASKS, "fade")
    assert "fade" not in known.masks() and mask_hints("fade") == {} and gmmvit.MASKS is MASKS


@pytest.mark.parametrize("mask", ["gpsa", "rope"])
def test_the_file_knows_which_masks_have_no_neutral_start(mask):
    assert known.masks()[mask].neutral == (getattr(MASKS[mask], "neutral", None) is not None)
