"""Detection and segmentation as tasks of the training: recipes, batches, updates, and three shapes learned by heart."""

import functools

import numpy as np
import pytest
import torch

import gmmvit
from gmmvit import fetch
from gmmvit.dense import coco, opened, recipes
from gmmvit.dense.checks import problems
from gmmvit.dense.tasks import TASKS, average_buffers
from gmmvit.fetch import shapes
from gmmvit.train.processes import World
from gmmvit.train.recipes import find
from gmmvit.train.rows import Row
from gmmvit.train.update import Update

SETS = {"detection": "coco-shapes", "segmentation": "ade20k-shapes"}
RECIPE = {"detection": "coco-3x", "segmentation": "ade20k-160k"}
SMALL = {"batch": 2, "epochs": 1, "precision": "float32", "width": 16, "regions": 16, "epoch_steps": 3}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    write(tmp_path, {"train": 5, "test": 3})
    return tmp_path


def write(folder, counts):
    shapes.write_coco(folder / "coco-shapes", counts)
    shapes.write_ade(folder / "ade20k-shapes", counts)
    for name in SETS.values():
        fetch.obtain(name)


def task_of(kind, world=World(), seed=0, **settings):  # noqa: B008
    row = Row(SETS[kind], "swin_micro", "gab", RECIPE[kind], seed=seed, set=SMALL | settings)
    return TASKS[kind](row, world, workers=0)


def update_of(task, dtype=torch.float32):
    model = task.model()
    parts = model, task.recipe, task.loss, task.image, task.steps, dtype, task.row.seed, task.world
    update = Update(*parts)
    update.set_lr = task.recipe.schedule(update.optimizer, task.steps)
    update.working.module.train()
    return update


def test_a_model_for_a_gpu_has_its_convolutions_as_kernels_there_read_them(data):
    for kind in TASKS:
        here = task_of(kind).model()
        there = task_of(kind, World(device=torch.device("cuda"))).model()
        for (name, ours), theirs in zip(here.named_parameters(), there.named_parameters(), strict=True):
            assert torch.equal(ours, theirs[1]), name
            assert ours.is_contiguous() and theirs[1].is_contiguous(
                memory_format=torch.channels_last if ours.ndim == 4 else torch.contiguous_format
            )
    assert type(task_of("detection").model().transform).__name__ == "OnTheHost"


# ---- recipes --------------------------------------------------------------------------------------------------------


def test_recipes_have_the_steps_that_they_are_named_for():
    coco_3x, ade = find("coco-3x"), find("ade20k-160k")
    assert ade.epochs * ade.steps_per_epoch(20_210) == 160_000 and ade.batch == 16
    assert coco_3x.steps_per_epoch(117_266) == 7_329
    assert (coco_3x.lr, coco_3x.weight_decay, ade.lr, ade.weight_decay) == (1e-4, 0.05, 6e-5, 0.01)
    with pytest.raises(ValueError, match="unknown recipe 'coco-1x'.*nearest is 'coco-3x'"):
        find("coco-1x")


def test_learning_rates_follow_their_formulas():
    rate = functools.partial(recipes.rate, find("coco-3x"), steps_per_epoch=7_330)
    assert rate(0) == pytest.approx(1e-7) and rate(500) == pytest.approx(1e-4 * (0.001 + 0.999 / 2))
    assert [rate(7_330 * epoch) for epoch in (1, 27, 33)] == pytest.approx([1e-4, 1e-5, 1e-6])
    assert rate(7_330 * 27 - 1) == pytest.approx(1e-4)
    rate = functools.partial(recipes.rate, find("ade20k-160k"), steps_per_epoch=16_000)
    assert rate(1_500) == pytest.approx(6e-5 * (1 - 1_500 / 160_000)) and rate(80_000) == pytest.approx(3e-5)
    assert rate(750) == pytest.approx(6e-5 * (1 - 750 / 160_000) / 2, rel=1e-5) and 0 < rate(159_999) < 1e-9
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}])
    find("ade20k-160k").schedule(optimizer, 16_000)(80_000)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([3e-5, 3e-5])


