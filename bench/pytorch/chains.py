"""The element-wise chains between matrix products: plain functions, or fused by torch.compile."""
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = torch.finfo(torch.float32).tiny


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows of `x` to unit root mean square, times `weight`. Statistics in f32; the result has x's dtype."""
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual sum x + y, and its rms_norm."""
    total = x + y
    return total, rms_norm(total, weight, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of `x`, whose last dimension is the head's; `cos` and `sin` broadcast to it."""
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where the last dimension holds gate and up one after the other."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def soft_cross_entropy(logits: Tensor, teacher: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over rows of weight * (logsumexp(z) - p.z), and its gradient. logits, teacher: [R, V]; weight: [R]."""
    log_p = F.log_softmax(logits, -1, dtype=torch.float32)
    loss = -(weight * (teacher * log_p).sum(-1)).sum()
    return loss, log_p.exp_().sub_(teacher).mul_(weight[:, None]).to(logits.dtype)


def hard_cross_entropy(logits: Tensor, label: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over rows of weight * cross-entropy, and its gradient. logits: [R, V]; label, weight: [R]."""
    # One pass for the softmax and in-place work after it: several times faster than log-sum-exp and a one-hot matrix.
    p = F.softmax(logits, -1, dtype=torch.float32)
    loss = -(weight * p.gather(1, label[:, None])[:, 0].clamp(min=SMALLEST).log()).sum()
    gradient = p.mul_(weight[:, None]).scatter_add_(1, label[:, None], -weight[:, None])
    return loss, gradient.to(logits.dtype)


@dataclass(frozen=True)
class Chains:
    """The chains that a model uses. Their names are those of the functions above."""

    rms_norm: Callable[..., Tensor] = rms_norm
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]] = add_rms_norm
    rotate: Callable[..., Tensor] = rotate
    swiglu: Callable[..., Tensor] = swiglu
    soft_cross_entropy: Callable[..., tuple[Tensor, Tensor]] = soft_cross_entropy
    hard_cross_entropy: Callable[..., tuple[Tensor, Tensor]] = hard_cross_entropy


def make_chains(compiled: bool) -> Chains:
    """The plain chains, or each compiled for any number of rows."""
    if not compiled:
        return Chains()
    return Chains(**{field.name: torch.compile(field.default, dynamic=True) for field in fields(Chains)})
