"""Layers and losses that both drafters share."""
from collections.abc import Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .chains import Chains


class Norm(nn.Module):
    """RMS norm with a trained weight."""

    def __init__(self, size: int, eps: float, chains: Chains) -> None:
        super().__init__()
        self.weight, self.eps, self.chains = nn.Parameter(torch.ones(size)), eps, chains

    def forward(self, x: Tensor) -> Tensor:
        return self.chains.rms_norm(x, self.weight, self.eps)


class Mlp(nn.Module):
    """SwiGLU with gate and up in one product."""

    def __init__(self, hidden: int, inner: int, chains: Chains) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.chains = chains

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.chains.swiglu(self.gate_up(x)))


def initialize(module: nn.Module) -> None:
    """Matrices normal with deviation 0.02; norms stay 1."""
    for parameter in module.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)


class CausalPlusDiagonal(torch.autograd.Function):
    """One softmax over the causal keys of step 0 and the row's own keys of the later steps of training-time test.

    All tensors are [B, heads, T, head_dim]; `diagonal` holds the later steps' keys, then their values. The joint output
    and log-sum-exp are handed to the flash backward, which then yields the exact gradients of the causal part.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k0: Tensor, v0: Tensor, *diagonal: Tensor) -> Tensor:
        scale = q.shape[-1] ** -0.5
        keys, values = diagonal[: len(diagonal) // 2], diagonal[len(diagonal) // 2 :]
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k0, v0, 0.0, True)
        if keys:
            scores = [(q.float() * k).sum(-1) * scale for k in keys]
            joint = torch.logsumexp(torch.stack([lse.float(), *scores]), 0)
            mixed = out * (lse - joint).exp()[..., None]
            for score, v in zip(scores, values):
                mixed += (score - joint).exp()[..., None] * v
            out, lse = mixed.to(q.dtype), joint
        ctx.save_for_backward(q, k0, v0, out, lse, *diagonal)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor, ...]:
        q, k0, v0, out, lse, *diagonal = ctx.saved_tensors
        scale, count = q.shape[-1] ** -0.5, len(diagonal) // 2
        d_out = d_out.to(q.dtype).contiguous()
        dq, dk0, dv0 = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, q, k0, v0, out, lse, 0.0, True
        )
        dk, dv = [], []
        if count:
            qf, df = q.float(), d_out.float()
            dot, dq = (df * out).sum(-1), dq.float()
            for k, v in zip(diagonal[:count], diagonal[count:]):
                p = ((qf * k).sum(-1) * scale - lse).exp()
                ds = (p * ((df * v).sum(-1) - dot) * scale)[..., None]
                dq += ds * k
                dk.append((ds * qf).to(k.dtype))
                dv.append((p[..., None] * df).to(v.dtype))
        return (dq.to(q.dtype), dk0, dv0, *dk, *dv)


class SoftCrossEntropy(torch.autograd.Function):
    """Chains.soft_cross_entropy, whose gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx, logits: Tensor, teacher: Tensor, weight: Tensor, chains: Chains) -> Tensor:
        loss, gradient = chains.soft_cross_entropy(logits, teacher, weight)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, d: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * d, None, None, None


class FrozenHeadCrossEntropy(torch.autograd.Function):
    """Sum of weight * cross-entropy of x W^T with W frozen, in chunks of rows that never hold all logits."""

    CHUNK = 512

    @staticmethod
    def forward(ctx, x: Tensor, head: Tensor, label: Tensor, weight: Tensor, chains: Chains) -> Tensor:
        gradient, loss = torch.empty_like(x), x.new_zeros((), dtype=torch.float32)
        for a in range(0, len(x), FrozenHeadCrossEntropy.CHUNK):
            rows = slice(a, a + FrozenHeadCrossEntropy.CHUNK)
            logits = F.linear(x[rows].to(head.dtype), head)
            part, d_logits = chains.hard_cross_entropy(logits, label[rows], weight[rows])
            loss = loss + part
            gradient[rows] = d_logits @ head
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, d: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * d, None, None, None, None


def split_heads(x: Tensor, heads: Sequence[int], head_dim: int) -> list[Tensor]:
    """[B, T, sum(heads) * head_dim] -> one [B, heads, T, head_dim] for each count of heads."""
    parts = x.split([count * head_dim for count in heads], -1)
    return [part.view(*x.shape[:2], count, head_dim).transpose(1, 2) for part, count in zip(parts, heads)]
