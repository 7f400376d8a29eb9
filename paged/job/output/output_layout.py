"""Files of an output, and their conversion from the journal.

Rows are appended to a journal of JSON lines in every output format, so that every run can be
resumed. Output other than plain JSONL is converted from it at the end.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pagedrun.paged.files.atomic import make_folder, remove_leftovers, replace_file
from pagedrun.paged.job.config import DIGESTS_SUFFIX, JOURNAL_SUFFIX, STDOUT, JobConfig
from pagedrun.paged.job.inputs.byte_streams import is_remote
from pagedrun.paged.job.inputs.row import InputFacts
from pagedrun.paged.job.output.column_types import EMBEDDING, row_format
from pagedrun.paged.job.output.kept_tables import KeptRows, KeptTables
from pagedrun.paged.job.output.output_file import (
    OutputError,
    OutputFormat,
    reason_of,
    refuse_target,
)
from pagedrun.paged.job.output.row_columns import (
    INPUT,
    OutputColumns,
    RowColumns,
    RowShaper,
    json_keys_of,
)
from pagedrun.paged.job.output.table_files import (
    ColumnTypes,
    VectorColumn,
    column_names,
    column_types,
    csv_lines,
    parquet_pieces,
    require_pyarrow,
)
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.pooling import Task, VectorType


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Journal and files of an output.

    Rows are appended to `journal` as lines of JSON. It is converted to `files` when all rows are
    finished; none if the journal is the output itself.
    """

    output: str
    format: OutputFormat
    columns: RowColumns
    journal: str
    files: tuple[Path, ...]

    @classmethod
    def of(cls, config: JobConfig) -> "OutputLayout":
        """Return the layout of a job's output.

        Raises `UsageError` for an unknown ending, for columns that no row has, and for a stream
        where a file is needed.
        """
        if is_remote(config.output):
            raise UsageError(
                f"{config.output}: answers are written to a local disk, so that an interrupted "
                "run can continue; name a local file, and copy it afterwards",
                field="output",
            )
        kind = OutputFormat.JSONL if config.output == STDOUT else OutputFormat.of(config.output)
        task = None if config.pooled is None else config.pooled.task
        _check_kind(config, kind, task)
        columns = RowColumns.parse(
            config.columns,
            flatten=config.flatten,
            is_table=kind in (OutputFormat.CSV, OutputFormat.PARQUET),
            answer=config.answer_column,
            explodes=config.explode_json,
            format=row_format(config.pooled),
        )
        if config.pooled is not None and task is Task.EMBED:
            _check_vectors(columns, kind, config.pooled.vector_type)
        is_plain = kind is OutputFormat.JSONL and columns.is_identity
        if is_plain and config.shards is None:
            return cls(config.output, kind, columns, config.output, ())
        path = Path(config.output)
        if config.output == STDOUT or (path.exists() and not (path.is_file() or path.is_dir())):
            asked = {"shards": config.shards, "explode_json": config.explode_json}
            asked["output"] = kind is not OutputFormat.JSONL
            name = next((name for name, value in asked.items() if value), None)
            if name is None:
                return cls(config.output, kind, columns, config.output, ())
            hint = f", or the keys with {option('columns')} json.KEY" * (name == "explode_json")
            raise UsageError(
                f"{option(name)} needs all rows first, so it cannot stream; give a file with -o"
                f"{hint}",
                field=name,
            )
        if kind is OutputFormat.PARQUET:
            require_pyarrow(config.output)
        files = (path,) if config.shards is None else _shards(path, kind, config.shards)
        return cls(config.output, kind, columns, f"{config.output}{JOURNAL_SUFFIX}", files)

    def parts(self, num_rows: int) -> Iterator[tuple[Path, int, int]]:
        """Yield each file with the index of its first row and the number of its rows."""
        least, rest = divmod(num_rows, len(self.files))
        start = 0
        for number, path in enumerate(self.files):
            count = least + (number < rest)
            yield path, start, count
            start += count

    @property
    def digests(self) -> Path | None:
        """Path of the digests of the lines in the journal; None if that is a stream."""
        path = Path(self.journal)
        if self.journal == STDOUT or (path.exists() and not path.is_file()):
            return None
        return path.with_name(path.name + DIGESTS_SUFFIX)

    @property
    def streams_columns(self) -> bool:
        """True if columns of a row are written as soon as it is answered."""
        return not self.files and not self.columns.is_identity

    @property
    def keeps_columns(self) -> bool:
        """True if the journal keeps all columns of the input, for files made of it."""
        return (bool(self.files) and self.format is not OutputFormat.NPY) or self.streams_columns

    @property
    def keeps_tables(self) -> bool:
        """True if columns of Arrow inputs come back as they were."""
        names = self.columns.names
        is_table = bool(self.files) and self.format is OutputFormat.PARQUET
        return is_table and (
            not names or any(name == INPUT or self.columns.is_of_input(name) for name in names)
        )

    @property
    def shown(self) -> str:
        """Name of the output in messages."""
        if len(self.files) < 2:
            return str(self.files[0]) if self.files else self.output
        return f"{self.files[0]} … {self.files[-1].name}"

    @property
    def is_made(self) -> bool:
        """True if all files are present, from any run."""
        return bool(self.files) and all(path.exists() for path in self.files)

    def check(self, config: JobConfig) -> None:
        """Raise `UsageError` if one of the files cannot be created or must not be replaced."""
        replaces = config.overwrite or config.resume
        for path in (str(each) for each in self.files or (self.output,)):
            for name in config.inputs if path != STDOUT else ():
                refuse_target(path, name, overwrite=replaces)
        if config.shards is not None:
            self._refuse_other_shards()

    def _refuse_other_shards(self) -> None:
        """Refuse shards of another number beside these: a pattern would match both."""
        stem, ending = self.format.parted(Path(self.output))
        name = re.compile(rf"{re.escape(stem.name)}-\d{{5}}-of-\d{{5}}{re.escape(ending)}")
        ours = {path.name for path in self.files}
        folder = Path(self.output).parent
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        for each in found:
            if name.fullmatch(each) and each not in ours:
                raise UsageError(
                    f"{folder / each} belongs to another number of shards; move those files "
                    "away, or name another output with -o",
                    field="shards",
                )


