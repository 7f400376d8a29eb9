"""Parameters of other tools that this one does not have, and what it has in their place."""

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue

# Answering as if they were not there would be a wrong answer. Each with what to use instead.
UNSUPPORTED_COLUMNS: dict[str, str | None] = {
    "top_logprobs": "use logprobs, which takes their number",
    "logits_processors": None,
    "use_beam_search": "use beam_width, which takes the number of beams",
    "best_of": "use n, the number of answers",
    "guided_json": "use json_schema",
    "guided_regex": "use regex",
    "guided_choice": "use choice",
    "guided_grammar": "use grammar",
    "structured_outputs": "use json_schema, json_object, regex, choice or grammar",
    "tools": None,
    "cache_salt": None,
}
# Of OpenAI's calls only; elsewhere they are columns like any other.
_OF_CALLS = {"echo": "use prompt_logprobs to score the prompt, alone with max_tokens 0"}
# Clients write out defaults. These values ask for nothing; any other one is refused.
_NEUTRAL_VALUES: dict[str, tuple[JSONValue, ...]] = {
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "tools": ([],),
    "echo": (False,),  # these three of OpenAI's calls only
    "stream": (False,),
    "suffix": ("",),
}


def is_neutral(name: str, value: object) -> bool:
    """Whether an unsupported parameter asks for nothing with this value."""
    # By type too: to Python 0 and False are equal.
    neutral = _NEUTRAL_VALUES.get(name, ())
    return any(type(value) is type(each) and value == each for each in neutral)


def not_supported(name: str) -> RowError:
    """Return the error of a row that asks for a parameter, with the way out if there is one."""
    instead = UNSUPPORTED_COLUMNS.get(name) or _OF_CALLS.get(name)
    message = f"{name} is not supported" + (f"; {instead}" if instead else "")
    return RowError("invalid_param", message, param=name)
