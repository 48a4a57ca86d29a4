"""The benchmarks run and count what they say; their numbers are measured by hand on a quiet machine."""

import json

import pytest
import torch

from gmmvit.bench import train as bench_train
from gmmvit.cli import main
from gmmvit.train.processes import World


@pytest.mark.slow
def test_bench_train_measures_every_arm_and_saves_it(tmp_path, capsys):
    assert main(["bench", "train", "--model=vit", "--rounds=1", "--batch=8", f"--out={tmp_path / 'train.json'}"]) == 0
    saved = json.loads((tmp_path / "train.json").read_text())
    assert saved["torch"] == torch.__version__ and saved["threads"] == torch.get_num_threads()
    vit = saved["backbones"]["vit"]
    assert vit["images_per_second"].keys() == {"stock, explicit", "stock, fused", "timm", "ours", "gmm", "elm"}
    speed = vit["images_per_second"]
    assert vit["over_ours"]["elm"] == pytest.approx(speed["ours"] / speed["elm"] - 1, abs=0.02) and vit["spread"] >= 0
    best = max(vit["images_per_second"][arm] for arm in ("stock, explicit", "stock, fused"))
    assert vit["over_stock"]["gmm"] == pytest.approx(vit["images_per_second"]["gmm"] / best, rel=0.01)
    flops = 6 * 184.6e6 * vit["images_per_second"]["gmm"]
    assert vit["share_of_peak"] == pytest.approx(flops / (vit["peak_gflops"] * 1e9), rel=0.02)
    assert abs(sum(row["share"] for row in vit["operators"])) <= 1
    assert "mm" in capsys.readouterr().out


@pytest.mark.parametrize("name", bench_train.TIMMS_OWN)
def test_timms_own_class_has_the_widths_of_our_stock_model(name):
    ours = sum(p.numel() for p in bench_train.create_model(name).parameters())
    theirs = sum(p.numel() for p in bench_train.TIMMS_OWN[name]().parameters())
    assert theirs == pytest.approx(ours, rel=0.005)  # ours adds a position embedding to Swin, drops a norm's bias


def test_the_peak_is_of_a_real_product():
    step = bench_train.product(World(), torch.float32)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() == 2 * bench_train.SIDE**3
    assert bench_train.side(World(device=torch.device("cuda"))) == 8192


@pytest.mark.slow
def test_bench_data_measures_the_augmentation_of_recipes(tmp_path, capsys):
    assert main(["bench", "data", "--rounds=1", "--batch=64", f"--out={tmp_path / 'data.json'}"]) == 0
    saved = json.loads((tmp_path / "data.json").read_text())
    speeds = saved["images_per_second_of_a_worker"]
    assert speeds["short"] > speeds["gmm"] > 500
    assert saved["share_of_a_step"]["gmm"] == pytest.approx(
        saved["images_per_second_of_a_step"] / speeds["gmm"], rel=0.01
    )
    assert "images/s of a worker" in capsys.readouterr().out
