"""AnswerWriter: an answer on stdout, piece by piece as it comes."""

import json
from typing import TextIO

from rich.console import Console
from rich.text import Text

from pagedrun.cli.terminal.console import note
from pagedrun.cli.terminal.lossy_stream import discard
from pagedrun.cli.terminal.safe_text import safe_lines


class AnswerWriter:
    """Writes text as it is, on a terminal made safe; a thought goes, dim, to a terminal on stderr.

    Implements `watchdog.Ward`: what was written is whole lines when the process ends.
    """

    def __init__(self, out: TextIO, console: Console | None) -> None:
        """console: stderr's, None to say nothing there."""
        self._out = out
        self._is_terminal = out.isatty()
        self._console = console
        self._thoughts = console if console is not None and console.is_terminal else None
        self._text = ""
        self._thought = ""

    def add(self, thought: str, text: str) -> None:
        """Write what came of thought and text. Raises `OSError` where stdout takes no more."""
        if thought and self._thoughts is not None:
            self._thoughts.print(Text(safe_lines(thought), "dim"), soft_wrap=True, end="")
            self._thought += thought
        if text:
            self._end_thought()
            self._write(text)
            self._text += text

    def finish(self, texts: list[str]) -> None:
        """Write what is left of the answers, and an end of line behind each."""
        self._end_thought()
        if len(texts) == 1:
            (text,) = texts
            begun = text.startswith(self._text)
            # A tokenizer that changes what it has said already: then all of it, once more.
            self._write((text[len(self._text) :] if begun else f"\n{text}") + "\n")
            return
        for number, text in enumerate(texts, start=1):
            if self._console is not None:
                note(self._console, f"answer {number} of {len(texts)}:", "bold")
            self._write(f"{text}\n")

    @property
    def has_begun(self) -> bool:
        """Whether some of the answer was written."""
        return bool(self._text or self._thought)

    def leave(self) -> str:
        """End the line that was begun; return what to say."""
        if not self.has_begun:
            return "nothing was answered"
        self._end_thought()
        if self._text and not self._text.endswith("\n"):
            self._write("\n")
        return "the answer is incomplete"

    def waited(self, seconds: float) -> None:
        """Take note of nothing: whoever asked waits too."""

    def _end_thought(self) -> None:
        if self._thought and self._thoughts is not None:
            self._thoughts.print("\n")
            self._thoughts = None

    def write_line(self, line: bytes) -> None:
        """Write a line of JSON; on a terminal what is no ASCII as escapes."""
        if self._is_terminal:
            line = json.dumps(json.loads(line), ensure_ascii=True).encode() + b"\n"
        self._put(line)

    def _write(self, text: str) -> None:
        shown = safe_lines(text) if self._is_terminal else text
        self._put(shown.encode("utf-8", "replace"))

    def _put(self, data: bytes) -> None:
        try:
            self._out.buffer.write(data)
            self._out.flush()
        except OSError:
            discard(self._out)
            raise
