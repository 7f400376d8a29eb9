"""Readers of typed values, files named by flags, and the text of a question."""

import io
import select
import shlex
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pagedrun.cli.options.flags import TypedValues, plain_type
from pagedrun.paged.job.inputs.json_line import parse_value
from pagedrun.paged.job.prompts.prompt_config import PromptTemplate
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.flags import FlagField, Form, flag_fields

T = TypeVar("T")
MAX_NAME_CHARS = 1024  # of a path


def read(config: type[T], given: TypedValues, **known: object) -> T:
    """Return a configuration of typed and known values, defaults otherwise.

    Raises `UsageError` for an invalid value.
    """
    return config(**{**values_of(config, given, set(known)), **known})


def values_of(
    config: type, given: TypedValues, but: set[str] | frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the typed values of a configuration by field, without the fields in `but`."""
    return {
        each.field: _value(each, given[each.name])
        for each in flag_fields(config)
        if each.name in given and each.field not in but
    }


def text_or_file(value: str | None, name: str) -> str | None:
    """Return `value`, or for `@path` the contents of that file without its last newline.

    Raises `UsageError`, naming the option `name`, for an unreadable file, and for the name of a
    file without `@`.
    """
    if value is None or not value.startswith("@"):
        if value is not None and _is_file(value):
            raise UsageError(
                f"{option(name)} {value} is the name of a file; did you mean {option(name)} "
                f"@{value}, to use its contents?"
            )
        return value
    return file_text(value[1:], f"{option(name)} {value}")


def _is_file(text: str) -> bool:
    """Return whether a text is the path of an existing file."""
    try:
        return len(text) <= MAX_NAME_CHARS and Path(text).is_file()
    except (OSError, ValueError):
        return False


def file_text(path: str, named: str) -> str:
    """Return the contents of a text file without its last newline.

    Raises `UsageError`, beginning with `named`, for an unreadable file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{named}: the file is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{named}: the file cannot be read ({reason})") from error
    return text.removesuffix("\n")


def _value(field: FlagField, typed: Any) -> Any:
    match field.flag.form:
        case Form.PROSE:
            return text_or_file(typed, field.name)
        case Form.TEMPLATE:
            text = text_or_file(typed, field.name)
            return None if text is None else PromptTemplate(text)
        case Form.EXPRESSION if _is_file(typed):
            raise UsageError(
                f"{option(field.name)} {typed} is the name of a file; it takes the expression "
                f'itself: {option(field.name)} "$(cat {shlex.quote(typed)})"'
            )
        case Form.IDS:
            return _token_ids(typed, option(field.name))
        case Form.JSON:
            return _json(typed, field.name)
    kind = plain_type(field)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(typed)
    if isinstance(typed, StrEnum):  # an allowed word of a text field
        return typed.value
    return tuple(typed) if isinstance(typed, list) else typed


def _json(text: str, name: str) -> Any:
    try:
        return parse_value(text)
    except RowError as error:
        raise UsageError(f"{option(name)} takes JSON: {error.marked}") from error


def _token_ids(texts: list[str], name: str) -> tuple[int, ...]:
    words = [word.strip() for text in texts for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and len(word) < 10 for word in words):
        raise UsageError(f"{name} takes token ids, such as {name} 2,50256")
    return tuple(int(word) for word in words)


PATIENCE_SECONDS = 2.0


def question_text(typed: str, files: Iterable[str], wait: Callable[[], None]) -> str:
    """Return files, standard input and typed text, separated by blank lines.

    Standard input is not read from a terminal; `wait` is called after `PATIENCE_SECONDS` without
    input. Raises `UsageError` for a part that is not text, and for an empty question.
    """
    parts = [file_text(path, f"{option('file')} {path}") for path in files]
    parts += [_standard_input(wait), typed]
    whole = "\n\n".join(part for part in parts if part)
    if not whole.strip():
        raise UsageError(
            f'the question is missing; type it after ask, as in pagedrun ask "Why?", name a '
            f"{option('file')}, or pipe it in"
        )
    return whole


def _standard_input(wait: Callable[[], None]) -> str:
    stream = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        return ""
    try:
        if not select.select([stream], [], [], PATIENCE_SECONDS)[0]:
            wait()
    except (io.UnsupportedOperation, ValueError):
        pass  # not a file descriptor: no waiting
    try:
        return stream.buffer.read().decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError("standard input is not UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"standard input cannot be read ({error.strerror})") from error
