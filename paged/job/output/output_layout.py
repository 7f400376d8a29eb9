"""OutputLayout: which files the answers of a job are in, while it runs and when it is done."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.job.config import JOURNAL_SUFFIX, STDOUT, JobConfig
from pagedrun.paged.job.inputs.remote_file import is_remote
from pagedrun.paged.job.output.formats.output_format import OutputFormat
from pagedrun.paged.job.output.formats.parquet_rows import require_pyarrow
from pagedrun.paged.job.output.formats.row_columns import RowColumns
from pagedrun.paged.job.output.output_file import refuse_target
from pagedrun.paged.values.errors import UsageError, option


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Rows are appended to `journal`, whole lines of JSON, whatever the output is.

    It is converted to `files` when all rows are finished; none if the journal is the output itself.
    """

    output: str
    format: OutputFormat
    columns: RowColumns
    journal: str
    files: tuple[Path, ...]

    @classmethod
    def of(cls, config: JobConfig) -> "OutputLayout":
        """Return the layout that a job asks for.

        Raises `UsageError` for an ending that no format has, for columns that no row has, and for
        a stream where a file is needed.
        """
        if is_remote(config.output):
            raise UsageError(
                f"{config.output}: answers are written to a local disk, so that an interrupted "
                "run can continue; name a local file, and copy it afterwards",
                field="output",
            )
        kind = OutputFormat.JSONL if config.output == STDOUT else OutputFormat.of(config.output)
        columns = RowColumns.parse(
            config.columns,
            flatten=config.flatten,
            is_table=kind in (OutputFormat.CSV, OutputFormat.PARQUET),
            answer=config.answer_column,
            explodes=config.explode_json,
        )
        is_plain = kind is OutputFormat.JSONL and columns.takes_rows_as_they_are
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

    @property
    def streams_columns(self) -> bool:
        """Whether columns of a row are written as soon as it is answered."""
        return not self.files and not self.columns.takes_rows_as_they_are

    @property
    def keeps_columns(self) -> bool:
        """Whether rows are kept with all columns of the input, of which files are made."""
        return bool(self.files) or self.streams_columns

    @property
    def shown(self) -> str:
        """What messages call the output."""
        if len(self.files) < 2:
            return str(self.files[0]) if self.files else self.output
        return f"{self.files[0]} … {self.files[-1].name}"

    @property
    def is_made(self) -> bool:
        """Whether all files are there, whichever run made them."""
        return bool(self.files) and all(path.exists() for path in self.files)

    def check(self, config: JobConfig) -> None:
        """Raise `UsageError` if one of the files cannot be made, or must not be replaced."""
        replaces = config.overwrite or config.resume
        for path in (str(each) for each in self.files or (self.output,)):
            for name in config.inputs if path != STDOUT else ():
                refuse_target(path, name, overwrite=replaces)
        if config.shards is not None:
            self._refuse_other_shards()

    def _refuse_other_shards(self) -> None:
        """Refuse to write beside shards of another number: a pattern would find both."""
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


@contextmanager
def folder_for(path: Path) -> Iterator[None]:
    """Make a folder if need be; it goes again if nothing is in it at the end.

    Raises `UsageError` if it cannot be made.
    """
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
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
            with suppress(OSError):  # something is in it
                path.rmdir()


def _shards(path: Path, kind: OutputFormat, num_shards: int) -> tuple[Path, ...]:
    stem, ending = kind.parted(path)
    return tuple(
        stem.with_name(f"{stem.name}-{number:05}-of-{num_shards:05}{ending}")
        for number in range(num_shards)
    )
