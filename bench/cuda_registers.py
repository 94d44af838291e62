#!/usr/bin/env python3
"""Registers, spilled bytes and static shared memory of every CUDA kernel, as markdown. Needs nvcc, no GPU.

    bench/cuda_registers.py [--architecture sm_90]

A kernel that is a template has one row for all its instances: the fewest and the most registers.
"""

import argparse
import collections
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def compile_verbosely(nvcc, source, architecture):
    """What ptxas says of each instance in `source`."""
    command = [nvcc, "-std=c++20", "-O3", f"-arch={architecture}", "-Xptxas=-v", "-diag-suppress=554,2810"]
    command += ["-I", ROOT, "-c", source, "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {source}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout + done.stderr


def instances_of(text):
    """(mangled name, registers, spilled bytes, shared bytes) of ptxas -v."""
    pattern = re.compile(
        r"Compiling entry function '(\w+)' for .*?"
        r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
        r"Used (\d+) registers([^\n]*)",
        re.DOTALL,
    )
    for name, stores, loads, registers, rest in pattern.findall(text):
        shared = re.search(r"(\d+) bytes smem", rest)
        yield name, int(registers), int(stores) + int(loads), int(shared[1]) if shared else 0


def kernel_of(demangled):
    """`attention_kernel` of `void percheron::(anonymous namespace)::attention_kernel<64, float>(...)`."""
    plain = demangled.replace("(anonymous namespace)::", "")
    head = re.sub(r"^(void|static) +", "", plain)
    depth, name = 0, ""
    for c in head:
        if c == "(" and depth == 0:
            break
        depth += (c == "<") - (c == ">")
        if depth == 0 and c != ">":
            name += c
    return name.split("::")[-1]


def demangle(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def table(texts):
    """The markdown rows of {source: what ptxas said}."""
    rows = ["| file | kernel | instances | registers | spilled bytes | static shared bytes |", "|---|---|---|---|---|---|"]
    for source, text in texts.items():
        kernels = collections.defaultdict(list)
        instances = list(instances_of(text))
        for instance, name in zip(instances, demangle([i[0] for i in instances])):
            kernels[kernel_of(name)].append(instance[1:])
        for name, found in sorted(kernels.items()):
            registers, spilled, shared = (sorted(column) for column in zip(*found))
            span = lambda values: str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
            rows.append(f"| {source} | {name} | {len(found)} | {span(registers)} | {span(spilled)} | {span(shared)} |")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--architecture", default="sm_90", help="the GPU (default: %(default)s)")
    arguments = parser.parse_args()
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        raise SystemExit("error: there is no nvcc in PATH or /usr/local/cuda/bin")
    sources = sorted(glob.glob(os.path.join(ROOT, "kernels", "cuda", "*.cu")))
    texts = {os.path.basename(source): compile_verbosely(nvcc, source, arguments.architecture) for source in sources}
    print("\n".join(table(texts)))


if __name__ == "__main__":
    sys.exit(main())
