"""Measures one case of PyTorch and prints it as one line of JSON, in the fields of target_bench --json.

    python -m bench.pytorch forward MODEL --variant packed --dtype bf16 --shape 1x1024
    python -m bench.pytorch training --drafter eagle3 --variant compiled --draft-vocab-size 4096
    python -m bench.pytorch generation MODEL --prompts prompts.json
    python -m bench.pytorch prompts MODEL --chats chats.jsonl --out prompts.json
"""
import argparse
import json
from pathlib import Path

import torch

from . import forward, generation, training
from .prompts import write_prompts
from .shapes import parse_shape

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def measuring(parser: argparse.ArgumentParser, variants: tuple[str, ...]) -> argparse.ArgumentParser:
    """Adds what all measured cases have in common."""
    parser.add_argument("--variant", choices=variants, default=variants[-1])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pytorch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = measuring(commands.add_parser("forward"), forward.VARIANTS)
    command.add_argument("model", type=Path)
    command.add_argument("--shape", default="1x1024", help="COUNTxLENGTH, or lengths joined by +")
    command = measuring(commands.add_parser("training"), training.VARIANTS)
    command.add_argument("--drafter", choices=training.DRAFTERS, default="eagle3")
    command.add_argument("--draft-vocab-size", type=int, default=0, help="rows of the head; 0 = all")
    command = measuring(commands.add_parser("generation"), generation.VARIANTS)
    command.add_argument("model", type=Path)
    command.add_argument("--prompts", type=Path, required=True)
    command.add_argument("--slots", type=int, default=64)
    command.add_argument("--new-tokens", type=int, default=200)
    command = commands.add_parser("prompts")
    command.add_argument("model", type=Path)
    command.add_argument("--chats", type=Path, required=True)
    command.add_argument("--count", type=int, default=128)
    command.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.command == "prompts":
        write_prompts(args.model, args.chats, args.count, args.out)
        return
    torch.set_num_threads(args.threads)
    dtype = DTYPES[args.dtype]
    if args.command == "forward":
        lengths = parse_shape(args.shape)
        tokens, timings = forward.measure_forward(args.model, args.variant, dtype, lengths, args.seconds)
    elif args.command == "training":
        tokens, timings = training.measure_training(
            args.drafter, args.variant, dtype, args.draft_vocab_size, args.seconds
        )
    else:
        tokens, timings = generation.measure_generation(
            args.model, args.variant, dtype, args.prompts, args.slots, args.new_tokens, args.seconds
        )
    line = {
        "case": args.command,
        "variant": args.variant,
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
        "library": f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}",
        "tokens": tokens,
        "wall_seconds": timings.wall_seconds,
        "cpu_seconds": timings.cpu_seconds,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
