"""HubName: which rows of which dataset, as `hf:NAME[@CONFIG][:SPLIT]` says it."""

import re
from dataclasses import dataclass

from pagedrun.paged.values.errors import UsageError, option

HUB_PREFIX = "hf:"
_NAME = re.compile(r"(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubName:
    """A dataset by `name`, its configuration and its split; None is the only one there is."""

    name: str
    config: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Return what `text` names; `UsageError` if it is not of the form."""
        rest, colon, split = text.removeprefix(HUB_PREFIX).partition(":")
        name, at, config = rest.partition("@")
        if not name or (at and not config) or (colon and not split):
            raise UsageError(f"{text}: write hf:NAME, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT")
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{text}: {name!r} is not the name of a dataset; write hf:NAME or hf:ORG/NAME, "
                "each of letters, digits, '-', '_' and '.'"
            )
        if "[" in split or "+" in split:
            raise UsageError(
                f"{text}: only whole splits are read; {option('limit')} limits the number of rows"
            )
        return cls(name, config or None, split or None)

    @property
    def stem(self) -> str:
        """What the answers are named after: the last part of each name, joined by dashes."""
        parts = (self.name, self.config, self.split)
        words = [part.rstrip("/").rpartition("/")[2] for part in parts if part]
        return "-".join(word for word in words if word) or "dataset"
