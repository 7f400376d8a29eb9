"""Dialect of a CSV file, found in its first bytes."""

import csv
import io
import re
from dataclasses import dataclass
from itertools import islice

from pagedrun.paged.job.inputs.line_source import BOM

COMMA = ","
DELIMITERS = (COMMA, ";", "\t", "|")  # candidates of detection
_SAMPLE_RECORDS = 50
_LEAST_SHARE = 0.5  # of records with as many cells as the header
LF, CR = b"\n", b"\r"
_EXCEL = re.compile(rb'"?sep=([^"\0\r\n])"?(?:\r\n|\r|\n)', re.IGNORECASE)  # a first line
_SIGN = re.compile(rb'["\r\n]')


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """Form of a CSV file.

    `delimiter` separates cells, `line_end` is the last byte of a line. `has_excel_line`: the first
    line is Excel's `sep=;`. `skips_blank`: a blank after each delimiter belongs to it.
    `num_empty` is the number of empty cells at the end of each record that the header does not
    have. `split_record` is set in a file of one column whose records have unquoted delimiters: the
    line and the number of cells of the first one.
    """

    delimiter: str
    line_end: bytes = LF
    has_excel_line: bool = False
    skips_blank: bool = False
    num_empty: int = 0
    split_record: tuple[int, int] | None = None

    @classmethod
    def find(cls, sample: bytes, delimiter: str | None = None) -> "CsvDialect":
        """Return the dialect of a file that begins with `sample`; delimiter: the given one."""
        sample = sample.removeprefix(BOM)
        excel = _EXCEL.match(sample)
        if excel is not None:
            delimiter = delimiter or excel[1].decode("ascii", "ignore") or None
            sample = sample[excel.end() :]
        end = _line_end(sample)
        delimiter = delimiter or find_delimiter(sample)
        records = _records(_whole_lines(sample), delimiter)
        found = cls(delimiter, end, excel is not None)
        if not records:
            return found
        (_, header), *others = records
        return cls(
            delimiter,
            end,
            excel is not None,
            skips_blank=_has_blanks(header, others),
            num_empty=_num_empty(header, others),
            split_record=_split_record(header, others, excel is not None),
        )


Records = list[tuple[int, list[str]]]
"""Cells of each record that is not empty, with the line of its end."""


def find_delimiter(sample: bytes) -> str:
    """Return the delimiter of a CSV file that begins with `sample`.

    Of the usual characters the best one occurs in the header and splits most records into as many
    cells as the header; comma in a tie and without any.
    """
    text = _whole_lines(sample.removeprefix(BOM))
    best, most = COMMA, (_LEAST_SHARE, False, 0)
    for delimiter in DELIMITERS:
        share, num_cells = _fit(_records(text, delimiter))
        fit = (share, delimiter == COMMA, num_cells)
        if num_cells > 1 and fit >= most:
            best, most = delimiter, fit
    return best


def _line_end(sample: bytes) -> bytes:
    """Return the last byte of the header's line: a carriage return in files of old Macs."""
    in_quotes = False
    for match in _SIGN.finditer(sample):
        if match[0] == b'"':
            in_quotes = not in_quotes
        elif not in_quotes:
            is_alone = sample[match.end() : match.end() + 1] not in (b"", LF)
            return CR if match[0] == CR and is_alone else LF
    return LF


def _whole_lines(sample: bytes) -> str:
    """Return the text of a sample without its last line, which may be cut."""
    text = sample.decode("utf-8", "replace")
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    return text[:end] if end else text


def _records(text: str, delimiter: str) -> Records:
    """Return the first records of a text; none if it is not valid CSV."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        found = ((reader.line_num, cells) for cells in reader if cells)
        return list(islice(found, _SAMPLE_RECORDS + 1))
    except csv.Error:
        return []


def _fit(records: Records) -> tuple[float, int]:
    """Return the share of records with as many cells as the header, and that number."""
    if not records:
        return 0.0, 0
    (_, header), *others = records
    sizes = [len(cells) for _, cells in others]
    return sizes.count(len(header)) / len(sizes) if sizes else 1.0, len(header)


def _has_blanks(header: list[str], records: Records) -> bool:
    """Return true if each delimiter of the header, and the first of each record, has a blank after
    it.
    """
    seconds = [cells[1] for _, cells in records if len(cells) > 1 and cells[1]]
    return len(header) > 1 and all(each.startswith(" ") for each in (*header[1:], *seconds))


def _num_empty(header: list[str], records: Records) -> int:
    """Return the number of empty cells that each record has beyond a header of several columns."""
    count = min((len(cells) for _, cells in records), default=0) - len(header)
    if len(header) < 2 or count < 1 or any(cells[len(header)] for _, cells in records):
        return 0
    return count


def _split_record(
    header: list[str], records: Records, has_excel_line: bool
) -> tuple[int, int] | None:
    """Return the first split record of a file of one column, None unless several are split."""
    split = [(line, len(cells)) for line, cells in records if len(cells) > 1]
    is_stray = len(split) == 1 and len(records) > 1
    if len(header) != 1 or not split or is_stray:
        return None
    line, count = split[0]
    return line + has_excel_line, count
