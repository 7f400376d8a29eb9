"""Continuations: the texts that a row wants scored, and the tokens that they add to its prompt.

Prompt and continuation are encoded together, as lm-evaluation-harness does it: what the whole has
beyond as many tokens as the prompt has alone. A tokenizer joins a space to the word behind it, so
white space at the end of the prompt goes to the continuations.
"""

from typing import TypeGuard

from pagedrun.paged.job.interfaces import TokenizerLike
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling.flags import MAX_N
from pagedrun.paged.values.sampling.logprobs import Continuation
from pagedrun.paged.values.sampling.sampling_params import SamplingParams

CONTINUATIONS = "continuations"
MAX_ENCODED_CHARS = 2**25  # of one row: a long prompt is encoded once with each of its texts
MAX_ENCODED_CHARS = 2**25  # of one row: a long prompt is encoded once with each of its texts


def parse_continuations(value: object, params: SamplingParams) -> tuple[str, ...]:
    """Return the texts of a row's `continuations`, none if it has none.

    Raises `RowError` for what is no list of a few texts, and for parameters that ask for answers.
    """
    if value is None:
        return ()
    if not _is_texts(value):
        raise RowError(
            "invalid_param",
            f"{CONTINUATIONS} must be a list of 1 to {MAX_N} texts, none of them empty",
            param=CONTINUATIONS,
        )
    if params.n > 1 or params.logprobs is not None:
        name = "n" if params.n > 1 else "logprobs"
        raise RowError(
            "invalid_param",
            f"{name} is about answers, and a row with {CONTINUATIONS} gets scores instead",
            param=name,
        )
    return tuple(value)


def split_trailing_space(text: str) -> tuple[str, str]:
    """Return a prompt without the white space at its end, and that."""
    stripped = text.rstrip()
    return stripped, text[len(stripped) :]


def encode_continuations(
    texts: tuple[str, ...],
    tokenizer: TokenizerLike,
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
    encoded = tokenizer.encode_batch(whole, prompt is not None and add_special_tokens)
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


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_N
        and all(isinstance(text, str) and text for text in value)
    )
