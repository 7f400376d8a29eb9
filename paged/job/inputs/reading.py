"""Reading: format and delimiter of input files, where they are given or their names do not say."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pagedrun.paged.job.inputs.unpacked_stream import PACKINGS
from pagedrun.paged.values.rules import Rule

DEFAULT_MAX_LINE_BYTES = 64 * 2**20
TAB = "\t"
_NAMED_DELIMITERS = {"tab": TAB, "\\t": TAB}  # as they are typed
_NO_DELIMITERS = '"\r\n\0'  # these have another meaning in CSV


class InputFormat(StrEnum):
    """A format of input files; `auto` is the one that the ending of a name says."""

    AUTO = "auto"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    TSV = "tsv"
    TXT = "txt"
    PARQUET = "parquet"


def _is_delimiter(value: object) -> bool:
    if not isinstance(value, str):
        return False
    return value in _NAMED_DELIMITERS or (len(value) == 1 and value not in _NO_DELIMITERS)


DELIMITER = Rule(_is_delimiter, "one character, such as ';', or tab")


@dataclass(frozen=True, slots=True)
class Reading:
    """How input files are read: records of at most `max_line_bytes`, in `format`, with cells
    separated by `delimiter`; None is found by looking at the file."""

    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
    format: InputFormat = InputFormat.AUTO
    delimiter: str | None = None

    def format_of(self, name: str) -> InputFormat | None:
        """Return the format of the file `name`, None if its ending is that of no format."""
        if self.format is not InputFormat.AUTO:
            return self.format
        path = Path(name)
        ending = (path if path.suffix.lower() not in PACKINGS else Path(path.stem)).suffix.lower()
        known = {f".{each}": each for each in InputFormat if each is not InputFormat.AUTO}
        return known.get(ending)

    def delimiter_of(self, format: InputFormat) -> str | None:
        """Return what separates the cells of a file of this format, None to look at the file."""
        if self.delimiter is None:
            return TAB if format is InputFormat.TSV else None
        return _NAMED_DELIMITERS.get(self.delimiter, self.delimiter)


BY_NAME = Reading()


def packing_of(name: str) -> str:
    """Return the ending of `name` if it is that of a packed file, else nothing."""
    ending = Path(name).suffix.lower()
    return ending if ending in PACKINGS else ""
