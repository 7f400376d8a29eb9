"""A file whose rows ask for everything that a row may ask for, many of them twice."""

from typing import Any

# Long enough for a prefix store to keep it, and ending inside a block.
SHARED = "what all the rows of this file have in common, and more of it, and some more again: "
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["one", "two"]}, "count": {"type": "integer"}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if enable_thinking is false %}<think></think>{% else %}<think>\n{% endif %}"
)
SAMPLED: dict[str, Any] = {"temperature": 1.0, "n": 3, "seed": 5}
VOTING: dict[str, Any] = {"temperature": 1.0, "n": 7, "vote": "([aeiou])"}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
}
# By what they are about; each is asked behind the common words, and some behind others as well.
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "fewer samples": {**SAMPLED, "n": 2},
    "filtered": {**SAMPLED, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalties": PENALTIES,
    "sampled with penalties": {**SAMPLED, **PENALTIES},
    "bias": {"logit_bias": {"5": 4.0, "65": 4.0, "300": 4.0}},
    "allowed": {"allowed_token_ids": list(range(60)), "bad_words": ["BC", "A"]},
    "bad words": {**SAMPLED, "bad_words": ["e", "a b"]},
    "at least": {"min_tokens": 9, "ignore_eos": False, "stop": ["a", "e", "\n"]},
    "stops": {**SAMPLED, "stop": ["a", "e"], "include_stop_str_in_output": True},
    "stop ids": {**SAMPLED, "stop_token_ids": list(range(0, 256, 20))},
    "special tokens": {**SAMPLED, "logit_bias": {"256": 8, "257": 8}, "skip_special_tokens": False},
    "repetition": {"logit_bias": {"64": 90}, "stop_on_repetition": 4},
    "logprobs": {"logprobs": 3},
    "sampled logprobs": {**SAMPLED, **PENALTIES, "logprobs": 2, "prompt_logprobs": 1},
    "the prompt's logprobs": {"prompt_logprobs": 2},
    "a text": {"prompt_logprobs": 1, "max_tokens": 0},
    "schema": {"json_schema": SCHEMA, "max_tokens": 40},
    "sampled schemas": {**SAMPLED, "json_schema": SCHEMA, "max_tokens": 40},
    "object": {"json_object": True, "max_tokens": 20},
    "regex": {**SAMPLED, "regex": "[a-d]{3,9}!"},
    "choice": {**SAMPLED, "choice": ["yes it is", "yes it was", "no"]},
    "grammar": {**SAMPLED, "grammar": 'start: "a" /[bc]{2,5}/ "d"'},
    "schema with all": {
        **SAMPLED,
        **PENALTIES,
        "logprobs": 1,
        "prompt_logprobs": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "max_tokens": 40,
    },
    "votes": VOTING,
    "votes by JSON": {**VOTING, "json_schema": SCHEMA, "vote": "json:kind", "max_tokens": 40},
    "votes with all": {**VOTING, **PENALTIES, "logprobs": 1, "stop": ["o"]},
    "beams": {"beam_width": 4, "n": 2},
    "wide beams": {"beam_width": 7, "n": 7, "length_penalty": -1.0, "early_stopping": "never"},
    "beams that stop": {
        "beam_width": 3,
        "n": 3,
        "early_stopping": True,
        "min_tokens": 2,
        "stop_token_ids": list(range(0, 256, 12)),
        "ignore_eos": False,
    },
    "continuations": {"continuations": ["yes", "no, not at all", " maybe"]},
    "continuations and prompt": {"continuations": ["a", "b c d"], "prompt_logprobs": 1},
}
CHATS: dict[str, dict[str, Any]] = {
    "thought": {},
    "budget": {"thinking_budget": 5, "max_tokens": 24},
    "sampled budgets": {
        **SAMPLED,
        **PENALTIES,
        "thinking_budget": 3,
        "max_tokens": 24,
        "logprobs": 1,
        "stop": ["zz"],
    },
    "other tags": {**SAMPLED, "reasoning_tags": "<think>,a", "thinking_budget": 4},
    "schema behind a thought": {
        **SAMPLED,
        "json_schema": SCHEMA,
        "thinking_budget": 3,
        "max_tokens": 40,
    },
    "votes behind thoughts": {**VOTING, "thinking_budget": 2, "max_tokens": 20},
}
BODIES: list[dict[str, Any]] = [
    {**SAMPLED, "logprobs": True, "top_logprobs": 2, **PENALTIES},
    {"response_format": {"type": "json_object"}, "max_completion_tokens": 20},
]
BAD: list[dict[str, Any]] = [
    {"prompt": SHARED, "beam_width": 4, "stop": ["a"]},
    {"prompt": SHARED, "regex": "(", "n": 2},
    {"prompt": SHARED, "vote": "(?=a)"},
]


def mixed_rows() -> list[dict[str, Any]]:
    """Return the rows; what is asked twice is not side by side."""
    once = [{"prompt": f"{SHARED}{name}", "raw": True, **asked} for name, asked in ASKED.items()]
    once += [
        {"messages": [{"role": "user", "content": f"{SHARED}{name}"}], **asked}
        for name, asked in CHATS.items()
    ]
    calls = [
        {
            "custom_id": f"{url} {number}",
            "method": "POST",
            "url": f"/v1/{url}",
            "body": {**prompt, **body},
        }
        for url, prompt, bodies in (
            ("chat/completions", {"messages": [{"role": "user", "content": SHARED}]}, BODIES),
            ("completions", {"prompt": SHARED}, [{**SAMPLED, "logprobs": 2}, ASKED["beams"]]),
        )
        for number, body in enumerate(bodies)
    ]
    own = [{"prompt": name, "raw": True, **asked} for name, asked in list(ASKED.items())[::3]]
    return [*once, *own, *BAD, *calls, *once[::2]]
