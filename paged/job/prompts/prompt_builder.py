"""Prompts of rows: text, chat or token ids, and sampling parameters.

A row is untrusted data. Parameters of other tools are refused unless they have no effect; columns
close to the name of a parameter are reported, not interpreted.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from jinja2 import TemplateError, meta, nodes

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns, Row, id_column
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.text.prompt import (
    CONTINUATIONS,
    PRIORITY,
    RAW,
    TEMPLATE_KWARGS,
    Prompt,
    TokenizerLike,
)
from pagedrun.paged.text.prompt_reader import PROMPT_FORMS, PromptReader
from pagedrun.paged.text.templates.sandbox import Sandbox
from pagedrun.paged.values.errors import RowError, nearest, option
from pagedrun.paged.values.flags import flag_fields
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import SamplingParams, sampling_keys

# Settings of prompts and code to run belong to the user and not to a row.
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
    """Builds prompts of rows; `defaults` are the sampling parameters of rows without their own."""

    def __init__(
        self, config: PromptConfig, defaults: SamplingParams, tokenizer: TokenizerLike
    ) -> None:
        self._config = config
        self._defaults = defaults
        self._reader = PromptReader(
            tokenizer,
            config.time,
            raw=config.raw,
            system=config.system,
            variables=config.template_kwargs,
            untrusted=True,
        )
        self._keys = request_keys() | {NESTED_PARAMS, CONTINUATIONS, PRIORITY}
        template = config.template
        self._template = NO_COLUMNS if template is None else TemplateColumns.of(template.source)

    def build(self, columns: Columns) -> Prompt:
        """Return the prompt of a row with these columns; raises `RowError` if it is invalid."""
        _refuse_columns(columns)
        params = _sampling_params(columns, self._defaults)
        fields = {name: columns.get(name) for name in (CONTINUATIONS, PRIORITY, RAW)}
        if self._config.field == RAW:
            del fields[RAW]
        return self._reader.read({**fields, **self._prompt(columns)}, params)

    def _prompt(self, columns: Columns) -> Columns:
        """Return the prompt by its form, see `PROMPT_FORMS`."""
        if self._config.template is not None:
            return {"prompt": self._config.template.render(columns)}
        name = self._config.field
        if name is None:
            if all(columns.get(name) is None for name in PROMPT_FORMS):
                raise RowError(
                    "missing_prompt",
                    f"no prompt, messages or prompt_token_ids; {option('prompt_field')} names "
                    "another column",
                    param="prompt",
                )
            return {name: columns.get(name) for name in PROMPT_FORMS}
        value = columns.get(name)
        if value is None:
            raise RowError("missing_prompt", f"no column {name!r}", param=name)
        if not isinstance(value, str):
            raise RowError("unsupported_content", f"{shown_key(name)} must be a string", param=name)
        return {"prompt": value}

    def refuse_unreadable(self, row: Row, also: Iterable[str] = ()) -> None:
        """Raise the error of an unreadable column that the prompt uses, or of an unfit one of a
        parameter; also: further columns."""
        if row.unreadable or row.unfit:
            used = self._used(row).union(also, UNSUPPORTED_COLUMNS)
            self._template.refuse_unreadable(row, used)

    def carried_columns(self, row: Row) -> dict[str, JSONValue]:
        """Return the columns that come back under `input`: all that are not used here."""
        used = self._used(row)
        return {name: value for name, value in row.given.items() if name not in used}

    def _used(self, row: Row) -> set[str | None]:
        used = {id_column(row.columns), NESTED_PARAMS, CONTINUATIONS, PRIORITY, RAW}
        used |= request_keys()
        if self._config.field is not None:
            used.add(self._config.field)
        elif self._config.template is None:
            used.update(PROMPT_FORMS)
        return used

    def near_misses_of(self, carried: Columns, columns: Columns) -> tuple[tuple[str, str], ...]:
        """Return the `carried` columns close to a parameter that the row does not have, with its
        name.

        Columns read by the template are left out, and so are those after the first thousand, which
        nobody typed.
        """
        return tuple(
            (name, key)
            for name, value in islice(carried.items(), MAX_NAMED)
            if (key := near_key(name, self._keys)) is not None
            and key not in columns
            and name not in self._template.names
            and accepts_value(key, value)
        )


def request_keys() -> frozenset[str]:
    """Return every key of a row that sets request parameters."""
    return sampling_keys() | {RESPONSE_FORMAT}


def _refuse_columns(columns: Columns) -> None:
    nested = columns.get(NESTED_PARAMS)
    for given in (columns, nested if isinstance(nested, dict) else {}):
        for name in FORBIDDEN_COLUMNS:
            if name in given:
                raise _forbidden(name)
        for name in UNSUPPORTED_COLUMNS:
            if given.get(name) is not None and not is_neutral(name, given[name]):
                raise not_supported(name)


def _forbidden(name: str) -> RowError:
    message = f"{name} cannot be set by a row"
    if name == TEMPLATE_KWARGS:
        message += f"; set them for all rows with {option(TEMPLATE_KWARGS)}"
    return RowError("forbidden_field", message, param=name)


def _sampling_params(columns: Columns, defaults: SamplingParams) -> SamplingParams:
    """Apply the row's top level, then its `sampling_params`, which take precedence."""
    nested = columns.get(NESTED_PARAMS)
    if nested is not None and not isinstance(nested, dict):
        raise RowError("invalid_param", f"{NESTED_PARAMS} must be an object", param=NESTED_PARAMS)
    known = request_keys()
    # One call, so that pairs such as min_tokens and max_tokens are checked together.
    given = {name: value for name, value in columns.items() if name in known}
    for name, value in (nested or {}).items():
        if name in UNSUPPORTED_COLUMNS:
            continue  # with a neutral value
        if name not in known:
            shown = shown_key(name)
            message = f"no sampling parameter {shown!r}{nearest(name, known)}"
            raise RowError("invalid_param", message, param=shown)
        if value is not None:
            given[name] = value
    return defaults.override(_with_structure(given))


