"""Fine-tuning from a neutral start, of a ViT trained here: the mask learns, and nothing learned before is lost."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from timm.optim import create_optimizer_v2

import gmmvit
from gmmvit.data.arrays import Arrays

ROOT = Path(__file__).parents[2]
MINI = ROOT / "data" / "cifar10-mini"


def steps(model, images, labels, count, seed, rate):
    """The mean loss of the second half of so many steps of AdamW; the batches are a function of the seed."""
    optimizer = create_optimizer_v2(model.train(), "adamw", lr=rate, weight_decay=0.05)
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        chosen = torch.randint(len(images), (64,), generator=generator)
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[count // 2 :]) / (count - count // 2)


@pytest.mark.slow
def test_a_neutral_mask_learns_and_the_loss_is_not_above_that_of_the_plain_model():
    mini = Arrays(MINI, "train")
    images = torch.from_numpy(mini.images.copy()).permute(0, 3, 1, 2) / 127.5 - 1
    labels = torch.from_numpy(mini.labels.copy()).long()
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}
    trained = timm.create_model("vit_tiny_patch16_224", **options)
    first = steps(trained, images, labels, 20, seed=0, rate=1e-3)
    assert steps(trained, images, labels, 200, seed=1, rate=1e-3) < 0.9 * first, "the ViT has learned nothing"
    plain = steps(copy.deepcopy(trained), images, labels, 150, seed=2, rate=3e-4)
    for mask in ("gmm", "elm", "gab", "gmb"):
        model = copy.deepcopy(trained)
        sites = gmmvit.attach(model, mask)
        assert {site.start for site in sites} == {"neutral"}
        before = {name: p.detach().clone() for name, p in model.named_parameters() if "spatial_masks" in name}
        loss = steps(model, images, labels, 150, seed=2, rate=3e-4)
        assert loss <= 1.001 * plain, f"{mask}: {loss:.4f}, plain {plain:.4f}"
        for site in sites:
            assert (site.strength > 1e-3) == site.reaches_output, f"{mask} of {site.name} moved by {site.strength:.1e}"
        moved = {name for name, p in model.named_parameters() if name in before and (p != before[name]).all()}
        assert moved == {name for name in before if any(s.reaches_output and s.name + "." in name for s in sites)}


@pytest.mark.slow
def test_the_example_fine_tunes_a_checkpoint_and_keeps_the_model(tmp_path):
    mini = Arrays(MINI, "train")
    for i in range(12):
        place = tmp_path / "images" / str(mini.labels[i] % 2)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mini.images[i]).save(place / f"{i}.png")
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "weights.pt")
    words = ["--model", "test_vit", "--weights", tmp_path / "weights.pt", "--steps", "3", "--out", tmp_path / "out"]
    command = [sys.executable, ROOT / "examples" / "finetune.py", tmp_path / "images", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    moved = re.search(r"moved: \[(.*)\]", done.stdout)[1]
    model = gmmvit.load(tmp_path / "out")
    assert [round(site.strength, 4) for site in model.spatial_sites] == [float(each) for each in moved.split(",")]
    assert model.num_classes == 2 and max(site.strength for site in model.spatial_sites) > 0
    assert len((ROOT / "examples" / "finetune.py").read_text().splitlines()) <= 40
