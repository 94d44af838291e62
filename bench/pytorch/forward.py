"""The target's forward pass through all layers with captured states and no head, by variant."""
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .target import PACKED_VARIANTS, make_target
from .timing import Timings, time_runs

VARIANTS = ("transformers-eager", "transformers-sdpa", *PACKED_VARIANTS)
CAPTURE = (2, 15, 27)

Forward = Callable[[Sequence[Tensor]], Tensor]


def transformers_forward(directory: Path, dtype: torch.dtype, attention: str) -> Forward:
    """Hugging Face's model on documents padded on the right to the longest."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModel.from_pretrained(directory, dtype=dtype, attn_implementation=attention).eval()

    def forward(documents: Sequence[Tensor]) -> Tensor:
        length = max(map(len, documents))
        ids = torch.zeros(len(documents), length, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, document in enumerate(documents):
            ids[row, : len(document)] = document
            mask[row, : len(document)] = 1
        padded = any(len(document) < length for document in documents)
        out = model(
            input_ids=ids, attention_mask=mask if padded else None, output_hidden_states=True, use_cache=False
        )
        return torch.cat([out.hidden_states[j] for j in CAPTURE], -1)

    return forward


def make_forward(directory: Path, variant: str, dtype: torch.dtype) -> Forward:
    """The forward pass of a variant: documents -> captured states."""
    if variant.startswith("transformers-"):
        return transformers_forward(directory, dtype, variant.removeprefix("transformers-"))
    target = make_target(directory, variant, dtype)
    return lambda documents: target.features(documents, CAPTURE)[0]


@torch.inference_mode()
def measure_forward(
    directory: Path, variant: str, dtype: torch.dtype, lengths: Sequence[int], seconds: float
) -> tuple[int, Timings]:
    """(real tokens a run, timings)."""
    forward = make_forward(directory, variant, dtype)
    documents = [torch.arange(100, 100 + length) for length in lengths]
    for _ in range(2):
        forward(documents)
    return sum(lengths), time_runs(lambda: forward(documents), seconds)
