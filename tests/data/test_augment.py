"""Augmentation against torchvision's own operations, image by image, and against the recipe's numbers."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from gmmvit import data
from gmmvit.data import autoaugment, draws
from gmmvit.data.augment import augment_one_by_one, flip_and_crop
from gmmvit.data.erasing import inside, random_boxes
from gmmvit.data.threads import one_thread

CIFAR, PETS = data.SETS["cifar10"], data.SETS["pets"]


@pytest.fixture(autouse=True, scope="module")
def on_one_thread():
    """As in the loader."""
    with one_thread():
        yield


def noise(count, size=32, seed=0):
    """Images whose colours, contrast and range differ, so that equalize and autocontrast have something to do."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 100, (count, 1, 1, 3))
    return (low + rng.integers(0, 156, (count, size, size, 3)) * rng.random((count, 1, 1, 1))).astype(np.uint8)


def seeds(count, seed=0):
    return draws.sample_seeds(seed, np.arange(count))


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenet"])
def test_batch_autoaugment_is_torchvisions_bit_for_bit(name, size):
    """But for rotations, which have one sign here."""
    count = 400
    images = torch.from_numpy(noise(count, size)).permute(0, 3, 1, 2).contiguous()
    numbers = np.random.default_rng(1).random((5, count))
    ours = autoaugment.autoaugment(autoaugment.policy_tables(name, size), images.clone(), numbers)
    official = v2.AutoAugment(v2.AutoAugmentPolicy(name), fill=128)
    changed = set()
    for index in range(count):
        image = images[index]
        pair = official._policies[int(numbers[0, index] * len(official._policies))]
        for step, (operation, chance, bin_number) in enumerate(pair):
            happens, sign = numbers[1 + 2 * step, index], numbers[2 + 2 * step, index]
            if happens <= chance:
                table, signed = official._AUGMENTATION_SPACE[operation]
                values = table(10, size, size)
                magnitude = 0.0 if values is None else float(values[bin_number])
                magnitude *= -1 if signed and sign <= 0.5 and operation != "Rotate" else 1
                options = {"interpolation": official.interpolation, "fill": official._fill}
                image = official._apply_image_or_video_transform(image, operation, magnitude, **options)
                changed.add(operation)
        assert torch.equal(ours[index], image), pair
    assert changed == {step[0] for pair in official._policies for step in pair if step[1] > 0}


@pytest.mark.parametrize("name, share", [("cifar10", 0.028), ("svhn", 0.137), ("imagenet", 0.144)])
def test_rotations_turn_counter_clockwise_as_often_as_in_the_public_port(name, share):
    """Of the top edge, a white right half moves to the left."""
    policy = autoaugment.policy_tables(name, 32)
    rotations = {number for number, action in enumerate(policy.actions) if action[0] == "Rotate"}
    draw = np.random.default_rng(2).random((5, 40_000))
    pair = (draw[0] * len(policy.chance)).astype(int)
    turned = np.zeros(draw.shape[1], bool)
    for step in (0, 1):
        number = policy.drawn[pair, step, (draw[2 + 2 * step] <= 0.5).astype(int)]
        turned |= np.isin(number, list(rotations)) & (draw[1 + 2 * step] <= policy.chance[pair, step])
    assert turned.mean() == pytest.approx(share, abs=0.006)
    corner = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    corner[..., :6, 16:] = 255
    for number in rotations:
        image = autoaugment.operate(policy.auto, policy.actions[number], corner.clone())
        white = (image[0, 0] == 255).nonzero()[:, 1].double().mean()
        assert white < 23, policy.actions[number]  # clockwise it would go to the right


