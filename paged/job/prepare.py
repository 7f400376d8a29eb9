"""Preparation of a job: reads, checks and encodes the rows before the weights are read.

Rows are read in windows that fit into memory, however long the input is.
"""

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from pagedrun.paged.execution.pooling.texts import PooledTextEncoder, TextLimits
from pagedrun.paged.job.config import STDOUT, JobConfig
from pagedrun.paged.job.input_checks import (
    UniqueIds,
    check_all_failed,
    check_prompt_columns,
    check_template,
)
from pagedrun.paged.job.inputs.byte_streams import ReadCancellation
from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.reader import STDIN, is_repeatable, open_inputs
from pagedrun.paged.job.inputs.row import InputDigest, InputFacts, Row, RowSource
from pagedrun.paged.job.interfaces import ModelOpener, ModelShape, OpenModel
from pagedrun.paged.job.open_model import PooledFolder
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.requests import JobRow, RequestBuilder
from pagedrun.paged.job.prompts.texts import TextBuilder
from pagedrun.paged.planning.windows import Windows
from pagedrun.paged.text.prompt import RAW
from pagedrun.paged.text.prompt_encoder import Limits, PromptEncoder
from pagedrun.paged.text.prompt_reader import PromptMode, PromptModes
from pagedrun.paged.text.reasoning import check_budget
from pagedrun.paged.values.errors import RowError, UsageError, option


@dataclass(frozen=True, slots=True)
class Prepared:
    """Job with the rows of its first window read and encoded.

    `later` yields further windows, each read on demand; its argument are the indices of rows that
    an earlier run has answered. `is_read` returns True once the last window is read. `source` and
    `facts` describe the input read so far, `prompt_mode` the prompts of the first window.
    """

    model: OpenModel
    rows: Sequence[JobRow]
    has_more: bool
    later: Callable[[Container[int]], Iterator[Sequence[JobRow]]]
    is_read: Callable[[], bool]
    source: Callable[[], InputDigest]
    max_model_len: int
    prompt_mode: PromptMode
    facts: Callable[[], InputFacts]


def prepare(
    config: JobConfig,
    source: RowSource,
    listener: JobListener,
    open_model: ModelOpener,
    stop: ReadCancellation | None = None,
    *,
    keeps_columns: bool = False,
) -> Prepared:
    """Read and encode the first window. Raises `UsageError` for errors of the whole input.

    With `strict` that includes any invalid row: all rows are checked before anything is loaded if
    the input can be read twice. `stop` ends the reading of later windows, which may be in another
    thread; the listener is not called for their rows. `keeps_columns` is for outputs made of all
    columns.
    """
    listener.on_phase(Phase.READ)
    windows = RowWindows(source, config, stop)
    ids = UniqueIds(config.input_shown)
    rows = windows.read()
    for note in source.facts.notes.values():
        listener.on_warning(note)
    ids.refuse_repeated(rows)
    if config.pooled is None:
        check_prompt_columns(rows, config)
    check_template(rows, config, listener)
    listener.on_phase(Phase.ENCODE)
    folder = config.tokenizer or config.engine.model
    model = open_model(config.engine, folder, config.chat_template)
    max_model_len = _max_model_len(config, model.config)
    if isinstance(model, PooledFolder):
        max_model_len = min(max_model_len, model.spec.max_length)
    builder = _builder(config, model, max_model_len, keeps_columns=keeps_columns)

    def encode(window: Iterable[Row], done: Container[int] = ()) -> list[JobRow]:
        built = builder.build(window, done)
        return list(_refuse_bad(built, config) if config.strict else built)

    def later(done: Container[int]) -> Iterator[list[JobRow]]:
        while not windows.is_last:
            yield encode(windows.unless_stopped(ids.fail_repeated(windows.read())), done)

    first = encode(rows)
    check_all_failed(rows, first, config)
    modes = _prompt_modes(first, config, model)
    if config.pooled is None:
        listener.on_prompts(modes)
    warn_of_rows(first, max_model_len, listener)
    has_more = not windows.is_last
    if config.strict and has_more and is_repeatable(*config.inputs):
        _refuse_bad_beyond(len(first), config, builder)
    return Prepared(
        model,
        first,
        has_more,
        later,
        lambda: windows.is_last,
        windows.digest,
        max_model_len,
        modes.mode,
        lambda: source.facts,
    )


class Builder(Protocol):
    """Builder of a `JobRow` for each row."""

    def build(self, rows: Iterable[Row], done: Container[int] = ()) -> Iterator[JobRow]:
        """Yield one `JobRow` for each row, in order; done: indices of rows answered earlier."""
        ...