# ---- tasks ----------------------------------------------------------------------------------------------------------


def flat(batches):
    """(step, key) -> image and targets, whatever shares they came in."""
    found = {}
    for step, batch in enumerate(batches):
        for keys, images, targets in batch:
            for key, image, target in zip(keys.tolist(), images, targets, strict=True):
                found[step, key] = image, target
    return found


@pytest.mark.parametrize("kind", SETS)
def test_batches_are_the_same_for_any_processes_shares_and_restarts(data, kind):
    whole = flat(task_of(kind, batch=4).batches(0, 0))
    assert len(whole) == 12 and len({key for _, key in whole}) == 12  # 12 images in three passes over 5
    two = [flat(task_of(kind, World(rank, 2), batch=4).batches(0, 0)) for rank in range(2)]
    shared = flat(task_of(kind, batch=4, accumulate=2).batches(0, 0))
    late = {(step + 2, key): value for (step, key), value in flat(task_of(kind, batch=4).batches(0, 2)).items()}
    assert not two[0].keys() & two[1].keys() and late.keys() == {place for place in whole if place[0] == 2}
    for other in (two[0] | two[1], shared, whole | late):
        assert other.keys() == whole.keys()
        for place, (image, target) in other.items():
            assert torch.equal(image, whole[place][0])
            if kind == "segmentation":
                assert torch.equal(target, whole[place][1])
            else:
                assert all(torch.equal(target[key], whole[place][1][key]) for key in target)
    again = flat(task_of(kind, batch=4).batches(1, 0))
    assert not again.keys() & whole.keys()


@pytest.mark.parametrize("kind", SETS)
def test_processes_read_what_the_run_would_and_send_bytes_where_they_can(data, kind):
    row, seen = Row(SETS[kind], "swin_micro", "gab", RECIPE[kind], set=SMALL), {}
    for workers in (0, 2):
        task = TASKS[kind](row, World(), workers)
        seen[workers] = list(flat(task.batches(0, 0)).values()), [batch[:2] for batch in task.tested("test")]
        ((images, targets), _) = task.feed.loader.dataset["test", np.arange(2)]
        if kind == "detection":
            assert all(image.dtype == torch.uint8 for image in images)
            (first, *_), *_ = next(task.tested("test"))
            assert torch.equal(first, images[0].float() / 255)
        else:
            assert all(target.dtype == torch.uint8 for target in targets)
        task.close()
    assert equal(seen[0], seen[2])


def equal(one, other):
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    return len(one) == len(other) and all(map(equal, one, other))


def test_too_little_shared_memory_stops_a_row_before_it_trains(data, monkeypatch):
    monkeypatch.setattr("gmmvit.data.workers.shared_memory_free", lambda: 1 << 20)
    with pytest.raises(ValueError, match="/dev/shm: expected .* for 4 loading processes"):
        TASKS["detection"](Row("coco-shapes", "swin_micro", recipe="coco-3x", set=SMALL), World(), 4)


@pytest.mark.parametrize("kind", SETS)
def test_a_run_of_three_steps_ends_as_it_did_and_goes_on_where_it_was_stopped(data, kind):
    def after(stop):
        task = task_of(kind, drop_path=0.3, warmup_steps=0, lr=1e-3)
        update = update_of(task)
        for number, batch in enumerate(task.batches(0, 0)):
            if number == stop:
                state = update.state()
                update = update_of(task)
                update.load(state)
                update.working.module.train()
            report = update(batch, number)
            assert report.isfinite().all()
        return update

    once, again = after(None), after(2)
    for (name, first), second in zip(once.model.state_dict().items(), again.model.state_dict().values(), strict=True):
        assert torch.equal(first, second), name
    biases = gmmvit.masks_of(once.model)
    assert len(biases) == 5 and all(mask.amplitude.item() != 2 for mask in biases.values())  # they learn


