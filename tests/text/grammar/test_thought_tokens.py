"""Which tokens open a thought, and which would close it and begin the answer at once."""

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Words
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pagedrun.paged.text.grammar import CompiledGrammar
from pagedrun.paged.text.reasoning import ReasoningTags, TaggedReasoning
from pagedrun.paged.text.structured_answer import ReasoningTokens, StructuredAnswer
from pagedrun.paged.text.tokenizer import Tokenizer

NEVER: Any = None  # what is not asked for within a thought
LONGER = ("</", "a>", ">{", "a>x", ">Ċ", "</a>1", "x>y", "<a>")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    signs = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *LONGER]
    words = Words(models.WordLevel({sign: place for place, sign in enumerate(signs)}, "a"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=words), None)


@pytest.mark.parametrize(
    ("end", "beyond"),
    [
        ("so", {"</a>1"}),
        ("so </a", {">{", "</a>1"}),
        ("so </", {"a>x", "</a>1"}),
        ("so <", {"</a>1"}),
        ("", {"</a>1"}),
    ],
)
def test_tokens_that_reach_behind_the_closing_tag(
    tokenizer: Tokenizer, end: str, beyond: set[str]
) -> None:
    """One that has blanks behind the tag does not: the answer begins with the next token."""
    texts = tokenizer.token_texts()
    tokens = ReasoningTokens(tokenizer, ReasoningTags("<a>", "</a>"))
    assert {texts[token] for token in tokens.beyond(end)} == beyond


def test_the_opening_tag(tokenizer: Tokenizer) -> None:
    texts = tokenizer.token_texts()
    tokens = ReasoningTokens(tokenizer, ReasoningTags("<b>", "</a>"))
    assert [texts[token] for token in tokens.opening] == ["<", "b", ">"]


def test_a_thought_may_hold_anything_but_the_answer_s_beginning(tokenizer: Tokenizer) -> None:
    tags = ReasoningTags("<a>", "</a>")
    thought = TaggedReasoning(tags, tokenizer.decode, is_open=True)
    width = -(-tokenizer.vocab_size // 32)
    grammar = CompiledGrammar(NEVER, np.zeros(width, dtype=np.int32), NEVER)
    tokens = ReasoningTokens(tokenizer, tags)
    answer = StructuredAnswer(grammar, thought, tokens)
    for token in tokenizer.encode_batch(["so </"], add_special_tokens=False)[0]:
        answer.take(token)
    assert answer.mask is not None
    bits = np.unpackbits(answer.mask.view(np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits == 0).tolist()) == set(tokens.beyond("so </"))