def _builder(
    config: JobConfig, model: OpenModel, max_model_len: int, *, keeps_columns: bool
) -> Builder:
    """Return the builder of the rows' requests; raises `UsageError` for settings that do not fit
    the model."""
    size = model.config.vocab_size
    if config.pooled is not None:
        assert isinstance(model, PooledFolder), "opened for a task"
        in_chunks = config.pooled.chunks is not None
        texts = TextLimits(max_model_len, size, config.on_overlong, in_chunks)
        encoder = PooledTextEncoder(model.tokenizer, model.spec, texts)
        return TextBuilder(
            encoder, model.spec, config.pooled, config.prompts, keeps_columns=keeps_columns
        )
    limits = Limits(max_model_len, size, config.on_overlong)
    _check_token_ids(config, limits)
    _check_structure(config, model)
    _check_thinking_budget(config, model)
    prompts = PromptBuilder(config.prompts, config.sampling, model.tokenizer)
    prompt_encoder = PromptEncoder(model.tokenizer, limits, model.refused)
    return RequestBuilder(prompts, prompt_encoder, keeps_columns=keeps_columns)


def check_side_files(config: JobConfig) -> None:
    """Raise `UsageError` for an unwritable report, or an output equal to `from_output`."""
    old = config.from_output
    if old is not None and os.path.realpath(old) == os.path.realpath(config.output):
        raise UsageError(f"{option('from')} {old} is the output itself; name another one with -o")
    path = config.report
    if path is None:
        return
    inputs = ((name, "input") for name in config.inputs)
    for other, what in (*inputs, (config.output, "output")):
        if other not in (STDIN, STDOUT) and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"{option('report')} {path} is the {what} itself; name another file")
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise UsageError(f"{option('report')} {path}: name a file in an existing folder")
    if path.exists() and not (config.overwrite or config.resume):
        raise UsageError(
            f"{option('report')} {path} exists; pass {option('overwrite')} or name another file"
        )


def _max_model_len(config: JobConfig, model: ModelShape) -> int:
    asked, most = config.engine.max_model_len, model.max_position_embeddings
    if asked is not None and asked > most:
        raise UsageError(
            f"{option('max_model_len')} is {asked}, but the model has only {most} positions; "
            f"pass at most {most}"
        )
    return asked or most


def _check_token_ids(config: JobConfig, limits: Limits) -> None:
    for name, token_ids in config.sampling.token_ids().items():
        for token_id in token_ids:
            if token_id >= limits.vocab_size:
                raise UsageError(
                    f"{option(name)} has the id {token_id}, but the model's ids end at "
                    f"{limits.vocab_size - 1}"
                )


def _check_structure(config: JobConfig, model: OpenModel) -> None:
    structure = config.sampling.structure
    if structure is None:
        return
    for error in model.refused([structure]).values():
        name = structure.field
        raise UsageError(option(name) + error.marked.removeprefix(name), field=name) from error


def _check_thinking_budget(config: JobConfig, model: OpenModel) -> None:
    try:
        check_budget(config.sampling, model.tokenizer.chat_template)
    except RowError as error:
        name = error.param or ""
        raise UsageError(option(name) + error.marked.removeprefix(name)) from error


def _prompt_modes(rows: Sequence[JobRow], config: JobConfig, model: OpenModel) -> PromptModes:
    """Return the numbers of valid rows read as chats and raw."""
    asked = [row.is_chat for row in rows if row.request is not None]
    why_raw = None
    if model.tokenizer.chat_template is None:
        why_raw = "the model has no chat template"
    elif config.prompts.raw and config.prompts.system is None:
        origin = config.origins.get(RAW)
        why_raw = option(RAW) if origin == "flag" else f"set by the {origin}"
        if origin is None:  # no current origin: set by `ResumedRun`
            why_raw = "as in the run that is resumed"
    of = "the model" if config.chat_template is None else option("chat_template")
    return PromptModes(sum(asked), len(asked) - sum(asked), f"chat template of {of}", why_raw)


def _refuse_bad(rows: Iterable[JobRow], config: JobConfig) -> Iterator[JobRow]:
    """Yield rows; raise `UsageError` at the first invalid one."""
    for row in rows:
        if row.error is not None:
            raise refused_row(config.input, row.row, row.error)
        for name, key in row.near_misses:
            place = row.row.place_in(config.input)
            raise UsageError(
                f"{place}: {shown_key(name)} sets nothing: did you mean {key}? {option('strict')} "
                "refuses the whole input for it; rename it if it is data"
            )
        yield row


