"""From a row to what it asks: the text or token ids of its prompt, and its sampling parameters."""

from dataclasses import replace

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns, id_column
from pagedrun.paged.job.interfaces import TokenizerLike
from pagedrun.paged.job.prompts.foreign_params import (
    UNSUPPORTED_COLUMNS,
    is_neutral,
    not_supported,
)
from pagedrun.paged.job.prompts.messages import parse_messages
from pagedrun.paged.job.prompts.near_keys import could_be, near_key
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.prompts.response_format import RESPONSE_FORMAT, structure_of
from pagedrun.paged.job.prompts.template_columns import TemplateColumns
from pagedrun.paged.text.prompts.continuations import CONTINUATIONS, parse_continuations
from pagedrun.paged.text.prompts.priority import PRIORITY, parse_priority
from pagedrun.paged.text.prompts.prompt import Prompt
from pagedrun.paged.text.prompts.prompt_renderer import RAW, PromptRenderer, parse_raw
from pagedrun.paged.text.prompts.template_kwargs import TEMPLATE_KWARGS
from pagedrun.paged.text.prompts.token_ids import TOKEN_IDS, checked_token_ids
from pagedrun.paged.text.reasoning_tags import check_budget
from pagedrun.paged.values.errors import RowError, nearest, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import SamplingParams, sampling_keys

PROMPT_COLUMNS = ("prompt", "messages", TOKEN_IDS)
# What decides how a prompt is made, or what runs, is the user's to say and not a row's.
FORBIDDEN_COLUMNS = (
    "chat_template",
    TEMPLATE_KWARGS,
    "trust_remote_code",
    "add_generation_prompt",
    "continue_final_message",
    "lora_request",
    "mm_processor_kwargs",
    "media_io_kwargs",
)
NESTED_PARAMS = "sampling_params"


class PromptBuilder:
    """Builds prompts; `defaults` are the sampling parameters of rows that set none."""

    def __init__(
        self, config: PromptConfig, defaults: SamplingParams, tokenizer: TokenizerLike
    ) -> None:
        self._config = config
        self._defaults = defaults
        self._tokenizer = tokenizer
        self._renderer = PromptRenderer(
            tokenizer, config.time, raw=config.raw, system=config.system
        )
        self._keys = request_keys() | {NESTED_PARAMS, CONTINUATIONS, PRIORITY}
        template = config.template
        self._read = frozenset() if template is None else TemplateColumns.of(template.source).names

    def build(self, columns: Columns) -> Prompt:
        """Return what a row with these columns asks; `RowError` if it cannot be asked."""
        _refuse_columns(columns)
        params = _sampling_params(columns, self._defaults)
        check_budget(params, self._tokenizer.chat_template)
        continuations = parse_continuations(columns.get(CONTINUATIONS), params)
        priority = parse_priority(columns.get(PRIORITY))
        prompt = self._prompt(columns, params, is_scored=bool(continuations))
        return replace(prompt, priority=priority).followed_by(continuations)

    def _prompt(self, columns: Columns, params: SamplingParams, *, is_scored: bool) -> Prompt:
        variables, renderer = self._config.template_kwargs, self._renderer
        raw = None if self._config.field == RAW else parse_raw(columns.get(RAW))
        if self._config.template is not None:
            text = self._config.template.render(columns)
            return renderer.text(text, params, variables, raw=raw, is_scored=is_scored)
        name = self._prompt_column(columns)
        value = columns[name]
        if self._config.field is None and name == "messages":
            return renderer.chat(parse_messages(value), params, variables, raw=raw)
        if self._config.field is None and name == TOKEN_IDS:
            return Prompt(params, token_ids=self._token_ids(value))
        if not isinstance(value, str):
            raise RowError("unsupported_content", f"{shown_key(name)} must be a string", param=name)
        return renderer.text(value, params, variables, raw=raw, is_scored=is_scored)

    def carried_columns(self, columns: Columns) -> dict[str, JSONValue]:
        """Return the columns that come back under `input`: all that this layer did not use."""
        used = {id_column(columns), NESTED_PARAMS, CONTINUATIONS, PRIORITY, RAW} | request_keys()
        if self._config.field is not None:
            used.add(self._config.field)
        elif self._config.template is None:
            used.update(PROMPT_COLUMNS)
        return {name: value for name, value in columns.items() if name not in used}

    def misspelt_keys(self, carried: Columns, columns: Columns) -> tuple[tuple[str, str], ...]:
        """Return those of the `carried` columns that are near a key which the row does not have,
        each with that key; not what the template reads."""
        return tuple(
            (name, key)
            for name, value in carried.items()
            if (key := near_key(name, self._keys)) is not None
            and key not in columns
            and name not in self._read
            and could_be(key, value)
        )

    def _prompt_column(self, columns: Columns) -> str:
        names = PROMPT_COLUMNS if self._config.field is None else (self._config.field,)
        given = [name for name in names if columns.get(name) is not None]
        if len(given) == 1:
            return given[0]
        if given:
            raise RowError(
                "ambiguous_prompt", f"{' and '.join(given)} exclude each other", param=given[1]
            )
        if self._config.field is not None:
            raise RowError("missing_prompt", f"no column {names[0]!r}", param=names[0])
        raise RowError(
            "missing_prompt",
            f"no prompt, messages or prompt_token_ids; {option('prompt_field')} names another "
            "column",
            param="prompt",
        )

    def _token_ids(self, value: object) -> tuple[int, ...]:
        if self._config.system is not None:
            message = f"{TOKEN_IDS} cannot be combined with {option('system')}"
            raise RowError("unsupported_content", message, param=TOKEN_IDS)
        return checked_token_ids(value)


