"""Bad input over every surface: each is refused in one sentence, with an exit code, and leaves nothing behind.

A table for each class of input; a test names all the inputs of its table that fail.
"""

import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torture import call_problem, command_problem, survived

import gmmvit
from gmmvit import data
from gmmvit.analysis.fields import effective_receptive_field
from gmmvit.data import arrays, images, sets
from gmmvit.fetch import shapes
from gmmvit.fetch.download import unpacked
from gmmvit.paper.runs import runs, unsound
from gmmvit.train import checkpoint
from gmmvit.train.engine import engine
from gmmvit.train.weights import from_file, take

MINI = Path(__file__).parents[1] / "data" / "cifar10-mini"
TRAIN = ("train", "--dataset", "cifar10-mini", "--model", "test_vit", "--out", "out/run")
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty working directory with the embedded sample in its data folder."""
    monkeypatch.setenv("GMMVIT_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("GMMVIT_DEBUG", raising=False)
    shutil.copytree(MINI, tmp_path / "data" / "cifar10-mini")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- words of the command -------------------------------------------------------------------------------------------

SETTINGS = [
    *(
        "lr=[",
        "lr={",
        "lr=]",
        'lr="',
        "lr=: :",
        "lr=&a *a",
        "lr=!!python/object:os.system x",
        "lr=*a",
        "lr=%",
        "lr=\t1",
    ),
    *("lr=fast", "lr=0", "lr=-1", "lr=.nan", "lr=.inf", "lr=[1]", "lr={a: 1}", "lr=true", "lr=", "lr", "=1", "", "=="),
    *("epochs=0", "epochs=-1", "epochs=1.5", "epochs=ten", "epochs=true", "epochs=[]", "epochs=99999999999999999999.5"),
    *("batch=0", "batch=-2", "batch=2.0", "batch=4000", "batch=1000000000000000000000", "accumulate=0"),
    *("accumulate=7", "passes=0", "warmup_epochs=-1", "warmup_epochs=1000", "weight_decay=-1", "ema=1", "ema=-0.5"),
    *("momentum=1", "label_smoothing=1", "drop_path=1", "drop_path=2", "mix_prob=2", "switch_prob=-1", "mixup=-1"),
    *("optimizer=adam", "precision=int8", "augmentation=none", "select=best", "readout=max", "img_size=64"),
    *("num_classes=7", "nosuch=1", "Epochs=1", "epoch s=1", "kernel=3", "pretrained=maybe"),
    *("pretrained_file=nosuch.pt", "pretrained_file=3", "pretrained_file=", "reset_positions=true", "clip=-1"),
    *("transmix=3", "compile=4", "mix_prob=.nan", "ema=.inf", "final_lr=-1", "cooldown_epochs=-1", "kernels=3"),
]
OF_MASKS = {
    "gmm": [
        *("kernels=0", "kernels=-1", "kernels=1.5", "kernels=4611686018427387904", "kernels=1000000000", "kernels=[1]"),
        *("sigma_init=1", "sigma_init=[1]", "sigma_init=[1, -1]", "sigma_init=[.nan, 1]", "sigma_init=[1, .inf]"),
        *("sigma_init=[a, b]", "alpha_init=[1, -1]", "alpha_init=x", "where=nowhere", "share_heads=2", "amplitude=1"),
        *("sigma_init=[1, 2, 3]", "alpha_init=[.inf, 0]", "alpha_init={}", "where=", "share_heads=maybe"),
    ],
    "elm": ["kernels=3", "init=.nan", "init=[1]", "init=words", "share_heads=1.0", "sigma=3", "init=1.0e+400"],
    "gab": [
        *("sigma=.nan", "sigma=0", "sigma=five", "amplitude=.inf", "amplitude=.nan", "amplitude=big"),
        *("kernels=3", "sigma=.inf", "amplitude=1.0e+300", "sigma=[5]", "share_heads=0.5"),
    ],
}
WORDS = [
    (*TRAIN[:2], "nosuch", *TRAIN[3:]),
    (*TRAIN[:4], "nosuch", *TRAIN[5:]),
    (*TRAIN[:2], "", *TRAIN[3:]),
    (*TRAIN[:4], "", *TRAIN[5:]),
    (*TRAIN[:2], "cifar10-mini ", *TRAIN[3:]),
    (*TRAIN[:2], "../cifar10-mini", *TRAIN[3:]),
    (*TRAIN[:4], "resnet18", *TRAIN[5:], "--mask", "gmm"),
    (*TRAIN[:2], "cifar100", *TRAIN[3:]),
    (*TRAIN[:2], "coco", *TRAIN[3:]),
    *((*TRAIN, "--mask", mask) for mask in ("gm", "", "GMM", "gmm elm", "None", "0")),
    *((*TRAIN, "--recipe", recipe) for recipe in ("gm", "", "coco-3x", "ade20k-160k", "GMM")),
    *((*TRAIN, "--seed", seed) for seed in ("-1", "1.5", "x", "", str(2**64), str(10**40), str(-(10**40)), "0x1")),
    *((*TRAIN, "--device", device) for device in ("foo", "", "cpu:x", "meta", "mps", "tpu", "cuda:99", "cpu cpu")),
    *((*TRAIN, "--workers", count) for count in ("x", "1.5")),
    (*TRAIN[:5], "--out", "dvc.yaml"),
    (*TRAIN[:5], "--out", "dvc.yaml/below"),
    (*TRAIN[:5], "--out", "/proc/nosuch/run"),
    ("train",),
    ("train", "nosuch"),
    ("train", "row", "--params", "nosuch.yaml"),
    ("train", "row", "--params", "."),
    ("train", "row", "--seed", "1"),
    ("train", "--dataset", "cifar10-mini"),
    ("train", "--model", "test_vit"),
    ("train", "$(touch PWNED)"),
    ("train", "`touch PWNED`"),
    ("train", "--row"),
    (),
    ("",),
    ("nosuch",),
    ("trian",),
    ("data", "nosuch"),
    ("data", ""),
    ("data", "cifar10-mini", "nosuch"),
    ("data", "../x"),
    ("data", "--check", "nosuch"),
    ("data", "cifar10-mini", "--check", "--record", "record.json"),
    ("data", "--record", "record.json"),
    ("data", "cifar10-mini", "coco", "--record", "record.json"),
    ("data", "cifar10-mini", "--record", "dvc.yaml/record.json"),
    ("data", "cifar10-mini", "--record", "data"),
    ("data", "--nosuch"),
    ("plan", "nosuch.yaml"),
    ("plan", "."),
    ("plan", "data/cifar10-mini/train.webp"),
    ("plan", "--speed", "x"),
    ("report", "nosuch"),
    ("report", "../../x"),
    ("report", ""),
    ("report", "a", "b"),
    ("results", "nosuch"),
    ("bench",),
    ("bench", "nosuch"),
    *(("bench", what, "--batch", size) for what in ("masks", "train", "data", "mix") for size in ("0", "-1", "x")),
    *(
        ("bench", what, "--rounds", count)
        for what in ("masks", "train", "data", "mix", "dense")
        for count in ("0", "-1")
    ),
    *(("bench", what, "--model", "nosuch") for what in ("masks", "train", "mix", "dense")),
    ("bench", "mix", "--model", "vit"),
    ("bench", "train", "--model", "resnet18"),
    ("bench", "masks", "--device", "foo"),
    ("bench", "data", "--dataset", "nosuch"),
    ("models", "--nosuch"),
    ("models", "vit"),
]


def test_settings_on_the_command_line():
    survived({f"--set {each}": command_problem([*TRAIN, "--mask", "none", f"--set={each}"]) for each in SETTINGS})


@pytest.mark.parametrize("mask", OF_MASKS)
def test_options_of_masks(mask):
    survived({each: command_problem([*TRAIN, "--mask", mask, f"--set={each}"]) for each in OF_MASKS[mask]})


def test_verbs_names_and_places():
    survived({" ".join(words): command_problem(words) for words in WORDS})
    assert not Path("PWNED").exists()


def test_an_error_of_the_programs_own_is_a_sentence_and_the_traceback_on_demand(monkeypatch, capsys):
    """Kinds of errors that no input of these tables raises any more."""
    from gmmvit import cli

    told = {}
    for error in (
        *(RuntimeError("one\ntwo"), KeyError("labels"), AttributeError(), AssertionError(), IndexError("x" * 5000)),
        *(MemoryError(), RecursionError("deep"), EOFError(), NotImplementedError("no"), StopIteration(), ValueError()),
        *(
            RuntimeError("[enforce fail at alloc_cpu.cpp:1] can't allocate memory"),
            torch.OutOfMemoryError("CUDA out of memory"),
        ),
        *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ZeroDivisionError("x"), ImportError("no module")),
    ):
        monkeypatch.setitem(cli.VERBS, "models", lambda arguments, error=error: (_ for _ in ()).throw(error))
        if isinstance(error, StopIteration):  # which a generator cannot raise
            continue
        told[f"{type(error).__name__}({str(error)[:30]})"] = command_problem(["models"])
    survived(told)
    monkeypatch.setitem(cli.VERBS, "models", lambda arguments: {}["labels"])
    monkeypatch.setenv("GMMVIT_DEBUG", "1")
    assert cli.main(["models"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and said.splitlines()[-1].startswith("gmmvit models: KeyError")


# ---- files of rows --------------------------------------------------------------------------------------------------

ROW = "{dataset: cifar10-mini, model: test_vit}"
PARAMS = [
    *("", "   ", "null", "[]", "3", "text", "profile: a", "rows: {}", "profile: a\nrows: {}", "profile: a\nrows: []"),
    *("profile: a\nrows: 3", "profile: 3\nrows: {a: 1}", "profile: a\nrows: {a: 1}", "profile: a\nrows: {a: []}"),
    *(
        "profile: a\nrows: {a: {}}",
        "profile: a\nrows: {a: {dataset: x}}",
        "profile: a\nrow: {}",
        "Profile: a\nrows: {}",
    ),
    *(f"profile: {name!r}\nrows: {{a: {ROW}}}" for name in ("", "../x", "a b", "$(touch PWNED)", "-rf", ".", "*", "é")),
    *(f"profile: a\nrows: {{{name!r}: {ROW}}}" for name in ("", "../x", "a b", "a;b", "`id`", "-a", "a.b", "<b>")),
    f"profile: a\nrows: {{a: {ROW}, a: {ROW}}}",
    f"profile: a\nprofile: b\nrows: {{a: {ROW}}}",
    "profile: a\nrows: {a: {dataset: cifar10-mini, model: test_vit, seed: one}}",
    "profile: a\nrows: {a: {dataset: cifar10-mini, model: test_vit, set: 3}}",
    "profile: a\nrows: {a: {dataset: cifar10-mini, model: test_vit, recipe: coco-3x}}",
    "profile: a\nrows: {a: {dataset: cifar10-mini, model: test_vit, Mask: gmm}}",
    f"profile: a\nrows: {{a: {ROW}}}\ndense_rows: 3",
    f"profile: a\nrows: {{a: {ROW}}}\ndense_rows: {{a: {ROW}}}",
    f"profile: a\nrows: {{a: {ROW}}}\ndense_rows: {{b: {ROW}}}",
    "profile: !!python/object/apply:os.system ['touch PWNED']\nrows: {}",
    "[" * 3000,
    "{a: " * 500,
    "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
    "profile: a\n\trows: {}",
    "profile: 'a",
    "%YAML 9.9\n---\nprofile: a",
    "--- a\n--- b",
]


def test_files_of_rows(place):
    problems = {}
    for number, text in enumerate(PARAMS):
        (place / "rows.yaml").write_text(text)
        problems[f"{number}: {text[:60]!r}"] = command_problem(["plan", "rows.yaml"])
    for name, content in {"binary": bytes(range(256)), "latin": "é".encode("latin1"), "zeros": bytes(1000)}.items():
        (place / "rows.yaml").write_bytes(content)
        problems[name] = command_problem(["plan", "rows.yaml"])
    survived(problems)
    assert not (place / "PWNED").exists()


# ---- weights to begin with ------------------------------------------------------------------------------------------


class Hostile:
    def __reduce__(self):
        return Path.touch, (Path("PWNED"),)


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def weights_files():
    state = timm.create_model("test_vit", img_size=32, num_classes=10).state_dict()
    first = next(iter(state))
    whole = saved(state)

    def other(change):
        return saved({name: change(value) for name, value in state.items()})

    yield from {
        "empty": b"",
        "text": b"weights",
        "half": whole[: len(whole) // 2],
        "a pickle that runs code": saved(Hostile()),
        "a pickle of old that runs code": saved(Hostile(), _use_new_zipfile_serialization=False),
        "a list": saved([1, 2]),
        "a number": saved(3),
        "a tensor": saved(torch.zeros(3)),
        "nothing": saved({}),
        "words": saved({first: "weights"}),
        "int8": other(lambda value: value.to(torch.int8)),
        "int64": other(lambda value: value.long()),
        "bool": other(lambda value: value.bool()),
        "complex": other(lambda value: value.to(torch.complex64)),
        "sparse": other(lambda value: value.to_sparse()),
        "meta": other(lambda value: value.to("meta")),
        "0-d": other(lambda value: value.new_zeros(())),
        "transposed": other(lambda value: value.T if value.ndim == 2 else value),
        "one too few": saved({name: value for name, value in state.items() if name != first}),
        "one too many": saved({**state, "extra": torch.zeros(2)}),
        "another model": saved(timm.create_model("test_vit2", img_size=32, num_classes=10).state_dict()),
        "a zip of nothing": zipped({}),
        "a zip of text": zipped({"archive/data.pkl": b"x"}),
        "names that are numbers": saved({1: torch.zeros(2)}),
    }.items()


def zipped(files):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_weights_to_begin_with(place):
    model, problems = timm.create_model("test_vit", img_size=32, num_classes=10), {}
    for name, content in weights_files():
        path = place / "weights.pt"
        path.write_bytes(content)
        problems[name] = call_problem(lambda path=path: take(model, from_file(path, model), str(path)))
    (place / "weights.safetensors").write_bytes(b"\xff" * 100)
    path = place / "weights.safetensors"
    problems["safetensors"] = call_problem(lambda: from_file(path, model))
    problems["a folder"] = call_problem(lambda: from_file(place, model))
    problems["nothing there"] = call_problem(lambda: from_file(place / "nosuch.pt", model))
    survived(problems)
    assert not (place / "PWNED").exists()


def test_weights_of_another_image_size_are_named(place, capsys):
    torch.save(timm.create_model("test_vit", img_size=64, num_classes=10).state_dict(), place / "weights.pt")
    model = timm.create_model("test_vit", img_size=32, num_classes=10)
    take(model, from_file(place / "weights.pt", model), "weights.pt")
    assert "is of another image size: pos_embed (1, 17, 64) was resampled to (1, 5, 64)" in capsys.readouterr().err


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def checkpoints():
    now = engine("classification")
    place = {"epoch": 0, "step": 0, "loss": 0.0, "images": 0, "seconds": 0.0, "total": 0.0, "history": []}
    good = {"row": "{}", "engine": now, "threads": 1, "state": {}, "place": place, "best": None}
    for part in good:
        yield f"without {part}", {name: value for name, value in good.items() if name != part}
    for part, values in {
        "row": (None, 3, "{", "", b"{}", ["{}"]),
        "engine": (None, [], "x"),
        "threads": (None, "two", 1.5, []),
        "state": (None, [], 3),
        "place": (None, [], "start"),
        "best": (3, "x", []),
    }.items():
        yield from ((f"{part} = {value!r}", good | {part: value}) for value in values)
    yield from {"a list": [1], "a number": 3, "a tensor": torch.zeros(2), "nothing": None, "code": Hostile()}.items()


def test_checkpoints(place):
    folder, now, problems = place / ".checkpoints" / "run", engine("classification"), {}
    last = folder / "last.pt"

    def read():
        checkpoint.read(last, {}, now, lambda line: None)

    for name, content in checkpoints():
        checkpoint.write(last, content)
        (folder / "before.pt").unlink(missing_ok=True)
        problems[name] = call_problem(read)
    checkpoint.write(last, {"row": "{}", "engine": now, "threads": 1, "state": {}, "place": {}, "best": None})
    whole = last.read_bytes()
    (folder / "before.pt").unlink()
    for number in range(20):
        at = len(whole) * number // 20
        last.write_bytes(whole[:at])
        problems[f"cut at {at}"] = call_problem(read)
        last.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << number % 8)]) + whole[at + 1 :])
        problems[f"a bit at {at}"] = call_problem(read)
    last.unlink()
    last.mkdir()
    problems["a folder"] = call_problem(read)
    survived(problems)
    assert not (place / "PWNED").exists()


# ---- the embedded sample, arrays and images -------------------------------------------------------------------------


def painted(size, mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


LABELS = {split: [0] * count for split, count in (("train", 2000), ("test", 1000))}
SAMPLE = {
    "train.webp": [
        b"",
        b"x",
        b"RIFF",
        painted((1280, 1600)),
        painted((32, 32)),
        painted((1, 1)),
        painted((1280, 1600), "L"),
    ],
    "test.webp": [b"", painted((1280, 800)), b"GIF89a", bytes(5000)],
    "labels.json": [
        *(b"", b"{", b"{}", b"[]", b"3", b"null", b'{"train": []}', b'{"train": 3, "test": 4}', b"\xff\xfe"),
        *(
            json.dumps(each).encode()
            for each in (LABELS, LABELS | {"train": [99] * 2000}, LABELS | {"train": [-1] * 2000})
        ),
        *(json.dumps(LABELS | {"test": each}).encode() for each in ([0.5] * 1000, ["a"] * 1000, None, {"a": 1}, [[0]])),
    ],
    "complete.json": [b"", b"{}", b"[]", b"3", b'{"name": "cifar10-mini"}', b'{"name": 1, "counts": 2, "source": 3}'],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_the_embedded_sample(place, name):
    path, problems = place / "data" / "cifar10-mini" / name, {}
    whole = path.read_bytes()
    for number, content in enumerate([*SAMPLE[name], whole[: len(whole) // 2]]):
        path.write_bytes(content)
        for words in (TRAIN, ("data", "cifar10-mini")):
            problems[f"{words[0]} {number}: {content[:30]!r}"] = command_problem(words)
        problems[f"load {number}: {content[:30]!r}"] = call_problem(lambda: data.load("cifar10-mini"))
    path.unlink()
    problems["gone"] = command_problem(TRAIN)
    survived(problems)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def test_array_files(place, monkeypatch):
    """A small cifar100 that was laid out, and then one file of it replaced."""
    monkeypatch.setitem(
        data.SETS, "cifar100", data.SETS["cifar100"]._replace(classes=3, counts={"train": 6, "test": 3})
    )
    folder, random, problems = place / "data" / "cifar100", np.random.default_rng(0), {}
    folder.mkdir()
    for split, count in (("train", 6), ("test", 3)):
        arrays.save(folder, split, random.integers(0, 256, (count, 32, 32, 3)), np.arange(count) % 3)
    arrays.seal(sets.find("cifar100"), folder, "here")
    assert len(data.load("cifar100")["train"]) == 6
    whole = {name: (folder / name).read_bytes() for name in ("train_images.npy", "train_labels.npy")}
    good = np.load(folder / "train_images.npy")
    replaced = {
        "train_images.npy": [
            *(
                b"",
                b"x",
                b"\x93NUMPY",
                whole["train_images.npy"][:-5],
                npy(good[:5]),
                npy(good[..., :2]),
                npy(good * 0),
            ),
            *(npy(good.astype(float)), npy(good.astype(">u2")), npy(good.reshape(-1)), npy(np.array(3)), npy(good ^ 1)),
            *(npy(np.array([Hostile()], object), allow_pickle=True), npy(np.array(["a"])), zipped({}), npy(good[::-1])),
        ],
        "train_labels.npy": [
            *(
                b"",
                npy(np.arange(6)),
                npy(np.zeros(6, np.uint8)),
                npy(np.zeros(5, np.uint8)),
                npy(np.array([], np.uint8)),
            ),
            *(npy(np.array([0, 1, 2, 2, 1, 0], np.uint8)), npy(np.zeros((6, 1), np.uint8)), npy(np.full(6, NAN))),
            *(
                npy(np.array([Hostile()] * 6, object), allow_pickle=True),
                npy(np.array(list("abcdef"))),
                npy(np.array(0)),
            ),
        ],
    }
    for name, contents in replaced.items():
        for number, content in enumerate(contents):
            (folder / name).write_bytes(content)
            problems[f"{name} {number}"] = call_problem(lambda: data.load("cifar100"))
        (folder / name).write_bytes(whole[name])
    survived(problems)
    assert len(data.load("cifar100")["train"]) == 6 and not (place / "PWNED").exists()


def test_images(place, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    png, problems = painted((16, 16)), {}
    contents = {
        **{f"half of {kind}": content(kind)[:100] for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")},
        **{"empty": b"", "text": b"image", "zeros": bytes(500), "a bomb": painted((2000, 2000)), "svg": b"<svg/>"},
        **{
            "PNG with a wrong sum": png[:30] + b"\0\0\0\0" + png[34:],
            "EPS": b"%!PS-Adobe",
        },
    }
    for name, each in contents.items():
        (place / "picture.jpg").write_bytes(each)
        problems[name] = call_problem(lambda: images.opened(place / "picture.jpg"))
    problems["a folder"] = call_problem(lambda: images.opened(place))
    problems["nothing there"] = call_problem(lambda: images.opened(place / "nosuch.jpg"))
    survived(problems)


def content(kind):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


def archives(folder):
    """Archives that are none, or that climb out of their folder."""
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w:gz") as tar:
        for name in ("../PWNED", "/tmp/gmmvit-PWNED", "inside/../../PWNED"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    for ending, contents in {
        ".tar.gz": (b"", b"x" * 100, b"\x1f\x8b" + bytes(50), hostile.getvalue(), hostile.getvalue()[:60]),
        ".zip": (b"", b"PK\3\4", zipped({"a": b"x" * 100})[:40]),
        ".tar": (b"x" * 10, b"\xff" * 2000),
    }.items():
        for number, each in enumerate(contents):
            path = folder / f"archive{number}{ending}"
            path.write_bytes(each)
            yield path


def test_archives(place):
    (place / "data" / "downloads").mkdir()

    def unpack(path):
        with unpacked(path) as folder:
            assert not list(folder.iterdir())
            raise ValueError("it held nothing")

    survived(
        {path.name: call_problem(lambda path=path: unpack(path)) for path in archives(place / "data" / "downloads")}
    )
    assert not list(place.rglob("*PWNED*")) and not Path("/tmp/gmmvit-PWNED").exists()


# ---- detection and segmentation -------------------------------------------------------------------------------------

COCO = [
    *(
        "",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        '{"images": []}',
        '{"images": 1, "annotations": 2, "categories": 3}',
        "[" * 5000,
    ),
    *('{"images": [3], "annotations": [], "categories": []}', '{"images": [], "annotations": [[]], "categories": []}'),
]
ENTRIES = {
    "images": [
        *({"id": "a"}, {"id": None}, {"id": 1.5}, {"file_name": 3}, {"file_name": ""}, {"file_name": "nosuch.jpg"}),
        *(
            {"width": 1},
            {"width": "a"},
            {"height": None},
            {"file_name": "../../dvc.yaml"},
            {"file_name": "/etc/passwd"},
        ),
    ],
    "annotations": [
        *({"image_id": 99}, {"image_id": "a"}, {"category_id": 99}, {"category_id": None}, {"bbox": []}, {"bbox": 3}),
        *({"bbox": [0, 0, "a", 1]}, {"bbox": [1e6, 0, 5, 5]}, {"bbox": None}, {"id": 2}, {"id": "x"}),
        *({"segmentation": each} for each in ([], None, 3, "a", [[1, 2]], [[0, 0, 1e9, 0, 1e9, 1e9]], [["a"] * 6], {})),
        *(
            {"segmentation": {"size": [96, 96], "counts": each}}
            for each in ("0", "", [5], [-5, 9221], None, "\0", ["a"])
        ),
        {"segmentation": {"size": [5, 5], "counts": [25]}},
    ],
    "categories": [{"id": "a"}, {"id": 2}, {"name": ""}, {"name": 3}],
}


def test_coco(place):
    home = place / "data" / "coco"
    shapes.write_coco(home, {"train": 2, "test": 1})
    path = home / "annotations" / "instances_train2017.json"
    whole, problems = path.read_text(), {}
    for text in COCO:
        path.write_text(text)
        problems[text[:50]] = command_problem(["data", "coco"])
    for part, changes in ENTRIES.items():
        for change in changes:
            changed = json.loads(whole)
            changed[part][0].update(change)
            path.write_text(json.dumps(changed))
            problems[f"{part} {change}"] = command_problem(["data", "coco"])
    path.unlink()
    problems["no annotations"] = command_problem(["data", "coco"])
    survived(problems)


def test_ade20k(place):
    home = place / "data" / "ade20k"
    shapes.write_ade(home, {"train": 2, "test": 1})
    problems = {}
    for name, contents in {
        "images/training/shapes_00000001.jpg": (b"", b"x", painted((5, 5)), content("JPEG")[:300]),
        "annotations/training/shapes_00000001.png": (
            b"",
            painted((5, 5), "L"),
            painted((96, 96)),
            painted((96, 96), "1"),
        ),
        "objectInfo150.txt": (b"", b"\xff\xff", b"Idx\tRatio\n1\t2\n", b"Name\n"),
    }.items():
        whole = (home / name).read_bytes()
        for number, each in enumerate(contents):
            (home / name).write_bytes(each)
            problems[f"{name} {number}"] = command_problem(["data", "ade20k"])
        (home / name).unlink()
        problems[f"{name} gone"] = command_problem(["data", "ade20k"])
        (home / name).write_bytes(whole)
    survived(problems)


# ---- records --------------------------------------------------------------------------------------------------------


def test_records_of_runs(place):
    folder, problems = place / "reports" / "a" / "runs" / "row", {}
    folder.mkdir(parents=True)
    for text in ("", "{", "nonsense", '{"row": '):
        (folder / "metrics.json").write_text(text)
        problems[text] = call_problem(lambda: runs(place / "reports" / "a"))
    for name, value in {
        "top1": NAN,
        "top5": INF,
        "best_top1": 200,
        "val_top1": -5,
        "test_loss": NAN,
        "lr": -INF,
    }.items():
        (folder / "metrics.json").write_text(json.dumps({"row": {"name": "row"}, name: value}))
        problems[name] = "" if runs(place / "reports" / "a") == [] else "is among the results"
        (told,) = unsound(place / "reports" / "a").values()
        problems[f"{name}, told"] = sentence_of(told, str(value))
    survived(problems)


def sentence_of(text, needed):
    return "" if needed in text and "its record is" in text else text


# ---- the library ----------------------------------------------------------------------------------------------------


def small(**options):
    return timm.create_model("test_vit", img_size=32, num_classes=10, **options)


def mixing(**options):
    mix = gmmvit.TransMix(**{"cutmix_alpha": 1.0, "mixup_alpha": 0.0, "num_classes": 10} | options)
    images = torch.zeros(4, 3, 32, 32)
    np.random.seed(0)
    return mix, mix(images, torch.tensor([0, 1, 2, 3]))[1]


def weighed(attention):
    mix, target = mixing()
    return mix.weigh(target, attention)


def seen(batches, model=None, **options):
    return effective_receptive_field(model or small(), batches, **{"features": "before the norm"} | options)


def broken(model):
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.fill_(NAN)
    return model


def maps_of(layers=None, **options):
    model = small()
    with gmmvit.attention_maps(model, layers, **options):
        model(torch.zeros(1, 3, 32, 32))


IMAGE = torch.zeros(2, 3, 32, 32)
GMM, ELM, GAB = gmmvit.GaussianMixtureMask, gmmvit.ElementMask, gmmvit.GaussianBias
CALLS = {
    "attach": {
        "a class": lambda: gmmvit.attach(torch.nn.Linear, "gmm"),
        "a model without attention": lambda: gmmvit.attach(timm.create_model("test_resnet"), "gmm"),
        "no mask": lambda: gmmvit.attach(small(), None),
        "an unknown mask": lambda: gmmvit.attach(small(), "gm"),
        "a mask that is a number": lambda: gmmvit.attach(small(), 3),
        "an unknown option": lambda: gmmvit.attach(small(), "gmm", kernel=3),
        "another's option": lambda: gmmvit.attach(small(), "elm", kernels=3),
        "kernels = 0": lambda: gmmvit.attach(small(), "gmm", kernels=0),
        "kernels in words": lambda: gmmvit.attach(small(), "gmm", kernels="five"),
        "twice": lambda: [gmmvit.attach(model, "gmm") for model in [small()] * 2],
        "img_size in words": lambda: gmmvit.attach(small(), "gmm", img_size="32"),
        "a mask that raises": lambda: gmmvit.attach(small(), lambda *a, **k: 1 / 0),
        "a mask that is none": lambda: gmmvit.attach(small(), lambda *a, **k: None),
    },
    "masks": {
        **{f"{kind.__name__}{grid}": lambda kind=kind, grid=grid: kind(grid, 2)
           for kind in (GMM, ELM, GAB) for grid in (None, 8, (8,), (0, 8), (-1, 8), (8, 8, 8), ("8", 8), (8.5, 8))},
        **{f"{kind.__name__} of {heads!r} heads": lambda kind=kind, heads=heads: kind((4, 4), heads)
           for kind in (GMM, ELM, GAB) for heads in (0, -1, 1.5, "2", None)},
        **{f"prefix = {prefix!r}": lambda prefix=prefix: GMM((4, 4), 2, prefix=prefix)
           for prefix in (-1, "1", (1,), 0.5, None)},
        **{f"sigma_init = {value!r}": lambda value=value: GMM((4, 4), 2, sigma_init=value)
           for value in (3, (1,), (1, -1), (NAN, 1), (1, INF), "ab")},
        "scores of another size": lambda: GMM((4, 4), 2)(torch.zeros(1, 2, 5, 5)),
        "scores of other heads": lambda: GMM((4, 4), 2)(torch.zeros(1, 3, 16, 16)),
        "scores without heads": lambda: GMM((4, 4), 2)(torch.zeros(16, 16)),
        "no such place": lambda: GMM((4, 4), 2, where="values"),
    },
    "models": {
        **{f"{name!r}": lambda name=name: gmmvit.create_model(name)
           for name in ("nosuch", "", None, 3, "resnet18", "../vit")},
        "no classes": lambda: gmmvit.create_model("vit", num_classes=-1),
        "an unknown mask": lambda: gmmvit.create_model("vit", mask="gm"),
        "an unknown readout": lambda: gmmvit.create_model("vit", readout="max"),
        "an unknown option": lambda: gmmvit.create_model("vit", nosuch=3),
        "an option of no mask": lambda: gmmvit.create_model("vit", kernels=3),
        "an odd size": lambda: gmmvit.create_model("vit", img_size=33),
        "no size": lambda: gmmvit.create_model("vit", img_size=0),
        "a token of swin": lambda: gmmvit.create_model("swin", readout="token"),
    },
    "attention maps": {
        **{f"layers = {layers!r}": lambda layers=layers: maps_of(layers)
           for layers in ("nosuch", 99, -99, 1.5, [], [None], "", ["*", "nosuch"], object())},
        **{f"rows = {rows!r}": lambda rows=rows: maps_of(rows=rows) for rows in (3, "first", None, [0])},
        "a model without attention": lambda: gmmvit.attention_maps(torch.nn.Linear(2, 2), "nosuch").__enter__(),
    },
    "TransMix": {
        **{f"definition = {value!r}": lambda value=value: mixing(definition=value) for value in ("", "codes", None, 3)},
        **{f"mode = {value!r}": lambda value=value: mixing(mode=value) for value in ("elem", "pair", "half")},
        "an odd batch": lambda: mixing()[0](torch.zeros(3, 3, 32, 32), torch.tensor([0, 1, 2])),
        "a label too high": lambda: mixing()[0](torch.zeros(2, 3, 32, 32), torch.tensor([0, 10])),
        "a label below 0": lambda: mixing()[0](torch.zeros(2, 3, 32, 32), torch.tensor([0, -1])),
        "attention of no grid": lambda: weighed(torch.ones(4, 7)),
        "attention of other images": lambda: weighed(torch.ones(3, 16)),
        "attention of heads": lambda: weighed(torch.ones(4, 2, 16)),
        "attention that is none": lambda: weighed(torch.full((4, 16), NAN)),
        "attention without end": lambda: weighed(torch.full((4, 16), INF)),
        "one number that is none": lambda: weighed(torch.ones(4, 16).index_fill_(0, torch.tensor([2]), NAN)),
    },
    "receptive field": {
        "no images": lambda: seen([]),
        "images that are none": lambda: seen([IMAGE * NAN]),
        "images without end": lambda: seen([IMAGE + INF]),
        "weights that are none": lambda: seen([IMAGE], broken(small())),
        "an unknown feature": lambda: seen([IMAGE], features="first"),
        "a model of no images": lambda: seen([IMAGE], torch.nn.Linear(2, 2)),
    },
    "folding": {
        "no masks": lambda: gmmvit.fold(small()),
        "a mask that is no bias": lambda: gmmvit.fold(gmmvit.attach(small(), "gmm")),
        "no bias beside it": lambda: gmmvit.fold(gmmvit.attach(small(), "gab")),
        "no model": lambda: gmmvit.fold(None),
    },
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_calls_of_the_library(what):
    survived({name: call_problem(call) for name, call in CALLS[what].items()})


def test_the_tables_are_as_large_as_they_should_be():
    tables = (SETTINGS, WORDS, PARAMS, COCO, *OF_MASKS.values(), *SAMPLE.values(), *ENTRIES.values(), *CALLS.values())
    assert sum(map(len, tables)) >= 300
