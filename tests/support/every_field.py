"""Every field of `SamplingParams`: a value to ask for, and values that each way in refuses."""

from dataclasses import dataclass, field
from typing import Any

MAX_TEXT = 65_536


@dataclass(frozen=True)
class FieldCase:
    """`good` and `bad` are as JSON has them, `good` not the default; `bad_text` is as a flag or a
    recipe has it, None for a switch. `beside` is what the field does not go without.
    """

    good: Any
    bad: tuple[Any, ...]
    bad_text: str | None = None
    beside: dict[str, Any] = field(default_factory=dict)


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "é"]}}, "required": ["a"]}
CASES: dict[str, FieldCase] = {
    "n": FieldCase(3, (0, 1025, 1.5, "3", True), "0"),
    "temperature": FieldCase(0.5, (-1, 101, "1", True, [1]), "-1"),
    "top_p": FieldCase(0.5, (0, 1.1, "1", True), "0"),
    "top_k": FieldCase(7, (-2, 1.5, "7", True), "-2"),
    "min_p": FieldCase(0.25, (-0.1, 1.1, "0"), "2"),
    "seed": FieldCase(11, (-1, 1.5, "1"), "-1"),
    "max_tokens": FieldCase(7, (0, -1, 2**31, 1.5, "7", True), "-3"),
    "min_tokens": FieldCase(3, (-1, 1.5, "3", True), "-1"),
    "stop": FieldCase("é, no", ("x" * 1025, ["x"] * 65, [""], [1], {"a": 1}), ""),
    "stop_token_ids": FieldCase([2, 9], ([-1], ["2"], [1.5], 2, "2", [1] * 1025), "x"),
    "ignore_eos": FieldCase(True, (1, "true", [True])),
    "repetition_penalty": FieldCase(1.5, (0, 101, "1", True), "0"),
    "presence_penalty": FieldCase(0.5, (-2.5, 3, "1", True), "3"),
    "frequency_penalty": FieldCase(0.25, (-2.5, 3, "1", True), "3"),
    "logit_bias": FieldCase(
        {"5": -100, "70": 2.5}, ({"5": 101}, {"a": 1}, {"-1": 1}, {"5": "1"}, [1], "x"), "[1]"
    ),
    "allowed_token_ids": FieldCase([4, 3], ([], [-1], ["3"], 3, "3", [1.5]), "x"),
    "bad_words": FieldCase(["a", " b"], ("", " ", ["a", ""], [1], {"a": 1}, ["x"] * 1025), " "),
    "logprobs": FieldCase(3, (-1, 21, 1.5, "3", [3]), "21"),
    "prompt_logprobs": FieldCase(2, (-1, 21, 1.5, "3", [3]), "21"),
    "json_schema": FieldCase(SCHEMA, ("{", "[]", 7, True, {"d": "x" * MAX_TEXT}), "{"),
    "json_object": FieldCase(True, (1, "true", {"a": 1})),
    "regex": FieldCase("[ab]{2}", ("x" * (MAX_TEXT + 1), 7, ["a"], {"a": 1}), ""),
    "choice": FieldCase(["yes", "no, not"], ("yes", [""], [1], ["x"] * 1001, {"a": 1}), ""),
    "grammar": FieldCase('start: "a" | "b"', ("x" * (MAX_TEXT + 1), 7, ["a"]), ""),
    "skip_special_tokens": FieldCase(False, (0, "false")),
    "include_stop_str_in_output": FieldCase(True, (1, "true")),
    "stop_on_repetition": FieldCase(4, (1, -1, 1025, "4", True), "1"),
    "reasoning_tags": FieldCase("<a>,</a>", ("on", "<a>", "<a>,<a>", 1, ["a", "b"]), "on"),
    "thinking_budget": FieldCase(5, (-1, 1.5, "5", True), "-1", {"reasoning_tags": "<a>,</a>"}),
    "vote": FieldCase("(yes|no)", ("(", "(?=a)b", "json:", "x" * 1025, 7, ["a"]), "("),
    "beam_width": FieldCase(4, (0, 17, 2.5, "4", True), "17"),
    "length_penalty": FieldCase(-0.5, (-6, 5.5, "1", True), "9"),
    "early_stopping": FieldCase("never", ("always", 1, ["never"], {"a": 1}), "always"),
}
