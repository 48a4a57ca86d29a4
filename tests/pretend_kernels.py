"""Kernels that torch has on a GPU alone: its choice of fused attention, FlexAttention, cudnn's batch norm."""

from __future__ import annotations

from unittest import mock

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def _scores(query, key, bias, scale):
    scores = query.float() @ key.float().transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores if bias is None else scores + bias.float()


def _efficient(query, key, value, bias, with_logsumexp, dropout=0.0, causal=False, *, scale=None):
    """The memory-efficient kernel: (out, logsumexp, seed, offset)."""
    if bias is not None:
        shape = (*query.shape[:-1], key.shape[-2])
        if tuple(bias.shape) != shape or bias.dtype != query.dtype or bias.stride(-2) * bias.element_size() % 16:
            raise RuntimeError(
                f"expected an aligned {query.dtype} bias of shape {shape}, got {bias.dtype} {bias.shape}"
            )
    scores = _scores(query, key, bias, scale)
    out = (scores.softmax(-1).to(query.dtype).float() @ value.float()).to(query.dtype)
    logsumexp = scores.logsumexp(-1) if with_logsumexp else scores.new_empty(0)
    none = torch.zeros((), dtype=torch.int64)
    return out.transpose(1, 2).contiguous().transpose(1, 2), logsumexp, none, none  # tokens before heads in memory


def _efficient_backward(
    gradient, query, key, value, bias, out, logsumexp, seed, offset, dropout, wanted, causal=False, *, scale=None
):
    weights = (_scores(query, key, bias, scale) - logsumexp[..., None]).exp()
    gradient, factor = gradient.float(), query.shape[-1] ** -0.5 if scale is None else scale
    to_weights = gradient @ value.float().transpose(-2, -1)
    to_scores = weights * (to_weights - (gradient * out.float()).sum(-1, keepdim=True))
    to_value = weights.transpose(-2, -1) @ gradient
    to_query, to_key = to_scores @ key.float() * factor, to_scores.transpose(-2, -1) @ query.float() * factor
    gradients = to_query.to(query.dtype), to_key.to(query.dtype), to_value.to(query.dtype)
    return *gradients, to_scores.to(query.dtype) if bias is not None and wanted[3] else None


def _flash(query, key, value, dropout=0.0, causal=False, debug=False, *, scale=None):
    """FlashAttention: (out, logsumexp, -, -, queries, keys, seed, offset, -)."""
    out, logsumexp, *_ = _efficient(query, key, value, None, True, scale=scale)
    none = torch.zeros((), dtype=torch.int64)
    return out, logsumexp, None, None, query.shape[-2], key.shape[-2], none, none, query.new_empty(0)


def _flash_backward(gradient, query, key, value, out, logsumexp, *rest, scale=None):
    wanted = (True, True, True, False)
    saved = (query, key, value, None, out, logsumexp, None, None, 0.0, wanted)
    return _efficient_backward(gradient, *saved, scale=scale)[:3]


def _batch_norm(image, weight, bias, mean, variance, training, momentum, eps):
    results = aten.native_batch_norm(image, weight, bias, mean, variance, training, momentum, eps)
    return *results, torch.empty(0, dtype=torch.uint8)


def _batch_norm_backward(image, gradient, weight, mean, variance, saved_mean, saved_variance, eps, reserve):
    statistics = (weight, mean, variance, saved_mean, saved_variance)
    return aten.native_batch_norm_backward(gradient, image, *statistics, True, eps, [True, True, True])


def _rms_norm_backward(gradient, image, shape, rstd, weight, wanted):
    normed, own = image * rstd, tuple(range(-len(shape), 0))
    weighed = gradient if weight is None else gradient * weight
    to_image = rstd * (weighed - normed * (weighed * normed).mean(own, keepdim=True))
    to_weight = (gradient * normed).sum(tuple(range(image.ndim - len(shape)))) if wanted[1] else None
    return to_image if wanted[0] else None, to_weight


KERNELS = {
    "_fused_rms_norm_backward": _rms_norm_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
}


WITHIN = {  # functions that hide the mode from what they call, and the check by which they do
    torch.Tensor.backward: (torch._tensor, "has_torch_function_unary"),
    torch.autograd.backward: (torch.autograd, "has_torch_function"),  # gradient checkpointing goes forward in it
    F.multi_head_attention_forward: (F, "has_torch_function"),
}


class FusedAttention(TorchFunctionMode):
    """Picks the kernel for F.scaled_dot_product_attention on a GPU like an A100, where torch would ask the driver."""

    def __init__(self, tensors: type[torch.Tensor]):
        super().__init__()
        self.tensors = tensors

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and isinstance(args[0], self.tensors):
            return attend(*args, **kwargs)
        if func in WITHIN:
            with type(self)(self.tensors), mock.patch.object(*WITHIN[func], lambda *tensors: False):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """What torch's C++ does before a kernel: autocast, the choice, and the bias brought to the kernel's form."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        tensors = (query, key, value, attn_mask)
        query, key, value, attn_mask = (t.to(dtype) if t is not None and t.is_floating_point() else t for t in tensors)
    if query.ndim != 4 or dropout_p or is_causal or enable_gqa:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    if attn_mask is None and query.dtype != torch.float32:
        return aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
        if attn_mask.dtype != query.dtype:
            raise RuntimeError(f"Expected attn_mask dtype to match query dtype, got {attn_mask.dtype}, {query.dtype}")
        columns = attn_mask.shape[-1]
        if columns % 16:  # rows must begin at aligned places: padded, and cut again
            attn_mask = F.pad(attn_mask, (0, 16 - columns % 16))[..., :columns]
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    inputs = (query, key, value, attn_mask)
    trains = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    return aten._scaled_dot_product_efficient_attention(*inputs, trains, scale=scale)[0]


def flex_attention(query, key, value, score_mod, block_mask=None, scale=None):
    """What FlexAttention's compiled kernel computes, with the gradients of what score_mod has captured."""
    scores = _scores(query, key, None, scale)
    places = [
        torch.arange(size, device=query.device).view([-1 if other == dim else 1 for other in range(4)])
        for dim, size in enumerate(scores.shape)
    ]
    return score_mod(scores, *places).softmax(-1).to(query.dtype) @ value
