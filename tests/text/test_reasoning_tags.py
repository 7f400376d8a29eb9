"""What marks a thought, and how it is taken out of an answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.reasoning import ReasoningTags, check_budget
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.sampling_params import SamplingParams

THINK = ReasoningTags("<think>", "</think>")
QWEN3 = "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


@pytest.mark.parametrize(
    ("setting", "template", "tags"),
    [
        ("auto", QWEN3, THINK),
        ("auto", "{{ content.split('</think>')[-1] }}", THINK),
        ("auto", "x[THINK]y[/THINK]", ReasoningTags("[THINK]", "[/THINK]")),
        ("auto", "<|channel>thought\n<channel|>", ReasoningTags("<|channel>thought", "<channel|>")),
        ("auto", "{{ messages }}", None),
        ("auto", "I think </thinking of", None),
        ("auto", None, None),
        ("none", QWEN3, None),
        ("<a>,</a>", None, ReasoningTags("<a>", "</a>")),
    ],
)
def test_which_tags(setting: str, template: str | None, tags: ReasoningTags | None) -> None:
    assert ReasoningTags.of(setting, template) == tags


@pytest.mark.parametrize(
    ("text", "prompt", "thought", "answer"),
    [
        ("<think>\na b\n</think>\n\nyes", "…assistant\n", "a b", "yes"),
        ("\n<think></think>yes", "", "", "yes"),
        ("a b\n</think>\n\nyes", "assistant\n<think>\n", "a b", "yes"),  # opened by the prompt
        ("<think>a</think>yes", "<think>\n", "a", "yes"),  # and once more
        ("a b</think>yes", "assistant\n", "a b", "yes"),  # as DeepSeek-R1 without its template
        ("yes", "assistant\n", None, "yes"),
        (" yes ", "<think>\n\n</think>\n\n", None, " yes "),  # closed by the prompt
        ("a</think>b", "</think>\n", None, "a</think>b"),
        ("See <think>x</think> there", "assistant\n", None, "See <think>x</think> there"),
        ("<think>a b", "assistant\n", "a b", ""),  # cut
        ("a b", "<think>", "a b", ""),
        ("", "<think>", "", ""),
        ("<think>a</think>b</think>c", "", "a", "b</think>c"),
        ("What does <think> mean?", "<think> is a tag", None, "What does <think> mean?"),
    ],
)
def test_split(text: str, prompt: str, thought: str | None, answer: str) -> None:
    assert THINK.split(text, prompt) == (thought, answer)


def test_special_tokens_that_are_no_tags_are_left_out_unless_asked_for(
    make_tokenizer: Callable[..., Path],
) -> None:
    tokenizer = Tokenizer.from_folder(make_tokenizer())
    texts, tags = AnswerText(tokenizer), "<|im_start|>,<|im_end|>"
    (tokens,) = tokenizer.encode_batch(["<|im_start|>a<|im_end|>b<s>"], add_special_tokens=False)
    for skips, text in (
        (True, "<|im_start|>a<|im_end|>b"),
        (False, "<|im_start|>a<|im_end|>b<s>"),
        (True, "<|im_start|>a<|im_end|>b"),
    ):
        params = SamplingParams(reasoning_tags=tags, skip_special_tokens=skips)
        assert texts.decoder(params)(tokens) == text


def test_a_budget_needs_tags() -> None:
    check_budget(SamplingParams(), None)
    check_budget(SamplingParams(thinking_budget=0), QWEN3)
    check_budget(SamplingParams(thinking_budget=0, reasoning_tags="a,b"), None)
    for params in (
        SamplingParams(thinking_budget=0),
        SamplingParams(thinking_budget=9, reasoning_tags="none"),
    ):
        with pytest.raises(RowError) as caught:
            check_budget(params, "{{ messages }}")
        assert (caught.value.code, caught.value.param) == ("invalid_param", "thinking_budget")
