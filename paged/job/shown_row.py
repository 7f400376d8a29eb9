"""Prompt of one input row as encoded for the model, for `pagedrun show`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Protocol

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.reader import open_inputs
from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.open_model import PlanModel
from pagedrun.paged.job.output.manifest import DEFAULT_ORIGIN, Setting, sampling_values
from pagedrun.paged.job.prepare import Prepared, prepare
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.planning.prefix_tree import request_tree
from pagedrun.paged.text.incremental_text import REPLACEMENT
from pagedrun.paged.text.prompt import Overlong
from pagedrun.paged.text.prompt_reader import PromptMode
from pagedrun.paged.values.errors import RowError, UsageError, WrittenError, as_flag, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams

_CUT_END = {Overlong.TRUNCATE_LEFT: "left", Overlong.TRUNCATE_RIGHT: "right"}


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Number of leading prompt `tokens` that so many `rows` have in common."""

    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Special token, or text between two of them; `shared` if it is in the prefix shared with other
    prompts.
    """

    text: str
    special: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class ShownRow:
    """Row with its encoded prompt; written as `json_fields` does, with the same keys for all.

    `line` is the position of the row in the input, in `unit`. `text` is the text of the `token_ids`
    and of its `parts`; `prompt_mode` tells whether the chat template was applied.
    `truncated_tokens` were cut from the prompt, at its end `truncated_from`, to fit
    `max_model_len`; `max_tokens_clamped` if the answer was. `shared` has the prefixes in common
    with others of the `rows` that are planned together, shortest first. `continuations` are scored
    after the prompt, in place of sampling. `sampling` has the parameters in effect and their
    origins: "flag", "recipe", "model", "row", "room" (left by the prompt) or "default".

    An invalid row has an `error`, and neither mode nor text nor tokens.
    """

    index: int
    id: str | int
    line: int
    unit: str
    prompt_mode: PromptMode | None
    text: str | None
    parts: tuple[PromptPart, ...]
    token_ids: tuple[int, ...]
    prompt_tokens: int
    truncated_tokens: int
    truncated_from: str | None
    max_tokens_clamped: bool
    max_model_len: int
    rows: int
    shared: tuple[SharedPart, ...]
    continuations: tuple[str, ...]
    sampling: Mapping[str, Setting]
    input: Columns
    error: WrittenError | None


@dataclass(frozen=True, slots=True)
class Found:
    """Row to show, with the `error` of an invalid one."""

    row: ShownRow
    error: RowError | None


def show_row(
    config: JobConfig, listener: JobListener, *, index: int | None = None, id: str | None = None
) -> Found:
    """Return the row of the job's input with this index, else with this id, else the first.

    Raises `UsageError` for errors that a run would refuse as a whole, and if there is no such row.
    """
    is_wanted, name = _wanted(index, id)
    with open_inputs(config.inputs, config.reading) as source:
        prepared = prepare(config, source, listener, PlanModel)
        num_rows = 0
        for window in chain([prepared.rows], prepared.later(())):
            for row in window:
                if is_wanted(row):
                    listener.on_phase(Phase.PLAN)
                    return Found(_shown(row, window, prepared, config), row.error)
            num_rows += len(window)
    raise _no_such_row(config, name, num_rows, index)


def _wanted(index: int | None, id: str | None) -> tuple[Callable[[JobRow], bool], str]:
    """Return the predicate of the wanted row, and its name in messages."""
    if index is None and id is not None:
        return lambda row: str(row.id) == id, f"{option('id')} {id}"
    return lambda row: row.index == (index or 0), f"{option('row')} {index or 0}"


def _no_such_row(config: JobConfig, name: str, num_rows: int, index: int | None) -> UsageError:
    read = f"the first {num_rows:,} rows" if num_rows == config.limit else f"{num_rows:,} rows"
    numbers = f"numbered 0 to {num_rows - 1}" if num_rows > 1 else "numbered 0"
    by_id = "" if index is None else f"; {option('id')} {index} is the row with that id"
    return UsageError(
        f"{name}: there is no such row among {read} of {config.input_shown}, {numbers}{by_id}"
    )


def _shown(
    row: JobRow, window: Sequence[JobRow], prepared: Prepared, config: JobConfig
) -> ShownRow:
    model, request = prepared.model, row.request
    assert isinstance(model, PlanModel)
    shared = () if request is None else _shared(request, window, config.engine.block_size)
    ids = () if request is None else request.prompt_token_ids
    parts = prompt_parts(model.tokenizer, ids, shared[-1].tokens if shared else 0)
    continuations = () if request is None else request.continuations
    is_sampled = request is not None and not continuations
    return ShownRow(
        index=row.index,
        id=row.id,
        line=row.row.line,
        unit=row.row.unit,
        prompt_mode=None if request is None else _mode(row),
        text=None if request is None else "".join(part.text for part in parts),
        parts=parts,
        token_ids=ids,
        prompt_tokens=row.encoded.num_prompt_tokens,
        truncated_tokens=row.encoded.num_truncated_tokens,
        truncated_from=_CUT_END[config.on_overlong] if row.encoded.num_truncated_tokens else None,
        max_tokens_clamped=row.encoded.clamped,
        max_model_len=prepared.max_model_len,
        rows=len(window),
        shared=shared,
        continuations=tuple(each.text for each in continuations),
        sampling=_sampling(request.params, config, clamped=row.encoded.clamped)
        if request is not None and is_sampled
        else {},
        input=row.input,
        error=None if row.error is None else row.error.to_dict(as_flag),
    )


def _mode(row: JobRow) -> PromptMode:
    return PromptMode.CHAT if row.is_chat else PromptMode.RAW


def _shared(request: Request, window: Sequence[JobRow], block_size: int) -> tuple[SharedPart, ...]:
    """Return the prefixes that a prompt has in common with others of its window, in tokens.

    They are independent of the block size, which a run may fit to its device.
    """
    requests = [row.request for row in window if row.request is not None]
    tree = request_tree(requests, block_size)
    index = next(index for index, each in enumerate(requests) if each is request)
    return tuple(SharedPart(each.num_tokens, each.num_rows) for each in tree.prefixes_of(index))


def _sampling(params: SamplingParams, config: JobConfig, *, clamped: bool) -> dict[str, Setting]:
    """Return each parameter in effect; values other than the job's come from the row."""
    of_job, found = sampling_values(config.sampling), {}
    for name, value in sampling_values(params).items():
        origin = config.origins.get(name, DEFAULT_ORIGIN)
        if value != of_job[name]:
            origin = "room" if clamped and name in ("max_tokens", "min_tokens") else "row"
        found[name] = Setting(value, origin)
    return found


