"""PromptPart: a piece of a prompt's text, as the model reads it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from pagedrun.paged.text.incremental_text import REPLACEMENT


class Decoder(Protocol):
    """The part of `Tokenizer` that makes text of ids."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Return the ids of the special tokens."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A special token, or text between two of them; `shared` if it is in the leading part that
    other prompts have as well."""

    text: str
    special: bool
    shared: bool


def prompt_parts(
    decoder: Decoder, token_ids: Sequence[int], num_shared: int
) -> tuple[PromptPart, ...]:
    """Return the parts of a prompt, in order; together they are its text.

    num_shared: leading tokens that others have as well. Text parts there in two; a character that
    does so is not shared.
    """
    parts: list[PromptPart] = []
    before: list[int] = []  # a special token: behind it a decoder keeps the blank that begins text
    position = 0
    for special, run in groupby(token_ids, lambda token: token in decoder.special_ids):
        tokens = list(run)
        if special:
            for token in tokens:
                position += 1
                text = decoder.decode([token], skip_special_tokens=False)
                parts.append(PromptPart(text, special=True, shared=position <= num_shared))
            before = tokens[-1:]
            continue
        parts += _texts(decoder, before, tokens, num_shared - position)
        position += len(tokens)
    return tuple(parts)


def _texts(
    decoder: Decoder, before: list[int], tokens: list[int], num_shared: int
) -> Iterator[PromptPart]:
    """Yield the shared beginning of a text and what is behind it, as far as there is either."""
    context = len(decoder.decode(before, skip_special_tokens=False)) if before else 0
    text = decoder.decode([*before, *tokens], skip_special_tokens=False)[context:]
    head = ""
    if num_shared >= len(tokens):
        head = text
    elif num_shared > 0:
        head = decoder.decode([*before, *tokens[:num_shared]], skip_special_tokens=False)[context:]
        head = head.rstrip(REPLACEMENT)
    head = head if text.startswith(head) else ""
    if head:
        yield PromptPart(head, special=False, shared=True)
    if len(head) < len(text):
        yield PromptPart(text[len(head) :], special=False, shared=False)
