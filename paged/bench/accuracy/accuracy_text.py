"""AccuracyText: what two ways of running a model are compared on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError, UsageError, option

MAX_BYTES = 2**26
PROMPT_TOKENS = 64

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """`documents` are scored, each from its first token on; `prompts` are answered."""

    documents: tuple[TokenIds, ...]
    prompts: tuple[TokenIds, ...]


class AccuracyText(Protocol):
    """A text that any tokenizer can cut into tokens."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def tokenized(self, tokenizer: Tokenizer, chunk: int, num_prompts: int) -> TokenizedText:
        """Return its tokens, and at most `num_prompts` prompts out of it.

        `chunk` is how many tokens are read at once. Raises `UsageError` for a text that cannot be
        used.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunningText:
    """One text, whose prompts are pieces of `PROMPT_TOKENS` tokens from all over it."""

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "RunningText":
        """Read a file; raises `UsageError` if it cannot be read, is empty or no text."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{option('text')} {path} cannot be read ({reason})") from error
        if len(data) > MAX_BYTES:
            raise UsageError(
                f"{option('text')} {path} is larger than {MAX_BYTES >> 20} MiB; pass a part of it"
            )
        if b"\0" in data:
            raise UsageError(f"{option('text')} {path} is not a text file: it contains zero bytes")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"{option('text')} {path} is not UTF-8 text") from error
        if not text.strip():
            raise UsageError(f"{option('text')} {path} is empty")
        return cls(path.name, text)

    def tokenized(self, tokenizer: Tokenizer, chunk: int, num_prompts: int) -> TokenizedText:
        """Return its tokens; raises `UsageError` if they do not fill a chunk."""
        try:
            [ids] = tokenizer.encode_batch([self.text], add_special_tokens=True)
        except RowError as error:
            raise UsageError(f"{option('text')} {self.name}: {error.marked}") from error
        if len(ids) < chunk:
            raise UsageError(
                f"{option('text')} {self.name} has {len(ids):,} tokens, fewer than a chunk of "
                f"{chunk:,}; pass a longer text, or lower {option('chunk')}"
            )
        size = min(PROMPT_TOKENS, len(ids))
        count = min(num_prompts, len(ids) // size)
        places = [number * (len(ids) - size) // max(count - 1, 1) for number in range(count)]
        prompts = tuple(tuple(ids[place : place + size]) for place in places)
        return TokenizedText((tuple(ids),), prompts)
