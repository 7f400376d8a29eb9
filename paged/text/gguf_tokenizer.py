"""The tokenizer in a GGUF file, rebuilt by transformers from the vocabulary and merges there."""

from pathlib import Path
from typing import Any

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.values.errors import ModelError, option
from pagedrun.paged.values.json_value import JSONValue

_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_SENTENCEPIECE = "llama"  # as tokenizer.ggml.model calls it


def read_gguf_tokenizer(path: Path) -> tuple[Any, JsonObject]:
    """Return a `tokenizers.Tokenizer`, and what tokenizer_config.json would say beside it.

    Raises `ModelError` for a tokenizer that transformers cannot rebuild.
    """
    fields = JsonObject(str(path), GgufFile.open(path).metadata)
    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _no_tokenizer(path, "there is none in it")
    special: dict[str, JSONValue] = {}
    for name, field in _SPECIAL_TOKENS.items():
        if fields.has(field):
            special[name] = tokens[fields.integer(field, 0, len(tokens) - 1)]
    backend = _rebuilt(path, fields)
    kind = fields.string("tokenizer.ggml.model")
    begins = fields.boolean("tokenizer.ggml.add_bos_token", kind == _SENTENCEPIECE)
    if begins and "bos_token" in special:
        _begin_with(backend, str(special["bos_token"]))
    template = fields.string("tokenizer.chat_template")
    return backend, JsonObject(str(path), {**special, "chat_template": template})


def _rebuilt(path: Path, fields: JsonObject) -> Any:
    # Imported here: it takes long. Releases differ in where they have it.
    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING
    except ImportError:
        from transformers.integrations.ggml import (
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )
    given = {
        theirs: fields.get(f"tokenizer.{name}")
        for name, theirs in GGUF_TOKENIZER_MAPPING["tokenizer"].items()
        if fields.has(f"tokenizer.{name}")
    }
    try:
        backend, _ = convert_gguf_tokenizer(fields.text("general.architecture"), given)
    except BaseException as error:  # a panic in Rust is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise _no_tokenizer(path, f"{type(error).__name__}: {str(error)[:120]}") from error
    return backend


def _begin_with(backend: Any, token: str) -> None:
    """Let texts begin with a token, as the model was trained."""
    from tokenizers.processors import Sequence, TemplateProcessing

    token_id = backend.token_to_id(token)
    begin = TemplateProcessing(
        single=f"{token}:0 $A:0",
        pair=f"{token}:0 $A:0 {token}:1 $B:1",
        special_tokens=[(token, token_id)],
    )
    own = backend.post_processor
    backend.post_processor = begin if own is None else Sequence([own, begin])


def _no_tokenizer(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path}: its tokenizer cannot be rebuilt ({why}); pass the folder of the original model's "
        f"tokenizer with {option('tokenizer')}"
    )
