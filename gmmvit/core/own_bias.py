"""An additive mask beside a position bias of the layer's own: the two are added to each other, then to the scores.

A position bias is one map for the whole batch, so that what joins it costs nothing that grows with the batch:
softmax(Q K^T / sqrt(d) + (B_rel + B_Gauss)) V (GAB, arXiv 2305.04722).
"""

from __future__ import annotations

import operator

import torch
import torch.nn as nn
from timm.layers import RelPosBias, RelPosMlp
from torch import fx

ADDITIONS = (operator.add, torch.add, "add")
HOLDERS = (RelPosMlp, RelPosBias)  # called with the scores, to which they add get_bias()


def join_own_bias(module: nn.Module, graph: fx.Graph, scores: fx.Node, mask: str) -> bool:
    """Puts the mask with this name into the bias that is added to the scores next; False where there is none."""
    users = list(scores.users)
    if len(users) != 1:
        return False
    (user,) = users
    holder = module.get_submodule(user.target) if user.op == "call_module" else None
    if type(holder) in HOLDERS and user.args[:1] == (scores,):
        with graph.inserting_before(user):
            places = graph.get_attr(mask), graph.get_attr(user.target)
            both = graph.call_function(with_both, (*places, scores))
        user.replace_all_uses_with(both)
        graph.erase_node(user)
        return True
    if user.target in ADDITIONS and len(user.args) == 2 and not user.kwargs:
        other = next((each for each in user.args if each is not scores), None)
        if isinstance(other, fx.Node) and not _depends_on_input(other):
            with graph.inserting_before(user):
                both = graph.call_function(joined, (graph.get_attr(mask), other))
            user.replace_input_with(other, both)
            return True
    return False


def _depends_on_input(node: fx.Node) -> bool:
    queue, seen = [node], {node}
    while queue:
        node = queue.pop()
        if node.op == "placeholder":
            return True
        new = set(node.all_input_nodes) - seen
        seen |= new
        queue.extend(new)
    return False


def joined(mask: nn.Module, bias: torch.Tensor) -> torch.Tensor:
    """B_rel + B in the type of B_rel, (..., heads, N, N)."""
    bias = bias.view(*[1] * (3 - bias.ndim), *bias.shape)
    heads = mask.heads if bias.shape[-3] == 1 else bias.shape[-3]
    return mask(bias.expand(*bias.shape[:-3], heads, *bias.shape[-2:])).to(bias.dtype)


def with_both(mask: nn.Module, holder: RelPosMlp | RelPosBias, scores: torch.Tensor) -> torch.Tensor:
    """The scores with the holder's bias and the mask's, (B, heads, N, N)."""
    return scores + joined(mask, holder.get_bias())