def _check_kind(config: JobConfig, kind: OutputFormat, task: Task | None) -> None:
    """Refuse a format that the results of a task do not have; task: None for answers."""
    if task is None and kind is OutputFormat.NPY:
        raise UsageError(
            f"{config.output}: an array holds vectors, which pagedrun embed computes; let the "
            f"name end in {OutputFormat.JSONL}",
            field="output",
        )
    endings = [OutputFormat.JSONL, OutputFormat.JSONL_GZ, OutputFormat.PARQUET]
    endings.append(OutputFormat.NPY if task is Task.EMBED else OutputFormat.CSV)
    if kind not in endings:
        raise UsageError(
            f"{config.output}: {kind.value} is no output of pagedrun {task}; let the "
            f"name end in {', '.join(endings[:-1])} or {endings[-1]}",
            field="output",
        )


def _check_vectors(columns: RowColumns, kind: OutputFormat, of: VectorType) -> None:
    """Refuse columns and numbers that a file with vectors cannot have."""
    allowed = {
        VectorType.FLOAT32: kind,
        VectorType.FLOAT16: kind if kind is OutputFormat.NPY else OutputFormat.PARQUET,
        VectorType.INT8: OutputFormat.PARQUET,
    }[of]
    if kind is not allowed:
        arrays = f" or {OutputFormat.NPY}" if of is VectorType.FLOAT16 else ""
        raise UsageError(
            f"{option('vector_type')} {of}: {kind} has no such numbers; let the name of the output "
            f"end in {OutputFormat.PARQUET}{arrays}",
            field="vector_type",
        )
    if kind is OutputFormat.NPY and not columns.is_identity:
        name = "flatten" if columns.flatten and not columns.names else "columns"
        raise UsageError(
            f"{option(name)}: an array holds vectors alone; let the name of the output end in "
            f"{OutputFormat.PARQUET} or {OutputFormat.JSONL}",
            field=name,
        )
    part = next((name for name in columns.names if name.startswith(f"{EMBEDDING}.")), None)
    if kind is OutputFormat.PARQUET and part is not None:
        raise UsageError(
            f"{option('columns')}: {part} is one number of a vector, which Parquet files hold as "
            f"one column {EMBEDDING}",
            field="columns",
        )


@contextmanager
def folder_for(path: Path) -> Iterator[None]:
    """Create a folder if needed; it is removed if it is empty at the end.

    Raises `UsageError` if it cannot be created.
    """
    made = not path.exists()
    try:
        make_folder(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{option('out_dir')} {path}: the folder cannot be created ({reason}); name "
            "another one",
            field="out_dir",
        ) from error
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # not empty
                path.rmdir()


def _shards(path: Path, kind: OutputFormat, num_shards: int) -> tuple[Path, ...]:
    stem, ending = kind.parted(path)
    return tuple(
        stem.with_name(f"{stem.name}-{number:05}-of-{num_shards:05}{ending}")
        for number in range(num_shards)
    )


GZIP = 31  # window bits of zlib for the gzip format