def test_translation_reaches_150_of_331_parts_of_the_image():
    auto = v2.AutoAugment(v2.AutoAugmentPolicy("cifar10"), fill=autoaugment.FILL)
    (action, _) = autoaugment._signed(auto, ("TranslateX", 1.0, 9), 32)
    assert action == ("TranslateX", pytest.approx(150 / 331 * 32))
    moved = autoaugment.operate(auto, action, torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert (moved[0, 0, 0] == 128).sum() == 14


def test_an_image_comes_out_the_same_in_any_batch():
    augment = data.augmentation("gmm", CIFAR, train=True)
    samples, numbers = noise(100), seeds(100)
    together = augment(samples, numbers)
    order = np.random.default_rng(2).permutation(100)
    assert torch.equal(augment(samples[order], numbers[order]), together[order])
    assert torch.equal(torch.cat([augment(samples[i : i + 1], numbers[i : i + 1]) for i in range(100)]), together)


def test_flip_and_crop_are_torchvisions_with_the_drawn_numbers():
    samples, numbers = noise(200), seeds(200)
    ours = flip_and_crop(samples, numbers)
    flipped = [draws.uniform(numbers, 0) < 0.5, *(np.floor(draws.uniform(numbers, n) * 9) for n in (1, 2))]
    for sample, out, flip, row, column in zip(samples, ours, *flipped, strict=True):
        image = torch.from_numpy(sample).permute(2, 0, 1)
        image = F.pad(F.horizontal_flip(image) if flip else image, [4, 4, 4, 4])
        expected = F.crop(image, int(row), int(column), 32, 32).permute(1, 2, 0)
        assert np.array_equal(out, expected.numpy())
    assert set(flipped[1]) == set(flipped[2]) == set(range(9))


def test_normalisation_is_torchvisions():
    samples = noise(10)
    ours = data.augmentation("gmm", CIFAR, train=False)(samples, seeds(10))
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(CIFAR.mean, CIFAR.std)])
    expected = torch.stack([transform(Image.fromarray(sample)) for sample in samples])
    torch.testing.assert_close(ours, torch.Tensor(expected))


def test_erasing_fills_a_quarter_of_the_images_with_the_raw_means():
    count, size = 8_000, 32
    fill = (0.4914, 0.4822, 0.4465)
    erased = inside(random_boxes(seeds(count), size), size)
    images = torch.where(erased, torch.tensor(fill).view(3, 1, 1), torch.full((count, 3, size, size), -9.0))
    erased = images[:, 0] != -9
    for channel in range(3):
        assert images[:, channel].unique().tolist() == [-9.0, pytest.approx(fill[channel])]
        assert torch.equal(images[:, channel] != -9, erased)
    hit = erased.flatten(1).any(dim=1)
    assert hit.float().mean() == pytest.approx(0.25, abs=0.02)
    height, width = erased[hit].any(dim=2).sum(dim=1), erased[hit].any(dim=1).sum(dim=1)
    assert torch.equal(erased[hit].flatten(1).sum(dim=1), height * width), "each is one rectangle"
    assert height.max() < size and width.max() < size
    share, aspect = (height * width / size**2).numpy(), (height / width).numpy()
    assert 0.015 < share.min() < 0.03 and 0.37 < share.max() < 0.42
    assert share.mean() == pytest.approx(0.21, abs=0.01)
    # uniform in [0.3, 3.33] is above 1 in 77 % of the cases; log-uniform, as in torchvision, would be in 50 %
    assert 0.28 < aspect.min() and aspect.max() < 3.8
    assert (height > width).double().mean() > 0.68
    top, left = erased[hit].any(dim=2).int().argmax(dim=1), erased[hit].any(dim=1).int().argmax(dim=1)
    assert (top == 0).any() and (top + height == size).any() and (left == 0).any() and (left + width == size).any()


def test_raw_mean_erasing_is_a_switch():
    samples, numbers = noise(400), seeds(400)
    raw = data.augmentation("gmm", CIFAR, train=True)(samples, numbers)
    zero = data.augmentation("gmm", CIFAR, train=True, raw_mean_erasing=False)(samples, numbers)
    differs = raw != zero
    assert 0.1 < differs.flatten(1).any(dim=1).double().mean() < 0.4
    assert zero[differs].abs().max() == 0
    assert raw[:, 1][differs[:, 1]].unique().tolist() == [pytest.approx(CIFAR.mean[1])]


