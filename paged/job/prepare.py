"""Everything that can be found wrong before the weights are read: files, rows, prompts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pagedrun.paged.errors import UsageError
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.interfaces import ModelOpener, ModelShape, OpenModel
from pagedrun.paged.job.listener import JobListener, Phase
from pagedrun.paged.job.manifest import InputDigest
from pagedrun.paged.job.output_file import STDOUT
from pagedrun.paged.job.prompts import PromptBuilder
from pagedrun.paged.job.reader import STDIN, JsonlReader, open_input
from pagedrun.paged.job.requests import JobRow, Limits, RequestBuilder
from pagedrun.paged.job.row import Row, refuse_duplicate_ids


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose rows are read and whose prompts are encoded."""

    model: OpenModel
    rows: Sequence[JobRow]
    source: InputDigest
    max_model_len: int


def prepare(config: JobConfig, listener: JobListener, open_model: ModelOpener) -> Prepared:
    """Read and encode the rows. Raises `UsageError` for what concerns all of them."""
    listener.on_phase(Phase.READ)
    rows, source = _read_rows(config)
    refuse_duplicate_ids(rows, config.input)
    listener.on_phase(Phase.ENCODE)
    folder = config.tokenizer or config.engine.model
    model = open_model(config.engine, folder, config.chat_template)
    max_model_len = _max_model_len(config, model.config)
    limits = Limits(max_model_len, model.config.vocab_size)
    _check_stop_token_ids(config, limits)
    prompts = PromptBuilder(config.prompts, config.sampling, model.tokenizer)
    job_rows = list(RequestBuilder(prompts, model.tokenizer, limits).build(rows))
    _warn(job_rows, max_model_len, listener)
    return Prepared(model, job_rows, source, max_model_len)


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
    if path.exists() and not config.overwrite:
        raise UsageError(f"--report {path} exists; pass --overwrite or name another file")


def _read_rows(config: JobConfig) -> tuple[list[Row], InputDigest]:
    with open_input(config.input) as stream:
        reader = JsonlReader(stream, config.input, config.max_line_bytes)
        try:
            rows = list(islice(reader, config.limit))
            cut = config.limit is not None and len(rows) == config.limit
            if cut and os.path.isfile(config.input):
                reader.lines.drain()
                cut = False
        except OSError as error:
            raise UsageError(f"{config.input}: cannot be read ({error.strerror})") from error
        return rows, InputDigest(reader.lines.num_bytes, reader.lines.sha256, whole=not cut)


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
            f"the first is line {first.line}: {first.error}"
        )
    num_clamped = sum(row.clamped for row in rows)
    if num_clamped:
        listener.on_warning(
            f"max_tokens of {num_clamped} rows was cut to the room that their prompts leave in "
            f"max_model_len {max_model_len}"
        )