def request_keys() -> frozenset[str]:
    """Return every key of a row that says how its answer is made."""
    return sampling_keys() | {RESPONSE_FORMAT}


def _refuse_columns(columns: Columns) -> None:
    nested = columns.get(NESTED_PARAMS)
    for place in (columns, nested if isinstance(nested, dict) else {}):
        for name in FORBIDDEN_COLUMNS:
            if name in place:
                raise _forbidden(name)
        for name in UNSUPPORTED_COLUMNS:
            if place.get(name) is not None and not is_neutral(name, place[name]):
                raise not_supported(name)


def _forbidden(name: str) -> RowError:
    message = f"{name} cannot be set by a row"
    if name == TEMPLATE_KWARGS:
        message += f"; set them for all rows with {option(TEMPLATE_KWARGS)}"
    return RowError("forbidden_field", message, param=name)


def _sampling_params(columns: Columns, defaults: SamplingParams) -> SamplingParams:
    """Apply the row's top level, then its `sampling_params`, which wins."""
    nested = columns.get(NESTED_PARAMS)
    if nested is not None and not isinstance(nested, dict):
        raise RowError("invalid_param", f"{NESTED_PARAMS} must be an object", param=NESTED_PARAMS)
    known = request_keys()
    # One call, so that a pair such as min_tokens and max_tokens is judged when both are known.
    given = {name: value for name, value in columns.items() if name in known}
    for name, value in (nested or {}).items():
        if name in UNSUPPORTED_COLUMNS:
            continue  # with a value that asks for nothing
        if name not in known:
            shown = shown_key(name)
            message = f"no sampling parameter {shown!r}{nearest(name, known)}"
            raise RowError("invalid_param", message, param=shown)
        if value is not None:
            given[name] = value
    return defaults.override(_with_structure(given))


def _with_structure(given: dict[str, JSONValue]) -> dict[str, JSONValue]:
    """Return the same with what `response_format` asks for, if it is given."""
    value = given.pop(RESPONSE_FORMAT, None)
    asked = {} if value is None else structure_of(value)
    for name in asked:
        if given.get(name) is not None:
            raise RowError(
                "invalid_param",
                f"{RESPONSE_FORMAT} and {name} exclude each other",
                param=RESPONSE_FORMAT,
            )
    return given | asked
