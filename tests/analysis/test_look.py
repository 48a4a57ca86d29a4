"""Where a model that somebody names looks: by the weights of a run, by a file of weights, or not at all."""

import json

import numpy as np
import pytest
import timm
import torch

from gmmvit.analysis.look import look_at, untrained
from gmmvit.analysis.positions import position_biases
from gmmvit.models import create_model
from gmmvit.train.rows import Row


def test_untrained_biases_are_those_of_the_seed():
    rows = [Row("cifar10-mini", "vit_relpos", seed=seed) for seed in (0, 0, 1)]
    state = torch.get_rng_state()
    first, again, other = (untrained(row)["layer 5"] for row in rows)
    assert torch.equal(torch.get_rng_state(), state) and first.shape == (15, 15)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    torch.manual_seed(0)
    expected = position_biases(create_model("vit_relpos"))["blocks.4.attn"].mean(0)
    np.testing.assert_allclose(first, expected, atol=1e-6)


def test_a_model_of_ours_is_looked_at_by_its_weights(tmp_path):
    torch.manual_seed(3)
    row, model = Row("cifar10-mini", "vit_relpos", "gab"), create_model("vit_relpos", mask="gab")
    path = str(tmp_path / "weights.pt")
    torch.save({"row": json.dumps(vars(row)), "model": model.state_dict()}, path)
    seen = look_at("vit_relpos", path, 5, "cifar10-mini")
    assert seen.field.shape == (32, 32) and seen.field.sum() == pytest.approx(1)
    expected = position_biases(model)["blocks.0.attn"].mean(0)
    np.testing.assert_array_equal(seen.biases["layer 1"], expected)
    assert len(seen.gaussians) == 9 and seen.row == row
    with pytest.raises(ValueError, match="expected 'vit_relpos', whose weights are in"):
        look_at("vit", path, 5, "cifar10-mini")
    with pytest.raises(FileNotFoundError, match=r"expected a file, got .*gone.pt"):
        look_at("vit", str(tmp_path / "gone.pt"), 5, "cifar10-mini")


def test_a_timm_model_is_looked_at_at_its_own_size_or_not_at_all(tmp_path):
    torch.manual_seed(0)
    path = str(tmp_path / "weights.pth")
    model = timm.create_model("test_vit")
    torch.nn.init.uniform_(model.norm.weight)  # as trained: with gain 1 the field would be void
    torch.save(model.state_dict(), path)
    with pytest.raises(RuntimeError, match="Unknown model .vit_large_tpyo"):
        look_at("vit_large_tpyo", "", 2, "cifar10-mini")
    (tmp_path / "broken.pth").write_text("no weights")
    with pytest.raises(ValueError, match="broken.pth, which cannot be read"):
        look_at("test_vit", str(tmp_path / "broken.pth"), 2, "cifar10-mini")
    seen = look_at("test_vit", path, 2, "cifar10-mini")
    assert seen.field.shape == (160, 160) and seen.row is None and not seen.biases
