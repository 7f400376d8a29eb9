"""SamplingParams: how one request wants its tokens chosen, and when to stop."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pagedrun.paged.values.arguments import checked_class
from pagedrun.paged.values.errors import RowError, UsageError
from pagedrun.paged.values.flag import flag_fields
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.sampling import flags
from pagedrun.paged.values.sampling.early_stopping import EarlyStopping
from pagedrun.paged.values.sampling.rules import (
    as_float,
    bias_pairs,
)
from pagedrun.paged.values.sampling.structure import STRUCTURES, Structure, canonical_schema


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

    n: Annotated[int, flags.N] = 1
    temperature: Annotated[float, flags.TEMPERATURE] = 0.0
    top_p: Annotated[float, flags.TOP_P] = 1.0
    top_k: Annotated[int, flags.TOP_K] = 0
    min_p: Annotated[float, flags.MIN_P] = 0.0
    seed: Annotated[int, flags.SEED] = 0
    max_tokens: Annotated[int, flags.MAX_TOKENS] = 256
    min_tokens: Annotated[int, flags.MIN_TOKENS] = 0
    stop: Annotated[tuple[str, ...], flags.STOP] = ()
    stop_token_ids: Annotated[tuple[int, ...], flags.STOP_TOKEN_IDS] = ()
    ignore_eos: Annotated[bool, flags.IGNORE_EOS] = False
    repetition_penalty: Annotated[float, flags.REPETITION_PENALTY] = 1.0
    presence_penalty: Annotated[float, flags.PRESENCE_PENALTY] = 0.0
    frequency_penalty: Annotated[float, flags.FREQUENCY_PENALTY] = 0.0
    logit_bias: Annotated[tuple[tuple[int, float], ...], flags.LOGIT_BIAS] = ()
    allowed_token_ids: Annotated[tuple[int, ...] | None, flags.ALLOWED_TOKEN_IDS] = None
    bad_words: Annotated[tuple[str, ...], flags.BAD_WORDS] = ()
    logprobs: Annotated[int | None, flags.LOGPROBS] = None
    prompt_logprobs: Annotated[int | None, flags.PROMPT_LOGPROBS] = None
    json_schema: Annotated[str | None, flags.JSON_SCHEMA] = None
    json_object: Annotated[bool, flags.JSON_OBJECT] = False
    regex: Annotated[str | None, flags.REGEX] = None
    choice: Annotated[tuple[str, ...], flags.CHOICE] = ()
    grammar: Annotated[str | None, flags.GRAMMAR] = None
    skip_special_tokens: Annotated[bool, flags.SKIP_SPECIAL_TOKENS] = True
    include_stop_str_in_output: Annotated[bool, flags.INCLUDE_STOP_STR_IN_OUTPUT] = False
    stop_on_repetition: Annotated[int, flags.STOP_ON_REPETITION] = 0
    reasoning_tags: Annotated[str, flags.REASONING_TAGS] = "auto"
    thinking_budget: Annotated[int | None, flags.THINKING_BUDGET] = None
    vote: Annotated[str | None, flags.VOTE] = None

    beam_width: Annotated[int, flags.BEAM_WIDTH] = 1
    length_penalty: Annotated[float, flags.LENGTH_PENALTY] = 1.0
    early_stopping: Annotated[EarlyStopping, flags.EARLY_STOPPING] = EarlyStopping.FALSE

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

    @property
    def draws_equal_answers(self) -> bool:
        """Whether it asks for several answers that are equal, since there is nothing to draw."""
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
        """Whether something of its own may end an answer before `max_tokens`."""
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
