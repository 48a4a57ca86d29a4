"""What the tests share: the device, and models whose every weight is drawn anew."""

import pytest
import torch
import torch.nn as nn


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
)
def device(request):
    return torch.device(request.param)


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
