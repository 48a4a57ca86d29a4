"""What a run keeps for the figures that explain the method: heat maps and scores of real images."""

import numpy as np
import pytest
import torch

import gmmvit
from gmmvit import learned, mask_plots, method
from gmmvit.analysis import attention_heat
from gmmvit.attention import attention_maps
from gmmvit.rows import Row
from gmmvit.train.classify import Classification
from gmmvit.train.processes import World
from gmmvit.train.samples import IMAGES, samples


def trained(**fields):
    """A task and its model, whose masks and weights are drawn from a seed."""
    task = Classification(Row(**{"dataset": "cifar10-mini", "model": "vit", "mask": "gmm", **fields}), World(), 0)
    return task, task.model()


def test_heat_maps_are_those_of_their_images():
    task, model = trained(model="vit_heat", mask="none")
    kept = samples(task, model)
    source = task.sources["test"]
    assert np.array_equal(kept["images"], source.images[list(IMAGES)])
    mean, sd = (np.array(values, np.float32) for values in (task.dataset.mean, task.dataset.std))
    images = torch.from_numpy((kept["images"] / 255 - mean) / sd).permute(0, 3, 1, 2).float()
    np.testing.assert_allclose(kept["heat"], attention_heat(model, images), rtol=2e-3)
    assert kept["heat"].shape == kept["images"].shape[:3]  # so that one lies on the other


@pytest.mark.parametrize("share", [False, True])
def test_scores_are_what_the_mask_in_the_middle_met(share, tmp_path):
    task, model = trained(set={"share_heads": share})
    kept = samples(task, model)
    learned.save(model, tmp_path / "learned.npz", **kept)
    mask = learned.read(tmp_path / "learned.npz")[4]
    steps = method.masking(learned.read_arrays(tmp_path / "learned.npz")["scores"], mask)

    images = task.sources["test"].images[list(IMAGES)[:1]]
    mean, sd = (np.array(values, np.float32) for values in (task.dataset.mean, task.dataset.std))
    image = torch.from_numpy((images / 255 - mean) / sd).permute(0, 3, 1, 2).float()
    with torch.no_grad(), attention_maps(model.eval(), layers=4) as maps:
        model(image)
    (attention,) = maps.values()
    np.testing.assert_allclose(steps["softmax(M ⊙ S)"], attention[0, 0], atol=0.02)
    assert len(mask_plots.steps(steps).axes) == 8


def test_kernels_of_a_mixture_add_up_to_the_mask(tmp_path):
    model = gmmvit.create_model("vit_d6", mask="gmm", kernels=3)
    learned.save(model, tmp_path / "learned.npz")
    mask = learned.read(tmp_path / "learned.npz")[0]
    *parts, whole = method.mixing(mask, head=2).values()
    assert len(parts) == 3 and whole.shape == (15, 15)
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole[7:, 7:], mask.weight()[2, 0].reshape(8, 8), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fields", [{"model": "swin"}, {"mask": "elm"}, {"mask": "none"}, {"set": {"where": "probabilities"}}]
)
def test_other_rows_keep_nothing(fields):
    assert samples(*trained(**fields)) == {}
