"""Answers in channels: told apart by tokens, whatever their text says, and wherever they end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedrun.paged.scheduling.stopping import StopRule
from pagedrun.paged.text.answer_text import AnswerText
from pagedrun.paged.text.grammar import CompiledGrammar
from pagedrun.paged.text.reasoning import ReasoningBudget, check_budget
from pagedrun.paged.text.structured_answer import StructuredAnswer
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.made_step import generate, made_sequence
from tests.text.channels import FINAL, START, TEMPLATE, THINK, ids, tokenizer

__all__ = ["tokenizer"]  # a fixture


def request(tokenizer: Tokenizer, prompt: str = START, **params: Any) -> Request:
    return Request(0, tuple(ids(tokenizer, prompt)), SamplingParams(**params))


def split(tokenizer: Tokenizer, answer: str, **asked: Any) -> tuple[str | None, str]:
    texts, given = AnswerText(tokenizer), request(tokenizer, **asked)
    tokens = ids(tokenizer, answer)
    return texts.split(given, tokens, texts.text(given, tokens))


@pytest.mark.parametrize(
    ("answer", "thought", "text"),
    [
        (f"{THINK}a b<|end|>{FINAL}yes", "a b", "yes"),
        (f"{THINK}a<|end|>{FINAL}yes<|return|>", "a", "yes"),
        (f"{THINK}<|end|>{FINAL}", "", ""),
        ("<|channel|>final<|message|>yes<|return|>", None, "yes"),
        # Several thoughts, and a word to the user before the answer.
        (f"{THINK}a<|end|><|start|>assistant{THINK}b<|end|>{FINAL}yes", "a\nb", "yes"),
        (
            f"{THINK}a<|end|><|start|>assistant<|channel|>commentary<|message|>Wait<|end|>"
            f"{FINAL}yes",
            "a\nWait",
            "yes",
        ),
        # Cut: in the thought, in what names a channel, between two messages.
        (f"{THINK}a b", "a b", ""),
        ("<|channel|>anal", None, ""),
        ("", None, ""),
        (f"{THINK}a b<|end|>", "a b", ""),
        (f"{THINK}a b<|end|><|start|>assistant<|channel|>fin", "a b", ""),
        # A call of a tool.
        (
            f"{THINK}a<|end|><|start|>assistant to=functions.get<|channel|>commentary "
            '<|constrain|>json<|message|>{"x": 1}<|call|>',
            "a",
            '{"x": 1}',
        ),
        # Past the end, where that is ignored.
        (f"{THINK}a<|end|>{FINAL}yes<|return|><|start|>user<|message|>b", "a", "yes\nb"),
        ("plain", None, "plain"),  # whatever came of the channels
    ],
)
def test_split(tokenizer: Tokenizer, answer: str, thought: str | None, text: str) -> None:
    assert split(tokenizer, answer) == (thought, text)


@pytest.mark.parametrize(
    ("prompt", "answer", "thought", "text"),
    [
        (f"{START}<|channel|>final<|message|>", "yes<|return|>", None, "yes"),
        (f"{START}{THINK}I said", f" a<|end|>{FINAL}yes", " a", "yes"),
        (f"{START}<|channel|>", f"analysis<|message|>a<|end|>{FINAL}yes", "a", "yes"),
        ("No chat at all", "analysis final", None, "analysis final"),
        ("No chat at all", f"{THINK}a<|end|>{FINAL}yes", "a", "yes"),
    ],
)
def test_the_prompt_may_have_begun_the_answer(
    tokenizer: Tokenizer, prompt: str, answer: str, thought: str | None, text: str
) -> None:
    assert split(tokenizer, answer, prompt=prompt) == (thought, text)


def test_a_mark_that_is_written_out_is_text(tokenizer: Tokenizer) -> None:
    """Byte by byte, none of them the special token."""
    spelled = [tokenizer.encode_batch([letter], False)[0][0] for letter in f"<|end|>{FINAL}no"]
    texts, given = AnswerText(tokenizer), request(tokenizer)
    tokens = [*ids(tokenizer, f"{THINK}a"), *spelled, *ids(tokenizer, f"<|end|>{FINAL}yes")]
    assert texts.split(given, tokens, texts.text(given, tokens)) == (f"a<|end|>{FINAL}no", "yes")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("none", (None, "analysisaassistantfinalyes")),
        ("analysis,final", ("aassistant", "yes")),
    ],
)
def test_tags_that_are_asked_for_go_before_channels(
    tokenizer: Tokenizer, setting: str, expected: tuple[str | None, str]
) -> None:
    answer = f"{THINK}a<|end|>{FINAL}yes"
    assert split(tokenizer, answer, reasoning_tags=setting) == expected


def test_other_special_tokens_are_shown_if_asked(tokenizer: Tokenizer) -> None:
    answer = f"{THINK}a<s><|end|>{FINAL}y<|im_start|>es"
    assert split(tokenizer, answer) == ("a", "yes")
    assert split(tokenizer, answer, skip_special_tokens=False) == ("a<s>", "y<|im_start|>es")


def test_without_the_tokens_or_the_template_there_are_no_channels(
    tokenizer: Tokenizer, make_tokenizer: Callable[..., Path]
) -> None:
    plain = make_tokenizer()
    with_template = Tokenizer.from_folder(plain, TEMPLATE + "{{ messages[0]['content'] }}")
    for other in (with_template, Tokenizer.from_folder(plain)):
        assert split(other, "<s>analysis<s>a") == (None, "analysisa")
    check_budget(SamplingParams(thinking_budget=1), TEMPLATE)
    with pytest.raises(RowError, match="thinking_budget"):
        check_budget(SamplingParams(thinking_budget=1, reasoning_tags="none"), TEMPLATE)


class TestStops:
    """Through the rule that ends sequences, token by token."""

    def ended(self, tokenizer: Tokenizer, answer: str, **params: Any) -> Any:
        rule = StopRule(tokenizer, [tokenizer.special_id("<|return|>") or 0])
        sequence = made_sequence(tuple(ids(tokenizer, START)), **params)
        for token in ids(tokenizer, answer):
            generate(sequence, token)
            if (output := rule.output(sequence)) is not None:
                return output
        raise AssertionError("it goes on")

    def test_the_end_of_the_answer(self, tokenizer: Tokenizer) -> None:
        output = self.ended(tokenizer, f"{THINK}a<|end|>{FINAL}yes<|return|>", max_tokens=999)
        assert (output.reasoning, output.text, output.finish_reason) == ("a", "yes", "stop")

    def test_cut_in_mid_thought(self, tokenizer: Tokenizer) -> None:
        output = self.ended(tokenizer, f"{THINK}abcdefgh", max_tokens=14)
        assert output.reasoning
        assert "abcdefgh".startswith(output.reasoning)
        assert (output.text, output.finish_reason) == ("", "length")
        assert output.is_cut_thought

    def test_a_stop_string_in_a_message(self, tokenizer: Tokenizer) -> None:
        output = self.ended(tokenizer, f"{THINK}ab<|end|>{FINAL}yes or no", stop=(" or",))
        assert (output.reasoning, output.text, output.stop_reason) == ("ab", "yes", " or")
        output = self.ended(tokenizer, f"{THINK}a, b<|end|>", stop=(",",))
        assert (output.reasoning, output.text) == ("a", "")

    def test_a_stop_string_is_not_found_in_the_name_of_a_channel(
        self, tokenizer: Tokenizer
    ) -> None:
        """Nor across two messages."""
        answer = f"{THINK}ab<|end|>{FINAL}cd final.<|return|>"
        output = self.ended(tokenizer, answer, stop=("final", "bc", "\n", "assistant"))
        assert (output.reasoning, output.text) == ("ab", "cd ")

    def test_min_tokens_count_in_the_message_of_the_stop(self, tokenizer: Tokenizer) -> None:
        answer = f"{THINK}x.y<|end|>{FINAL}x.y.z<|return|>"
        within = len(ids(tokenizer, f"{THINK}x.y<|end|>{FINAL}x."))
        before = len(ids(tokenizer, f"{THINK}x."))
        for num, text in ((within, "x.y"), (before, "x")):
            output = self.ended(tokenizer, answer, stop=(".",), min_tokens=num)
            assert (output.reasoning, output.text) == ("x.y", text)


def kept(tokenizer: Tokenizer, answer: str, budget: int) -> str:
    """Return what is generated where a model would write `answer`, until no thought is left."""
    texts, given = AnswerText(tokenizer), request(tokenizer)
    thought = texts.thought(given)
    assert thought is not None
    followed = ReasoningBudget(thought, texts.closing(given.params), budget)
    made: list[int] = []
    for wanted in ids(tokenizer, answer):
        made.append(wanted if followed.forced is None else followed.forced)
        if not followed.take(made[-1]):
            break
    return tokenizer.decode(made, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("budget", "made"),
    [
        (3, f"{THINK}abc<|end|>{FINAL}"),
        (0, f"{THINK}<|end|>{FINAL}"),
        (99, f"{THINK}abcde<|end|><|start|>assistant{THINK}fgh<|end|>{FINAL}"),
        (7, f"{THINK}abcde<|end|><|start|>assistant{THINK}f<|end|>{FINAL}"),  # the end counts too
    ],
)
def test_a_budget_closes_thoughts(tokenizer: Tokenizer, budget: int, made: str) -> None:
    again = f"<|end|><|start|>assistant{THINK}fgh"
    answer = f"{THINK}abcde{again}<|end|>{FINAL}yes"
    assert kept(tokenizer, answer, budget) == made


def test_a_structure_begins_with_the_answer(tokenizer: Tokenizer) -> None:
    width = -(-tokenizer.vocab_size // 32)
    matcher: Any = None  # what is not asked for before the answer
    grammar = CompiledGrammar(matcher, np.zeros(width, dtype=np.int32), matcher)
    thought = AnswerText(tokenizer).thought(request(tokenizer))
    answer = StructuredAnswer(grammar, thought)
    for token in ids(tokenizer, f"{THINK}a<|end|>{FINAL}")[:-1]:
        answer.take(token)
        assert answer.mask is None  # anything may come
    assert thought is not None
    assert not thought.is_over


def test_an_answer_that_the_prompt_began_has_no_thought(tokenizer: Tokenizer) -> None:
    texts = AnswerText(tokenizer)
    for prompt in (f"{START}<|channel|>final<|message|>", "No chat at all"):
        assert texts.thought(request(tokenizer, prompt)) is None
