"""The model folder in the ordinary Hugging Face layout: configuration, tokenizer, weights."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from pagedrun.recipes.demo.training.model import DemoModel, ModelConfig
from pagedrun.recipes.demo.training.tokenizer import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    TURN_END,
    TURN_START,
    token_id,
)

WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"


def write_folder(folder: Path, model: DemoModel, tokenizer: Tokenizer) -> None:
    """Write everything that `from_pretrained` reads; weights in bfloat16.

    Each file appears whole or not at all, so a reader beside a running training is safe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(model.config, tokenizer))
    _write_json(folder / "generation_config.json", _token_ids(tokenizer, every_end=True))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(model.config))
    write_text(folder / TOKENIZER_FILE, tokenizer.to_str(pretty=False) + "\n")
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    write_bytes(folder / WEIGHTS_FILE, save(weights, metadata={"format": "pt"}))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text; the file appears whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write through a temporary file beside `path`, which then takes its place."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def _token_ids(tokenizer: Tokenizer, *, every_end: bool) -> dict[str, Any]:
    """Return the ids of the special tokens; `every_end` lists all that end an answer."""
    turn_end, end_of_text = token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT)
    eos: int | list[int] = [turn_end, end_of_text] if every_end else turn_end
    return {"eos_token_id": eos, "pad_token_id": end_of_text}


def _config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        **_token_ids(tokenizer, every_end=False),
    }


def _tokenizer_config(config: ModelConfig) -> dict[str, Any]:
    return {
        # Not Qwen2Tokenizer: that class brings its own way of splitting text.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START],
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
