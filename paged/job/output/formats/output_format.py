"""OutputFormat: the kind of file that answers go to, known by the ending of its name."""

from enum import StrEnum
from pathlib import Path

from pagedrun.paged.values.errors import UsageError

# Whoever names a file so expects what is not written here.
OTHER_KINDS = frozenset(
    {
        *(".arrow", ".avro", ".feather", ".orc", ".tsv", ".xls", ".xlsx", ".db", ".sqlite"),
        *(".bz2", ".gz", ".xz", ".zip", ".zst", ".html", ".json", ".md", ".yaml"),
    }
)


class OutputFormat(StrEnum):
    """A kind of file by its ending."""

    JSONL = ".jsonl"
    JSONL_GZ = ".jsonl.gz"
    PARQUET = ".parquet"
    CSV = ".csv"

    @classmethod
    def of(cls, output: str) -> "OutputFormat":
        """Return the kind that an output's name says; JSONL if it says none.

        Raises `UsageError` for the ending of another kind of file.
        """
        name = Path(output).name
        for kind in cls:
            if name.lower().endswith(kind):
                return kind
        ending = Path(name).suffix
        if ending.lower() not in OTHER_KINDS:
            return cls.JSONL
        raise UsageError(
            f"{output}: {ending} is not an output format; let the name end in "
            f"{', '.join(list(cls)[:-1])} or {list(cls)[-1]}",
            field="output",
        )

    def parted(self, path: Path) -> tuple[Path, str]:
        """Return a path without its ending, and the ending as it is written there."""
        ending = path.name[len(path.name) - len(self) :] if path.suffix else ""
        return path.with_name(path.name.removesuffix(ending)), ending
