#!/usr/bin/env python3
"""PyTorch's times for the operations of a file that device_bench reads, a line of JSON for each line: {"line": 0, "ms": 1.25}.

    bench/pytorch_device_bench.py [--device cuda:0] FILE

bf16 products by torch.mm, attention by FlexAttention (compiled on a GPU) over the same visible keys, AdamW by the fused
optimizer. A line that PyTorch has nothing for says null.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BF16 = torch.bfloat16


class Operands:
    def __init__(self, device):
        self.device = torch.device(device)
        self.flex = torch.compile(flex_attention) if self.device.type == "cuda" else flex_attention

    def make(self, *shape, dtype=BF16, grad=False):
        return torch.randn(shape, device=self.device, dtype=dtype).requires_grad_(grad)

    def linear(self, direction, rows, inner, outer):
        x, y, weight = self.make(rows, inner), self.make(rows, outer), self.make(outer, inner)
        if direction == "forward":
            return lambda: torch.mm(x, weight.t())
        return (lambda: torch.mm(y, weight)) if direction == "input" else (lambda: torch.mm(y.t(), x))

    def attention(self, direction, heads, kv_heads, width, mask, *shape):
        if mask == "causal":
            count, length = shape
            rows = keys = count * length

            def visible(_b, _h, q, k):
                return (k <= q) & (k // length == q // length)
        else:
            anchors, size, length = shape
            rows, keys = anchors * size, length + anchors * size

            def visible(_b, _h, q, k):
                block = q // size
                own = k - length
                return ((k < length) & (k < block * length // anchors)) | ((own >= 0) & (own // size == block))

        blocks = create_block_mask(visible, None, None, rows, keys, device=self.device)
        backward = direction == "backward"
        q = self.make(1, heads, rows, width, grad=backward)
        k, v = (self.make(1, kv_heads, keys, width, grad=backward) for _ in "kv")
        forward = lambda: self.flex(q, k, v, block_mask=blocks, enable_gqa=True)
        return self.backward(forward, [q, k, v]) if backward else forward

    @staticmethod
    def backward(forward, inputs):
        out = forward()
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    def rms_norm(self, direction, rows, width):
        x, weight = self.make(rows, width, grad=True), self.make(width, grad=True)
        forward = lambda: F.rms_norm(x, (width,), weight, 1e-5)
        return self.backward(forward, [x, weight]) if direction == "backward" else forward

    def swiglu(self, direction, rows, width):
        x = self.make(rows, 2 * width, grad=True)

        def forward():
            gate, up = x.chunk(2, dim=1)
            return F.silu(gate) * up

        return self.backward(forward, [x]) if direction == "backward" else forward

    def cross_entropy(self, rows, vocabulary):
        logits = self.make(rows, vocabulary, grad=True)
        labels = torch.zeros(rows, dtype=torch.long, device=self.device)
        return lambda: torch.autograd.grad(F.cross_entropy(logits, labels), [logits])

    def teacher_loss(self, rows, vocabulary):
        logits, teacher = self.make(rows, vocabulary, grad=True), self.make(rows, vocabulary)

        def step():
            loss = -(teacher.softmax(1) * logits.log_softmax(1)).sum(1).mean()
            return torch.autograd.grad(loss, [logits])

        return step

    def squared_norm(self, elements):
        x = self.make(elements, dtype=torch.float32)
        return lambda: torch.linalg.vector_norm(x)

    def adamw(self, elements):
        parameter = self.make(elements, dtype=torch.float32)
        parameter.grad = torch.randn_like(parameter)
        return torch.optim.AdamW([parameter], fused=True).step


def run_of(operands, line):
    """What does the line's work; None for an operation that has no counterpart here."""
    name, *words = line.split()
    if name not in ("linear", "attention", "rms_norm", "swiglu", "cross_entropy", "teacher_loss", "squared_norm", "adamw"):
        return None
    return getattr(operands, name)(*(int(word) if word.isdigit() else word for word in words))


def timed(work, device):
    """The median in ms of runs over 0.2 s, three at least, after two that warm up."""
    times = []
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    for _ in range(2):
        work()
    wait()
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < 0.2:
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda:0", help="PyTorch's name of the device (default: %(default)s)")
    parser.add_argument("file", help="the operations, one a line; bench/device_bench.cc lists them")
    arguments = parser.parse_args()
    operands = Operands(arguments.device)
    with open(arguments.file, encoding="utf-8") as file:
        for number, line in enumerate(file):
            try:
                work = run_of(operands, line)
                ms = None if work is None else timed(work, operands.device)
            except NotImplementedError:  # such as FlexAttention's gradient on a processor
                work = ms = None
            print(json.dumps({"line": number, "ms": ms}), flush=True)
            del work
            if operands.device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
