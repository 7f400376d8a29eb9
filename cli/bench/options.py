"""Flags common to several benchmarks, and readers of their values."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagedrun.cli.options.flags import plain_type
from pagedrun.cli.terminal.units import parse_size
from pagedrun.paged.bench.model_shapes import SHAPE_NAMES
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.flags import Flag, FlagField, Form, flag_fields

if TYPE_CHECKING:
    from pagedrun.paged.bench.throughput import Comparison
    from pagedrun.paged.bench.workload import BenchModel, Lengths

DEFAULT_SHAPE = "qwen3-0.6b"


class Heading(StrEnum):
    """Headings of flags, besides those of `generate`."""

    MODEL = "Model"
    ROWS = "Rows"
    LENGTHS = "Requests"
    SIZES = "Sizes"
    COMPARED = "Comparison"
    RESULT = "Result"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Model of a run: random weights in a known shape, or the weights of a folder."""

    shape: Annotated[
        str | None,
        Flag(
            f"Random weights in the shape of a known model: {', '.join(SHAPE_NAMES)}.",
            Heading.MODEL,
            "NAME",
            default=DEFAULT_SHAPE,
        ),
    ] = None
    layers: Annotated[
        int | None,
        Flag(
            "Cut the shape to N layers, and its vocabulary in proportion.",
            Heading.MODEL,
            "N",
            low=1,
        ),
    ] = None
    model: Annotated[
        str | None,
        Flag("Model folder, or hub id org/name, instead of a shape.", Heading.MODEL, "NAME"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions:
    """Heads of keys and values, instead of those of a shape."""

    kv_heads: Annotated[
        int | None,
        Flag("Number of key and value heads.", Heading.MODEL, "N", default="the shape's", low=1),
    ] = None
    head_dim: Annotated[
        int | None, Flag("Size of a head.", Heading.MODEL, "N", default="the shape's", low=1)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """Path of the page."""

    html: Annotated[
        Path | None,
        Flag(
            "Write the result as a page with charts: one file of 5 MB that needs no network.",
            Heading.RESULT,
            "PATH",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Paths of the result."""

    save: Annotated[
        Path | None, Flag("Save the result as FILE.json or FILE.md.", Heading.RESULT, "FILE")
    ] = None
    json_result: Annotated[
        bool, Flag("Print the result as JSON on stdout.", Heading.RESULT, declared=("--json",))
    ] = False
    quiet: Annotated[
        bool,
        Flag("Show errors only: no progress, no tables.", Heading.RESULT, declared=("--quiet",)),
    ] = False


# Fixed by the weights, which both runs share.
_FIXED = frozenset({"model", "dtype", "device"})
_SETTINGS = {each.name: each for each in flag_fields(EngineConfig) if each.name not in _FIXED}


def bench_model(options: ModelOptions, revision: str | None) -> "BenchModel":
    """Return the model of `--shape` and `--layers`, or of `--model`; raises `UsageError`."""
    from pagedrun.paged.bench.workload import BenchModel
    from pagedrun.paged.models.hub import resolve_model

    if options.model is None:
        if revision is not None:
            raise UsageError("--revision needs --model with a name on the hub")
        return BenchModel.from_shape(options.shape or DEFAULT_SHAPE, options.layers)
    if options.shape is not None:
        raise UsageError(
            "--model and --shape exclude each other: weights are either read or random"
        )
    if options.layers is not None:
        raise UsageError("--layers cuts a --shape; a --model runs as it is")
    return BenchModel.from_folder(resolve_model(options.model, revision))


def comparison(text: str) -> "Comparison":
    """Return the settings of `--compare text`; raises `UsageError`."""
    from pagedrun.paged.bench.throughput import Comparison

    if text == "alone":
        return Comparison("each row alone", alone=True)
    if text == "no-sharing":
        return Comparison("no sharing", {"prefix_caching": False}, alone=True)
    return Comparison(f"--{text.removeprefix('--')}", changed_setting(text))


def changed_setting(text: str) -> dict[str, Any]:
    """Return the changed fields of `EngineConfig` of `--compare text`.

    `text` is a flag of the engine without its dashes: `no-prefix-once`, `block-size=32`. Raises
    `UsageError` if it is not one.
    """
    flag, equals, value = text.removeprefix("--").partition("=")
    negated = flag.startswith("no-")
    name = flag.removeprefix("no-").replace("-", "_")
    is_switch = name in _SETTINGS and _SETTINGS[name].kind is bool
    if name not in _SETTINGS or (is_switch and equals) or (not is_switch and negated):
        raise UsageError(
            f"--compare {text} is not a setting of the engine; it takes alone, no-sharing, "
            f"{', '.join(map(_as_written, _SETTINGS))}"
        )
    if is_switch:
        return {name: not negated}
    if not equals:
        raise UsageError(f"--compare {text} needs a value, such as {_as_written(name)}")
    return {name: _value(_SETTINGS[name], value, text)}


def numbers(text: str, flag: str) -> list[int]:
    """Return the whole numbers in `0,128,512`, without repeats; raises `UsageError`."""
    words = [word.strip() for word in text.split(",")]
    if not all(map(_is_number, words)):
        raise UsageError(f"{flag} takes whole numbers, such as {flag} 0,128,512")
    return list(dict.fromkeys(map(int, words)))


def lengths(text: str, flag: str) -> "int | Lengths":
    """Return the number in `64`, or the range in `100:1024`; raises `UsageError`."""
    from pagedrun.paged.bench.workload import Lengths

    words = [word.strip() for word in text.split(":")]
    if len(words) > 2 or not all(map(_is_number, words)):
        raise UsageError(f"{flag} takes a number or a range, such as {flag} 64 or {flag} 100:1024")
    low, high = int(words[0]), int(words[-1])
    if low > high:
        raise UsageError(f"{flag} {text}: a range goes from the smaller number to the larger")
    return Lengths(low, high) if len(words) == 2 else low


def _is_number(word: str) -> bool:
    return word.isdecimal() and word.isascii() and len(word) < 8


def _value(field: FlagField, value: str, text: str) -> Any:
    kind = plain_type(field)
    if field.flag.form is Form.SIZE:
        try:
            return parse_size(value)
        except typer.BadParameter as error:
            raise UsageError(f"--compare {text}: {error.message}") from error
    if kind is float:
        try:
            return float(value)
        except ValueError:
            raise UsageError(f"--compare {text}: {value} is not a number") from None
    if kind is not int:
        return value  # a word, which EngineConfig checks
    if not value.isdecimal() or not value.isascii() or len(value) > 12:
        raise UsageError(f"--compare {text}: {value} is not a whole number")
    return int(value)


def _as_written(name: str) -> str:
    flag = name.replace("_", "-")
    return f"[no-]{flag}" if _SETTINGS[name].kind is bool else f"{flag}=…"
