"""The training step's workload: sizes of SmolLM2-135M, and one batch of random features and tokens.

drafter_bench has the same sizes and document lengths.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTHS = (192, 182, 165, 148)  # 687 real tokens in a budget of 768
PROMPT = 40  # the first tokens of each document are not supervised


@dataclass(frozen=True)
class Sizes:
    """The target's shape, which the drafter's layers share."""

    hidden: int = 576
    intermediate: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    vocab: int = 49152
    rms_norm_eps: float = 1e-5
    rope_theta: float = 100000.0
    states: int = 3  # captured


@dataclass(frozen=True)
class Batch:
    """Documents padded on the right to the longest: [B, T] ids and loss mask, [B, T, K * H] states, [B, T, H] last."""

    ids: Tensor
    mask: Tensor
    hidden: Tensor
    last: Tensor

    def next_supervised(self) -> Tensor:
        """[B, T]: whether the token after this one is supervised."""
        return F.pad(self.mask[:, 1:], (0, 1)) == 1


def draft_ids(sizes: Sizes, count: int) -> Tensor:
    """A draft vocabulary of `count` ids, spread evenly."""
    return torch.arange(count) * (sizes.vocab // count)


def make_batch(sizes: Sizes, vocabulary: Tensor, dtype: torch.dtype) -> Batch:
    """Random tokens of the draft vocabulary and random features of `dtype`."""
    count, length = len(LENGTHS), max(LENGTHS)
    ids = vocabulary[torch.randint(len(vocabulary), (count, length))]
    mask = torch.zeros(count, length, dtype=torch.long)
    for row, tokens in enumerate(LENGTHS):
        mask[row, PROMPT:tokens] = 1
        ids[row, tokens:] = 0
    hidden = torch.rand(count, length, sizes.states * sizes.hidden) - 0.5
    last = torch.rand(count, length, sizes.hidden) - 0.5
    return Batch(ids, mask, hidden.to(dtype), last.to(dtype))