class Conversion:
    """Converts the journal to the files of a layout, each completely or not at all.

    `lines` yields the rows in input order, each a line of JSON; it is called for each pass over
    them. Memory does not grow with the number of rows. `facts` are those of the input, with its
    columns. `vectors` makes columns of keys whose values are not in the lines, under a name. `kept`
    has the tables of an Arrow input.
    """

    def __init__(
        self,
        layout: OutputLayout,
        lines: Callable[[], Iterator[bytes]],
        num_rows: int,
        facts: InputFacts,
        vectors: Mapping[str, Callable[[str], VectorColumn]] = MappingProxyType({}),
        kept: KeptTables | None = None,
    ) -> None:
        self._layout = layout
        self._kept = kept
        self._vectors = vectors
        self._columns = layout.columns
        self._lines = lines
        self._num_rows = num_rows
        self._facts = facts
        self._json_keys: list[str] = []
        self._warnings: list[str] = []

    def write(self) -> list[str]:
        """Write the files; return warnings about the requested columns.

        Raises `OutputError`; files written before it stay.
        """
        if self._columns.explodes:
            self._json_keys, has_more = json_keys_of(map(json.loads, self._lines()))
            if has_more:
                self._warnings.append(
                    f"{option('explode_json')}: answers have more than {len(self._json_keys):,} "
                    "keys; those after them are in the text of the answer only"
                )
        try:
            shaper = self._write_files()
        except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
            if self._facts.schema is None:
                raise
            # A type must not lose rows, such as 8-bit categories of two files together.
            self._facts = replace(self._facts, schema=None)
            reason = str(error).splitlines()[0][:200]
            self._warnings.append(
                "columns of the input get the types of their values instead of the input's "
                f"types ({reason})"
            )
            shaper = self._write_files()
        return [*self._warnings, *(shaper.warnings() if self._num_rows else ())]

    def _write_files(self) -> RowShaper:
        """Write all files; return the shaper of their rows."""
        shaper = self._shaper()
        make = self._maker(shaper)
        lines = self._lines()
        for path, start, count in self._layout.parts(self._num_rows):
            pieces = make(islice(lines, count), start)
            try:
                replace_file(path.resolve(), pieces)
            except OSError as error:
                raise OutputError(
                    f"{path} cannot be written ({reason_of(error)}); the rows are in "
                    f"{self._layout.journal}",
                    error,
                ) from error
        return shaper

    def _shaper(self) -> RowShaper:
        facts = self._facts
        return RowShaper(self._columns, facts.columns or (), self._json_keys, self._schema)

    @property
    def _schema(self) -> Any:
        """Schema of the kept tables, None without any."""
        return None if self._kept is None else self._facts.schema

    def _maker(self, shaper: RowShaper) -> Callable[[Iterable[bytes], int], Iterator[bytes]]:
        """Return a function from lines, and the index of the first one, to a file's bytes, after a
        first pass if it needs one."""
        match self._layout.format:
            case OutputFormat.PARQUET:
                types = column_types(self._all_rows(), shaper)
                kept = None
                if self._kept is not None and self._schema is not None:
                    kept = self._kept.rows(self._schema)
                return lambda lines, start: self._parquet(lines, types, shaper, start, kept)
            case OutputFormat.CSV:
                names = shaper.names or column_names(self._all_rows())
                return lambda lines, _: csv_lines(
                    (shaper.of(json.loads(line)) for line in lines), names
                )
            case OutputFormat.JSONL_GZ:
                return lambda lines, _: _packed(map(shaper.line, lines))
        return lambda lines, _: map(shaper.line, lines)

    def _parquet(
        self,
        lines: Iterable[bytes],
        types: ColumnTypes,
        shaper: RowShaper,
        start: int,
        kept: KeptRows | None,
    ) -> Iterator[bytes]:
        rows = ((shaper.of(json.loads(line)), len(line)) for line in lines)
        named = ((shaper.column_of(key), make) for key, make in self._vectors.items())
        vectors = [make(name) for name, make in named if name is not None]
        return parquet_pieces(rows, types, self._metadata(), vectors, start, kept)

    def _metadata(self) -> dict[bytes, bytes] | None:
        """Return the metadata of the input's table, such as the index columns of pandas, if all of
        its columns come back."""
        is_whole = self._columns.includes_input and self._schema is not None
        return self._schema.metadata if is_whole else None

    def _all_rows(self) -> Iterator[OutputColumns]:
        shaper = self._shaper()  # a shaper of its own, so that nothing is counted twice
        return (shaper.of(json.loads(line)) for line in self._lines())


def clear_files(layout: OutputLayout, *, keep: bool) -> None:
    """Remove temporary files of killed runs and, unless they are kept, files of an earlier job.

    Called by the owner of the journal. An earlier job's answers must not be taken for those of an
    interrupted one.
    """
    for path in (Path(layout.output), *layout.files):
        remove_leftovers(path.resolve())
    for path in () if keep else layout.files:
        try:
            path.resolve().unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{path} cannot be replaced ({reason_of(error)})", error) from error


def _packed(lines: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=GZIP)
    for line in lines:
        if piece := packer.compress(line):
            yield piece
    yield packer.flush()
