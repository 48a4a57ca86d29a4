"""The records of runs as a frame: what is read, means over seeds, paired gains, and what was published beside them."""

import json
import math
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from frames import make, recorded
from scipy import stats

from gmmvit.paper import published, runs
from gmmvit.paper.runs import beside, filled, gains, history, scores
from gmmvit.paper.tables import Table, cell


def write(folder, rows, top1):
    """Folders of runs, {name: top-1}, as training leaves them."""
    for name, value in top1.items():
        run = folder / "runs" / name
        run.mkdir(parents=True)
        cost = {"parameters": 2_693_122, "macs": 184_618_752, "macs_paper": 170_911_338, "depth": 9}
        metrics = {"row": vars(rows[name]), "top1": value, "best_top1": value + 1, **cost}
        (run / "metrics.json").write_text(json.dumps(metrics))
        (run / "history.csv").write_text("epoch,lr,train_loss,test_loss,top1\n1,0.001,2.5,2,30\n2,0.0005,2,1.5,40\n")
    return folder


def arm(mask, top1, dataset="cifar10", model="vit"):
    """Rows of one arm, {seed: top-1}, and their runs."""
    rows = make(mask, top1, model, dataset)
    return rows, [{"row": vars(row), "top1": top1[row.seed]} for row in rows.values()]


def frame_of(*arms):
    return runs.of(
        {name: row for rows, _ in arms for name, row in rows.items()}, [run for _, ran in arms for run in ran]
    )


# ---- files ----------------------------------------------------------------------------------------------------------


def test_what_was_seen_of_the_layers_has_its_columns_also_where_records_are_older():
    looked = {"entropy": 3.5, "distance": 2.5, "moved": 0.2, "learned": True}
    (rows, (first, *others)), names = arm("gmm", {0: 50.0, 1: 51.0}), list(looked)
    found = frame_of((rows, [first | looked, *others]))
    assert found[names].iloc[0].to_dict() == looked and found[names].iloc[1].isna().all()
    assert frame_of((rows, []))[names].isna().all(axis=None)


def test_runs_are_read_with_their_timing_and_history(tmp_path):
    write(tmp_path, make(), {"cifar10-vit-none-s1": 60.0, "cifar10-vit-none-s0": 61.0})
    (tmp_path / "runs" / "cifar10-vit-none-s0" / "timing.json").write_text('{"images_per_second": 350.0}')
    (tmp_path / "runs" / "half-done").mkdir()
    found = runs.runs(tmp_path)
    assert [run["row"]["name"] for run in found] == ["cifar10-vit-none-s0", "cifar10-vit-none-s1"]
    assert [run["timing"] for run in found] == [{"images_per_second": 350.0}, None]
    columns = history(found[0]["folder"])
    assert columns["epoch"] == [1, 2] and columns["test_loss"] == [2.0, 1.5] and "top5" not in columns
    assert runs.runs(tmp_path / "nowhere") == []


def test_a_broken_record_is_named(tmp_path):
    write(tmp_path, make(), {"cifar10-vit-none-s1": 60.0})
    path = tmp_path / "runs" / "cifar10-vit-none-s1" / "metrics.json"
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ValueError, match="cifar10-vit-none-s1.metrics.json: expected JSON"):
        runs.runs(tmp_path)


def test_a_record_of_other_settings_is_none_of_a_row_of_the_same_name(tmp_path):
    """A grid whose arms got another learning rate has rows of the same names as the runs that are there."""
    then = make("gmm", kernels=3, sigma_init=[10, 10])
    now = {name: replace(row, set={"kernels": 3, "sigma_init": (10.0, 10.0)}) for name, row in then.items()}
    first = next(iter(now))
    now[first] = replace(now[first], set=now[first].set | {"mask_lr": 60})
    write(tmp_path, then, dict.fromkeys(then, 60.0))
    found = runs.of(now, runs.runs(tmp_path))
    assert found.state.to_list() == ["not run", "done", "done"] and math.isnan(found.top1.iloc[0])


# ---- masks that did not learn ---------------------------------------------------------------------------------------


