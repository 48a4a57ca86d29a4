"""The GMM paper's tables: which rows are which arm, and what stands beside them."""

from frames import frame, make, ran

from gmmvit.paper import gmm
from gmmvit.paper.tables import gains_table
from gmmvit.train.recipes import find


def test_the_main_table():
    rows = (
        make()
        | make(readout="token")
        | make("gmm")
        | make("gmm", share_heads=True)
        | make("gmm", kernels=3)
        | make("elm")
        | make("gmm", model="pit", dataset="tiny-imagenet")
        | make("gmm", model="vit_heat")
    )
    top1 = {"cifar10-vit-none-s0": 93.17, "cifar10-vit-none-s1": 95.17, "cifar10-vit-gmm-s0": 95.56}
    failed = ["cifar10-vit-none-s2", *make("gmm", share_heads=True)]
    table = gmm.main_table(frame(rows, top1, failed))
    cells = {(row[0], row[1], row[2]): row[3:6] for row in table.cells()}
    assert cells == {
        ("CIFAR-10", "ViT", "plain"): ["94.17", "94.17 ± 1.41 (2 of 3, 1 failed)", "+0.00"],
        ("CIFAR-10", "ViT", "plain, class token"): ["93.65", "not run", "–"],
        ("CIFAR-10", "ViT", "GMM"): ["95.06", "95.56 (1 of 3)", "+0.50"],
        ("CIFAR-10", "ViT", "GMM, shared by the heads"): ["94.75", "failed", "–"],
        ("CIFAR-10", "ViT", "ELM"): ["–", "not run", "–"],
        ("Tiny-ImageNet", "PiT", "GMM"): ["58.37", "not run", "–"],
    }
    assert table.cells()[0][6:] == [str(find("short").epochs), "2,693,122", "170.9", "184.6", "9"]


def test_published_rows_stand_beside_the_arm_they_come_from():
    """Errata G1 to G3: the mean read-out and the shared mask are the first table's."""
    keys = ["dataset", "mask", "readout", "share_heads", "model"]
    numbers = gmm.published_main().set_index(keys).published.to_dict()

    def number(dataset, mask, readout="mean", share_heads=False, model="vit"):
        return numbers.get((dataset, mask, readout, share_heads, model))

    assert [number(d, "none") for d in ("cifar10", "cifar100", "svhn", "tiny-imagenet")] == [94.17, 75.36, 97.93, 59.89]
    assert [number(d, "none", "token") for d in ("cifar10", "cifar100")] == [93.65, None]
    assert [number("tiny-imagenet", "gmm", share_heads=shared) for shared in (False, True)] == [62.27, 61.86]
    assert number("cifar10", "none", model="cait") == 94.79
    assert number("cifar10", "gmm", model="cait", share_heads=True) is None


def test_a_table_of_other_masks():
    rows = make() | make("elm") | make("gab")
    table = gmm.main_table(frame(rows, {f"cifar10-vit-gab-s{seed}": 60.0 + seed for seed in range(3)}))
    assert [row[2:6] for row in table.cells()] == [
        ["plain", "94.17", "not run", "–"],
        ["ELM", "–", "not run", "–"],
        ["GAB", "–", "61.00 ± 1.00 (3)", "–"],
    ]


def test_the_gains_of_the_main_table():
    rows = make() | make("gmm") | make(readout="token") | make(model="pit") | make("gmm", model="pit")
    top1 = {"none": (60.0, 61.5, 63.0), "gmm": (61.0, 62.6, 64.2)}
    ours = {f"cifar10-vit-{mask}-s{seed}": values[seed] for mask, values in top1.items() for seed in range(3)}
    points = gmm.main_gains(frame(rows, ours | {"cifar10-pit-none-s0": 60.0, "cifar10-pit-gmm-s0": 59.0}))
    told = [(p.model, p.label, round(p.published, 2)) for p in points[points["mask"] == "gmm"].itertuples()]
    assert told == [("vit", "ViT, GMM", 0.89), ("pit", "PiT, GMM", 0.73)]
    assert [row[4:] for row in gains_table(points).cells()] == [
        ["+1.10 [+0.85 to +1.35] (3)", "larger than the seeds' spread"],
        ["−1.00 (1)", "–"],
    ]


def test_frozen_masks_and_shares_of_the_data_are_no_arms_of_the_main_table():
    others = {"freeze_masks": True}, {"fraction": 0.1}, {"init_weights": "mimetic"}, {"mask_lr": 60}
    rows = ran({}, {"seed": 1}, *others)
    assert gmm.main_arms(rows).top1.to_list() == [50.0, 51.0]