@pytest.mark.parametrize("kind", SETS)
def test_both_arms_of_the_table_start_from_the_same_weights(data, kind):
    with_bias = task_of(kind)
    without = TASKS[kind](Row(SETS[kind], "swin_micro", "none", RECIPE[kind], set=SMALL), World(), 0)
    state, plain = with_bias.model().state_dict(), without.model().state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.items())
    assert len(state) == len(plain) + 2 * 5  # A and sigma of five layers


def test_a_row_sets_the_size_of_images_in_the_measure_of_the_recipe(data):
    assert (task_of("detection").short, task_of("detection").long) == (96, 160)
    assert task_of("detection", short=400).short == 48


@pytest.mark.parametrize("kind", SETS)
def test_steps_and_tests_run_in_bfloat16(data, kind):
    task = task_of(kind)
    update = update_of(task, torch.bfloat16)
    for number, batch in enumerate(task.batches(0, 0)):
        assert update(batch, number).isfinite().all()
    with update.working.context():
        scores = task.test(update.tested.eval())
    expected = {"detection": {"box_AP", "mask_AP", "mask_AP50"}, "segmentation": {"mIoU", "aAcc"}}[kind]
    assert expected <= scores.keys()


def test_sliding_windows_are_a_setting_of_the_row(data):
    whole, sliding = task_of("segmentation"), task_of("segmentation", evaluation="sliding")
    torch.manual_seed(0)
    model = whole.model().eval()
    assert whole.test(model) == sliding.test(model)  # shapes are as large as the crop


def test_a_recipe_of_the_other_kind_is_refused():
    (wrong,) = problems(Row("coco-shapes", "swin_micro", recipe="ade20k-160k"))
    assert wrong == "ade20k-160k is a recipe of segmentation, coco-shapes a set of detection"


def test_a_segmenter_needs_two_images_in_each_part():
    (wrong,) = problems(Row("ade20k-shapes", "swin_micro", recipe="ade20k-160k", set={"batch": 4, "accumulate": 2}), 2)
    assert "of 4 = 2 (processes) x 2 (accumulate), with 2 images in each part, got 4; the nearest is 8" in wrong


def test_batch_statistics_are_averaged_over_processes(monkeypatch):
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 2))
    model[0].running_mean.copy_(torch.tensor([1.0, 3.0]))
    monkeypatch.setattr(World, "total", lambda world, values: values + torch.tensor([3.0, 5.0]))
    average_buffers(model, World(0, 2))
    assert model[0].running_mean.tolist() == [2, 4] and model[0].running_var.tolist() == [2, 3]


# ---- learning -------------------------------------------------------------------------------------------------------


def learn(kind, folder, steps):
    write(folder, {"train": 3, "test": 3})
    own = {"batch": 3, "lr": 1e-3, "width": 64, "regions": 32, "drop_path": 0.0, "warmup_steps": 10}
    task = task_of(kind, **own, epoch_steps=steps)
    home = folder / SETS[kind]
    memorised = coco.read_split(home, "train", train=False) if kind == "detection" else task.sources["train"]
    task.sources["test"] = memorised
    update = update_of(task)
    before = task.test(update.tested.eval())
    update.working.module.train()
    for number, batch in enumerate(task.batches(0, 0)):
        update(batch, number)
    return before, task.test(update.tested.eval())


@pytest.mark.slow
def test_three_images_of_shapes_are_learned_by_heart(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path))
    before, after = learn("detection", tmp_path, 80)
    assert before["box_AP50"] < 5 and after["box_AP50"] > 50 and after["mask_AP50"] > 50
    before, after = learn("segmentation", tmp_path, 80)
    assert before["mIoU"] < 30 and after["mIoU"] > 50 and after["aAcc"] > 90


def test_the_index_is_read_once_and_shapes_are_those_of_the_row(data):
    task = task_of("detection")
    assert len(task.sources["train"]) == 5 and task.steps == 3
    assert np.array_equal(task.sources["train"].ids, opened.load("coco-shapes")["train"].ids)
