"""The types of an output row's keys, as far as they do not depend on the rows."""

from dataclasses import fields

from pagedrun.paged.job.output.batch_row import BatchRow
from pagedrun.paged.job.output.formats.value_type import ListOf, Plain, StructOf, ValueType
from pagedrun.paged.job.output.output_row import OutputRow
from pagedrun.paged.job.output.usage import Usage

_OF_JOURNAL = "used"  # only there
OUTPUT_KEYS = tuple(each.name for each in fields(OutputRow) if each.name != _OF_JOURNAL)
_BATCH_KEYS = [each.name for each in fields(BatchRow) if each.name != _OF_JOURNAL]
USAGE_KEYS = tuple(each.name for each in fields(Usage))
ROW_KEYS = tuple(dict.fromkeys((*OUTPUT_KEYS, *_BATCH_KEYS)))

_CHOSEN = {
    "token_id": Plain.INTEGER,
    "text": Plain.TEXT,
    "logprob": Plain.NUMBER,
    "rank": Plain.INTEGER,
}
_LOGPROBS = ListOf(StructOf({**_CHOSEN, "top": ListOf(StructOf(_CHOSEN))}))
_OUTPUT = StructOf(
    {
        "index": Plain.INTEGER,
        "text": Plain.TEXT,
        "token_ids": ListOf(Plain.INTEGER),
        "finish_reason": Plain.TEXT,
        "stop_reason": Plain.NAME,
        "cumulative_logprob": Plain.NUMBER,
        "logprobs": _LOGPROBS,
        "reasoning": Plain.TEXT,
        "beam_score": Plain.NUMBER,
    },
    optional=frozenset({"reasoning", "beam_score"}),
)
_USAGE = StructOf(
    {name: Plain.BOOLEAN if name == "max_tokens_clamped" else Plain.INTEGER for name in USAGE_KEYS}
)
_ERROR = StructOf(
    {"code": Plain.TEXT, "message": Plain.TEXT, "param": Plain.TEXT, "line": Plain.INTEGER}
)
_SCORE = StructOf(
    {
        "text": Plain.TEXT,
        "logprob": Plain.NUMBER,
        "num_tokens": Plain.INTEGER,
        "is_greedy": Plain.BOOLEAN,
        "token_logprobs": ListOf(Plain.NUMBER),
    }
)
_VOTE = StructOf({"winner": Plain.TEXT, "counts": Plain.JSON, "drawn": Plain.INTEGER})
ROW = StructOf(
    {
        "index": Plain.INTEGER,
        "text": Plain.TEXT,
        "finish_reason": Plain.TEXT,
        "outputs": ListOf(_OUTPUT),
        "usage": _USAGE,
        "error": _ERROR,
        "prompt_logprobs": _LOGPROBS,
        "scores": ListOf(_SCORE),
        "vote": _VOTE,
    }
)
NAMES = ("id", "custom_id")  # texts, integers, or both


def known_type(column: str, *, flat: bool = False) -> ValueType | None:
    """Return the type of a column of the output, None if it is up to the rows.

    column: a key, or a path of keys and places with dots. flat: whether the keys of `usage` are
    columns.
    """
    if flat and column in _USAGE.fields:
        return _USAGE.fields[column]
    found: ValueType | None = ROW
    for part in column.split("."):
        match found:
            case StructOf(named):
                found = named.get(part)
            case ListOf(element) if part.isdecimal():
                found = element
            case _:
                return None
    return found
