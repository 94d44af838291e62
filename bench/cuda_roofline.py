#!/usr/bin/env python3
"""What a training step and a target's pass must at least cost on a GPU, kernel by kernel, as markdown.

    bench/cuda_roofline.py [--config config.json ...] [--measured device_check.json]

Each kernel is given the larger of its two least times: operations over the rate of products, bytes over the rate of
memory. Standard library only.
"""

import argparse
import dataclasses
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = [os.path.join(HERE, "model_configs", name, "config.json") for name in ("Qwen3-8B", "Llama-3.1-8B")]

# Of an H200: what dense bf16 products and copies reached there, not its data sheet.
PRODUCT_FLOPS = 790e12
MEMORY_BYTES = 4.3e12

BF16, F32 = 2, 4
# AdamW reads and writes f32 master, two moments; reads the f32 gradient; writes the bf16 weight.
ADAMW_BYTES = 6 * F32 + F32 + BF16


@dataclasses.dataclass(frozen=True)
class Drafting:
    """How the drafters are trained."""

    ttt_steps: int = 7
    draft_vocab_size: int = 32_000
    eagle3_captures: int = 3
    dflash_layers: int = 5
    dflash_captures: int = 5
    anchors: int = 512
    block_size: int = 16


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    head_norms: bool  # q and k are normed before the rotation

    @property
    def q_width(self):
        return self.heads * self.head_dim

    @property
    def kv_width(self):
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self):
        attention = self.hidden * (2 * self.q_width + 2 * self.kv_width)
        return attention + 3 * self.hidden * self.mlp


