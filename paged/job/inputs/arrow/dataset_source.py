"""DatasetSource: the rows of a Hugging Face dataset, from a folder or from the hub."""

from collections.abc import Iterator
from typing import Any

from pagedrun.paged.job.inputs.arrow.arrow_rows import BATCH_ROWS, ArrowRows
from pagedrun.paged.job.inputs.hub_name import HubName
from pagedrun.paged.job.inputs.input_digest import InputDigest
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.job.inputs.row_source import InputFacts, refuse_empty
from pagedrun.paged.values.errors import UsageError

SAVED_FILES = ("state.json", "dataset_dict.json")  # one of them is in what save_to_disk wrote
_OLDEST = 4  # older releases run Python code that a dataset brings along


class DatasetSource:
    """The rows of one split, a few at a time; implements `RowSource`.

    Columns come as they are stored: images and sounds are not decoded. `can_drain` says that
    what is left can be read without a download.
    """

    def __init__(self, dataset: Any, name: str, max_row_bytes: int, *, can_drain: bool) -> None:
        self._dataset = dataset
        self._name = name
        self._can_drain = can_drain
        self._rows = ArrowRows(self._tables(), max_row_bytes)
        self._iterator = iter(self._rows)

    @classmethod
    def from_folder(cls, folder: str, max_row_bytes: int) -> "DatasetSource":
        """Open what `save_to_disk` wrote; `UsageError` if it holds several splits."""
        datasets = _library(folder)
        try:
            found = datasets.load_from_disk(folder)
        except Exception as error:  # the library raises what its files make it raise
            raise UsageError(f"{folder}: cannot be read ({_reason(error)})") from error
        if not isinstance(found, datasets.Dataset):
            names = list(found)
            if len(names) != 1:
                raise UsageError(
                    f"{folder} has the splits {_listed(names)}; name the folder of one, such as "
                    f"{folder.rstrip('/')}/{names[0] if names else 'train'}"
                )
            found = found[names[0]]
        return cls(found, folder, max_row_bytes, can_drain=True)

    @classmethod
    def from_hub(cls, text: str, max_row_bytes: int) -> "DatasetSource":
        """Open the dataset that `text` names, streaming; the cache is enough without a network.

        Raises `UsageError` if it cannot be had, or if the split is not one of those there are.
        """
        asked = HubName.parse(text)
        datasets = _library(text)
        try:
            splits = datasets.load_dataset(asked.name, asked.config, streaming=True)
        except Exception as error:  # the library raises what the network makes it raise
            raise UsageError(f"{text}: cannot be opened ({_reason(error)})") from error
        names = list(splits)
        split = asked.split or (names[0] if len(names) == 1 else None)
        if split not in names:
            what = "name one" if split is None else f"there is no split {split!r}"
            raise UsageError(f"{text}: {what}; the splits are {_listed(names)}")
        return cls(splits[split], text, max_row_bytes, can_drain=False)

    @property
    def facts(self) -> InputFacts:
        """Columns and types of the table."""
        return self._rows.facts

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the rows so far, as JSON."""
        return self._rows.num_bytes

    def __iter__(self) -> Iterator[Row]:
        is_empty = True
        for row in self._iterator:
            is_empty = False
            yield row
        if is_empty:
            raise refuse_empty(self._name)

    def digest(self, *, whole: bool) -> InputDigest:
        """Return the digest of the rows so far, and the library's fingerprint of all of them."""
        fingerprint = getattr(self._dataset, "_fingerprint", None)
        return InputDigest(self._rows.num_bytes, self._rows.sha256, whole, fingerprint)

    def drain(self) -> bool:
        """Read the rows that are left, if they are on this machine."""
        if self._can_drain:
            for _ in self._iterator:
                pass
        return self._can_drain

    def _tables(self) -> Iterator[Any]:
        num_rows = 0
        try:
            for table in self._dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
                yield table
                num_rows += table.num_rows
        except Exception as error:  # of the network, of a cached file, of any format
            raise UsageError(
                f"{self._name}: cannot be read after record {num_rows} ({_reason(error)})"
            ) from error


def _library(name: str) -> Any:
    """Return the module `datasets`, which takes a second to import and is not needed otherwise."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{name} needs the package datasets: pip install datasets") from error
    if int(datasets.__version__.partition(".")[0]) < _OLDEST:
        raise UsageError(
            f"{name} needs datasets {_OLDEST}.0 or later, {datasets.__version__} is installed: "
            f"pip install -U datasets"
        )
    datasets.disable_progress_bars()  # the command has its own, on the same stream
    return datasets


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
