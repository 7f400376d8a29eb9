"""How wide a model of the library is."""

from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D


def token_width(model: Any, hidden_size: int) -> int:
    """Return how many numbers a token takes at the widest point, as the widest products say."""
    head = model.get_output_embeddings()
    widths = [
        module.weight.shape[0 if isinstance(module, nn.Linear) else 1]
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]
    return 3 * max(widths, default=hidden_size)