def model_of(path):
    """The shape in a Hugging Face config.json; its name is the file's or, where that says nothing, the folder's."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    name = os.path.splitext(os.path.basename(path))[0]
    if name == "config":
        name = os.path.basename(os.path.dirname(os.path.abspath(path)))
    try:
        heads = config["num_attention_heads"]
        return Model(
            name=name,
            hidden=config["hidden_size"],
            mlp=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            head_norms=config.get("model_type") == "qwen3",
        )
    except KeyError as missing:
        raise SystemExit(f"error: {path} lacks {missing}: give the target's config.json") from None


@dataclasses.dataclass
class Kernel:
    name: str
    flop: float
    bytes: float
    # What bench/device_bench runs for it: (a line that it reads, how often the work does that).
    runs: list = dataclasses.field(default_factory=list)

    @property
    def seconds(self):
        return max(self.flop / PRODUCT_FLOPS, self.bytes / MEMORY_BYTES)

    @property
    def bound(self):
        return "products" if self.flop / PRODUCT_FLOPS > self.bytes / MEMORY_BYTES else "memory"


class Work:
    """The kernels of one step or pass, added up by name."""

    def __init__(self, name):
        self.name = name
        self.kernels = {}

    def add(self, name, flop, size, calls=1, run=None):
        kernel = self.kernels.setdefault(name, Kernel(name, 0, 0))
        if run:
            kernel.runs.append((run, calls))
        kernel.flop += calls * flop
        kernel.bytes += calls * size

    def product(self, name, rows, inner, outer, passes, calls=1):
        """`passes`: of forward, input (gradient of the input), weight (gradient of the weight, f32)."""
        flop = 2 * rows * inner * outer
        moved = BF16 * (rows * inner + inner * outer + rows * outer)
        for direction in passes:
            extra = (F32 - BF16) * inner * outer if direction == "weight" else 0
            self.add(f"{name}, {direction}", flop, moved + extra, calls, f"linear {direction} {rows} {inner} {outer}")

    def rows(self, name, rows, width, reads, writes, calls=1, run=None):
        self.add(name, 0, BF16 * rows * width * (reads + writes), calls, run)

    def attention(self, model, queries, keys, pairs, calls, directions, mask):
        """`pairs` of a query row and a key row that it sees. Backward: five products where forward has two.

        `mask`: causal COUNT LENGTH, or blocks ANCHORS SIZE LENGTH.
        """
        shape = f"{model.heads} {model.kv_heads} {model.head_dim} {mask}"
        q, kv = BF16 * queries * model.q_width, BF16 * keys * model.kv_width
        forward = pairs * model.q_width * 4
        if "forward" in directions:
            self.add("attention, forward", forward, 2 * q + 2 * kv, calls, f"attention forward {shape}")
        if "backward" in directions:
            self.add("attention, backward", 2.5 * forward, 4 * q + 4 * kv, calls, f"attention backward {shape}")

    @property
    def flop(self):
        return sum(kernel.flop for kernel in self.kernels.values())

    @property
    def seconds(self):
        """Of all kernels, one after another."""
        return sum(kernel.seconds for kernel in self.kernels.values())

    @property
    def product_seconds(self):
        """Of the operations alone, at the rate of products."""
        return self.flop / PRODUCT_FLOPS


TRAINED = ("forward", "input", "weight")
FROZEN_INPUT = ("forward", "weight")  # features need no gradient
FROZEN_WEIGHT = ("forward", "input")


def layer_rows(work, model, rows, calls, backward, widths=1):
    """What one layer does element by element; `widths` norms before its attention (EAGLE-3 norms two inputs)."""
    norms, rotated = calls * (widths + 1), model.q_width + model.kv_width
    rotation = "q and k norm, rotary" if model.head_norms else "rotary"
    for direction in ("forward", "backward") if backward else ("forward",):
        back = direction == "backward"
        norm, gate = f"rms_norm {direction} {rows} {model.hidden}", f"swiglu {direction} {rows} {model.mlp}"
        work.rows(f"rms_norm, {direction}", rows, model.hidden, 2 if back else 1, 1, norms, norm)
        work.rows(f"{rotation}, {direction}", rows, rotated, 2 if back and model.head_norms else 1, 1, calls)
        work.rows(f"swiglu, {direction}", rows, model.mlp, 3 if back else 2, 2 if back else 1, calls, gate)


def layer_products(work, model, rows, passes, calls, inputs=1):
    """`inputs`: how many hidden states the projections of q, k and v read side by side."""
    work.product("qkv", rows, inputs * model.hidden, model.q_width + 2 * model.kv_width, passes, calls)
    work.product("attention output", rows, model.q_width, model.hidden, passes, calls)
    work.product("gate and up", rows, model.hidden, 2 * model.mlp, passes, calls)
    work.product("down", rows, model.mlp, model.hidden, passes, calls)


def optimizer(work, parameters):
    work.add("gradient norm", 0, F32 * parameters, run=f"squared_norm {parameters}")
    work.add("adamw", 0, ADAMW_BYTES * parameters, run=f"adamw {parameters}")


def dflash(model, drafting, length):
    """A step: `length` context tokens, every anchor's block full; embedding and head are the target's, frozen."""
    work = Work(f"DFlash, {drafting.dflash_layers} layers, {drafting.anchors} x {drafting.block_size}, {length:,} tokens")
    rows, layers = drafting.anchors * drafting.block_size, drafting.dflash_layers
    fused = drafting.dflash_captures * model.hidden
    work.product("fusion of captures", length, fused, model.hidden, FROZEN_INPUT)
    work.product("context k and v", length, model.hidden, 2 * model.kv_width, TRAINED, layers)
    layer_products(work, model, rows, TRAINED, layers)
    pairs = rows * (length / 2 + drafting.block_size)
    work.attention(model, rows, length + rows, pairs, layers, ("forward", "backward"),
                   f"blocks {drafting.anchors} {drafting.block_size} {length}")
    layer_rows(work, model, rows, layers, backward=True)
    work.product("head", rows, model.hidden, model.vocabulary, FROZEN_WEIGHT)
    work.rows("cross entropy", rows, model.vocabulary, 2, 1, run=f"cross_entropy {rows} {model.vocabulary}")
    optimizer(work, layers * model.layer_parameters + fused * model.hidden)
    return work


def eagle3(model, drafting, length, head):
    """A step of training-time test; `head` trainable or frozen. The teacher's logits come with the features."""
    work = Work(f"EAGLE-3, {drafting.ttt_steps} steps, {head} head of {drafting.draft_vocab_size:,}, {length:,} tokens")
    steps, fused = drafting.ttt_steps, drafting.eagle3_captures * model.hidden
    work.product("fusion of captures", length, fused, model.hidden, FROZEN_INPUT)
    layer_products(work, model, length, TRAINED, steps, inputs=2)
    work.attention(model, length, length, length * length / 2, steps, ("forward", "backward"), f"causal 1 {length}")
    layer_rows(work, model, length, steps, backward=True, widths=2)
    passes = TRAINED if head == "trainable" else FROZEN_WEIGHT
    work.product("head", length, model.hidden, drafting.draft_vocab_size, passes, steps)
    teacher = f"teacher_loss {length} {drafting.draft_vocab_size}"
    work.rows("loss beside the teacher", length, drafting.draft_vocab_size, 3, 1, steps, teacher)
    parameters = fused * model.hidden + model.layer_parameters
    parameters += model.hidden * (model.q_width + 2 * model.kv_width)  # q, k and v read twice the width
    if head == "trainable":
        parameters += model.hidden * drafting.draft_vocab_size
    optimizer(work, parameters)
    return work


