#!/usr/bin/env python3
"""Compares Percheron with PyTorch on this machine: target forward, drafter training step, greedy generation.

    compare_pytorch.py [--cases forward,training,generation] [--dtype bf16,f32] [--rounds 3] [--json FILE]

Every measurement is a process of its own, one at a time, ours and PyTorch's in turn, with the same threads and number
format; PyTorch's variants each get as many rounds as ours. Rates are real tokens a second, padding not counted. The
ratio is our best run by the best run of PyTorch's best variant. The demo's model is made by tools/demo/run.sh or
`make bench`, which also builds the programs and installs PyTorch.

forward     all layers with three captured states, no head. Ours up to the last captured layer stands apart.
training    one step with AdamW and clipping. EAGLE-3: 1 layer, 3 training-time test steps, frozen head over 4096 rows.
            DFlash: 2 layers, block 8, one anchor per 3 supervised tokens, the whole frozen head.
generation  continuous batching in 64 slots over a key/value cache; prompts are the first turns of the demo's chats.

PyTorch's variants: transformers with eager or SDPA attention, padded; packed, a model of unpadded documents with fused
qkv and gate/up weights, SDPA for each document; packed-compiled, its element-wise chains fused by torch.compile;
packed-onednn, that with weights in oneDNN's layout. Training: eager, or the chains compiled.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from comparison import OURS, ROOT, Case, Series, measure, report, table

CASES = ("forward", "training", "generation")
DTYPES = ("bf16", "f32")
SHAPES = {"1x1024": "1x1024", "8x256": "8x256", "mixed": "512+310+228+172+139+106+78+52"}
PACKED_VARIANTS = ("packed", "packed-compiled", "packed-onednn")
FORWARD_VARIANTS = ("transformers-eager", "transformers-sdpa", *PACKED_VARIANTS)
TRAINING_VARIANTS = ("eager", "compiled")
SETTINGS = ("rounds", "seconds", "threads", "prompts", "slots", "new_tokens")
DRAFT_VOCAB_SIZES = {"eagle3": 4096, "dflash": 0}  # as deploy/demo trains them; 0 = the target's whole vocabulary


class Plan:
    """Makes the cases that the command line asks for."""

    def __init__(self, args: argparse.Namespace, prompts: Path) -> None:
        self.args, self.prompts = args, prompts
        self.limits = [f"--seconds={args.seconds}", f"--threads={args.threads}"]

    def case(
        self, kind: str, dtype: str, label: str, ours: list[str], theirs: list[str], variants: tuple[str, ...]
    ) -> Case:
        """`ours` starts with the program, `theirs` with what follows the module's command."""
        common = [f"--dtype={dtype}", *self.limits]
        program = str(self.args.programs / ours[0])
        module = [self.args.python, "-m", "bench.pytorch", kind, *theirs, *common]
        return Case(
            kind,
            dtype,
            label,
            Series(OURS, [program, *ours[1:], *common, "--json"]),
            [Series(variant, [*module, f"--variant={variant}"]) for variant in variants],
        )

    def forward(self, dtype: str) -> list[Case]:
        model, cases = str(self.args.model), []
        for extent, variants in (("all_layers", FORWARD_VARIANTS), ("captured_layers", ())):
            for name, shape in SHAPES.items():
                ours = ["target_bench", model, "--case=forward", f"--extent={extent}", f"--shape={shape}"]
                label = name if variants else f"{name}, to the last captured layer"
                cases.append(self.case("forward", dtype, label, ours, [model, f"--shape={shape}"], variants))
        return cases

    def training(self, dtype: str) -> list[Case]:
        cases = []
        for drafter, size in DRAFT_VOCAB_SIZES.items():
            options = [f"--drafter={drafter}", f"--draft-vocab-size={size}"]
            ours = ["drafter_bench", *options]
            cases.append(self.case("training", dtype, drafter, ours, options, TRAINING_VARIANTS))
        return cases

    def generation(self, dtype: str) -> list[Case]:
        args = self.args
        options = [f"--prompts={self.prompts}", f"--slots={args.slots}", f"--new-tokens={args.new_tokens}"]
        ours = ["target_bench", str(args.model), "--case=generation", *options]
        label = f"{args.prompts} prompts, {args.slots} slots"
        return [self.case("generation", dtype, label, ours, [str(args.model), *options], PACKED_VARIANTS)]

    def cases(self) -> list[Case]:
        return [case for kind in self.args.cases for dtype in self.args.dtype for case in getattr(self, kind)(dtype)]


def some_of(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A parser of comma-separated lists."""

    def parse(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return wanted

    return parse


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=some_of(CASES), default=list(CASES), help="any of forward,training,generation")
    parser.add_argument("--dtype", type=some_of(DTYPES), default=list(DTYPES), help="bf16, f32 or bf16,f32")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each program and case (default: 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, beside its start (default: 4)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both sides (default: all cores)")
    parser.add_argument("--prompts", type=int, default=128, help="of the generation case (default: 128)")
    parser.add_argument("--slots", type=int, default=64, help="sequences in flight (default: 64)")
    parser.add_argument("--new-tokens", type=int, default=200, help="at most, for each prompt (default: 200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured there")
    parser.add_argument("--model", type=Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument("--chats", type=Path, default=ROOT / "deploy/demo/data/conversations.jsonl")
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin", help="where target_bench lies")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch (default: this one)")
    args = parser.parse_args()
    for name in ("model", "chats", "programs"):
        setattr(args, name, getattr(args, name).resolve())
    if args.rounds < 1 or args.threads < 1 or args.seconds < 0:
        parser.error("--rounds and --threads must be at least 1, --seconds at least 0")
    return args


def main() -> int:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch) / "prompts.json"
        if "generation" in args.cases:
            command = [args.python, "-m", "bench.pytorch", "prompts", str(args.model), f"--chats={args.chats}"]
            subprocess.run([*command, f"--count={args.prompts}", f"--out={prompts}"], cwd=ROOT, check=True)
        cases = Plan(args, prompts).cases()
        for case in cases:
            measure(case, args.rounds, args.threads)
    print(table(cases))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        settings = {key: getattr(args, key) for key in SETTINGS}
        args.json.write_text(json.dumps(report(cases, settings), indent=1) + "\n", encoding="utf-8")
    return 1 if any(case.ours.failure for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
