"""The frozen target in plain PyTorch, fast on a CPU: documents packed without padding, fused weights."""
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from .chains import Chains, make_chains
from .products import ONEDNN, PLAIN, Products

# Compiled: the element-wise chains. oneDNN: these compiled, and weights in oneDNN's layout.
PACKED_VARIANTS = ("packed", "packed-compiled", "packed-onednn")
ROPE_LENGTH = 4096

# attend(layer, q, k, v) -> [tokens, heads, head_dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def rope_table(length: int, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim] of rotary position embedding."""
    frequency = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.arange(length).float()[:, None] * frequency
    angle = torch.cat([angle, angle], -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def bounds_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(begin, end) of each document in packed rows."""
    bounds, at = [], 0
    for length in lengths:
        bounds.append((at, at + length))
        at += length
    return bounds


def causal_by_document(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[tuple[int, int]]) -> Tensor:
    """Causal attention inside each document. q: [T, heads, head_dim]; k, v: [T, kv_heads, head_dim]."""
    out = torch.empty_like(q)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    for a, b in bounds:
        rows = F.scaled_dot_product_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], is_causal=True)
        out[a:b] = rows[0].transpose(0, 1)
    return out


class PackedTarget:
    """A Llama model with a tied or untied head, read from a Hugging Face directory of one safetensors file."""

    def __init__(self, directory: Path, dtype: torch.dtype, chains: Chains, products: Products) -> None:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        weights = {name: w.to(dtype) for name, w in load_file(directory / "model.safetensors").items()}
        self.dtype, self.eps = dtype, config["rms_norm_eps"]
        self.chains, self.products = chains, products
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.embedding, self.norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
        self.head = products.pack(weights.get("lm_head.weight", self.embedding))
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]
        self.cos, self.sin = rope_table(ROPE_LENGTH, self.head_dim, config["rope_theta"], dtype)

    def _layer(self, weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        def fused(*names: str) -> Tensor:
            return self.products.pack(torch.cat([weights[f"{prefix}{name}_proj.weight"] for name in names]))

        return {
            "input_norm": weights[prefix + "input_layernorm.weight"],
            "mlp_norm": weights[prefix + "post_attention_layernorm.weight"],
            "qkv": fused("self_attn.q", "self_attn.k", "self_attn.v"),
            "o": fused("self_attn.o"),
            "gate_up": fused("mlp.gate", "mlp.up"),
            "down": fused("mlp.down"),
        }

    def run(
        self, ids: Tensor, positions: Tensor, attend: Attend, capture: Sequence[int] = ()
    ) -> tuple[list[Tensor], Tensor]:
        """The captured states, in the order of `capture`, and the last layer's output before the final norm.

        `capture` counts as Hugging Face's hidden_states: j is the residual stream after j layers.
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        linear, width = self.products.linear, self.heads * self.head_dim
        kv_width = self.kv_heads * self.head_dim
        x = self.embedding[ids]
        normed = self.chains.rms_norm(x, self.layers[0]["input_norm"], self.eps)
        taken = {0: x}
        for i, layer in enumerate(self.layers):
            q, k, v = linear(normed, layer["qkv"]).split([width, kv_width, kv_width], -1)
            q = self.chains.rotate(q.view(-1, self.heads, self.head_dim), cos, sin)
            k = self.chains.rotate(k.view(-1, self.kv_heads, self.head_dim), cos, sin)
            out = attend(i, q, k, v.view(-1, self.kv_heads, self.head_dim)).reshape(-1, width)
            x, normed = self.chains.add_rms_norm(x, linear(out, layer["o"]), layer["mlp_norm"], self.eps)
            out = linear(self.chains.swiglu(linear(normed, layer["gate_up"])), layer["down"])
            if i + 1 < len(self.layers):
                x, normed = self.chains.add_rms_norm(x, out, self.layers[i + 1]["input_norm"], self.eps)
            else:
                x = x + out
            if i + 1 in capture:
                taken[i + 1] = x
        return [taken[j] for j in capture], x

    def features(self, documents: Sequence[Tensor], capture: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Packed states of the documents: captured [T, K * H] and last [T, H]."""
        lengths = [len(document) for document in documents]
        bounds = bounds_of(lengths)
        positions = torch.cat([torch.arange(length) for length in lengths])
        taken, last = self.run(
            torch.cat(list(documents)), positions, lambda _, q, k, v: causal_by_document(q, k, v, bounds), capture
        )
        return torch.cat(taken, -1), last

    def greedy(self, last: Tensor) -> Tensor:
        """The greedy next token of each row of `last`."""
        return self.products.linear(self.chains.rms_norm(last, self.norm, self.eps), self.head).argmax(-1)


def make_target(directory: Path, variant: str, dtype: torch.dtype) -> PackedTarget:
    """The target of one of PACKED_VARIANTS."""
    products = ONEDNN if variant == "packed-onednn" else PLAIN
    return PackedTarget(directory, dtype, make_chains(compiled=variant != "packed"), products)
