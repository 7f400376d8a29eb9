"""Screen of `ask`: loading, the answer streamed to stdout, and its figures."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pagedrun.cli.terminal.console import discard, note, safe_lines, tell
from pagedrun.paged.job.progress import JobListener, Phase
from pagedrun.paged.values.request import FinishReason

if TYPE_CHECKING:
    from pagedrun.paged.job.question import Answer  # which imports torch


class AnswerWriter:
    """Writes text to stdout, escaped on a terminal; thoughts go to a terminal on stderr, dim.

    Implements `signals.Monitored`: the output consists of whole lines when the process ends.
    """

    def __init__(self, out: TextIO, console: Console | None) -> None:
        """Write to `out`; console: on stderr, None for no output there."""
        self._out = out
        self._is_terminal = out.isatty()
        self._console = console
        self._thoughts = console if console is not None and console.is_terminal else None
        self._text = ""
        self._thought = ""

    def add(self, thought: str, text: str) -> None:
        """Write the next pieces of thought and text; raises `OSError` if stdout cannot be
        written."""
        if thought and self._thoughts is not None:
            self._thoughts.print(Text(safe_lines(thought), "dim"), soft_wrap=True, end="")
            self._thought += thought
        if text:
            self._end_thought()
            self._write(text)
            self._text += text

    def finish(self, texts: list[str]) -> None:
        """Write the rest of the answers, each followed by a newline."""
        self._end_thought()
        if len(texts) == 1:
            (text,) = texts
            begun = text.startswith(self._text)
            # The tokenizer has changed text that was written already: write all of it again.
            self._write((text[len(self._text) :] if begun else f"\n{text}") + "\n")
            return
        for number, text in enumerate(texts, start=1):
            if self._console is not None:
                note(self._console, f"answer {number} of {len(texts)}:", "bold")
            self._write(f"{text}\n")

    @property
    def has_begun(self) -> bool:
        """True once a part of the answer was written."""
        return bool(self._text or self._thought)

    def leave(self) -> str:
        """End an incomplete line, and return the message about the answer."""
        if not self.has_begun:
            return "nothing was answered"
        self._end_thought()
        if self._text and not self._text.endswith("\n"):
            self._write("\n")
        return "the answer is incomplete"

    def waited(self, seconds: float) -> None:
        """Do nothing: a question has no time limit."""

    def _end_thought(self) -> None:
        if self._thought and self._thoughts is not None:
            self._thoughts.print("\n")
            self._thoughts = None

    def write_line(self, line: bytes) -> None:
        """Write a line of JSON, on a terminal in ASCII."""
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


class ModelProgress(JobListener):
    """`JobListener` with one status line on a terminal, removed by `stop`.

    Warnings are held back until the model loads: for a refused question only the error is shown.
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._status: Status | None = None
        self._is_loading = False
        self._warnings: list[str] = []

    def on_phase(self, phase: Phase) -> None:
        """Show the phase."""
        if phase is Phase.LOAD:
            self._is_loading = True
            for message in self._warnings:
                self.on_warning(message)
        if self._quiet or not self._console.is_terminal:
            return
        if self._status is None:
            self._status = Status(Text(phase.value), console=self._console)
            self._status.start()
        self._status.update(Text(phase.value))

    def on_warning(self, message: str) -> None:
        """Show a warning, or hold it back until the model loads."""
        if not self._is_loading:
            self._warnings.append(message)
        elif not self._quiet:
            tell(self._console, f"Warning: {message}")

    def stop(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()


@contextmanager
def show_loading(console: Console, *, quiet: bool) -> Iterator[ModelProgress]:
    """Yield a listener; its status line is removed at the end."""
    waiting = ModelProgress(console, quiet=quiet)
    try:
        yield waiting
    finally:
        waiting.stop()


def answer_line(answer: "Answer", wall_s: float) -> str:
    """Return numbers of tokens, their rate, the time of the command, and a note about a cut
    answer."""
    completion = answer.completion
    assert completion is not None
    count = sum(len(output.token_ids) for output in completion.outputs)
    told = [
        f"{len(completion.request.prompt_token_ids):,} prompt tokens",
        f"{count:,} generated in {answer.run_s:.1f} s{_pace(answer, count)}",
        f"{wall_s:.1f} s in all, {answer.load_s:.1f} s of it loading the model",
    ]
    if FinishReason.LENGTH in completion.finish_reasons:
        told.append("cut; raise --max-tokens for more")
    return "; ".join(told)


def _pace(answer: "Answer", count: int) -> str:
    """Return the time to the first token and the rate of the others, "" for a single token."""
    rest_s = answer.run_s - answer.first_token_s
    if count < 2 or not answer.first_token_s or rest_s <= 0:
        return ""
    return f" (first after {answer.first_token_s:.2f} s, then {(count - 1) / rest_s:.1f} tokens/s)"