def _with_structure(given: dict[str, JSONValue]) -> dict[str, JSONValue]:
    """Return the settings with the structure of `response_format`, if given."""
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


_IN_BRACES = re.compile(r"(?<!\{)\{\s*([^\W\d]\w*)\s*\}(?!\})")


@dataclass(frozen=True, slots=True)
class TemplateColumns:
    """Columns read by a template.

    `names` are its variables and the names it reads from `row`; `reads_row` is set if it uses the
    row in another way. `in_braces` are names in single braces in its text, the syntax of Python's
    and LangChain's formats, which Jinja prints unchanged.
    """

    names: frozenset[str]
    reads_row: bool
    in_braces: tuple[str, ...]

    @classmethod
    def of(cls, source: str) -> "TemplateColumns":
        """Return the columns of a template; none if it does not compile."""
        # A plain environment would compute constants during analysis: `9**9**9`, for ever.
        try:
            tree = Sandbox().parse(source)
            names = set(meta.find_undeclared_variables(tree))
        except (TemplateError, RecursionError):
            return NO_COLUMNS
        items = [each for each in tree.find_all(nodes.Getitem) if _is_row(each.node)]
        constants = [each.arg.value for each in items if isinstance(each.arg, nodes.Const)]
        attributes = [each.attr for each in tree.find_all(nodes.Getattr) if _is_row(each.node)]
        num_rows = sum(map(_is_row, tree.find_all(nodes.Name)))
        texts = [each.data for each in tree.find_all(nodes.TemplateData)]
        in_braces = [name for text in texts for name in _IN_BRACES.findall(text)]
        return cls(
            frozenset(names | {str(value) for value in constants} | set(attributes)),
            reads_row=num_rows > len(constants) + len(attributes),
            in_braces=tuple(dict.fromkeys(in_braces)),
        )

    def refuse_unreadable(self, row: Row, used: Container[str | None]) -> None:
        """Raise the error of an unreadable column that is `used`, or that the template may read, or
        of an unfit one that is `used`."""
        for name, error in row.unfit.items():
            if name in used:
                raise error
        for name, error in row.unreadable.items():
            if name in used or self.reads_row or name in self.names:
                raise error


