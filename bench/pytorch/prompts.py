"""The prompts of the generation case: the first user turns of chats, in the model's own template."""
import json
from pathlib import Path


def write_prompts(directory: Path, chats: Path, count: int, out: Path) -> None:
    """Writes {"prompts": [[id, ...], ...], "stop_token_ids": [id, ...]} of the first `count` chats."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    lines = chats.read_text(encoding="utf-8").splitlines()[:count]
    turns = [json.loads(line)["conversations"][0]["content"] for line in lines]
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], add_generation_prompt=True, tokenize=False
        )
        for turn in turns
    ]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    stop = config["eos_token_id"]
    stops = stop if isinstance(stop, list) else [stop]
    out.write_text(json.dumps({"prompts": prompts, "stop_token_ids": stops}), encoding="utf-8")
