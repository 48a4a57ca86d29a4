"""Average precision and mIoU against independent computations, in one process and in two."""

import json

import numpy as np
import pytest
import torch
import torch.multiprocessing
from pretend import pretended
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from gmmvit.dense import coco, evaluate
from gmmvit.dense.detector import OnTheHost
from gmmvit.fetch import shapes
from gmmvit.train.processes import World

IMAGES = 12


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    shapes.write_coco(folder, {"train": 2, "test": IMAGES})
    return folder


def guesses(source, seed=0):
    """Detections as torchvision gives them: moved boxes, some wrong classes, and some of nothing at all."""
    generator = torch.Generator().manual_seed(seed)
    outputs = []
    for i in range(len(source)):
        target = source.target(source.annotations(i), (96, 96))
        count = len(target["labels"]) + 2
        moved = target["boxes"] + 6 * torch.rand(target["boxes"].shape, generator=generator) - 3
        corner = 60 * torch.rand(2, 2, generator=generator)
        labels = torch.cat([target["labels"], torch.tensor([1, 2])])
        wrong = torch.rand(count, generator=generator) < 0.2
        masks = torch.cat([target["masks"].roll(2, dims=2).float(), torch.zeros(2, 96, 96)])[:, None]
        masks[-2:, :, 5:45, 7:47] = 0.9  # large, though their boxes are small
        outputs.append(
            {
                "boxes": torch.cat([moved, torch.cat([corner, corner + 30], 1)]),
                "labels": torch.where(wrong, labels % 3 + 1, labels),
                "scores": torch.rand(count, generator=generator),
                "masks": masks,
            }
        )
    return outputs


def by_pycocotools(truth, path, kind):
    judged = COCOeval(known := COCO(str(truth)), known.loadRes(str(path)), kind)
    judged.evaluate()
    judged.accumulate()
    judged.summarize()
    return judged.stats


def written(source, outputs, path, kind):
    """A results file made by hand, without the code under test."""
    lines = []
    for image, output in zip(source.ids.tolist(), outputs, strict=True):
        for i, label in enumerate(output["labels"].tolist()):
            line = {
                "image_id": image,
                "category_id": int(source.categories[label - 1]),
                "score": output["scores"][i].item(),
            }
            if kind == "bbox":
                left, top, right, bottom = output["boxes"][i].double().tolist()
                line["bbox"] = [left, top, right - left, bottom - top]
            else:
                packed = run_lengths.encode(np.asfortranarray((output["masks"][i, 0] > 0.5).numpy(), np.uint8))
                line["segmentation"] = {"size": packed["size"], "counts": packed["counts"].decode()}
            lines.append(line)
    path.write_text(json.dumps(lines))
    return path


def test_average_precision_is_that_of_pycocotools_on_a_written_file(home, tmp_path):
    source = coco.read_split(home, "test")
    outputs = guesses(source)
    found = evaluate.results(outputs, source.ids, source.categories)
    scores = evaluate.average_precision(source.truth, found)
    assert len(scores) == 24 and 5 < scores["box_AP"] < 95 and 5 < scores["mask_AP"] < 95
    for part, kind in (("box", "bbox"), ("mask", "segm")):
        expected = by_pycocotools(source.truth, written(source, outputs, tmp_path / f"{kind}.json", kind), kind)
        ours = [value for name, value in scores.items() if name.startswith(part)]
        np.testing.assert_allclose([v / 100 if v >= 0 else -1 for v in ours], expected, atol=1e-6, rtol=0)
    assert scores["box_AP_large"] == -1 and scores["box_AP_medium"] >= 0


def test_the_truth_finds_itself_and_nothing_finds_nothing(home):
    source = coco.read_split(home, "test")
    perfect = []
    for i in range(len(source)):
        target = source.target(source.annotations(i), (96, 96))
        perfect.append(
            target | {"scores": torch.ones(len(target["labels"])), "masks": target["masks"][:, None].float()}
        )
    scores = evaluate.average_precision(source.truth, evaluate.results(perfect, source.ids, source.categories))
    assert scores["box_AP"] == pytest.approx(100) and scores["mask_AP"] == pytest.approx(100)
    assert scores["box_AR1"] < 100  # several of a class in an image
    nothing = evaluate.average_precision(source.truth, [])
    assert nothing["box_AP"] == 0 and nothing["mask_AP50"] == 0 and nothing["box_AP_large"] == -1