def test_an_accuracy_says_that_its_mask_did_not_learn():
    def ran(mask, learned):
        rows, record = make(mask), {"top1": 60.0, "moved": 0.5}
        seeds = zip(rows.values(), learned, strict=True)
        return rows, [record | {"row": vars(row)} | ({} if yes is None else {"learned": yes}) for row, yes in seeds]

    arms = ran("none", [None] * 3), ran("gmm", [False] * 3), ran("gab", [True, False, True]), ran("elm", [True] * 3)
    found = runs.of(
        {name: row for rows, _ in arms for name, row in rows.items()}, [run for _, ran in arms for run in ran]
    )
    lines = scores(found, ["mask"])
    assert lines.ours_note.to_list() == ["", "did not learn", "1 of 3 did not learn", ""]
    assert [cell(line, "ours") for line in lines.to_dict("records")][:2] == [
        "60.00 ± 0.00 (3)",
        "60.00 ± 0.00 (3), did not learn",
    ]
    over = gains(found, {"mask": "none"}, ["model"])
    assert over.gain_note.to_list() == ["did not learn", "1 of 3 did not learn", ""]
    assert Table(["mask", "ours"], lines).csv().splitlines()[2] == "gmm,60.00,0.00,3,,did not learn"


# ---- the frame ------------------------------------------------------------------------------------------------------


def test_a_person_groups_the_record_in_the_repository():
    """The line of the README and of the module's head, against the files themselves."""
    found = recorded("cpu").groupby("mask").top1.agg(["mean", "std"])
    rows = [run for run in runs.runs(runs.project.reports("cpu")) if run["row"]["mask"] == "gmm"]
    top1 = [run["top1"] for run in rows]
    assert len(top1) >= 3
    assert found.loc["gmm", "mean"] == pytest.approx(statistics.fmean(top1))
    assert found.loc["gmm", "std"] == pytest.approx(statistics.stdev(top1))


def test_every_planned_row_is_a_line_with_settings_metrics_timing_and_state(tmp_path, monkeypatch):
    row = "{dataset: cifar10, model: vit, mask: %s, recipe: short, seed: 0, set: {kernels: 3, sigma_init: [10, 0]}}"
    rows = "".join(
        f"  {name}: {row % mask}\n" for name, mask in (("a", "none"), ("b", "gmm"), ("c", "elm"), ("d", "gmm"))
    )
    (tmp_path / "params.yaml").write_text(f"profile: mine\nrows:\n{rows}")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.chdir(tmp_path)
    planned = runs.project.rows("mine").rows
    write(tmp_path / "reports" / "mine", planned, {"a": 60.0, "d": math.nan})
    (tmp_path / "reports/mine/runs/a/timing.json").write_text('{"seconds": 12.5}')
    broken = tmp_path / "reports/mine/runs/b/run.ipynb"
    broken.parent.mkdir()
    broken.write_text('{"metadata": {"papermill": {"exception": true}}}')
    found = runs.frame("mine")
    assert found.state.to_dict() == {"a": "done", "b": "failed", "c": "not run", "d": "failed"}
    assert found.loc["a", ["dataset", "mask", "seed", "kernels", "sigma_init", "top1", "seconds"]].to_list() == [
        "cifar10", "none", 0, 3, (10, 0), 60.0, 12.5
    ]  # fmt: skip
    assert found.top1.isna().to_list() == [False, True, True, True] and found.loc["c", "row"] == planned["c"]


# ---- means over seeds -----------------------------------------------------------------------------------------------


def test_rows_are_grouped_over_seeds_by_fields_and_settings(tmp_path):
    rows = make() | make("gmm") | make("gmm", kernels=3) | make("gmm", seeds=(3,), kernels=5)
    write(tmp_path, rows, {"cifar10-vit-gmm-s0": 60.0, "cifar10-vit-gmm-s2": 62.0, "cifar10-vit-gmm-kernels5-s3": 64.0})
    found = filled(runs.of(rows, runs.runs(tmp_path), ["cifar10-vit-gmm-s1"]), kernels=5)
    plain, five, three = scores(found, ["mask", "kernels"], ours="top1", best="best_top1").to_dict("records")
    assert (five["mask"], five["kernels"]) == ("gmm", 5)
    assert (five["ours"], five["ours_sd"], five["ours_n"], five["ours_state"]) == (62.0, 2.0, 3, "3 of 4, 1 failed")
    assert five["best"] == 63.0
    assert (plain["ours_n"], plain["ours_state"]) == (0, "not run") and math.isnan(plain["ours"])
    assert three["kernels"] == 3
    (failed,) = scores(runs.of(make("elm"), [], make("elm")), ["mask"]).to_dict("records")
    assert failed["ours_state"] == "failed"
    assert runs.of(make(), []).top1.isna().all()  # a profile that nobody ran has the column


