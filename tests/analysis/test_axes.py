"""Accuracy on images unlike those of the training, against the plain one and against models that see one thing."""

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import gmmvit
from gmmvit.analysis import axes as measured
from gmmvit.analysis import corrupted_sets, drawn
from gmmvit.analysis.axes import at_size, axes, has_axes, hits, occluded, resized, shuffled, top1
from gmmvit.train.classify import Classification
from gmmvit.train.precision import Working, resolve
from gmmvit.train.processes import World
from gmmvit.train.rows import Row

KINDS = ("contrast", "pixelate")


@pytest.fixture(autouse=True, scope="module")
def few_kinds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GMMVIT_DATA", str(tmp_path_factory.mktemp("corrupted")))
        patch.setattr(corrupted_sets, "CORRUPTIONS", {kind: corrupted_sets.CORRUPTIONS[kind] for kind in KINDS})
        yield


@pytest.fixture(scope="module")
def row():
    return Row("cifar10-mini", "vit_xs", "gmm")


@pytest.fixture(scope="module")
def trained(row):
    task = Classification(row, World(), 0)
    return task, task.model()


@pytest.fixture(scope="module")
def found(trained):
    return axes(*trained)


def working(model, task=None):
    """A model as it is, or in the precision of a task."""
    dtype = resolve(task.recipe.precision, torch.device("cpu")).dtype if task else torch.float32
    return Working(model, dtype, torch.device("cpu"))


class Brightest(nn.Module):
    """Says which quarter of the image is the brightest."""

    def forward(self, images):
        return F.adaptive_avg_pool2d(images.mean(1), 2).flatten(1)


def quarters(count=200):
    """Images (N, 3, 32, 32) of one bright quarter each, and which it is."""
    labels = torch.arange(count) % 4
    images = -torch.ones(count, 3, 2, 2)
    images[torch.arange(count), :, labels // 2, labels % 2] = 1
    return images.repeat_interleave(16, 2).repeat_interleave(16, 3), labels


# ---- what is done to the images -------------------------------------------------------------------------------------


def test_a_share_of_the_patches_is_at_the_mean_and_a_larger_share_hides_the_same_and_more():
    images = torch.ones(20, 3, 32, 32)
    before = torch.zeros(20, 8, 8, dtype=torch.bool)
    for share, patches in zip(measured.SHARES, (0, 6, 16, 32, 48), strict=True):
        found = occluded(images, share)
        hidden = found[:, 0, ::4, ::4] == 0  # (N, 8, 8)
        assert (hidden.sum((1, 2)) == patches).all() and (hidden >= before).all()
        assert torch.equal(
            found == 0, hidden[:, None].repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)
        )
        before = hidden
    assert len({tuple(each.flatten().tolist()) for each in before}) == 20  # in each image otherwise


def test_tiles_change_places_and_nothing_else():
    images = torch.arange(6 * 3 * 32 * 32).view(6, 3, 32, 32).float()
    assert torch.equal(shuffled(images, 1), images)
    for tiles in (2, 4, 8):
        found, size = shuffled(images, tiles), 32 // tiles
        assert torch.equal(found, shuffled(images, tiles)) and not torch.equal(found, images)
        for image, other in zip(images, found, strict=True):
            cut = [
                {
                    tuple(each[:, y : y + size, x : x + size].flatten().tolist())
                    for y in range(0, 32, size)
                    for x in range(0, 32, size)
                }
                for each in (image, other)
            ]
            assert cut[0] == cut[1]


def test_a_model_that_knows_one_thing_is_as_right_as_the_images_allow():
    images, labels = quarters()
    model = working(Brightest())
    assert top1(model, images, labels) == 100 and top1(model, images, (labels + 1) % 4) == 0
    assert top1(model, images, torch.zeros_like(labels)) == 25
    moved = shuffled(images, 2)
    bright = (moved[:, 0, ::16, ::16] == 1).flatten(1).long().argmax(1)
    assert top1(model, moved, labels) == 100 * (bright == labels).double().mean() < 50  # one in four by chance
    assert top1(model, occluded(images, 0.25), labels) == 100  # some of a bright quarter is left
    assert at_size(model, images, labels, 32) == 100 and np.isnan(at_size(model, images, labels, 48))


# ---- a row -----------------------------------------------------------------------------------------------------------


def test_axes_begin_with_the_plain_accuracy(trained, found):
    task, model = trained
    assert found["corruption"].shape == (2, 5) and found["corruption_axis"].tolist() == [*KINDS]
    assert found["axes_images"] == 10 and {each.dtype for each in map(found.get, along())} == {np.dtype("float32")}
    source = measured.subset(task.sources["test"], 0.01, 0)
    assert sorted(source.labels) == list(range(10))  # one of each class
    images, labels = task.shown("test", source.chosen)
    plain = top1(working(model, task), images, labels)
    for name, at in (("occlusion", 0.0), ("shuffle", 1), ("resolution", 32)):
        scores, axis = found[name], found[f"{name}_axis"]
        assert scores.shape == axis.shape and scores[axis.tolist().index(at)] == np.float32(plain), name
        assert np.isfinite(scores).all()


def along():
    return "corruption", "occlusion", "shuffle", "resolution"


