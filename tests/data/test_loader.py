"""Order, draws and batches: the same stream for any number of workers and processes, and from any step on."""

import pickle
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import to_pil_image

from gmmvit import data
from gmmvit.data import draws
from gmmvit.data.images import Files
from gmmvit.data.loader import Loader, Stream
from gmmvit.data.threads import one_thread
from gmmvit.train.recipes import find

CIFAR = data.SETS["cifar10"]


@pytest.fixture(autouse=True, scope="module")
def on_one_thread():
    """The tests' own small operations; the loader takes one thread by itself."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def source():
    return data.load("cifar10-mini")["test"]


def stream(source, augment, keys, batch=50, *, seed=0, take=lambda group: group, workers=0):
    groups = [take(keys[at : at + batch]) for at in range(0, len(keys), batch)]
    pairs = list(Loader(Stream(source, augment, seed), groups, workers))
    return [torch.cat(part) for part in zip(*pairs, strict=True)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize("workers", [1, 3])
def test_stream_is_the_same_for_any_number_of_workers(source, workers):
    augment = data.augmentation("gmm", CIFAR, train=True)
    keys = data.epoch_order(len(source), seed=5, epoch=2)[:500]
    assert same(stream(source, augment, keys, workers=workers, seed=5), stream(source, augment, keys, seed=5))


def test_two_processes_see_the_images_of_one(source):
    augment = data.augmentation("gmm", CIFAR, train=True)
    keys = data.epoch_order(len(source), seed=0, epoch=0)[:400]
    whole, labels = stream(source, augment, keys)
    shares = [stream(source, augment, keys, take=lambda batch, rank=rank: batch[rank::2]) for rank in (0, 1)]
    for rank, (images, its_labels) in enumerate(shares):
        assert torch.equal(images, torch.cat([part[rank::2] for part in whole.split(50)]))
        assert torch.equal(its_labels, torch.cat([part[rank::2] for part in labels.split(50)]))


def test_what_was_read_before_changes_nothing(source):
    augment = data.augmentation("short", CIFAR, train=True)
    keys = data.epoch_order(len(source), seed=0, epoch=3)
    whole, labels = stream(source, augment, keys)
    assert same(stream(source, augment, keys[650:]), (whole[650:], labels[650:]))


def test_seed_epoch_and_pass_each_change_order_and_augmentation(source):
    augment = data.augmentation("short", CIFAR, train=True)
    image = np.zeros(1, int)
    variants = [(0, image), (1, image), (0, image + len(source)), (0, image + 2 * len(source))]
    looks = [stream(source, augment, keys, batch=1, seed=seed)[0] for seed, keys in variants]
    assert len({look.numpy().tobytes() for look in looks}) == 4
    orders = [data.epoch_order(100, seed, epoch) % 100 for seed, epoch in ((0, 0), (1, 0), (0, 1))]
    assert len({order.tobytes() for order in orders}) == 3


def test_three_passes_are_one_long_epoch_with_the_iterations_of_the_paper():
    keys = data.epoch_order(50_000, seed=0, epoch=4, passes=3)
    for number, part in enumerate(np.split(keys, 3)):
        assert np.array_equal(np.sort(part), np.arange(50_000) + (12 + number) * 50_000)
    first, second = keys[:50_000] % 50_000, keys[50_000:100_000] % 50_000
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02 and abs(np.corrcoef(first, np.arange(50_000))[0, 1]) < 0.02
    for images, iterations in ((50_000, 1_171), (73_257, 1_716), (100_000, 2_343)):  # of the public code
        order = data.epoch_order(images, 0, 0, passes=3)
        assert find("gmm").steps_per_epoch(images) == len(order) // 128 == iterations


def test_evaluation_sees_every_image_once_in_order(source):
    images, labels = stream(source, data.augmentation("gmm", CIFAR, train=False), np.arange(1000), 128)
    assert np.array_equal(labels.numpy(), source.labels)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in CIFAR.statistics)
    back = ((images * std + mean) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    assert np.array_equal(back.numpy(), source.images)


def test_global_random_stream_does_not_notice_the_loader(source):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    stream(source, data.augmentation("gmm", CIFAR, train=True), np.arange(100), workers=1)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
def test_files_stream_is_the_same_for_any_number_of_workers(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"{number}.png" for number in range(12)]
    for name in names:
        to_pil_image(rng.integers(0, 256, (40, 50), dtype=np.uint8)).save(tmp_path / name)  # grey: read as RGB
    files = Files(tmp_path, np.array([name.encode() for name in names]), np.arange(12))
    augment = data.augmentation("gab-finetune", data.SETS["pets"]._replace(size=32), train=True)
    keys = data.epoch_order(12, 0, 0)
    plain = stream(files, augment, keys, 4)
    assert plain[0].shape == (12, 3, 32, 32) and np.array_equal(plain[1], keys)
    assert same(stream(files, augment, keys, 4, workers=3), plain)
    assert same(stream(files, augment, keys, 3, workers=1), plain)


def test_a_corrupt_file_is_named_by_the_batch_that_meets_it(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    files = Files(tmp_path, np.array([b"bad.jpg"]), np.array([0]))
    augment = data.augmentation("gab-finetune", data.SETS["pets"], train=False)
    with pytest.raises(ValueError, match="bad.jpg cannot be decoded"):
        stream(files, augment, np.arange(1), 1)


def test_uniform_numbers_are_uniform_and_independent():
    seeds = draws.sample_seeds(0, np.arange(200_000))
    columns = np.stack([draws.uniform(seeds, number) for number in range(4)])
    assert columns.min() >= 0 and columns.max() < 1
    for column in columns:
        counts = np.histogram(column, bins=20, range=(0, 1))[0]
        assert ((counts - 10_000) ** 2 / 10_000).sum() < 45  # chi-squared, 19 degrees of freedom: p > 0.0006
    neighbours = np.corrcoef(np.concatenate([columns[:, 1:], columns[:, :-1]]))
    assert np.abs(neighbours - np.eye(8)).max() < 0.012
    assert len(np.unique(np.concatenate([draws.sample_seeds(seed, np.arange(50_000)) for seed in range(4)]))) == 200_000


def test_splitmix_gives_the_known_first_outputs():
    # Reference values of the published generator for the state 1234567.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    words = draws._scramble(np.uint64(1234567) + draws.GOLDEN * np.arange(1, 6, dtype=np.uint64))
    assert words.tolist() == known


def test_a_source_is_opened_again_in_a_worker_that_is_not_forked(source):
    again = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 1000
    assert np.array_equal(again.read([3, 1]), source.images[[3, 1]])
    assert isinstance(Image.fromarray(again.read([3])[0]), Image.Image)


@pytest.mark.parametrize(("recipe", "least"), [("short", 20_000), ("gmm", 4_000)])
def test_arrays_are_augmented_fast_enough_for_a_training(source, recipe, least):
    augment, keys = data.augmentation(recipe, CIFAR, train=True), data.epoch_order(len(source), 0, 0)
    rates = []
    for _ in range(3):
        start = time.process_time()
        stream(source, augment, keys, 100)
        rates.append(len(keys) / (time.process_time() - start))
    assert max(rates) > least, f"{max(rates):.0f} images/s of processor time"


def test_loader_gives_the_threads_back(source):
    torch.set_num_threads(2)
    stream(source, data.augmentation("short", CIFAR, train=True), np.arange(10), 5)
    assert torch.get_num_threads() == 2
