"""SamplingParams: how one request wants its tokens chosen, and when to stop."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pagedrun.paged.values.early_stopping import EarlyStopping
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.flag import Flag, Form, Panel, flag_fields
from pagedrun.paged.values.logprobs import MAX_LOGPROBS
from pagedrun.paged.values.rules import Rule, floats, integers
from pagedrun.paged.values.sampling_rules import (
    ALLOWED_TOKEN_IDS,
    BAD_WORDS,
    LOGIT_BIAS,
    MAX_REPETITION,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TAG_LENGTH,
    as_float,
    bias_pairs,
    is_budget,
    is_id_list,
    is_reasoning_tags,
    is_repetition,
    is_share,
    is_stop,
)
from pagedrun.paged.values.structure import STRUCTURES, Structure, canonical_schema
from pagedrun.paged.values.structure_rules import (
    CHOICE_WANTED,
    JSON_SCHEMA_WANTED,
    TEXT_WANTED,
    is_choice,
    is_grammar_text,
    is_json_schema,
)
from pagedrun.paged.values.vote import MAX_VOTE_LENGTH, is_vote

MAX_N = 1024
SWITCH = Rule(lambda value: isinstance(value, bool), "true or false")
MAX_BEAM_WIDTH = 16
MAX_LENGTH_PENALTY = 5.0  # a length to this power is still a float32
_INT32 = 2**31 - 1


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

    Raises `RowError` (code `invalid_param`) for a value of the wrong type or out of range.
    """

    n: Annotated[
        int, Flag("Answers for each row.", Panel.SAMPLING, "N", rule=integers(1, MAX_N))
    ] = 1
    temperature: Annotated[
        float, Flag("0 is greedy.", Panel.SAMPLING, "X", rule=floats(0.0, 100.0))
    ] = 0.0
    top_p: Annotated[
        float,
        Flag(
            "Keep the likeliest tokens of this mass.",
            Panel.SAMPLING,
            "X",
            rule=Rule(is_share, "a number above 0 and at most 1"),
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Flag(
            "Keep the K likeliest tokens; 0 keeps all.",
            Panel.SAMPLING,
            "N",
            rule=integers(-1, _INT32),
        ),
    ] = 0
    min_p: Annotated[
        float,
        Flag(
            "Drop tokens below this share of the top one.",
            Panel.SAMPLING,
            "X",
            rule=floats(0.0, 1.0),
        ),
    ] = 0.0
    seed: Annotated[
        int,
        Flag(
            "Selects the random stream of every row.",
            Panel.SAMPLING,
            "N",
            rule=integers(0, 2**63 - 1),
        ),
    ] = 0
    max_tokens: Annotated[
        int,
        Flag(
            "Most tokens to generate. 0, with --prompt-logprobs: none.",
            Panel.SAMPLING,
            "N",
            rule=Rule(
                integers(0, _INT32).accepts,
                f"an integer from 1 to {_INT32}, or 0 with prompt_logprobs",
            ),
        ),
    ] = 256
    min_tokens: Annotated[
        int, Flag("Fewest tokens before a stop.", Panel.SAMPLING, "N", rule=integers(0, _INT32))
    ] = 0
    stop: Annotated[
        tuple[str, ...],
        Flag(
            "Text that ends an answer. Repeatable.",
            Panel.SAMPLING,
            "TEXT",
            rule=Rule(
                is_stop,
                f"at most {MAX_STOP_STRINGS} non-empty strings of at most {MAX_STOP_LENGTH} "
                "Unicode characters",
            ),
        ),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        Flag(
            "Token ids that end an answer. Repeatable, or comma separated.",
            Panel.SAMPLING,
            "IDS",
            form=Form.IDS,
            rule=Rule(is_id_list, f"a list of at most {MAX_STOP_TOKEN_IDS} token ids"),
        ),
    ] = ()
    ignore_eos: Annotated[
        bool,
        Flag(
            "Go on after the model's end of text.",
            Panel.SAMPLING,
            rule=SWITCH,
        ),
    ] = False
    repetition_penalty: Annotated[
        float,
        Flag(
            "Above 1: tokens of the prompt and the answer are less likely again; below: more.",
            Panel.SAMPLING,
            "X",
            rule=floats(0.01, 100.0),
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Flag(
            "Taken from the logits of tokens that are in the answer.",
            Panel.SAMPLING,
            "X",
            rule=floats(-2.0, 2.0),
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Flag(
            "Taken from a token's logit for each time it is in the answer.",
            Panel.SAMPLING,
            "X",
            rule=floats(-2.0, 2.0),
        ),
    ] = 0.0
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        Flag(
            "Added to the logits of tokens: a JSON object of token ids and numbers.",
            Panel.SAMPLING,
            "JSON",
            form=Form.JSON,
            rule=LOGIT_BIAS,
        ),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        Flag(
            "No other tokens are chosen. Repeatable, or comma separated.",
            Panel.SAMPLING,
            "IDS",
            form=Form.IDS,
            rule=ALLOWED_TOKEN_IDS,
        ),
    ] = None
    bad_words: Annotated[
        tuple[str, ...],
        Flag(
            "A word that no answer has. Repeatable.",
            Panel.SAMPLING,
            "TEXT",
            rule=BAD_WORDS,
        ),
    ] = ()
    logprobs: Annotated[
        int | None,
        Flag(
            "Log-probabilities of the tokens of answers, with the N likeliest at each place.",
            Panel.SAMPLING,
            "N",
            rule=integers(0, MAX_LOGPROBS),
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Flag(
            "Log-probabilities of the prompt's tokens, with the N likeliest at each place.",
            Panel.SAMPLING,
            "N",
            rule=integers(0, MAX_LOGPROBS),
        ),
    ] = None
    json_schema: Annotated[
        str | None,
        Flag(
            "The answer is JSON by this schema, text or @file.",
            Panel.STRUCTURE,
            "TEXT",
            form=Form.PROSE,
            rule=Rule(is_json_schema, JSON_SCHEMA_WANTED),
        ),
    ] = None
    json_object: Annotated[
        bool,
        Flag(
            "The answer is a JSON object.",
            Panel.STRUCTURE,
            rule=Rule(lambda value: isinstance(value, bool), "true or false"),
        ),
    ] = False
    regex: Annotated[
        str | None,
        Flag(
            "The whole answer matches this regular expression.",
            Panel.STRUCTURE,
            "REGEX",
            rule=Rule(is_grammar_text, TEXT_WANTED),
        ),
    ] = None
    choice: Annotated[
        tuple[str, ...],
        Flag(
            "The answer is this text, or another one named. Repeatable.",
            Panel.STRUCTURE,
            "TEXT",
            rule=Rule(is_choice, CHOICE_WANTED),
        ),
    ] = ()
    grammar: Annotated[
        str | None,
        Flag(
            "The answer is a sentence of this Lark grammar, text or @file.",
            Panel.STRUCTURE,
            "TEXT",
            form=Form.PROSE,
            rule=Rule(is_grammar_text, TEXT_WANTED),
        ),
    ] = None
    skip_special_tokens: Annotated[
        bool, Flag("Leave special tokens out of the text.", Panel.SAMPLING, rule=SWITCH)
    ] = True
    include_stop_str_in_output: Annotated[
        bool,
        Flag("Keep the stop string or token in the text.", Panel.SAMPLING, rule=SWITCH),
    ] = False
    stop_on_repetition: Annotated[
        int,
        Flag(
            "End an answer whose last tokens are the same few N times over; 0: never.",
            Panel.SAMPLING,
            "N",
            rule=Rule(is_repetition, f"0, or an integer from 2 to {MAX_REPETITION}"),
        ),
    ] = 0
    reasoning_tags: Annotated[
        str,
        Flag(
            "What marks thoughts, kept apart from the text: auto (what the chat template has), "
            "none, or two tags such as <think>,</think>.",
            Panel.SAMPLING,
            "TAGS",
            rule=Rule(
                is_reasoning_tags,
                f"auto, none, or two tags of at most {MAX_TAG_LENGTH} characters with a comma "
                "between",
            ),
        ),
    ] = "auto"
    thinking_budget: Annotated[
        int | None,
        Flag(
            "Most tokens of a thought; then its closing tag is forced.",
            Panel.SAMPLING,
            "N",
            rule=Rule(is_budget, "an integer of at least 0"),
        ),
    ] = None
    vote: Annotated[
        str | None,
        Flag(
            "Let the N answers vote by what a regular expression or json:PATH finds; no more are "
            "drawn than decide.",
            Panel.SAMPLING,
            "VOTE",
            rule=Rule(
                is_vote,
                "a regular expression as RE2 takes it (without look-around and back-references), "
                f"or json: and a path, of at most {MAX_VOTE_LENGTH} characters",
            ),
        ),
    ] = None

    beam_width: Annotated[
        int,
        Flag(
            "Beam search with N beams, best first, of which --n are returned. 1 is none.",
            Panel.SAMPLING,
            "N",
            rule=integers(1, MAX_BEAM_WIDTH),
        ),
    ] = 1
    length_penalty: Annotated[
        float,
        Flag(
            "Beams are scored by their log-probability over their length to this power.",
            Panel.SAMPLING,
            "X",
            rule=floats(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
        ),
    ] = 1.0
    early_stopping: Annotated[
        EarlyStopping,
        Flag(
            "End when as many beams are finished (true), or when no better one is likely.",
            Panel.SAMPLING,
            "WHEN",
            rule=Rule(lambda value: isinstance(value, EarlyStopping), 'true, false or "never"'),
        ),
    ] = EarlyStopping.FALSE

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = _frozen(name, getattr(self, name))
            if value is None and name in _OPTIONAL:
                continue
            is_nothing = name == "max_tokens" and value == 0 and self.prompt_logprobs is None
            if not rule.accepts(value) or is_nothing:
                raise RowError("invalid_param", f"{name} must be {rule.wanted}", param=name)
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise RowError(
                "invalid_param",
                f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}",
                param="min_tokens",
            )
        given = [name for name in STRUCTURES if getattr(self, name)]
        if len(given) > 1:
            raise RowError(
                "invalid_param", f"{' and '.join(given)} exclude each other", param=given[1]
            )
        if self.has_beams:
            self._check_beams()

    def _check_beams(self) -> None:
        """Raise `RowError` for what beams are not combined with."""
        if self.n > self.beam_width:
            raise RowError(
                "invalid_param", f"n {self.n} exceeds beam_width {self.beam_width}", param="n"
            )
        plain = SamplingParams()
        for name in sorted(FIELD_NAMES - _WITH_BEAMS):
            if getattr(self, name) != getattr(plain, name):
                raise RowError(
                    "invalid_param", f"{name} cannot be combined with beam_width", param=name
                )

    @property
    def has_beams(self) -> bool:
        """Whether its answers are found by beam search."""
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
        """What the answer must be a sentence of, None if it is free."""
        for name in STRUCTURES:
            if value := getattr(self, name):
                return Structure.of(name, value)
        return None

    @property
    def max_num_drawn(self) -> int:
        """Tokens that are drawn at most: one also where none is wanted, which is dropped."""
        return max(self.max_tokens, 1)

    @property
    def is_greedy(self) -> bool:
        """Whether the choice is the most probable token, with no randomness."""
        return self.temperature == 0.0

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """Return the ids of each field that holds some, whatever for."""
        return {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": tuple(token_id for token_id, _ in self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids or (),
        }

    @property
    def has_stops(self) -> bool:
        """Whether something of its own may end an answer before `max_tokens`."""
        return bool(self.stop or self.stop_token_ids or self.stop_on_repetition)

    def override(self, given: Mapping[str, Any]) -> "SamplingParams":
        """Return a copy with the fields of `given` that name one; `None` means not given.

        `max_new_tokens` and `max_completion_tokens` mean `max_tokens`. Raises `RowError` for
        a bad value.
        """
        changes: dict[str, Any] = {}
        for key, value in given.items():
            name = _ALIASES.get(key, key)
            if name in FIELD_NAMES and value is not None:
                changes[name] = value
        if any(changes.get(name) for name in STRUCTURES):  # it takes the place of another one
            changes = {**_FREE, **changes}
        return replace(self, **changes) if changes else self


FIELD_NAMES = frozenset(field.name for field in fields(SamplingParams))
_RULES = {each.field: each.flag.rule for each in flag_fields(SamplingParams) if each.flag.rule}
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
_FREE = {each.name: each.default for each in fields(SamplingParams) if each.name in STRUCTURES}


def sampling_keys() -> frozenset[str]:
    """Return every key that a row may use to set a sampling field, aliases included."""
    return FIELD_NAMES | frozenset(_ALIASES)


def _frozen(name: str, value: object) -> object:
    """Turn what callers say into the field's own type, without widening what is accepted."""
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