def capture(model, count, length):
    """The target's forward pass through all layers, without the head."""
    work = Work(f"target's capture, {count} x {length:,} tokens")
    rows = count * length
    layer_products(work, model, rows, ("forward",), model.layers)
    work.attention(model, rows, rows, count * length * length / 2, model.layers, ("forward",), f"causal {count} {length}")
    layer_rows(work, model, rows, model.layers, backward=False)
    return work


def works_of(model, drafting):
    """The works of the page, by the key under which a measurement names them."""
    works = {}
    for length in (2048, 4096):
        works[f"dflash {length}"] = dflash(model, drafting, length)
        works[f"eagle3 {length}"] = eagle3(model, drafting, length, "trainable")
        works[f"eagle3 frozen {length}"] = eagle3(model, drafting, length, "frozen")
    works["capture 8x2048"] = capture(model, 8, 2048)
    return works


WHOLE = "whole"  # the kernel's name for a whole step or pass


def read_measured(path):
    """{(model, work, kernel): ms} of device_check's JSON, and the device's name."""
    with open(path, encoding="utf-8") as file:
        check = json.load(file)
    if check.get("schema") != "percheron device_check 1":
        raise SystemExit(f"error: {path} is no JSON of tools/device_check: its schema is {check.get('schema')!r}")
    table = {(row["model"], row["work"], row["kernel"]): row["ms"] for row in check["measured"]}
    return table, (check.get("device") or {}).get("name", "a device without a name")


def measured_columns(ms, kernel_flop, kernel_bytes, seconds):
    if ms is None:
        return "| | |"
    rate = f"{kernel_flop / ms / 1e9:.0f} TFLOP/s" if kernel_flop else f"{kernel_bytes / ms / 1e9:.2f} TB/s"
    return f"| {ms:.2f} | {rate}, {100 * seconds * 1e3 / ms:.0f} % |"


def print_summary(models, drafting, measured, out):
    out.append("| model | work | TFLOP | of it attention | products alone, ms | all kernels, ms | measured, ms |")
    out.append("|---|---|---|---|---|---|---|")
    for model in models:
        for key, work in works_of(model, drafting).items():
            attention = sum(k.flop for k in work.kernels.values() if k.name.startswith("attention, "))
            ms = measured.get((model.name, key, WHOLE))
            out.append(
                f"| {model.name} | {work.name} | {work.flop / 1e12:.1f} | {attention / 1e12:.1f} "
                f"| {work.product_seconds * 1e3:.0f} | {work.seconds * 1e3:.0f} | {'' if ms is None else f'{ms:.1f}'} |"
            )
    out.append("")


def print_kernels(model, key, work, measured, out):
    out.append(f"### {model.name}: {work.name}")
    out.append("")
    out.append("| kernel | GFLOP | GB | predicted, ms | bound by | measured, ms | rate, of predicted |")
    out.append("|---|---|---|---|---|---|---|")
    for kernel in sorted(work.kernels.values(), key=lambda kernel: -kernel.seconds):
        ms = measured.get((model.name, key, kernel.name))
        out.append(
            f"| {kernel.name} | {kernel.flop / 1e9:,.0f} | {kernel.bytes / 1e9:.2f} | {kernel.seconds * 1e3:.2f} "
            f"| {kernel.bound} {measured_columns(ms, kernel.flop, kernel.bytes, kernel.seconds)}"
        )
    out.append("")


def page(models, drafting, measured, device):
    """The tables as lines of markdown."""
    out = [f"Measured on: {device}." if device else "Measured columns are empty: no device visit yet.", ""]
    print_summary(models, drafting, measured, out)
    for model in models:
        for key, work in works_of(model, drafting).items():
            if "frozen" not in key:
                print_kernels(model, key, work, measured, out)
    return out[:-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", action="append", help="a target's config.json (default: Qwen3-8B, Llama-3.1-8B)")
    parser.add_argument("--measured", help="the JSON of tools/device_check, whose times fill the measured columns")
    arguments = parser.parse_args()
    try:
        measured, device = read_measured(arguments.measured) if arguments.measured else ({}, None)
        models = [model_of(path) for path in arguments.config or CONFIGS]
    except (OSError, json.JSONDecodeError) as error:
        raise SystemExit(f"error: {error}") from None
    print("\n".join(page(models, Drafting(), measured, device)))


if __name__ == "__main__":
    sys.exit(main())