def test_masks_are_pasted_on_the_host_as_torchvision_pastes_them():
    draw = torch.Generator().manual_seed(0)
    corners = 90 * torch.rand(30, 2, generator=draw) - 10  # some beyond the edge
    boxes = torch.cat([corners, corners + 2 + 40 * torch.rand(30, 2, generator=draw)], 1)
    detections = {"boxes": boxes, "scores": torch.rand(30, generator=draw), "labels": torch.ones(30).long()}
    detections["masks"] = torch.rand(30, 1, 28, 28, generator=draw)
    transform = GeneralizedRCNNTransform(96, 96, [0.0] * 3, [1.0] * 3).eval()
    sizes = [(96, 96)], [(120, 150)]
    (expected,) = transform.postprocess([dict(detections)], *sizes)
    transform.__class__ = OnTheHost
    with pretended() as gpu:
        there = {name: values.to("cuda") for name, values in detections.items()}
        gpu.log.clear()
        (found,) = transform.postprocess([there], *sizes)
        assert sum(times for (kind, _), times in gpu.log.items() if kind.startswith("wait")) == len(detections)
    assert found.keys() == expected.keys() and found["masks"].shape == (30, 1, 120, 150)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def labels_and_guesses(seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 5, (6, 20, 30))
    predicted = np.where(random.random(labels.shape) < 0.6, labels, random.integers(0, 4, labels.shape))
    labels[random.random(labels.shape) < 0.1] = 255
    return torch.from_numpy(labels), torch.from_numpy(predicted)


def by_sets(labels, predicted):
    """mIoU and accuracy from sets of pixels."""
    places = [place for place in np.ndindex(*labels.shape) if labels[place] != 255]
    truth, guess = ({place: int(values[place]) for place in places} for values in (labels, predicted))
    shares = []
    for c in set(truth.values()) | set(guess.values()):
        a, b = ({place for place, value in each.items() if value == c} for each in (truth, guess))
        shares.append(len(a & b) / len(a | b))
    return 100 * sum(shares) / len(shares), 100 * sum(truth[p] == guess[p] for p in places) / len(places)


def test_miou_and_accuracy_are_those_of_sets_of_pixels():
    labels, predicted = labels_and_guesses()
    matrix = sum(evaluate.confusion(p, t, 7) for p, t in zip(predicted, labels, strict=True))
    assert matrix.sum() == (labels != 255).sum() and (matrix[5:] == 0).all()
    scores = evaluate.overlap(matrix)
    expected = by_sets(labels.numpy(), predicted.numpy())
    assert (scores["mIoU"], scores["aAcc"]) == pytest.approx(expected, abs=1e-9)


def member(rank, folder, home):
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    world, source = World(rank, 2), coco.read_split(home, "test")
    mine = slice(rank, None, 2)
    found = evaluate.results(guesses(source)[mine], source.ids[mine], source.categories)
    labels, predicted = labels_and_guesses()
    matrix = sum(evaluate.confusion(p, t, 7) for p, t in zip(predicted[mine], labels[mine], strict=True))
    scores = evaluate.average_precision(source.truth, found, world) | evaluate.overlap(matrix, world)
    (folder / f"{rank}.json").write_text(json.dumps(scores))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_find_what_one_finds(home, tmp_path):
    torch.multiprocessing.spawn(member, (tmp_path, home), nprocs=2)
    source = coco.read_split(home, "test")
    alone = evaluate.average_precision(source.truth, evaluate.results(guesses(source), source.ids, source.categories))
    labels, predicted = labels_and_guesses()
    alone |= evaluate.overlap(evaluate.confusion(predicted, labels, 7))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(alone, abs=1e-9)


def colours(images):
    """A segmenter that sees one pixel at a time: the brightest channel."""
    return images


def test_windows_see_what_the_whole_image_sees_where_neighbours_do_not_matter():
    image = torch.rand(3, 70, 101)
    for size in ((70, 101), (35, 60)):
        whole = evaluate.whole(colours, image, size)
        assert whole.shape == size
        for crop, step in ((32, 21), (64, 43), (128, 85)):
            assert torch.equal(evaluate.sliding(colours, image, size, crop=crop, step=step), whole)
    assert torch.equal(evaluate.whole(colours, image, (70, 101)), image.argmax(0))


@pytest.mark.parametrize(
    ("side", "expected"), [(512, [0]), (300, [0]), (683, [0, 171]), (853, [0, 341]), (860, [0, 341, 348])]
)
def test_windows_cover_the_image_and_end_at_its_edge(side, expected):
    assert evaluate.starts(side, 512, 341) == expected


def test_overlapping_windows_are_averaged():
    met = []

    def model(crop):
        met.append(crop.shape[-1])
        return torch.cat([torch.full_like(crop[:, :1], len(met)), torch.full_like(crop[:, :1], 1.5)], 1)

    seen = evaluate.sliding(model, torch.zeros(3, 4, 6), (4, 6), crop=4, step=2)
    assert met == [4, 4]  # logits 1 from the left, 2 from the right, 1.5 where both see: against 1.5
    assert seen.tolist() == [[1, 1, 0, 0, 0, 0]] * 4
