"""Greedy generation with continuous batching over a key/value cache."""
import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .target import PACKED_VARIANTS, PackedTarget, bounds_of, causal_by_document, make_target
from .timing import Timings, time_runs

VARIANTS = PACKED_VARIANTS
WARM_UP_TOKENS = 3


class Generator:
    """Sequences in flight. Live ones always fill the first slots, so that a step reads the cache without copies."""

    def __init__(self, target: PackedTarget, slots: int, length: int) -> None:
        shape = (len(target.layers), slots, target.kv_heads, length, target.head_dim)
        self.target, self.slots = target, slots
        self.keys, self.values = torch.zeros(shape, dtype=target.dtype), torch.zeros(shape, dtype=target.dtype)
        self.used = torch.zeros(slots, dtype=torch.long)  # rows of a slot's cache
        self.current = torch.zeros(slots, dtype=torch.long)  # a slot's newest token, not yet in the cache
        self.columns = torch.arange(length)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> list[int]:
        """Runs whole prompts, packed, into these slots. Returns the first new token of each."""
        lengths = [len(prompt) for prompt in prompts]
        bounds = bounds_of(lengths)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for slot, (a, b) in zip(slots, bounds):
                self.keys[layer, slot, :, : b - a] = k[a:b].transpose(0, 1)
                self.values[layer, slot, :, : b - a] = v[a:b].transpose(0, 1)
            return causal_by_document(q, k, v, bounds)

        ids = torch.tensor([token for prompt in prompts for token in prompt])
        positions = torch.cat([torch.arange(length) for length in lengths])
        _, last = self.target.run(ids, positions, attend)
        first = self.target.greedy(last[[b - 1 for _, b in bounds]])
        rows = torch.tensor(list(slots))
        self.used[rows], self.current[rows] = torch.tensor(lengths), first
        return first.tolist()

    def step(self, live: int) -> list[int]:
        """One token for each of the first `live` slots."""
        target, at = self.target, self.used[:live].clone()
        width = int(at.max()) + 1
        rows = torch.arange(live)
        # Additive, and once for all layers: a boolean mask would be converted by each.
        mask = torch.zeros(live, 1, 1, width, dtype=target.dtype)
        mask.masked_fill_((self.columns[:width] > at[:, None])[:, None, None], float("-inf"))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer, rows, :, at] = k
            self.values[layer, rows, :, at] = v
            # The query heads of one key head are rows of one call.
            out = F.scaled_dot_product_attention(
                q.view(live, target.kv_heads, -1, target.head_dim),
                self.keys[layer, :live, :, :width],
                self.values[layer, :live, :, :width],
                attn_mask=mask,
            )
            return out.reshape(live, target.heads, target.head_dim)

        _, last = target.run(self.current[:live].clone(), at, attend)
        tokens = target.greedy(last)
        self.used[:live] += 1
        self.current[:live] = tokens
        return tokens.tolist()

    def move(self, source: int, destination: int) -> None:
        """Puts the sequence of one slot into another."""
        used = int(self.used[source])
        for cache in (self.keys, self.values):
            cache[:, destination, :, :used] = cache[:, source, :, :used]
        self.used[destination], self.current[destination] = self.used[source], self.current[source]


def generate(
    target: PackedTarget, prompts: Sequence[Sequence[int]], slots: int, new_tokens: int, stop: Sequence[int]
) -> list[list[int]]:
    """The new tokens of each prompt, the stop token included when it was reached."""
    generator = Generator(target, slots, max(map(len, prompts)) + new_tokens)
    waiting = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # popped from the end: longest first
    results: list[list[int]] = [[] for _ in prompts]
    owners: list[int] = []  # the prompt of each live slot

    def finished(prompt: int) -> bool:
        return len(results[prompt]) >= new_tokens or results[prompt][-1] in stop

    def admit(free: list[int]) -> None:
        taken = [waiting.pop() for _ in range(min(len(free), len(waiting)))]
        for slot, prompt in zip(free, taken):
            owners[slot : slot + 1] = [prompt]
        for prompt, token in zip(taken, generator.prefill([prompts[i] for i in taken], free[: len(taken)])):
            results[prompt].append(token)

    while True:
        while waiting:
            free = [slot for slot, prompt in enumerate(owners) if finished(prompt)]
            free += range(len(owners), slots)
            if not free:
                break
            admit(free)
        for slot in reversed(range(len(owners))):
            if finished(owners[slot]):
                if slot < len(owners) - 1:
                    generator.move(len(owners) - 1, slot)
                owners[slot] = owners[-1]
                owners.pop()
        if not owners:
            return results
        for prompt, token in zip(owners, generator.step(len(owners))):
            results[prompt].append(token)


@torch.inference_mode()
def measure_generation(
    directory: Path, variant: str, dtype: torch.dtype, prompts: Path, slots: int, new_tokens: int, seconds: float
) -> tuple[int, Timings]:
    """(new tokens a run, timings) for the prompts of a file: {"prompts": [[id, ...], ...], "stop_token_ids": [id]}."""
    data = json.loads(prompts.read_text(encoding="utf-8"))
    target = make_target(directory, variant, dtype)
    counts: list[int] = []

    def run(limit: int) -> None:
        counts.append(sum(map(len, generate(target, data["prompts"], slots, limit, data["stop_token_ids"]))))

    run(WARM_UP_TOKENS)
    timings = time_runs(lambda: run(new_tokens), seconds, runs_min=1)
    return counts[-1], timings
