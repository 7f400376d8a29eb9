"""What is streamed of an answer is the beginning of what it will be, and never broken."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun.paged.text.answer_text import AnswerText, StreamedAnswer
from pagedrun.paged.text.incremental_text import REPLACEMENT
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.text.channels import FINAL, START, THINK, ids, tokenizer

__all__ = ["tokenizer"]  # the fixture: bytes, and the special tokens of channels


def streamed(
    tokenizer: Tokenizer, prompt: str, answer: str, params: SamplingParams
) -> list[tuple[str, str]]:
    """Return thought and text after each token, each time the beginning of what they will be."""
    request, tokens = Request(0, tuple(ids(tokenizer, prompt)), params), ids(tokenizer, answer)
    texts = AnswerText(tokenizer)
    stream, seen = StreamedAnswer(texts, request), [("", "")]
    thought, text = texts.split(request, tokens, texts.text(request, tokens))
    for token in tokens:
        stream.feed([token])
        seen.append((stream.thought, stream.text))
        for (before, now), whole in zip(
            zip(*seen[-2:], strict=True), (thought or "", text), strict=True
        ):
            assert now.startswith(before)
            assert whole.startswith(now)
            assert REPLACEMENT not in now
    return seen


@pytest.fixture
def plain(make_tokenizer: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.from_folder(make_tokenizer())


@pytest.mark.parametrize(
    ("answer", "thought", "text"),
    [
        ("é日😀 wide", "", "é日😀 wide"),
        (" \n<t>é a</t>\n\n😀 yes", "é a", "😀 yes"),
        ("<t>never closed 日 ", "never closed 日", ""),
        ("<t>a </ b", "a </ b", ""),
        ("<the answer", "", "<the answer"),
        ("it is at an E", "", "it is at an "),  # where a stop string may begin
        ("it ENDs", "", "it ENDs"),
        ("so!!", "", "so"),  # it may begin before the last character
    ],
)
def test_between_tags(plain: Tokenizer, answer: str, thought: str, text: str) -> None:
    params = SamplingParams(reasoning_tags="<t>,</t>", stop=("END!", "!!!"))
    seen = streamed(plain, "Who?", answer, params)
    assert seen[-1] == (thought, text)
    assert len(set(seen)) >= len(answer.strip()) / 3  # it comes in pieces


def test_in_channels_only_the_answer_is_streamed(tokenizer: Tokenizer) -> None:
    answer = f"{THINK}no<|end|>{FINAL}yes 日"
    seen = streamed(tokenizer, START, answer, SamplingParams())
    assert [text for _, text in dict.fromkeys(seen)] == ["", "y", "ye", "yes", "yes ", "yes 日"]
