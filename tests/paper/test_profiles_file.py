"""params.yaml: what is read from it, and bad files refused in a sentence."""

import pytest

from gmmvit.paper import profiles as params
from gmmvit.train.checks import check

FILE = """\
profile: smoke
rows:
  plain: {dataset: cifar10-mini, model: vit}
  masked:
    dataset: cifar10-mini
    model: vit
    mask: gmm
    seed: 1
    set: {lr: 1e-3, weight_decay: 5E-4, sigma_init: [1e1, 0]}
figures: {colour: blue}
"""
DENSE = FILE + "dense_rows:\n  shapes: {dataset: coco-shapes, model: swin_micro, mask: gab, recipe: coco-3x}\n"


def written(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    return path


def test_file_is_read_with_numbers_as_a_person_means_them(tmp_path):
    read = params.read(written(tmp_path, FILE))
    assert (read.profile, list(read.rows), read.rest) == ("smoke", ["plain", "masked"], {"figures": {"colour": "blue"}})
    row = params.find_row(read, "masked")
    assert (row.name, row.mask, row.seed) == ("masked", "gmm", 1)
    assert row.recipe_settings.lr == 1e-3 and row.recipe_settings.weight_decay == 5e-4
    assert row.mask_options == {"sigma_init": (10.0, 0.0)}
    assert check(row) is row


def test_rows_of_detection_and_segmentation_stand_apart_and_are_rows_all_the_same(tmp_path):
    read = params.read(written(tmp_path, DENSE))
    assert list(read.rows) == ["plain", "masked", "shapes"] and list(read.rest) == ["figures"]
    assert [row.kind for row in read.rows.values()] == ["classification", "classification", "detection"]
    assert params.read(written(tmp_path, FILE + "dense_rows: {}\n")).rows.keys() == {"plain", "masked"}


def test_unknown_row_is_answered_with_the_nearest_name(tmp_path):
    with pytest.raises(ValueError, match="unknown row of the profile 'smoke' 'plane'.*nearest is 'plain'"):
        params.find_row(params.read(written(tmp_path, FILE)), "plane")


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "got 'nothing'"),
        ("- 1\n", r"expected a mapping with a profile and rows, got \[1\]"),
        ("profile: {", "cannot be read as YAML"),
        ("profile: smoke\nrow: {}\n", "rows: expected rows by name, got None; the nearest key is 'row'"),
        ("profile: 3\nrows: {a: {}}\n", "profile: expected a name, got 3"),
        (FILE.replace("masked:", "plain:"), "the key 'plain' stands twice, in lines 3 and 4"),
        (FILE.replace("seed: 1", "model: cait"), "the key 'model' stands twice, in lines 6 and 8"),
        (FILE.replace("plain:", "a b:"), "row a b: name: expected letters"),
        (FILE.replace("plain:", "a.b:"), "row a.b: name: expected no '.', .* the nearest is 'a_b'"),
        (FILE + "dense_rows: [1]\n", r"dense_rows: expected rows by name, got \[1\]"),
        (DENSE.replace("shapes:", "plain:"), "row plain: expected a name of its own"),
        (DENSE.replace("coco-3x", "short"), "row shapes: short is a recipe of rows: .* got it in dense_rows"),
        (
            FILE.replace("mask: gmm", "recipe: coco-3x"),
            "row masked: coco-3x is .* of dense_rows: .* got it in rows",
        ),
        (FILE.replace("plain: {", "plain: {name: x, "), "row plain: unknown key 'name'"),
        (FILE.replace("{dataset: cifar10-mini, model: vit}", "vit"), "row plain: expected dataset, model"),
        (FILE + "datasets: cifar10-mini\n", "datasets: expected a list of names, got 'cifar10-mini'"),
        (FILE + "datasets: ['x; touch PWN']\n", "datasets: expected letters, digits"),
        (FILE + "datasets: [{a: b}]\n", "datasets: expected letters, digits"),
        (FILE + "datasets: [cifar10]\n", "datasets: expected 'cifar10-mini' too, on which there are rows"),
        (DENSE + "dense_datasets: ['$(touch PWN)']\n", "dense_datasets: expected letters"),
        (FILE + "report_pages: 5\n", "report_pages: expected a list of names, got 5"),
        (FILE + "report_pages: [plane]\n", "unknown row in report_pages 'plane'.*nearest is 'plain'"),
        (FILE + "threads: two\n", "threads: expected a whole number of at least 1, got 'two'"),
        (FILE.replace("smoke", "../../x"), "profile: expected letters"),
        ("a: " * 2000, "cannot be read as YAML"),
        ("[" * 2000, "cannot be read as YAML: expected at most 30 levels"),
        ("[" * 40 + "]" * 40, "cannot be read as YAML: expected at most 30 levels"),
        ("a: &a [*a]\n", "cannot be read as YAML"),
        ("!!python/object:os.system x\n", "cannot be read as YAML"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(tmp_path, text, told):
    with pytest.raises(ValueError, match=told):
        params.read(written(tmp_path, text))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="params.yaml is not there"):
        params.read(tmp_path / "params.yaml")


def test_aliases_that_multiply_are_refused_at_once_and_in_a_short_sentence(tmp_path):
    """356 bytes that a sentence with the value in it would write out as gigabytes."""
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    for one, next in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{next}: &{next} [{','.join([f'*{one}'] * 9)}]\n"
    with pytest.raises(ValueError, match="expected aliases that repeat at most 20,000 values") as told:
        params.read(written(tmp_path, bomb + "profile: smoke\nrows: *h\n"))
    assert len(str(told.value)) < 300
    few = FILE.replace("{lr:", "&set {lr:") + "  again: {dataset: cifar10-mini, model: vit, mask: gmm, set: *set}\n"
    few = few.replace("figures: {colour: blue}\n", "")
    assert (
        params.read(written(tmp_path, few)).rows["again"].set == params.read(written(tmp_path, FILE)).rows["masked"].set
    )


@pytest.mark.parametrize(
    "text", ["010", "1:30", "0o10", "1e-3", "5E-4", "yes", "on", "1_000", ".5", "~", "2001-01-01", "0x1F"]
)
def test_values_are_those_that_dvc_reads(text):
    from dvc.utils.serialize import loads_yaml

    theirs = loads_yaml(f"a: {text}")["a"]
    ours = params.parse(f"a: {text}")["a"]
    assert ours == theirs and type(ours) is type(theirs)


def test_threads_of_a_profile_are_one_unless_it_says_otherwise(tmp_path):
    assert params.read(written(tmp_path, FILE)).threads == 1
    assert params.read(written(tmp_path, FILE + "threads: 2\n")).threads == 2


def test_values_of_a_command_line_are_parsed_as_in_the_file():
    assert [params.parse(text) for text in ("1e-3", "3", "true", "mean", "[10, 1e1]")] == [
        0.001,
        3,
        True,
        "mean",
        [10, 10.0],
    ]
