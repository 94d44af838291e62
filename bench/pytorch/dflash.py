"""A DFlash drafter: layers that draft whole blocks at random anchors, and its loss over the frozen head."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .chains import Chains
from .layers import FrozenHeadCrossEntropy, Mlp, Norm, initialize, split_heads
from .target import rope_table
from .workload import Batch, Sizes

LAYERS = 2
BLOCK = 8
MASK_TOKEN = 4
GAMMA = 4.0
SUPERVISED_PER_ANCHOR = 3


class DFlashLayer(nn.Module):
    """Attention from the blocks to the context before their anchors and to themselves, and an MLP."""

    def __init__(self, sizes: Sizes, chains: Chains) -> None:
        super().__init__()
        hidden, eps = sizes.hidden, sizes.rms_norm_eps
        self.sizes, self.chains = sizes, chains
        self.q = nn.Linear(hidden, sizes.heads * sizes.head_dim, bias=False)
        self.kv = nn.Linear(hidden, 2 * sizes.kv_heads * sizes.head_dim, bias=False)
        self.o = nn.Linear(sizes.heads * sizes.head_dim, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(sizes.head_dim, eps, chains), Norm(sizes.head_dim, eps, chains)
        self.input_norm, self.mlp_norm = Norm(hidden, eps, chains), Norm(hidden, eps, chains)
        self.mlp = Mlp(hidden, sizes.intermediate, chains)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x: [B, N, H] block rows; context: [B, T, H]; mask: [B, 1, N, T + N]; rope: of T context and N block rows."""
        sizes, length = self.sizes, context.shape[1]
        y = self.input_norm(x)
        (q,) = split_heads(self.q(y), (sizes.heads,), sizes.head_dim)
        kv_heads = (sizes.kv_heads, sizes.kv_heads)
        k, v = split_heads(self.kv(torch.cat([context, y], 1)), kv_heads, sizes.head_dim)
        cos, sin = (table.to(k.dtype) for table in rope)
        q = self.chains.rotate(self.q_norm(q), cos[:, :, length:], sin[:, :, length:])
        k = self.chains.rotate(self.k_norm(k), cos, sin)
        groups = sizes.heads // sizes.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(out.transpose(1, 2).reshape(*x.shape[:2], -1))
        return x + self.mlp(self.mlp_norm(x))


class DFlash(nn.Module):
    """Two layers over the target's frozen embedding and head, or the rows `head_ids` of it. `dtype`: of products."""

    def __init__(self, sizes: Sizes, embedding: Tensor, head_ids: Tensor, dtype: torch.dtype, chains: Chains) -> None:
        super().__init__()
        hidden, eps = sizes.hidden, sizes.rms_norm_eps
        self.sizes, self.chains = sizes, chains
        self.fc = nn.Linear(sizes.states * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = Norm(hidden, eps, chains), Norm(hidden, eps, chains)
        self.layers = nn.ModuleList(DFlashLayer(sizes, chains) for _ in range(LAYERS))
        initialize(self)
        self.embedding = embedding
        self.head = embedding[head_ids].to(dtype)
        self.to_row = torch.full((sizes.vocab,), -1)
        self.to_row[head_ids] = torch.arange(len(head_ids))

    def anchors(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Random anchors [B, A] whose token and next token are supervised, and which of them are real."""
        candidate = F.pad((mask[:, :-1] == 1) & (mask[:, 1:] == 1), (0, 1))
        count = candidate.sum(1).float()
        wanted = math.ceil(float(count.mean()) / SUPERVISED_PER_ANCHOR)
        score = torch.where(candidate, torch.rand(mask.shape), -1.0)
        value, anchors = score.topk(max(1, min(int(count.max()), wanted)), 1)
        return anchors, value >= 0

    def blocks(self, ids: Tensor, hidden: Tensor, anchors: Tensor) -> Tensor:
        """[B, A * BLOCK, H] after the final norm. A block sees the context before its anchor, and itself."""
        (batch, count), length = anchors.shape, ids.shape[1]
        context = self.hidden_norm(self.fc(hidden))
        tokens = torch.full((batch, count, BLOCK), MASK_TOKEN)
        tokens[:, :, 0] = ids.gather(1, anchors)
        position = (anchors[:, :, None] + torch.arange(BLOCK)).view(batch, -1)
        position = torch.cat([torch.arange(length).expand(batch, -1), position], 1)
        table = rope_table(length + BLOCK, self.sizes.head_dim, self.sizes.rope_theta, torch.float32)
        rope = tuple(values[position][:, None] for values in table)
        sees = torch.arange(length) < anchors[:, :, None]
        own = torch.block_diag(*[torch.ones(BLOCK, BLOCK, dtype=torch.bool)] * count)
        mask = torch.cat([sees.repeat_interleave(BLOCK, 1), own.expand(batch, -1, -1)], -1)[:, None]
        x = self.embedding[tokens.view(batch, -1)].to(context.dtype)
        for layer in self.layers:
            x = layer(x, context, mask, rope)
        return self.norm(x)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy to the data's tokens, weighted by exp(-(slot - 1) / gamma)."""
        length = batch.ids.shape[1]
        anchors, real = self.anchors(batch.mask)
        out = self.blocks(batch.ids, batch.hidden, anchors).view(*anchors.shape, BLOCK, -1)
        at = anchors[:, :, None] + torch.arange(BLOCK)
        inside, at = at < length, at.clamp(max=length - 1).view(len(anchors), -1)
        label, supervised = (x.gather(1, at).view(inside.shape) for x in (batch.ids, batch.mask))
        on = inside & (supervised == 1) & real[:, :, None]
        on[:, :, 0] = False
        slot = torch.arange(BLOCK).expand(on.shape)[on]
        weight = torch.exp(-(slot - 1).float() / GAMMA)
        weight = weight / weight.sum()
        row = self.to_row[label[on]]  # labels outside the head's rows carry no loss
        return FrozenHeadCrossEntropy.apply(out[on], self.head, row.clamp(min=0), weight * (row >= 0), self.chains)
