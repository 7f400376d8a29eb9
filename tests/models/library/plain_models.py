"""Small models that Transformers computes with caches of its own."""

from pathlib import Path
from typing import Any

import torch

from tests.models.families import Tiny, save_tiny

_NO_KV_HEADS = ("head_dim", "num_key_value_heads")
_MAMBA = ("num_attention_heads", "intermediate_size", "max_position_embeddings", *_NO_KV_HEADS)
PLAIN: dict[str, Tiny] = {
    # Nothing but states.
    "mamba": Tiny("MambaConfig", {"state_size": 8, "time_step_rank": 4}, without=_MAMBA),
    # Attention by code of its own: biases of positions, rotations.
    "bloom": Tiny(
        "BloomConfig",
        {"seq_length": 512, "tie_word_embeddings": False},
        without=("intermediate_size", "max_position_embeddings", *_NO_KV_HEADS),
    ),
    "falcon": Tiny("FalconConfig", without=("intermediate_size", *_NO_KV_HEADS)),
    "gptj": Tiny("GPTJConfig", {"rotary_dim": 8}, without=("intermediate_size", *_NO_KV_HEADS)),
    # Both in each layer.
    "falcon_h1": Tiny(
        "FalconH1Config",
        {
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
    ),
}


def save_plain_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Save a model of `PLAIN` with a tokenizer to a folder; return it as an oracle."""
    return save_tiny(PLAIN[name], folder, dtype)
