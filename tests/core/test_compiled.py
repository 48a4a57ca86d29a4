"""A compiled step: one graph, compiled once, of what CUDA graphs can replay. Inductor's code is not tested here."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import gmmvit
from gmmvit.train import recipes
from gmmvit.train.checks import problems
from gmmvit.train.rows import Row
from gmmvit.train.update import Update

ROW = {"dataset": "cifar10", "model": "vit", "mask": "gmm", "recipe": "gmm", "seed": 0}
RECIPE = dataclasses.replace(recipes.find("gmm"), warmup_epochs=0, drop_path=0.2, clip=1.0)


def cross_entropy(model, images, labels, step):
    return F.cross_entropy(model(images).float(), labels)


def updates(mask, compiled, monkeypatch, steps=3, dtype=torch.bfloat16, accumulate=2):
    """The update after some steps, and what it was compiled by."""
    counter, asked = CompileCounterWithBackend("aot_eager"), []
    compiler = torch.compile

    def one_graph(module, mode=None):
        asked.append(mode)
        return compiler(module, backend=counter, fullgraph=True)

    monkeypatch.setattr(torch, "compile", one_graph)
    torch.manual_seed(0)
    model = gmmvit.create_model("vit", mask=mask, drop_path=0.2)
    recipe = dataclasses.replace(RECIPE, compile=compiled, accumulate=accumulate)
    update = Update(model, recipe, cross_entropy, torch.zeros(1, 3, 32, 32), 10, dtype)
    update.working.module.train()
    draw = torch.Generator().manual_seed(1)
    places = [p.data_ptr() for p in update.working.module.parameters()]
    for number in range(steps):
        images, labels = torch.randn(4, 3, 32, 32, generator=draw), torch.randint(10, (4,), generator=draw)
        update([(4 * number + np.arange(i, 4, 2), images[i::2], labels[i::2]) for i in range(2)], number)
    assert [p.data_ptr() for p in update.working.module.parameters()] == places  # where a replayed graph reads them
    return update, counter, asked


@pytest.mark.slow
@pytest.mark.parametrize("mask", (None, "gmm", "elm", "gab"))
def test_a_step_is_one_graph_that_is_compiled_once(mask, monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    update, counter, asked = updates(mask, "reduce-overhead", monkeypatch)
    assert asked == ["reduce-overhead"] and counter.frame_count == 1 and not counters["graph_break"]
    for place in ("gmmvit.core.native.library", "gmmvit.train.norms.library"):
        monkeypatch.setattr(place, lambda: None)  # it rounds elsewhere than torch's operators, which are compiled
    plain, _, none = updates(mask, False, monkeypatch)
    assert none == []
    for (name, ours), theirs in zip(update.model.named_parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-2, msg=name)


def test_gradients_do_not_stay_where_a_replayed_graph_writes_again(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, mode=None: module)
    recipe = dataclasses.replace(RECIPE, compile="reduce-overhead", accumulate=2)
    model = gmmvit.create_model("vit_d6", mask="gmm", drop_path=0.2)
    update = Update(model, recipe, cross_entropy, torch.zeros(1, 3, 32, 32), 10, torch.float32)
    update.working.module.train()
    met = []
    update.optimizer.register_step_pre_hook(lambda *_: met.extend(p.grad for p in model.parameters()))
    update([(np.arange(2) + i, torch.randn(2, 3, 32, 32), torch.arange(2)) for i in (0, 2)], 0)
    storage = update.gradients.flat.untyped_storage().data_ptr()
    assert met and all(gradient.untyped_storage().data_ptr() == storage for gradient in met)


def test_compile_is_no_yes_or_replayed_and_names_stay():
    for value, words in ((True, "compile"), (False, "no_compile"), ("reduce-overhead", "compile_reduce-overhead")):
        row = Row(**ROW, set={"compile": value})
        assert row.recipe_settings.compile == value and row.name == f"cifar10-vit-gmm-gmm-{words}-s0"
        assert not problems(vars(row))
    (told,) = problems({**ROW, "set": {"compile": "reduce"}})
    assert "unknown compile 'reduce'" in told and "reduce-overhead" in told
    assert RECIPE.compile is False
