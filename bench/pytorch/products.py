"""Products with constant weights: plain, or with weights laid out once as oneDNN's kernels read them."""
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Products:
    """How a target keeps its weights and multiplies by them."""

    pack: Callable[[Tensor], Tensor]  # [out, in] -> what linear() takes
    linear: Callable[[Tensor, Tensor], Tensor]  # x [rows, in], packed weight -> x W^T


def _onednn_linear(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


PLAIN = Products(lambda weight: weight, F.linear)
# What torch.compile itself calls for a frozen model.
ONEDNN = Products(lambda weight: torch.ops.mkldnn._reorder_linear_weight(weight), _onednn_linear)