def _refuse_bad_beyond(num_rows: int, config: JobConfig, builder: Builder) -> None:
    """Check the rows after the first `num_rows` in a second reading of the input."""
    with open_inputs(config.inputs, config.reading) as source:
        rows = islice(iter(source), num_rows, config.limit)
        for _ in _refuse_bad(builder.build(rows), config):
            pass


def warn_of_rows(rows: Sequence[JobRow], max_model_len: int, listener: JobListener) -> None:
    """Warn of invalid, truncated and suspicious rows of a window."""
    refused = [(row, row.error) for row in rows if row.error is not None]
    if refused:
        first, error = refused[0]
        verb = "is" if len(refused) == 1 else "are"
        listener.on_warning(
            f"{len(refused):,} of {len(rows):,} rows {verb} invalid; "
            f"the first is {first.place}: {error.marked}"
        )
    _warn_of_keys(rows, listener)
    _warn_of_equal_answers(rows, listener)
    num_cut = sum(row.encoded.num_truncated_tokens > 0 for row in rows)
    if num_cut:
        listener.on_warning(
            f"the prompts of {num_cut} rows were truncated to fit max_model_len {max_model_len}"
        )
    num_clamped = sum(row.encoded.clamped for row in rows)
    if num_clamped:
        listener.on_warning(
            f"max_tokens of {num_clamped} rows was reduced to the room that their prompts leave in "
            f"max_model_len {max_model_len}"
        )


def _warn_of_keys(rows: Sequence[JobRow], listener: JobListener) -> None:
    """Warn once of each column close to the name of a parameter."""
    counts = Counter(pair for row in rows for pair in row.near_misses)
    for (name, key), count in counts.items():
        first = next(row for row in rows if (name, key) in row.near_misses)
        noun = "row has" if count == 1 else "rows have"
        listener.on_warning(
            f"{count:,} {noun} a column {shown_key(name)}, the first is {first.place}: did you "
            f"mean {key}? It is kept as data and changes no answer"
        )


def _warn_of_equal_answers(rows: Sequence[JobRow], listener: JobListener) -> None:
    """Warn of greedy rows with several answers, which are all equal."""
    # A scored text is a sample too, but not a drawn one.
    requests = ((row, row.request) for row in rows if row.request is not None)
    asked = [(row, request.params) for row, request in requests if not request.continuations]
    equal = [(row, params) for row, params in asked if params.draws_equal_answers]
    if not equal:
        return
    first, params = equal[0]
    count = "1 row asks" if len(equal) == 1 else f"{len(equal):,} rows ask"
    vote = ", and their vote is that of one" if params.vote is not None else ""
    listener.on_warning(
        f"{count} for several answers at temperature 0, which are all equal{vote}; the first is "
        f"{first.place} with n {params.n}: pass {option('temperature')} 0.7 or so to have "
        f"different ones, or {option('n')} 1"
    )


class RowWindows:
    """Reader of one window after the other.

    Raises `UsageError` if the source cannot be read, and for a bad row of a `strict` job.
    """

    def __init__(
        self, source: RowSource, config: JobConfig, stop: ReadCancellation | None = None
    ) -> None:
        self._config = config
        self._source = source
        self._stop = stop or ReadCancellation()
        rows = self.unless_stopped(islice(iter(source), config.limit))
        wanted = self._refuse_bad(rows) if config.strict else rows
        self._windows = Windows(self._counted(wanted), config.window, lambda: source.num_bytes_read)
        self._num_read = 0
        self._digest: InputDigest | None = None

    @property
    def is_last(self) -> bool:
        """True if no row is left."""
        return self._digest is not None

    def read(self) -> list[Row]:
        """Return the rows of the next window."""
        try:
            rows = self._windows.read()
            if self._windows.is_last:
                self._finish()
            return rows
        except OSError as error:
            name = self._config.input_shown
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from error

    def unless_stopped(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; raises `ReadingStoppedError` after cancellation."""
        for row in rows:
            self._stop.check()
            yield row

    def digest(self) -> InputDigest:
        """Return the digest of the rows so far, of all rows after the last window."""
        return self._digest or self._source.digest(whole=False)

    def _counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._num_read += 1
            yield row

    def _refuse_bad(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if row.error is not None:
                raise refused_row(self._config.input, row, row.error)
            yield row

    def _finish(self) -> None:
        was_cut = self._num_read == self._config.limit
        whole = not was_cut or self._source.drain()
        self._digest = self._source.digest(whole=whole)


def refused_row(name: str, row: Row, error: RowError) -> UsageError:
    """Return the `strict` refusal of a whole input because of one row."""
    return UsageError(
        f"{row.place_in(name)}: {error.marked} ({error.code}); {option('strict')} refuses the "
        "whole input; without it the row gets an error instead of an answer"
    )
