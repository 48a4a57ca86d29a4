"""What the tests share: the device, and models whose every weight is drawn anew."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pretend
import pytest
import torch
import torch.nn as nn
from pretend import backward_works, environment, pretended
from pretend_kernels import flex_attention

from gmmvit.core import ways


def pytest_configure(config: pytest.Config) -> None:
    """Starts pytest once more with what backward on the pretend GPU needs, which must be there before torch is."""
    if backward_works() or torch.cuda.is_available() or hasattr(config, "workerinput") or environment()[0] is None:
        return
    config.pluginmanager.getplugin("capturemanager").stop_global_capturing()  # gives back the terminal
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, {"OMP_NUM_THREADS": "1"} | environment()[0])  # small models: one core each


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Ends a test that forks as it ends in a pytest of its own, where the pretend GPU was used in this one."""
    if not pretend.used or not pyfuncitem.get_closest_marker("forks"):
        return None
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    result = subprocess.run(words, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True)
    if result.returncode:
        pytest.fail(result.stdout[-3000:] + result.stderr[-1000:], pytrace=False)
    return True


def devices(*marks: pytest.MarkDecorator) -> list:
    """The values of `device`, with marks on all but the plain CPU."""
    real = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
    return [
        "cpu",
        pytest.param("cpu, fused", marks=marks),
        pytest.param("pretend", marks=[pytest.mark.pretend, *marks]),
        pytest.param("cuda", marks=[real, *marks]),
    ]


@pytest.fixture(params=devices())
def device(request, monkeypatch):
    """The CPU, the CPU with fused attention taken as on a GPU, the pretend GPU, and a real one where there is one."""
    if request.param == "cpu, fused":
        monkeypatch.setitem(ways.TABLE, "cpu", ways.TABLE["cuda"])
        monkeypatch.setattr("gmmvit.core.together.on_gpu", lambda tensor: True)
        monkeypatch.setattr("torch.nn.attention.flex_attention.flex_attention", flex_attention)
    if request.param == "pretend":
        with _pretended(backward=True)():
            yield torch.device("cuda")
    else:
        yield torch.device(request.param.split(",")[0])


def _pretended(backward: bool):
    """What makes the pretend GPU; the test is skipped where it cannot do what is asked."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: CUDA_VISIBLE_DEVICES= hides it from the pretend one")
    if backward and not backward_works():
        pytest.skip(environment()[1])
    return pretended


@pytest.fixture(params=devices()[2:])
def forward_gpu(request):
    """A GPU, pretend or real, for what needs no backward: `with forward_gpu() as gpu:` (None where it is real)."""
    return nullcontext if request.param == "cuda" else _pretended(backward=False)


@pytest.fixture(params=devices()[2:])
def gpu(request):
    """The same for backward as well."""
    return nullcontext if request.param == "cuda" else _pretended(backward=True)


def redraw(model: nn.Module, image: torch.Tensor, seed: int = 0) -> nn.Module:
    """Draws every weight anew, so that attention matters: fresh LayerScale, heads and norms often hide it."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            fan_in = parameter[0].numel() if parameter.shape[0] > 1 or parameter.ndim == 2 else parameter.shape[-1]
            value = noise / fan_in**0.5
        else:
            value = 0.2 * noise + (0.0 if name.endswith("bias") else 0.7)
        parameter.data.copy_(value)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)]
    if norms:  # their running statistics must fit the new weights
        was = model.training
        for norm in norms:
            norm.momentum, norm.was = 1.0, norm.momentum
        model.train()
        with torch.no_grad():
            model(image)
        for norm in norms:
            norm.momentum = norm.was
            del norm.was
        model.train(was)
    return model