def test_corrupted_images_are_those_that_are_measured(trained, found):
    task, model = trained
    source = measured.subset(task.sources["test"], 0.01, 0)
    pixels = source.read(np.arange(10))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in task.dataset.statistics)
    for kind, scores in zip(KINDS, found["corruption"], strict=True):
        for severity, score in enumerate(scores, 1):
            spoilt = torch.from_numpy(corrupted_sets.corrupted(pixels, kind, severity)).permute(0, 3, 1, 2)
            with torch.no_grad(), working(model, task).context():
                said = working(model.eval(), task).module((spoilt / 255 - mean) / std).argmax(1)
            assert score == pytest.approx(100 * (said.numpy() == source.labels).mean()), (kind, severity)


@pytest.mark.parametrize("mask", ["none", "gmm", "elm"])
def test_another_size_is_the_model_regridded(mask):
    torch.manual_seed(0)
    model = gmmvit.create_model("vit_xs", mask=mask).eval()
    images = torch.randn(2, 3, 40, 40)
    other = copy.deepcopy(model)
    if mask == "none":
        other.set_input_size(img_size=40)
    else:
        gmmvit.regrid(other, 40)
    with torch.no_grad():
        assert torch.equal(resized(model, 40)(images), other(images))
        assert model(images[..., :32, :32]).shape == (2, 10)  # itself as it was
    assert resized(gmmvit.create_model("pit"), 40) is None


class OneGrid(nn.Module):
    """A mask of one's own that cannot follow another grid."""

    def __init__(self, grid, heads, prefix=0, key_grid=None):
        super().__init__()
        self.free = nn.Parameter(torch.zeros(grid[0] * grid[1], grid[0] * grid[1]))

    def forward(self, scores):
        return scores + self.free


def test_a_mask_that_is_made_for_one_grid_has_no_other_size():
    model = gmmvit.create_model("vit_xs", mask=lambda grid, heads, **place: OneGrid(grid, heads))
    images, labels = quarters(4)
    assert resized(model, 40) is None and np.isnan(at_size(working(model), images, labels, 40))
    assert np.isfinite(at_size(working(model), images, labels, 32))


@pytest.mark.parametrize(
    "there, settings",
    [
        (True, {"dataset": "cifar100", "model": "vit", "recipe": "gmm"}),
        (False, {"dataset": "cifar100", "model": "vit"}),  # where vit_xs is trained, and shown
        (True, {"mask": "gmm", "set": {"mask_lr": 60.0, "epochs": 3}}),
        (True, {"dataset": "cifar10-mini"}),
        (False, {"dataset": "cifar10-mini", "model": "vit"}),  # the smoke profile has many of them
        (False, {"dataset": "tiny-imagenet"}),
        (False, {"dataset": "pets", "recipe": "gab-finetune"}),
        (False, {"model": "swin"}),
        (False, {"mask": "gmm", "set": {"kernels": 3}}),
        (False, {"set": {"fraction": 0.1}}),
    ],
)
def test_arms_of_the_comparison_are_measured_and_no_other_rows(there, settings):
    assert has_axes(Row(**{"dataset": "cifar10", "model": "vit_xs"} | settings)) is there


def test_corrupted_images_are_drawn_once(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    first = {kind: np.array(each) for kind, each in corrupted_sets.corrupted_set("some", images).items()}
    assert first.keys() == {*KINDS} and first["contrast"].shape == (5, 3, 32, 32, 3)
    files = sorted((tmp_path / "some-c").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(corrupted_sets, "corrupted", None)
        again = corrupted_sets.corrupted_set("some", images)
        assert all(np.array_equal(again[kind], each) for kind, each in first.items())
    corrupted_sets.corrupted_set("some", 255 - images)
    assert len(list((tmp_path / "some-c").iterdir())) == 2 and sorted((tmp_path / "some-c").iterdir()) != files


# ---- what was not changed is passed over -----------------------------------------------------------------------------


def test_a_run_is_passed_over_until_its_weights_or_the_code_change(row, trained, tmp_path, monkeypatch):
    run, state = tmp_path / "runs" / row.name, dict(trained[1].state_dict())
    run.mkdir(parents=True)
    torch.save({"row": json.dumps(vars(row)), "model": state}, run / "weights.pt")
    monkeypatch.setattr(drawn, "axes", lambda task, model: {"bias": model.head.bias.detach().numpy()})
    made = f"{row.name}: bias"
    assert list(drawn.analysed([run])) == [made] and drawn.arrays(run).keys() == {"bias"}
    before = drawn.file_of(run).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(drawn, "trained", None)
        assert list(drawn.analysed([run])) == [f"{row.name}: as it was, with the weights and the code it was made of"]
    assert drawn.file_of(run).read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(drawn, "_engine", lambda: "another")
        assert list(drawn.analysed([run])) == [made]
    torch.save({"row": json.dumps(vars(row)), "model": state | {"head.bias": torch.arange(10.0)}}, run / "weights.pt")
    assert list(drawn.analysed([run])) == [made] and drawn.arrays(run)["bias"].tolist() == list(range(10))


def test_a_file_of_before_there_were_keys_is_read_and_made_again(tmp_path):
    run = tmp_path / "runs" / "old"
    drawn.file_of(run).parent.mkdir(parents=True)
    np.savez(drawn.file_of(run), erf=np.eye(2))
    assert drawn._made_of(run) is None and drawn.arrays(run)["erf"].shape == (2, 2)


def test_a_gpu_finds_what_the_cpu_finds(forward_gpu):
    images, labels = quarters(8)
    model, place = Brightest(), torch.device("cuda")
    with forward_gpu():
        for change in (lambda each: occluded(each, 0.5), lambda each: shuffled(each, 4)):
            there = hits(Working(model, torch.float32, place), change(images.to(place)), labels.to(place)).cpu()
            assert torch.equal(there, hits(working(model), change(images), labels))