def _is_row(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "row"


NO_COLUMNS = TemplateColumns(frozenset(), reads_row=False, in_braces=())


RESPONSE_FORMAT = "response_format"


def structure_of(value: JSONValue) -> dict[str, JSONValue]:
    """Return the sampling fields set by a `response_format`: one, or none for plain text.

    Raises `RowError` (`invalid_param`) for another type or a misplaced schema. A schema is enforced
    with or without `strict`.
    """
    asked = value if isinstance(value, dict) else {}
    match asked.get("type"):
        case "text":
            return {}
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            named = asked.get("json_schema")
            schema = named.get("schema") if isinstance(named, dict) else None
            if isinstance(schema, dict):
                return {"json_schema": schema}
            raise _invalid("needs the schema, an object, under json_schema.schema")
    raise _invalid("must be an object with type text, json_object or json_schema")


def _invalid(reason: str) -> RowError:
    return RowError("invalid_param", f"{RESPONSE_FORMAT} {reason}", param=RESPONSE_FORMAT)


# Ignoring these would give a wrong answer. Each with its replacement.
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
# In OpenAI's requests only; elsewhere they are ordinary columns.
_OPENAI_ONLY = {"echo": "use prompt_logprobs to score the prompt, alone with max_tokens 0"}
# Values without effect, since clients write out defaults; any other value is refused.
_NEUTRAL_VALUES: dict[str, tuple[JSONValue, ...]] = {
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "tools": ([],),
    "echo": (False,),  # this and the next two in OpenAI's requests only
    "stream": (False,),
    "suffix": ("",),
}


def is_neutral(name: str, value: object) -> bool:
    """Return true if an unsupported parameter has no effect with this value."""
    # By type too: in Python 0 and False are equal.
    neutral = _NEUTRAL_VALUES.get(name, ())
    return any(type(value) is type(each) and value == each for each in neutral)


def not_supported(name: str) -> RowError:
    """Return the error of an unsupported parameter, with its replacement if there is one."""
    instead = UNSUPPORTED_COLUMNS.get(name) or _OPENAI_ONLY.get(name)
    message = f"{name} is not supported" + (f"; {instead}" if instead else "")
    return RowError("invalid_param", message, param=name)


MAX_NAMED = 1000  # columns of a row whose names are compared with parameters
MIN_CHARS = 4  # of key and name; a shorter one is near too many words
_NUMBERS = frozenset(
    each.field for each in flag_fields(SamplingParams) if each.kind in (int, float, int | None)
)
_SWITCHES = frozenset(each.field for each in flag_fields(SamplingParams) if each.kind is bool)


@lru_cache(maxsize=4096)
def near_key(column: str, known: frozenset[str]) -> str | None:
    """Return the key that differs from a column by one letter, or only by case, `_` and `-`.

    None for a column in `known`, or close to none.
    """
    if column in known or len(column) < MIN_CHARS or len(column) > 64:
        return None
    by_form, by_length = _names(known)
    lowered = column.lower()
    lengths = range(len(lowered) - 1, len(lowered) + 2)
    near = (name for size in lengths for name in by_length.get(size, ()))
    return by_form.get(_folded(column)) or min(
        (name for name in near if _is_one_letter_off(lowered, name)), default=None
    )


@lru_cache(maxsize=8)
def _names(known: frozenset[str]) -> tuple[dict[str, str], dict[int, list[str]]]:
    """Return the keys by their folded form, and by their length."""
    by_form: dict[str, str] = {}
    by_length: dict[int, list[str]] = {}
    for name in sorted(name for name in known if len(name) >= MIN_CHARS):
        by_form.setdefault(_folded(name), name)
        by_length.setdefault(len(name), []).append(name)
    return by_form, by_length


def accepts_value(name: str, value: JSONValue) -> bool:
    """Return true if a value has the type of a parameter: other columns are data."""
    name = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}.get(name, name)
    if name in _NUMBERS:
        return _is_number(value)
    if name in _SWITCHES:
        return isinstance(value, bool)
    return value is not None and not isinstance(value, bool | int | float)


def _is_number(value: JSONValue) -> bool:
    if isinstance(value, str):  # a table without types has numbers as text
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _is_one_letter_off(column: str, name: str) -> bool:
    """Return true if inserting, deleting or swapping one letter turns `column` into `name`.

    In names longer than `MIN_CHARS` also replacing one: short words are close to each other, such
    as note and vote.
    """
    if len(column) == len(name):
        differs = [index for index, (a, b) in enumerate(zip(column, name, strict=True)) if a != b]
        if len(differs) == 1:
            return len(name) > MIN_CHARS
        if len(differs) != 2 or differs[1] != differs[0] + 1:
            return False
        first, second = differs
        return column[first] == name[second] and column[second] == name[first]
    short, long = sorted((column, name), key=len)
    if len(long) != len(short) + 1:
        return False
    return any(long[:index] + long[index + 1 :] == short for index in range(len(long)))
