"""PromptWindows: the prompts that Python gives, read and encoded a window at a time."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from threading import Event

from pagedrun.paged.planning.windows import Windows
from pagedrun.paged.text.prompt import Prompt
from pagedrun.paged.text.prompt_encoder import ENCODE_BATCH_ROWS, PromptEncoder
from pagedrun.paged.text.prompt_reader import PromptReader
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams

BYTES_PER_TOKEN = 4  # of text, about


class _Stopped(Exception):
    """No window is wanted any more."""


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    params: SamplingParams
    prompt: Prompt | RowError


class PromptWindows:
    """Reads one window after the other from prompts, each with its parameters.

    A window has requests, and for a prompt that cannot be asked the completion that says why. The
    first is for `first`, in the caller's thread, those of `more` may be for another one; what the
    prompts raise is raised there.
    """

    def __init__(
        self,
        prompts: Iterable[tuple[object, SamplingParams]],
        reader: PromptReader,
        encoder: PromptEncoder,
        size: WindowSize,
    ) -> None:
        self._reader = reader
        self._encoder = encoder
        self._stop = Event()
        self._num_bytes_read = 0
        self._windows = Windows(self._rows(prompts), size, lambda: self._num_bytes_read)

    @property
    def is_last(self) -> bool:
        """Whether no prompt is left."""
        return self._windows.is_last

    def read(self) -> list[Request | Completion]:
        """Return the next window."""
        rows = self._windows.read()
        window: list[Request | Completion] = []
        for begin in range(0, len(rows), ENCODE_BATCH_ROWS):
            self._check()
            window += self._encoded(rows[begin : begin + ENCODE_BATCH_ROWS])
        return window

    def more(self) -> Iterator[list[Request | Completion]]:
        """Yield the windows that are left, each read when it is asked for."""
        while not self.is_last:
            yield self.read()

    def stop(self) -> None:
        """Let whoever reads a window end with the prompt that it reads now."""
        self._stop.set()

    def _rows(self, prompts: Iterable[tuple[object, SamplingParams]]) -> Iterator[_Row]:
        for index, (given, params) in enumerate(prompts):
            self._check()
            try:
                prompt = self._reader.read(given, params)
            except RowError as error:
                yield _Row(index, params, error)
            else:
                self._num_bytes_read += _num_bytes(prompt)
                yield _Row(index, params, prompt)

    def _encoded(self, rows: Seq[_Row]) -> Iterator[Request | Completion]:
        encoded = self._encoder.encode([row.index for row in rows], [row.prompt for row in rows])
        for row, each in zip(rows, encoded, strict=True):
            if isinstance(each.asked, Request):
                yield each.asked
            else:
                yield Completion(Request(row.index, (), row.params), error=each.asked)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def _num_bytes(prompt: Prompt) -> int:
    """Return about how many bytes of text a prompt is."""
    parts = (prompt.text or "", prompt.token_ids or (), *prompt.continuations)
    return sum(len(each) * (1 if isinstance(each, str) else BYTES_PER_TOKEN) for each in parts)
