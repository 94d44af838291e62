"""One whole training step of a drafter: forward, backward, clipping and AdamW, its features ready in memory."""
import torch
from torch import nn

from .chains import make_chains
from .dflash import DFlash
from .eagle3 import Eagle3
from .timing import Timings, time_runs
from .workload import LENGTHS, Sizes, draft_ids, make_batch

DRAFTERS = ("eagle3", "dflash")
VARIANTS = ("eager", "compiled")
TTT_STEPS = 3
CLIP_NORM = 1.0
LEARNING_RATE = 1e-4


def measure_training(
    drafter: str, variant: str, dtype: torch.dtype, draft_vocab_size: int, seconds: float
) -> tuple[int, Timings]:
    """(real tokens a step, timings). bf16 is autocast over f32 weights. A draft vocabulary of 0 is the whole one."""
    torch.manual_seed(1)
    sizes, chains = Sizes(), make_chains(compiled=variant == "compiled")
    vocabulary = draft_ids(sizes, draft_vocab_size or sizes.vocab)
    embedding = (0.05 * torch.randn(sizes.vocab, sizes.hidden)).to(torch.bfloat16)
    if drafter == "eagle3":
        model: nn.Module = Eagle3(sizes, embedding, vocabulary, TTT_STEPS, dtype, chains)
    else:
        model = DFlash(sizes, embedding, vocabulary, dtype, chains)
    batch = make_batch(sizes, vocabulary, dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    return sum(LENGTHS), time_runs(step, seconds)
