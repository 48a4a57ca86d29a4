"""What a worker sends and what is done where it arrives make the images that one transform would have made, bit by bit.

The transforms here are those of torchvision and timm put together as their manuals do: normalised image by image, and
erased afterwards.
"""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from pretend import CUDA, pretended
from timm.data import create_transform
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from gmmvit import data
from gmmvit.data import autoaugment, draws
from gmmvit.data.augment import _posterize, flip_and_crop
from gmmvit.data.erasing import PROBABILITY, rectangles
from gmmvit.data.finish import Finish, Pieces, Raw, Unfinished

PETS = data.SETS["pets"]
COUNT = 24


def seeds():
    return draws.sample_seeds(3, np.arange(COUNT))


def pixels(size):
    return np.random.default_rng(0).integers(0, 256, (COUNT, size, size, 3), np.uint8)


def photographs():
    return [Image.fromarray(each[:, : 60 + 3 * number]) for number, each in enumerate(pixels(150))]


def normalised(images, dataset):
    return F.normalize(F.to_dtype(images, torch.float32, scale=True), dataset.mean, dataset.std)


def arrays_as_one_transform(recipe, dataset, train, raw_mean):
    samples, numbers = pixels(dataset.size), seeds()
    samples = flip_and_crop(samples, numbers) if train else samples
    images = torch.from_numpy(samples).permute(0, 3, 1, 2).contiguous()
    if not train or recipe == "short":
        return normalised(images, dataset)
    policy = autoaugment.policy_tables(dataset.policy, dataset.size)
    images = autoaugment.autoaugment(policy, images, np.stack([draws.uniform(numbers, 3 + n) for n in range(5)]))
    images = normalised(images, dataset)
    hit = np.flatnonzero(draws.uniform(numbers, draws.ERASE) < PROBABILITY)
    fill = torch.tensor(dataset.mean if raw_mean else (0.0, 0.0, 0.0)).view(3, 1, 1)
    for number, top, left, height, width in zip(*rectangles(hit, numbers[hit], dataset.size), strict=True):
        images[number, :, top : top + height, left : left + width] = fill
    assert 2 <= len(hit) < COUNT
    return images


@pytest.mark.parametrize("name", ["cifar100", "svhn", "tiny-imagenet"])
@pytest.mark.parametrize(
    ("recipe", "train", "raw_mean"), [("gmm", 1, 1), ("gmm", 1, 0), ("gmm", 0, 1), ("short", 1, 1), ("short", 0, 1)]
)
def test_arrays_are_as_one_transform_makes_them(name, recipe, train, raw_mean):
    dataset = data.SETS[name]
    augment = data.augmentation(recipe, dataset, train=bool(train), raw_mean_erasing=bool(raw_mean))
    check(augment, pixels(dataset.size), arrays_as_one_transform(recipe, dataset, train, raw_mean))


def finetuning(train):
    spoil = [
        v2.RandomResizedCrop(256, scale=(0.8, 1.0)),
        v2.RandomRotation(15),
        v2.ColorJitter(0.4, 0.4, 0.4),
        v2.RandomHorizontalFlip(),
    ]
    end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(PETS.mean, PETS.std), v2.ToPureTensor()]
    return v2.Compose([*(spoil if train else [v2.Resize(256)]), v2.CenterCrop(224), v2.ToImage(), *end])


def timms(recipe, train):
    transmix = recipe == "deit-transmix"
    transform = create_transform(
        224,
        is_training=train,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="random" if transmix and train else "bicubic",
        crop_pct=0.9 if transmix else 0.875,
        re_prob=0.0 if transmix else 0.25,
        re_mode="pixel",
        mean=PETS.mean,
        std=PETS.std,
    )
    for step in transform.transforms:
        for operation in getattr(step, "ops", ()):
            if operation.name == "PosterizeIncreasing":
                operation.aug_fn = _posterize
    return transform


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("recipe", ["gab-finetune", "gab-imagenet", "deit-transmix"])
def test_files_are_as_one_transform_makes_them(recipe, train):
    transform = finetuning(train) if recipe == "gab-finetune" else timms(recipe, train)
    images = []
    for sample, seed in zip(photographs(), seeds().tolist(), strict=True):
        random.seed(seed), np.random.seed(seed % 2**32), torch.manual_seed(seed % 2**63)
        images.append(transform(sample))
    augment = data.augmentation(recipe, PETS, train=train)
    check(augment, photographs(), torch.stack(images))
    boxes = augment.raw(photographs(), seeds()).boxes
    if recipe == "gab-imagenet" and train:
        assert 2 <= (boxes[:, 2] > boxes[:, 0]).sum() < COUNT  # some are erased
    else:
        assert boxes is None


def check(augment, samples, expected):
    """The same whole, and sent in pieces as processes load them."""
    assert torch.equal(augment(samples, seeds()), expected) and expected.dtype == torch.float32
    cuts = [slice(0, 9), slice(9, 10), slice(10, COUNT)]
    pieces = [augment.raw(samples[cut], seeds()[cut]) for cut in cuts]
    assert all(piece.images.dtype == torch.uint8 for piece in pieces)
    assert torch.equal(Unfinished(pieces, augment.finish).to(torch.device("cpu")), expected)


def test_pieces_of_labels_are_put_together():
    assert Pieces([torch.tensor([1, 2]), torch.tensor([3])]).to(torch.device("cpu")).tolist() == [1, 2, 3]


@pytest.mark.parametrize("noisy", [True, False])
def test_the_device_is_not_waited_for(noisy):
    """Fake tensors have no values: whatever needed one on the host would raise."""
    with FakeTensorMode():
        finish = Finish(*torch.empty(3, 3, 1, 1, device="cuda").unbind(0), divided=noisy)
        noise = torch.empty(500, device="cuda") if noisy else None
        raw = Raw(torch.empty(8, 3, 32, 32, dtype=torch.uint8, device="cuda"), torch.ones(8, 4, device="cuda"), noise)
        images = finish(raw)
    assert (images.device.type, images.shape, images.dtype) == ("cuda", (8, 3, 32, 32), torch.float32)


@pytest.mark.parametrize("recipe", ["gmm", "gab-imagenet"])
def test_on_a_gpu_a_batch_is_finished_in_few_operators_and_without_waiting(recipe):
    """A thousand images in sixteen pieces: a copy of each piece, and then as many operators as for one image."""
    dataset = data.SETS["cifar10"]
    augment = data.augmentation(recipe, dataset, train=True)
    pieces = [augment.raw(pixels(32), seeds()) for _ in range(16)]
    with pretended() as gpu:
        end = augment.finish.to(CUDA)
        gpu.log.clear(), gpu.operators.clear()
        images = Unfinished(pieces, end).to(CUDA, non_blocking=True)
        assert not gpu.waits()
        copies = 16 * sum(part is not None for part in pieces[0])
        assert images.device == CUDA and sum(gpu.operators.values()) < copies + 25
        images = images.cpu()
    assert torch.equal(images, augment(pixels(32), seeds()).repeat(16, 1, 1, 1))