class Decoder(Protocol):
    """Part of `Tokenizer` that decodes token ids."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Return the ids of the special tokens."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""


def prompt_parts(
    decoder: Decoder, token_ids: Sequence[int], num_shared: int
) -> tuple[PromptPart, ...]:
    """Return the parts of a prompt, in order; together they are its text.

    num_shared: length of the shared prefix in tokens, where text is split in two; a character
    across that border is not shared.
    """
    parts: list[PromptPart] = []
    before: list[int] = []  # a special token: after it a decoder keeps the leading space of text
    position = 0
    for special, run in groupby(token_ids, lambda token: token in decoder.special_ids):
        tokens = list(run)
        if special:
            for token in tokens:
                position += 1
                text = decoder.decode([token], skip_special_tokens=False)
                parts.append(PromptPart(text, special=True, shared=position <= num_shared))
            before = tokens[-1:]
            continue
        parts += _texts(decoder, before, tokens, num_shared - position)
        position += len(tokens)
    return tuple(parts)


def _texts(
    decoder: Decoder, before: list[int], tokens: list[int], num_shared: int
) -> Iterator[PromptPart]:
    """Yield the shared beginning of a text and its rest, unless empty."""
    context = len(decoder.decode(before, skip_special_tokens=False)) if before else 0
    text = decoder.decode([*before, *tokens], skip_special_tokens=False)[context:]
    head = ""
    if num_shared >= len(tokens):
        head = text
    elif num_shared > 0:
        head = decoder.decode([*before, *tokens[:num_shared]], skip_special_tokens=False)[context:]
        head = head.rstrip(REPLACEMENT)
    head = head if text.startswith(head) else ""
    if head:
        yield PromptPart(head, special=False, shared=True)
    if len(head) < len(text):
        yield PromptPart(text[len(head) :], special=False, shared=False)