@pytest.mark.parametrize("recipe", ["gab-finetune", "gab-imagenet", "deit-transmix"])
def test_file_recipes_give_224_px_from_any_shape_and_depend_on_the_seed_alone(recipe):
    images = [Image.fromarray(noise(1, 300)[0, :, :width]) for width in (200, 260, 300)]
    numbers = seeds(3)
    augment = data.augmentation(recipe, PETS, train=True)
    together = augment(images, numbers)
    assert together.shape == (3, 3, 224, 224) and together.dtype == torch.float32
    torch.rand(5), np.random.rand(5), random.random()
    assert torch.equal(augment(images[1:], numbers[1:]), together[1:])
    assert not torch.equal(augment(images, numbers + np.uint64(1)), together)
    plain = data.augmentation(recipe, PETS, train=False)
    assert torch.equal(plain(images, numbers), plain(images, numbers + np.uint64(1)))
    assert data.augmentation(recipe, PETS._replace(size=64), train=True)(images, numbers).shape == (3, 3, 64, 64)


def test_finetuning_evaluation_is_resize_256_and_centre_crop_224():
    image = Image.fromarray(noise(1, 400)[0, :, :300])
    short_side_256 = image.resize((256, int(400 * 256 / 300)), Image.BILINEAR)
    crop = F.center_crop(short_side_256, [224, 224])
    expected = F.normalize(F.to_dtype(F.to_image(crop), torch.float32, scale=True), PETS.mean, PETS.std)
    torch.testing.assert_close(data.augmentation("gab-finetune", PETS, train=False)([image], seeds(1))[0], expected)


def test_transmix_trains_with_a_drawn_interpolation_and_tests_on_nine_tenths():
    """As the public code's configuration has it: resized to 248, and of the square in the middle 224."""
    transform = data.augmentation("deit-transmix", PETS, train=True).raw.args[0]
    crop = transform.transforms[0]
    assert {way.value for way in crop.interpolation} == {"bilinear", "bicubic"}
    image, augment = Image.fromarray(noise(1, 400)[0]), data.augmentation("deit-transmix", PETS, train=False)
    expected = F.center_crop(image.resize((248, 248), Image.BICUBIC), [224, 224])
    expected = F.normalize(F.to_dtype(F.to_image(expected), torch.float32, scale=True), PETS.mean, PETS.std)
    torch.testing.assert_close(augment([image], seeds(1))[0], expected)
    imagenet = data.augmentation("gab-imagenet", PETS, train=False).raw.args[0]
    assert imagenet.transforms[0].size == 256


def test_randaugment_survives_the_strongest_posterize():
    from timm.data.auto_augment import AugmentOp

    transform = data.augmentation("deit-transmix", PETS, train=True).raw.args[0]
    operations = [op for step in transform.transforms for op in getattr(step, "ops", ())]
    (posterize,) = [op for op in operations if isinstance(op, AugmentOp) and op.name == "PosterizeIncreasing"]
    posterize.prob, posterize.magnitude, posterize.magnitude_std = 1.0, 10, 0
    assert np.asarray(posterize(Image.fromarray(noise(1)[0]))).max() == 0
    posterize.magnitude = 9  # keeps one bit
    assert set(np.unique(np.asarray(posterize(Image.fromarray(noise(1)[0]))))) <= {0, 128}


def test_global_random_streams_are_left_alone():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    data.augmentation("deit-transmix", PETS, train=True)([Image.fromarray(noise(1, 64)[0])], seeds(1))
    data.augmentation("gmm", CIFAR, train=True)(noise(8), seeds(8))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_file_recipes_work_on_arrays_too():
    augment = data.augmentation("deit-transmix", CIFAR, train=True)
    assert augment(noise(4), seeds(4)).shape == (4, 3, 32, 32)
    identity = augment_one_by_one(F.pil_to_tensor, noise(2), seeds(2))
    assert np.array_equal(identity.images.permute(0, 2, 3, 1).numpy(), noise(2))


def test_wrong_uses_are_answered_in_a_sentence():
    with pytest.raises(ValueError, match="unknown augmentation recipe 'gab-finetun'.*'gab-finetune'"):
        data.augmentation("gab-finetun", CIFAR, train=True)
    with pytest.raises(ValueError, match="gmm augments 32 and 64 px arrays; for the images of pets use gab-finetune"):
        data.augmentation("gmm", PETS, train=True)


@pytest.mark.parametrize("recipe", data.AUGMENTATIONS)
def test_augmentations_can_be_sent_to_workers_that_are_not_forked(recipe):
    augment = data.augmentation(recipe, CIFAR, train=True)
    assert torch.equal(pickle.loads(pickle.dumps(augment))(noise(8), seeds(8)), augment(noise(8), seeds(8)))
