"""Everything that can be found wrong before the weights are read: files, rows, prompts."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pagedrun.paged.errors import UsageError
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.input_digest import InputDigest
from pagedrun.paged.job.inputs.row_source import RowSource
from pagedrun.paged.job.interfaces import ModelOpener, ModelShape, OpenModel
from pagedrun.paged.job.listener import JobListener, Phase
from pagedrun.paged.job.output_file import STDOUT
from pagedrun.paged.job.prompts import PromptBuilder
from pagedrun.paged.job.reader import STDIN
from pagedrun.paged.job.requests import JobRow, Limits, RequestBuilder
from pagedrun.paged.job.row import Row
from pagedrun.paged.job.unique_ids import UniqueIds
from pagedrun.paged.job.windows import RowWindows


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose first rows are read and encoded: all of them, if they make one window.

    `more` yields the windows after the first, each read when it is asked for; None if there are
    none. `source` tells what was read so far.
    """

    model: OpenModel
    rows: Sequence[JobRow]
    more: Iterator[Sequence[JobRow]] | None
    source: Callable[[], InputDigest]
    max_model_len: int


def prepare(
    config: JobConfig, source: RowSource, listener: JobListener, open_model: ModelOpener
) -> Prepared:
    """Read and encode the first window. Raises `UsageError` for what concerns all rows."""
    listener.on_phase(Phase.READ)
    windows = RowWindows(source, config)
    ids = UniqueIds(config.input)
    rows = windows.read()
    ids.refuse_repeated(rows)
    listener.on_phase(Phase.ENCODE)
    folder = config.tokenizer or config.engine.model
    model = open_model(config.engine, folder, config.chat_template)
    max_model_len = _max_model_len(config, model.config)
    limits = Limits(max_model_len, model.config.vocab_size)
    _check_stop_token_ids(config, limits)
    prompts = PromptBuilder(config.prompts, config.sampling, model.tokenizer)
    builder = RequestBuilder(prompts, model.tokenizer, limits)

    def encode(window: Iterable[Row]) -> list[JobRow]:
        job_rows = list(builder.build(window))
        _warn(job_rows, max_model_len, listener)
        return job_rows

    def read_more() -> Iterator[list[JobRow]]:
        while not windows.is_last:
            yield encode(ids.fail_repeated(windows.read()))

    first = encode(rows)
    more = None if windows.is_last else read_more()
    return Prepared(model, first, more, windows.digest, max_model_len)


def check_side_files(config: JobConfig) -> None:
    """Raise `UsageError` if the report cannot go where it was asked to go."""
    path = config.report
    if path is None:
        return
    for other, what in ((config.input, "input"), (config.output, "output")):
        if other not in (STDIN, STDOUT) and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"--report {path} is the {what} itself; name another file")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--report {path}: name a file in an existing folder")
    if path.exists() and not (config.overwrite or config.resume):
        raise UsageError(f"--report {path} exists; pass --overwrite or name another file")


def _max_model_len(config: JobConfig, model: ModelShape) -> int:
    asked, most = config.engine.max_model_len, model.max_position_embeddings
    if asked is not None and asked > most:
        raise UsageError(
            f"--max-model-len is {asked} but the model was made for {most} positions; "
            f"pass at most {most}"
        )
    return asked or most


def _check_stop_token_ids(config: JobConfig, limits: Limits) -> None:
    for token_id in config.sampling.stop_token_ids:
        if token_id >= limits.vocab_size:
            raise UsageError(
                f"--stop-token-ids holds {token_id}, but the model's ids end at "
                f"{limits.vocab_size - 1}"
            )


def _warn(rows: Sequence[JobRow], max_model_len: int, listener: JobListener) -> None:
    refused = [row for row in rows if row.error is not None]
    if refused:
        first = refused[0]
        listener.on_warning(
            f"{len(refused)} of {len(rows)} rows cannot be asked; "
            f"the first is {first.unit} {first.line}: {first.error}"
        )
    num_clamped = sum(row.clamped for row in rows)
    if num_clamped:
        listener.on_warning(
            f"max_tokens of {num_clamped} rows was cut to the room that their prompts leave in "
            f"max_model_len {max_model_len}"
        )
