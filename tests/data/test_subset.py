"""A share of the training images: of every class as much, drawn by the seed, read as the whole set is."""

import pickle

import numpy as np
import pytest
from PIL import Image

from gmmvit import data
from gmmvit.data.arrays import Arrays
from gmmvit.data.images import Files
from gmmvit.data.subset import subset


class Labels:
    def __init__(self, labels):
        self.labels = np.asarray(labels)

    def __len__(self):
        return len(self.labels)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.37, 0.999])
def test_every_class_keeps_its_share(share):
    whole = Labels(np.random.default_rng(0).permutation(np.repeat(np.arange(5), [1000, 300, 300, 50, 7])))
    drawn = subset(whole, share, seed=1)
    assert len(drawn) == len(drawn.labels) == round(share * len(whole)) == len(set(drawn.chosen))
    counts = np.bincount(drawn.labels, minlength=5)
    assert np.abs(counts - share * np.bincount(whole.labels)).max() <= 1


def test_the_seed_draws_it_and_a_smaller_share_lies_within_a_larger_one():
    whole = Labels(np.arange(2000) % 10)
    tenth, same, other = (subset(whole, 0.1, seed).chosen for seed in (3, 3, 4))
    assert np.array_equal(tenth, same) and len(set(tenth) & set(other)) < 60  # 20 are expected by chance
    assert set(subset(whole, 0.01, 3).chosen) < set(tenth) < set(subset(whole, 0.5, 3).chosen)
    assert subset(whole, 1.0, 3) is whole


def test_arrays_are_read_by_their_numbers_in_the_subset_also_in_another_process():
    whole = data.load("cifar10-mini")["train"]
    drawn = pickle.loads(pickle.dumps(subset(whole, 0.05, 0)))
    assert isinstance(drawn.whole, Arrays) and np.bincount(drawn.labels).tolist() == [10] * 10
    numbers = np.array([7, 0, 99, 7])
    np.testing.assert_array_equal(drawn.read(numbers), whole.read(drawn.chosen[numbers]))
    np.testing.assert_array_equal(drawn.labels[numbers], whole.labels[drawn.chosen[numbers]])


def test_files_are_read_by_their_numbers_in_the_subset(tmp_path):
    for number in range(6):
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / f"{number}.png")
    names = np.array([f"{number}.png".encode() for number in range(6)])
    drawn = subset(Files(tmp_path, names, np.arange(6) % 2), 2 / 3, 0)
    shown = [np.asarray(image)[0, 0, 0] for image in drawn.read(np.arange(4))]
    assert shown == list(drawn.chosen) and sorted(drawn.labels) == [0, 0, 1, 1]
