"""SamplingParams: how one request wants its tokens chosen, and when to stop."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.flag import Flag, Form, Panel, flag_fields
from pagedrun.paged.values.rules import Rule, floats, integers
from pagedrun.paged.values.sampling_rules import (
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    is_id_list,
    is_share,
    is_stop,
)

MAX_N = 1024
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names and meanings are vLLM's; the defaults are those of a batch job.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps every token. `seed` selects a random stream
    that depends on (seed, row, sample, position) and on nothing else. `max_tokens` counts
    generated tokens, the end-of-sequence token included. A whole number may be given for a
    temperature, a list for a tuple, and a single stop string for a list of one.

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
        int, Flag("Most tokens to generate.", Panel.SAMPLING, "N", rule=integers(1, _INT32))
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
            rule=Rule(lambda value: isinstance(value, bool), "true or false"),
        ),
    ] = False

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            value = _frozen(name, getattr(self, name))
            if not rule.accepts(value):
                raise RowError("invalid_param", f"{name} must be {rule.wanted}", param=name)
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise RowError(
                "invalid_param",
                f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}",
                param="min_tokens",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the choice is the most probable token, with no randomness."""
        return self.temperature == 0.0

    def override(self, given: Mapping[str, object]) -> "SamplingParams":
        """Return a copy with the fields of `given` that name one; `None` means not given.

        `max_new_tokens` and `max_completion_tokens` mean `max_tokens`. Raises `RowError` for
        a bad value.
        """
        changes: dict[str, Any] = {}
        for key, value in given.items():
            name = _ALIASES.get(key, key)
            if name in FIELD_NAMES and value is not None:
                changes[name] = value
        return replace(self, **changes) if changes else self


FIELD_NAMES = frozenset(field.name for field in fields(SamplingParams))
_RULES = {each.field: each.flag.rule for each in flag_fields(SamplingParams) if each.flag.rule}
_ALIASES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}


def sampling_keys() -> frozenset[str]:
    """Return every key that a row may use to set a sampling field, aliases included."""
    return FIELD_NAMES | frozenset(_ALIASES)


def _frozen(name: str, value: object) -> object:
    """Turn what callers say into the field's own type, without widening what is accepted."""
    if name == "stop" and isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(value)
    if name in ("temperature", "top_p", "min_p") and isinstance(value, int):
        # True is no number; an integer of hundreds of digits has no float, and is out of range.
        return value if isinstance(value, bool) or abs(value) > _INT32 else float(value)
    return value
