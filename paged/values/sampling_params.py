"""SamplingParams: sampling, stopping and output options of one request, and their flags."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any

from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.flags import Flag, Form, Panel, flag_fields
from pagedrun.paged.values.foreign_flags import checked_class
from pagedrun.paged.values.logprobs import MAX_LOGPROBS
from pagedrun.paged.values.rules import (
    ALLOWED_TOKEN_IDS_RULE,
    BAD_WORDS_RULE,
    LOGIT_BIAS_RULE,
    MAX_REPETITION,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TAG_LENGTH,
    Rule,
    as_float,
    bias_pairs,
    floats,
    integers,
    is_budget,
    is_id_list,
    is_reasoning_tags,
    is_repetition,
    is_share,
    is_stop,
)
from pagedrun.paged.values.structure import (
    CHOICE_WANTED,
    JSON_SCHEMA_WANTED,
    STRUCTURES,
    TEXT_WANTED,
    Structure,
    canonical_schema,
    is_choice,
    is_grammar_text,
    is_json_schema,
)
from pagedrun.paged.values.vote import MAX_VOTE_LENGTH, is_vote


class EarlyStopping(StrEnum):
    """In the words of Transformers, where the first two are the booleans.

    With `width` finished beams: `FALSE` ends when the best running beam, scored at its present
    length, is not better than the worst finished one; `TRUE` ends at once; `NEVER` scores that beam
    at the length at which it could be best.
    """

    FALSE = "false"
    TRUE = "true"
    NEVER = "never"


MAX_N = 1024
SWITCH = Rule(lambda value: isinstance(value, bool), "true or false")
MAX_BEAM_WIDTH = 16
MAX_LENGTH_PENALTY = 5.0  # a length to this power is still a float32
_INT32 = 2**31 - 1

N = Flag("Answers for each row.", Panel.SAMPLING, "N", rule=integers(1, MAX_N))

TEMPERATURE = Flag(
    "0 is greedy.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.0, 100.0),
    declared=("--temperature", "-t"),
)

TOP_P = Flag(
    "Keep the most likely tokens up to this cumulative probability.",
    Panel.SAMPLING,
    "X",
    rule=Rule(is_share, "a number above 0 and at most 1"),
)

TOP_K = Flag(
    "Keep the K most likely tokens; 0 keeps all.",
    Panel.SAMPLING,
    "N",
    rule=integers(-1, _INT32),
)

MIN_P = Flag(
    "Drop tokens below this share of the top probability.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.0, 1.0),
)

SEED = Flag(
    "Seed of the random streams of all rows.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, 2**63 - 1),
)

MAX_TOKENS = Flag(
    "Maximum number of tokens to generate. With --prompt-logprobs it may be 0.",
    Panel.SAMPLING,
    "N",
    rule=Rule(
        integers(0, _INT32).accepts,
        f"an integer from 1 to {_INT32}, or 0 with prompt_logprobs",
    ),
    declared=("--max-tokens", "-n"),
)

MIN_TOKENS = Flag(
    "Minimum number of tokens before a stop.", Panel.SAMPLING, "N", rule=integers(0, _INT32)
)

STOP = Flag(
    "Text that ends an answer. Repeatable.",
    Panel.SAMPLING,
    "TEXT",
    rule=Rule(
        is_stop,
        f"at most {MAX_STOP_STRINGS} non-empty strings of at most {MAX_STOP_LENGTH} "
        "Unicode characters",
    ),
)

STOP_TOKEN_IDS = Flag(
    "Token ids that end an answer. Repeatable, or comma separated.",
    Panel.SAMPLING,
    "IDS",
    form=Form.IDS,
    rule=Rule(is_id_list, f"a list of at most {MAX_STOP_TOKEN_IDS} token ids"),
)

IGNORE_EOS = Flag(
    "Continue after the model's end of text.",
    Panel.SAMPLING,
    rule=SWITCH,
)

REPETITION_PENALTY = Flag(
    "Above 1, tokens of the prompt and the answer become less likely to recur; "
    "below 1, more likely.",
    Panel.SAMPLING,
    "X",
    rule=floats(0.01, 100.0),
)

PRESENCE_PENALTY = Flag(
    "Subtracted from the logits of tokens that are in the answer.",
    Panel.SAMPLING,
    "X",
    rule=floats(-2.0, 2.0),
)

FREQUENCY_PENALTY = Flag(
    "Subtracted from a token's logit for each of its occurrences in the answer.",
    Panel.SAMPLING,
    "X",
    rule=floats(-2.0, 2.0),
)

LOGIT_BIAS = Flag(
    "Added to the logits of tokens: a JSON object from token ids to numbers.",
    Panel.SAMPLING,
    "JSON",
    form=Form.JSON,
    rule=LOGIT_BIAS_RULE,
)

ALLOWED_TOKEN_IDS = Flag(
    "Allow only these tokens. Repeatable, or comma separated.",
    Panel.SAMPLING,
    "IDS",
    form=Form.IDS,
    rule=ALLOWED_TOKEN_IDS_RULE,
)

BAD_WORDS = Flag(
    "Forbid this word in answers. Repeatable.",
    Panel.SAMPLING,
    "TEXT",
    rule=BAD_WORDS_RULE,
)

LOGPROBS = Flag(
    "Log-probabilities of the tokens of answers, with the N most likely at each position.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, MAX_LOGPROBS),
)

PROMPT_LOGPROBS = Flag(
    "Log-probabilities of the prompt's tokens, with the N most likely at each position.",
    Panel.SAMPLING,
    "N",
    rule=integers(0, MAX_LOGPROBS),
)

JSON_SCHEMA = Flag(
    "The answer is JSON that matches this schema, text or @file.",
    Panel.STRUCTURE,
    "TEXT",
    form=Form.PROSE,
    rule=Rule(is_json_schema, JSON_SCHEMA_WANTED),
)

JSON_OBJECT = Flag(
    "The answer is a JSON object.",
    Panel.STRUCTURE,
    rule=Rule(lambda value: isinstance(value, bool), "true or false"),
)

REGEX = Flag(
    "The whole answer matches this regular expression.",
    Panel.STRUCTURE,
    "REGEX",
    form=Form.EXPRESSION,
    rule=Rule(is_grammar_text, TEXT_WANTED),
)

CHOICE = Flag(
    "The answer is one of these texts. Repeatable.",
    Panel.STRUCTURE,
    "TEXT",
    rule=Rule(is_choice, CHOICE_WANTED),
)

GRAMMAR = Flag(
    "The answer is a sentence of this Lark or GBNF grammar, text or @file.",
    Panel.STRUCTURE,
    "TEXT",
    form=Form.PROSE,
    rule=Rule(is_grammar_text, TEXT_WANTED),
)

SKIP_SPECIAL_TOKENS = Flag("Omit special tokens from the text.", Panel.SAMPLING, rule=SWITCH)

INCLUDE_STOP_STR_IN_OUTPUT = Flag(
    "Keep the stop string or token in the text.", Panel.SAMPLING, rule=SWITCH
)

STOP_ON_REPETITION = Flag(
    "End an answer whose last tokens are one sequence repeated N times; 0: never.",
    Panel.SAMPLING,
    "N",
    rule=Rule(is_repetition, f"0, or an integer from 2 to {MAX_REPETITION}"),
)

REASONING_TAGS = Flag(
    "Tags of thoughts, which are separated from the text: auto (the chat "
    "template's), none, or two tags such as <think>,</think>.",
    Panel.SAMPLING,
    "TAGS",
    rule=Rule(
        is_reasoning_tags,
        f"auto, none, or two tags of at most {MAX_TAG_LENGTH} characters, separated by a comma",
    ),
)

THINKING_BUDGET = Flag(
    "Maximum number of tokens of a thought, after which its closing tag is forced.",
    Panel.SAMPLING,
    "N",
    rule=Rule(is_budget, "an integer of at least 0"),
)

VOTE = Flag(
    "Let the N answers vote with the match of a regular expression or json:PATH; "
    "sampling stops once the majority is certain.",
    Panel.SAMPLING,
    "VOTE",
    rule=Rule(
        is_vote,
        "a regular expression in RE2's syntax (no look-around, no backreferences), or "
        f"json: and a path, of at most {MAX_VOTE_LENGTH} characters",
    ),
)

BEAM_WIDTH = Flag(
    "Beam search with N beams, of which the best --n are returned; 1 disables it.",
    Panel.SAMPLING,
    "N",
    rule=integers(1, MAX_BEAM_WIDTH),
)

LENGTH_PENALTY = Flag(
    "Exponent of the length by which a beam's log-probability is divided.",
    Panel.SAMPLING,
    "X",
    rule=floats(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
)

EARLY_STOPPING = Flag(
    "End when as many beams are finished (true), when no better one is likely "
    "(false), or when none is possible (never).",
    Panel.SAMPLING,
    "WHEN",
    rule=Rule(lambda value: isinstance(value, EarlyStopping), 'true, false or "never"'),
)


@checked_class
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names and meanings are vLLM's; the defaults are those of a batch job.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps every token. `seed` selects a random stream
    that depends on (seed, row, sample, position) and on nothing else. `max_tokens` counts
    generated tokens, the end-of-sequence token included. A whole number may be given for a
    temperature, a list for a tuple, a single stop string or bad word for a list of one, and an
    object for the text of a JSON schema.

    `repetition_penalty` is for tokens of the prompt and the answer, `presence_penalty` and
    `frequency_penalty` are for those of the answer alone. `logit_bias` may be given as a mapping of
    token ids to biases, and is kept as pairs in the order of the ids. `allowed_token_ids` None
    allows all.

    `json_schema`, `json_object`, `regex`, `choice` and `grammar` exclude each other; in `override`
    the one given takes the place of another.

    Raises `UsageError` naming the field for a value of the wrong type or out of range, and for an
    argument that is no field.
    """

    n: Annotated[int, N] = 1
    temperature: Annotated[float, TEMPERATURE] = 0.0
    top_p: Annotated[float, TOP_P] = 1.0
    top_k: Annotated[int, TOP_K] = 0
    min_p: Annotated[float, MIN_P] = 0.0
    seed: Annotated[int, SEED] = 0
    max_tokens: Annotated[int, MAX_TOKENS] = 256
    min_tokens: Annotated[int, MIN_TOKENS] = 0
    stop: Annotated[tuple[str, ...], STOP] = ()
    stop_token_ids: Annotated[tuple[int, ...], STOP_TOKEN_IDS] = ()
    ignore_eos: Annotated[bool, IGNORE_EOS] = False
    repetition_penalty: Annotated[float, REPETITION_PENALTY] = 1.0
    presence_penalty: Annotated[float, PRESENCE_PENALTY] = 0.0
    frequency_penalty: Annotated[float, FREQUENCY_PENALTY] = 0.0
    logit_bias: Annotated[tuple[tuple[int, float], ...], LOGIT_BIAS] = ()
    allowed_token_ids: Annotated[tuple[int, ...] | None, ALLOWED_TOKEN_IDS] = None
    bad_words: Annotated[tuple[str, ...], BAD_WORDS] = ()
    logprobs: Annotated[int | None, LOGPROBS] = None
    prompt_logprobs: Annotated[int | None, PROMPT_LOGPROBS] = None
    json_schema: Annotated[str | None, JSON_SCHEMA] = None
    json_object: Annotated[bool, JSON_OBJECT] = False
    regex: Annotated[str | None, REGEX] = None
    choice: Annotated[tuple[str, ...], CHOICE] = ()
    grammar: Annotated[str | None, GRAMMAR] = None
    skip_special_tokens: Annotated[bool, SKIP_SPECIAL_TOKENS] = True
    include_stop_str_in_output: Annotated[bool, INCLUDE_STOP_STR_IN_OUTPUT] = False
    stop_on_repetition: Annotated[int, STOP_ON_REPETITION] = 0
    reasoning_tags: Annotated[str, REASONING_TAGS] = "auto"
    thinking_budget: Annotated[int | None, THINKING_BUDGET] = None
    vote: Annotated[str | None, VOTE] = None

    beam_width: Annotated[int, BEAM_WIDTH] = 1
    length_penalty: Annotated[float, LENGTH_PENALTY] = 1.0
    early_stopping: Annotated[EarlyStopping, EARLY_STOPPING] = EarlyStopping.FALSE

    def __post_init__(self) -> None:
        for name, rule, default in CHECKED:
            value = getattr(self, name)
            if value is default:  # as most are; a row in a large file has its own parameters
                continue
            value = _frozen(name, value)
            if value is None and name in _OPTIONAL:
                continue
            is_nothing = name == "max_tokens" and value == 0 and self.prompt_logprobs is None
            if not rule.accepts(value) or is_nothing:
                raise UsageError(f"{option(name)} must be {rule.wanted}")
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"{option('min_tokens')} {self.min_tokens} exceeds {option('max_tokens')} "
                f"{self.max_tokens}"
            )
        given = [name for name in STRUCTURES if getattr(self, name)]
        if len(given) > 1:
            raise UsageError(
                f"{' and '.join(map(option, given))} exclude each other", field=given[1]
            )
        if self.has_beams:
            self._check_beams()

    def _check_beams(self) -> None:
        """Raise `UsageError` for what beams are not combined with."""
        if self.n > self.beam_width:
            raise UsageError(
                f"{option('n')} {self.n} exceeds {option('beam_width')} {self.beam_width}"
            )
        plain = SamplingParams()
        for name in sorted(FIELD_NAMES - _WITH_BEAMS):
            if getattr(self, name) != getattr(plain, name):
                raise UsageError(f"{option(name)} cannot be combined with {option('beam_width')}")

    @property
    def has_beams(self) -> bool:
        """True for beam search."""
        return self.beam_width > 1

    @property
    def num_drawn_samples(self) -> int:
        """Samples that are drawn from the logits of the prompt; beams fork from one."""
        return 1 if self.has_beams else self.n

    @property
    def num_sequences(self) -> int:
        """Sequences that it may come to: its samples, or its beams."""
        return self.beam_width if self.has_beams else self.n

    @property
    def structure(self) -> Structure | None:
        """Structure of the answer, None without one."""
        for name in STRUCTURES:
            if value := getattr(self, name):
                return Structure.of(name, value)
        return None

    @property
    def follows_tokens(self) -> bool:
        """True if the host must know a token before the next one is drawn or scored: rules that
        depend on the tokens before, and log-probabilities."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return (
            penalties != (1.0, 0.0, 0.0)
            or bool(self.bad_words)
            or self.thinking_budget is not None
            or self.logprobs is not None
            or self.structure is not None
        )

    @property
    def max_num_drawn(self) -> int:
        """Tokens that are drawn at most: one also where none is wanted, which is dropped."""
        return max(self.max_tokens, 1)

    @property
    def is_greedy(self) -> bool:
        """True if the most probable token is chosen."""
        return self.temperature == 0.0

    @property
    def draws_equal_answers(self) -> bool:
        """True for several greedy answers, which are all equal."""
        return self.n > 1 and self.is_greedy and not self.has_beams

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """Return the ids of each field that holds some, whatever for."""
        return {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": tuple(token_id for token_id, _ in self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids or (),
        }

    @property
    def has_stops(self) -> bool:
        """True if stop strings, stop ids or repetition may end an answer before `max_tokens`."""
        return bool(self.stop or self.stop_token_ids or self.stop_on_repetition)

    def override(self, given: Mapping[str, Any]) -> "SamplingParams":
        """Return a copy with the fields of a row that name one; `None` means not given.

        `max_new_tokens` and `max_completion_tokens` mean `max_tokens`. False for one of the
        log-probabilities, as OpenAI's clients write it, means none of them. Raises `RowError` (code
        `invalid_param`) for a bad value.
        """
        changes: dict[str, Any] = {}
        for key, value in given.items():
            name = _ALIASES.get(key, key)
            if name in FIELD_NAMES and value is not None:
                changes[name] = None if name in _OPTIONAL and value is False else value
        if any(changes.get(name) for name in STRUCTURES):  # it takes the place of another one
            changes = {**_FREE, **changes}
        if not changes:
            return self
        try:
            return replace(self, **changes)
        except UsageError as error:
            raise RowError("invalid_param", str(error), param=error.field) from error


FIELD_NAMES = frozenset(field.name for field in fields(SamplingParams))
_DEFAULTS = {each.name: each.default for each in fields(SamplingParams)}
CHECKED = tuple(
    (each.field, each.flag.rule, _DEFAULTS[each.field])
    for each in flag_fields(SamplingParams)
    if each.flag.rule
)
_FLOATS = frozenset(each.field for each in flag_fields(SamplingParams) if each.kind is float)
# What means the same with beams, or nothing as with any greedy choice.
_WITH_BEAMS = frozenset(
    {
        "n",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "min_tokens",
        "stop_token_ids",
        "ignore_eos",
        "beam_width",
        "length_penalty",
        "early_stopping",
    }
)
_OPTIONAL = ("logprobs", "prompt_logprobs")  # None asks for none
_ALIASES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}
_FREE = {name: default for name, default in _DEFAULTS.items() if name in STRUCTURES}


def sampling_keys() -> frozenset[str]:
    """Return every key that a row may use to set a sampling field, aliases included."""
    return FIELD_NAMES | frozenset(_ALIASES)


def _frozen(name: str, value: object) -> object:
    """Convert a value to the type of its field, without accepting more values."""
    if name in ("stop", "bad_words") and isinstance(value, str):
        return (value,)
    if name == "logit_bias":
        return bias_pairs(value)
    if name == "json_schema":
        return canonical_schema(value)
    if isinstance(value, list):
        return tuple(value)
    if name == "early_stopping":
        word = str(value).lower() if isinstance(value, bool) else value
        return next((each for each in EarlyStopping if each == word), value)
    return as_float(value) if name in _FLOATS else value
