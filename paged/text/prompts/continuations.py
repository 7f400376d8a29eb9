"""Continuations: what is to be scored behind a prompt, and the tokens that it adds to that.

Prompt and text are encoded together, as lm-evaluation-harness does it: what the whole has beyond
as many tokens as the prompt has alone. A tokenizer joins a space to the word behind it, so white
space at the end of the prompt goes to the continuations. Token ids are taken as they are.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.logprobs import Continuation
from pagedrun.paged.values.sampling_params import MAX_N, SamplingParams

CONTINUATIONS = "continuations"
MAX_ENCODED_CHARS = 2**25  # of one row: a long prompt is encoded once with each of its texts

GivenContinuation = str | tuple[int, ...]
"""A text, or token ids."""


class TextEncoder(Protocol):
    """The part of a tokenizer that turns texts into token ids and back."""

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the ids of each text; `RowError` if one of them cannot be encoded."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""


def parse_continuations(value: object, params: SamplingParams) -> tuple[GivenContinuation, ...]:
    """Return what is to be scored, nothing if `value` is None.

    Raises `RowError` for what is no list of a few texts, or of a few lists of token ids, and for
    parameters that ask for answers.
    """
    if value is None:
        return ()
    found = _texts(value) or _token_ids(value)
    if not found or len(found) > MAX_N:
        raise RowError(
            "invalid_param",
            f"{CONTINUATIONS} must be a list of 1 to {MAX_N} texts, or lists of token ids, none of "
            "them empty",
            param=CONTINUATIONS,
        )
    if params.n > 1 or params.logprobs is not None:
        name = "n" if params.n > 1 else "logprobs"
        raise RowError(
            "invalid_param",
            f"{name} applies to answers, but a row with {CONTINUATIONS} gets scores instead",
            param=name,
        )
    return found


def split_trailing_space(text: str) -> tuple[str, str]:
    """Return a prompt without the white space at its end, and that."""
    stripped = text.rstrip()
    return stripped, text[len(stripped) :]


def encode_texts(
    texts: Seq[str],
    encoder: TextEncoder,
    *,
    prompt: str | None,
    space: str,
    add_special_tokens: bool,
    num_prompt_tokens: int,
) -> tuple[Continuation, ...]:
    """Return the tokens of each text behind a prompt and the white space that was cut off its end.

    prompt: None for one that was given as tokens, to which those of the text are added. Raises
    `RowError` if a text adds none, and if all of them with their prompts are too much to encode.
    """
    before = f"{prompt or ''}{space}"
    num_chars = len(texts) * len(before) + sum(map(len, texts))
    if num_chars > MAX_ENCODED_CHARS:
        raise RowError(
            "prompt_too_long",
            f"{len(texts)} {CONTINUATIONS}, each with the prompt, have {num_chars} characters, "
            f"more than {MAX_ENCODED_CHARS}; spread them over several rows",
            param=CONTINUATIONS,
        )
    whole = [before + text for text in texts]
    encoded = encoder.encode_batch(whole, prompt is not None and add_special_tokens)
    first = 0 if prompt is None else num_prompt_tokens
    found = [
        Continuation(text, tuple(ids[first:])) for text, ids in zip(texts, encoded, strict=True)
    ]
    for number, each in enumerate(found):
        if not each.token_ids:
            raise RowError(
                "invalid_param",
                f"{CONTINUATIONS}[{number}] adds no token to the prompt's",
                param=CONTINUATIONS,
            )
    return tuple(found)


def decode_token_ids(
    given: Seq[tuple[int, ...]], encoder: TextEncoder, vocab_size: int
) -> tuple[Continuation, ...]:
    """Return the text of token ids, special tokens included; raises `RowError` for an id that is
    not below `vocab_size`."""
    if min(map(min, given)) < 0 or max(map(max, given)) >= vocab_size:
        raise RowError(
            "token_id_out_of_range",
            f"{CONTINUATIONS} has an id outside the model's vocabulary, 0 to {vocab_size - 1}",
            param=CONTINUATIONS,
        )
    return tuple(
        Continuation(encoder.decode(list(ids), skip_special_tokens=False), ids) for ids in given
    )


def _texts(value: object) -> tuple[str, ...]:
    """Return a list of texts, nothing if it is none."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    return ()


def _token_ids(value: object) -> tuple[tuple[int, ...], ...]:
    """Return lists of token ids, nothing if they are none."""
    if not isinstance(value, list | tuple):
        return ()
    if not all(isinstance(ids, list | tuple) and ids for ids in value):
        return ()
    if not all(type(each) is int for ids in value for each in ids):
        return ()
    return tuple(map(tuple, value))
