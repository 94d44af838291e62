"""An EAGLE-3 drafter of one layer with a frozen head, and its loss over training-time test steps."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .chains import Chains
from .layers import CausalPlusDiagonal, Mlp, Norm, SoftCrossEntropy, initialize, split_heads
from .target import rope_table
from .workload import Batch, Sizes

STEP_DECAY = 0.8
MASK_SHIFT = 2  # row i of step k counts if the predicted token, i + k + 2, is supervised


def shifted(x: Tensor, count: int) -> Tensor:
    """Columns moved to the left by `count`, zeros on the right."""
    return F.pad(x[:, count:], (0, count))


class Eagle3(nn.Module):
    """Drafts over the rows `draft_ids` of the target's head, which stays frozen. `dtype`: of products."""

    def __init__(
        self, sizes: Sizes, embedding: Tensor, draft_ids: Tensor, ttt_steps: int, dtype: torch.dtype, chains: Chains
    ) -> None:
        super().__init__()
        self.sizes, self.chains, self.ttt_steps = sizes, chains, ttt_steps
        hidden, width = sizes.hidden, sizes.heads * sizes.head_dim
        self.heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
        self.fc = nn.Linear(sizes.states * hidden, hidden, bias=False)
        self.input_norm, self.hidden_norm, self.mlp_norm, self.norm = (
            Norm(hidden, sizes.rms_norm_eps, chains) for _ in range(4)
        )
        self.qkv = nn.Linear(2 * hidden, sum(self.heads) * sizes.head_dim, bias=False)
        self.o = nn.Linear(width, hidden, bias=False)
        self.mlp = Mlp(hidden, sizes.intermediate, chains)
        initialize(self)
        self.embedding, self.head = embedding, embedding[draft_ids].to(dtype)
        self.target_norm = torch.ones(hidden, dtype=dtype)
        self.to_draft = torch.full((sizes.vocab,), -1)
        self.to_draft[draft_ids] = torch.arange(len(draft_ids))

    def step(self, tokens: Tensor, h: Tensor, index: int, rope: tuple[Tensor, Tensor], cache: list) -> Tensor:
        """One step of training-time test. tokens: [B, T]; h: [B, T, H]; cache: keys and values of the steps so far."""
        embedded = self.input_norm(self.embedding[tokens].to(h.dtype))
        u = torch.cat([embedded, self.hidden_norm(h)], -1)
        q, k, v = split_heads(self.qkv(u), self.heads, self.sizes.head_dim)
        length = h.shape[1]
        cos, sin = (table[index : index + length].to(q.dtype) for table in rope)
        q, k = self.chains.rotate(q, cos, sin), self.chains.rotate(k, cos, sin)
        groups = self.sizes.heads // self.sizes.kv_heads
        cache.append((k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
        (k0, v0), later = cache[0], cache[1:]
        out = CausalPlusDiagonal.apply(q, k0, v0, *(k for k, _ in later), *(v for _, v in later))
        residual = h + self.o(out.transpose(1, 2).reshape(*h.shape[:2], -1))
        return residual + self.mlp(self.mlp_norm(residual))

    def loss(self, batch: Batch) -> Tensor:
        """Soft cross-entropy to the target's distribution over the draft vocabulary, summed over decayed steps."""
        rows = batch.next_supervised()
        teacher_row = torch.zeros_like(batch.ids)
        teacher_row[rows] = torch.arange(int(rows.sum()))
        normed = self.chains.rms_norm(batch.last[rows], self.target_norm, self.sizes.rms_norm_eps)
        teacher = torch.softmax(F.linear(normed.to(self.head.dtype), self.head).float(), -1)
        # The target's top-1 is the data's next token here.
        in_draft = (self.to_draft[shifted(batch.ids, 1)] >= 0) & rows
        h, cache, total = self.fc(batch.hidden), [], torch.zeros(())
        length = batch.ids.shape[1] + self.ttt_steps
        rope = rope_table(length, self.sizes.head_dim, self.sizes.rope_theta, torch.float32)
        denominator = float(batch.mask.sum())
        for k in range(self.ttt_steps):
            h = self.step(shifted(batch.ids, 1 + k), h, k, rope, cache)
            on = (shifted(batch.mask, k + MASK_SHIFT) == 1) & shifted(in_draft, 1 + k)
            logits = F.linear(self.norm(h[on]).to(self.head.dtype), self.head)
            weight = torch.full((len(logits),), 1.0 / denominator)
            part = SoftCrossEntropy.apply(logits, teacher[shifted(teacher_row, 1 + k)[on]], weight, self.chains)
            total = total + STEP_DECAY**k * part
        return total
