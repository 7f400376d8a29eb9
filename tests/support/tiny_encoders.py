"""Folders of tiny random encoders, decoders and heads, written by Transformers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

NUM_WORDS = 200
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "yes", "no"]
WORDS = [*_SPECIAL, *(f"w{i}" for i in range(NUM_WORDS))]
_SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 300,
}
_HEADS = {"num_key_value_heads": 2, "head_dim": 16}
_DISTIL = {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}
_MODERN = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "local_attention": 16,
}
_GEMMA = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "query_pre_attn_scalar": 16,
    "use_bidirectional_attention": True,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# Weights that leave scores far from equal, so that every term of theirs shows.
_LARGE = {"initializer_range": 0.2}
# The form of DeBERTa-v3.
_DEBERTA = {
    "relative_attention": True,
    "position_buckets": 32,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
# Class of Transformers before its ending, and fields of its config.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _SIZES),
    "roberta": ("Roberta", {**_SIZES, "type_vocab_size": 1, "pad_token_id": 0}),
    "xlm-roberta": ("XLMRoberta", {**_SIZES, "type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": ("DistilBert", {**_SIZES, **_DISTIL}),
    "modernbert": ("ModernBert", {**_SIZES, **_MODERN}),
    "mpnet": ("MPNet", {**_SIZES, **_LARGE, "bos_token_id": 2, "eos_token_id": 3}),
    "deberta-v2": ("DebertaV2", {**_SIZES, **_LARGE, **_DEBERTA}),
    "electra": ("Electra", {**_SIZES, "embedding_size": 32}),
    "albert": ("Albert", {**_SIZES, "embedding_size": 32, "num_hidden_groups": 2}),
    "nomic_bert": ("NomicBert", _SIZES),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", _SIZES),
    "gte": ("Gte", _SIZES),
    # The form of EmbeddingGemma: every second layer sees a window, all of them both sides.
    "gemma3": ("Gemma3Text", {**_SIZES, **_HEADS, **_GEMMA}),
    "qwen3": ("Qwen3", {**_SIZES, **_HEADS, "pad_token_id": 0}),
}


def write_model(
    folder: Path, family: str, kind: str = "Model", seed: int = 0, **fields: Any
) -> Any:
    """Write a random model and its tokenizer to `folder`; return the model.

    kind: ending of the class of Transformers, such as ForSequenceClassification.
    """
    name, own = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{**own, **fields})
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    model.save_pretrained(folder)
    longest = fields.get("max_position_embeddings", _SIZES["max_position_embeddings"])
    write_tokenizer(folder, is_encoder=family != "qwen3", longest=longest)
    return model


def write_tokenizer(
    folder: Path, *, is_encoder: bool, longest: int = 300
) -> PreTrainedTokenizerFast:
    """Write a tokenizer of words; return it. An encoder's adds [CLS] and [SEP].

    longest: text in tokens.
    """
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if is_encoder:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", model_max_length=longest
    )
    fast.save_pretrained(folder)
    return fast


def write_modules(folder: Path, pooling: dict[str, Any], *others: str) -> None:
    """Make a folder of sentence-transformers of a model; others: kinds of further modules."""
    kinds = ["Transformer", "Pooling", *others]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": "" if not number else f"{number}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def texts(lengths: Sequence[int], seed: int = 0) -> list[str]:
    """Return texts of so many words."""
    generator = torch.Generator().manual_seed(seed)
    return [
        " ".join(f"w{i}" for i in torch.randint(NUM_WORDS, (length,), generator=generator).tolist())
        for length in lengths
    ]
