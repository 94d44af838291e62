"""SpecForge's own preparation of a file of chats, as its training calls it; for SpecForge's Python.

    .venv-specforge/bin/python bench/specforge_prepare.py MODEL ROWS CACHE_DIRECTORY PROCESSES

Prints JSON: seconds without the imports, rows, tokens and supervised tokens of what it made.
"""
from __future__ import annotations

import json
import os
import sys
import time

# The rows' template is ChatML, which SpecForge calls by this name. It adds this template's system prompt to each chat.
CHAT_TEMPLATE = "qwen"
MAX_LENGTH = 1 << 17


def main() -> None:
    model, rows, cache_directory, processes = sys.argv[1:]
    # Nothing of another round, and nothing from the network.
    os.environ.update(HF_DATASETS_CACHE=cache_directory, HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    from specforge.data.prompt_builder import prepare_prompt_tasks
    from transformers import AutoTokenizer
    start = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(model)
    made = prepare_prompt_tasks(rows, tokenizer, chat_template=CHAT_TEMPLATE, max_length=MAX_LENGTH, is_preformatted=False,
                                train_only_last_turn=False, cache_dir=cache_directory, cache_key="rows",
                                num_proc=int(processes))
    seconds = time.perf_counter() - start
    columns = made._dataset.with_format("arrow")
    tokens = supervised = 0
    for batch in columns.iter(batch_size=1000):
        # Each row's column holds one list of numbers in a list.
        masks = batch["loss_mask"].combine_chunks().flatten().flatten().to_numpy()
        tokens, supervised = tokens + len(masks), supervised + int(masks.sum())
    print(json.dumps({"seconds": seconds, "rows": len(made), "tokens": tokens, "supervised": supervised}))


if __name__ == "__main__":
    main()
