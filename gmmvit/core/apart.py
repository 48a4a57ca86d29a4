"""Takes attentions apart that are one call: torch's fused kernel and nn.MultiheadAttention, as nodes of a graph.

A mask goes on scores, which such a call keeps to itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import fx

from .trace import Untraceable


def take_apart(graph: fx.Graph, kinds: dict[Callable, Callable]) -> bool:
    """Puts the steps of an attention in the place of each call of it; whether there was one."""
    calls = [node for node in graph.nodes if node.target in kinds]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    for node in calls:
        with graph.inserting_before(node):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: fx.Proxy(each, tracer))
            result = kinds[node.target](*args, **kwargs)
        if isinstance(result, tuple):
            for part in list(node.users):
                _replace(part, result[part.args[1]])
            graph.erase_node(node)
        else:
            _replace(node, result)
    return bool(calls)


def _replace(node: fx.Node, value: fx.Proxy | None) -> None:
    new = None if value is None else value.node
    for user in list(node.users):
        both = user.args, user.kwargs
        user.args, user.kwargs = fx.node.map_arg(both, lambda each: new if each is node else each)
    node.graph.erase_node(node)


def explicit(
    query: fx.Proxy,  # (..., heads, Nq, d)
    key: fx.Proxy,
    value: fx.Proxy,
    attn_mask: fx.Proxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> fx.Proxy:
    """F.scaled_dot_product_attention in steps, (..., heads, Nq, d)."""
    if isinstance(is_causal, fx.Proxy) or is_causal or enable_gqa:
        raise Untraceable("its fused attention is causal or groups its queries: expected neither")
    return _dropped(_probabilities(query, key, attn_mask, scale), dropout_p) @ value


def _probabilities(query: fx.Proxy, key: fx.Proxy, attn_mask: fx.Proxy | None, scale: float | None) -> fx.Proxy:
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if attn_mask is not None:
        scores = scores.tracer.create_proxy("call_function", with_attn_mask, (scores, attn_mask), {})
    return scores.softmax(-1)


def _dropped(probabilities: fx.Proxy, dropout_p: float) -> fx.Proxy:
    return F.dropout(probabilities, dropout_p) if isinstance(dropout_p, fx.Proxy) or dropout_p else probabilities


def with_attn_mask(scores: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
    """Scores with an attention mask as torch's fused kernel takes it: pairs to keep, or numbers to add."""
    return scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


def multi_head(
    query: fx.Proxy,  # (N, B, C)
    key: fx.Proxy,
    value: fx.Proxy,
    width: int,
    heads: int,
    weight: fx.Proxy,
    bias: fx.Proxy | None,
    bias_k: fx.Proxy | None,
    bias_v: fx.Proxy | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_weight: fx.Proxy,
    out_bias: fx.Proxy | None,
    training: bool = True,
    key_padding_mask: fx.Proxy | None = None,
    need_weights: bool = True,
    attn_mask: fx.Proxy | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: fx.Proxy | None = None,
    k_proj_weight: fx.Proxy | None = None,
    v_proj_weight: fx.Proxy | None = None,
    static_k: fx.Proxy | None = None,
    static_v: fx.Proxy | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[fx.Proxy, fx.Proxy | None]:
    """F.multi_head_attention_forward around the fused kernel: its output (N, B, C), and its map where it is wanted."""
    refused = (bias_k, bias_v, static_k, static_v, key_padding_mask, attn_mask)
    if any(each is not None for each in refused) or add_zero_attn or is_causal:
        raise Untraceable("its multi-head attention hides or adds tokens: expected plain self-attention")
    own = (q_proj_weight, k_proj_weight, v_proj_weight)
    parts = []
    for i, tokens in enumerate((query, key, value)):
        rows = slice(i * width, (i + 1) * width)
        projection = own[i] if use_separate_proj_weight else weight[rows]
        part = F.linear(tokens, projection, None if bias is None else bias[rows])
        parts.append(part.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3))  # (B, heads, N, d)
    dropout_p, weights = dropout_p if training else 0.0, None
    if need_weights:
        weights = _dropped(_probabilities(*parts[:2], None, None), dropout_p)
        values = weights @ parts[2]
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        values = F.scaled_dot_product_attention(*parts, dropout_p=dropout_p)
    return F.linear(values.permute(2, 0, 1, 3).flatten(2), out_weight, out_bias), weights


LAYERS = {F.multi_head_attention_forward: multi_head}
KERNELS = {F.scaled_dot_product_attention: explicit}