def test_few_numbers_have_no_invented_spread():
    one, three = scores(frame_of(arm("none", {0: 3.5}), arm("gmm", {0: 1.0, 1: 2.0, 2: 6.0})), ["mask"]).to_dict(
        "records"
    )
    assert one["ours"] == 3.5 and math.isnan(one["ours_sd"]) and one["ours_state"] == ""
    assert (three["ours"], three["ours_n"]) == (3.0, 3) and three["ours_sd"] == pytest.approx(math.sqrt(7))


def test_rows_that_differ_in_more_than_the_keys_are_not_averaged():
    found = runs.of(make("gmm") | make("gmm", kernels=3), [])
    with pytest.raises(ValueError, match="'cifar10-vit-gmm-s0' and 'cifar10-vit-gmm-kernels3-s0'"):
        scores(found, ["model", "mask"])
    with pytest.raises(ValueError, match="expected rows that differ in model, mask or their seed"):
        gains(runs.of(make() | make("gmm") | make("gmm", kernels=3), []), {"mask": "none"}, ["model"])


# ---- gains ----------------------------------------------------------------------------------------------------------


def one_gain(ours, base):
    (found,) = gains(frame_of(arm("none", base), arm("gmm", ours)), {"mask": "none"}, ["dataset", "model"]).itertuples()
    return found


def test_gain_is_paired_over_the_seeds_both_have():
    found = one_gain({0: 61.0, 1: 71.5, 2: 66.2, 3: 99.0}, {2: 65.0, 0: 60.0, 1: 70.0, 7: 0.0})
    reference = stats.ttest_rel([61.0, 71.5, 66.2], [60.0, 70.0, 65.0]).confidence_interval(0.95)
    assert (found.gain_low, found.gain_high) == pytest.approx((reference.low, reference.high))
    assert found.gain == pytest.approx(3.7 / 3) and found.gain_n == 3
    assert found.verdict == runs.LARGER  # though the seeds of one arm lie 10 points apart


def test_gain_within_the_spread_and_gain_of_one_seed():
    assert one_gain({0: 1.0, 1: 3.0}, {0: 2.0, 1: 1.0}).verdict == runs.WITHIN
    assert one_gain({0: 1.0, 1: 1.1}, {0: 2.0, 1: 2.1}).verdict == runs.LARGER
    single = one_gain({0: 1.5}, {0: 1.0})
    assert (single.gain, single.gain_n, single.verdict, single.gain_state) == (0.5, 1, "–", "")
    assert math.isnan(single.gain_sd) and math.isnan(single.gain_low) and math.isnan(single.gain_high)
    none = one_gain({0: 1.5}, {1: 1.0})
    assert math.isnan(none.gain) and (none.gain_n, none.gain_state) == (0, "not run")


def test_gains_are_paired_with_the_base_of_the_same_data_set_and_model(tmp_path):
    rows = make() | make("gmm") | make("elm") | make("gmm", model="pit")
    top1 = {f"cifar10-vit-{mask}-s{s}": 60 + s + add for mask, add in (("none", 0), ("gmm", 2)) for s in range(3)}
    found = runs.of(rows, runs.runs(write(tmp_path, rows, top1)))
    lines = gains(found, {"mask": "none"}, ["dataset", "model"])
    assert list(zip(lines.model, lines["mask"], strict=True)) == [("vit", "gmm"), ("vit", "elm")]
    assert lines.gain.to_list()[0] == 2 and lines.verdict[0] == runs.LARGER and lines.gain_state[1] == "not run"


# ---- published ------------------------------------------------------------------------------------------------------


def test_published_numbers_stand_beside_the_rows_that_agree():
    numbers = runs.numbers(published.table("gmm_main")["rows"])
    keys = ["dataset", "model", "mask"]
    rows = pd.DataFrame(
        [("svhn", "pit", "gmm"), ("svhn", "vit_heat", "gmm"), ("cifar10-mini", "pit", "gmm")], columns=keys
    )
    first, *others = beside(rows, numbers, keys).published
    assert first == 97.82 and all(math.isnan(each) for each in others)
