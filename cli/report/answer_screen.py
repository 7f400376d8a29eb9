"""Screen of `ask`: the wait, the answer streamed to stdout, and its figures."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pagedrun.cli.terminal.console import discard, note, safe_lines, tell
from pagedrun.paged.job.progress import Phase, SilentListener
from pagedrun.paged.values.request import FinishReason

if TYPE_CHECKING:
    from pagedrun.paged.job.question import Answer  # which imports torch


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


class ModelProgress(SilentListener):
    """A `JobListener` with one line on a terminal, which `stop` takes away; elsewhere none.

    What is to be warned of before the model loads is shown when it does: of a question that cannot
    be asked the error says all.
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._status: Status | None = None
        self._is_loading = False
        self._warnings: list[str] = []

    def on_phase(self, phase: Phase) -> None:
        """Show what begins."""
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
        """Show it, now or when the model loads."""
        if not self._is_loading:
            self._warnings.append(message)
        elif not self._quiet:
            tell(self._console, f"Warning: {message}")

    def stop(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()


@contextmanager
def show_loading(console: Console, *, quiet: bool) -> Iterator[ModelProgress]:
    """Give a listener whose line is taken away when the block ends."""
    waiting = ModelProgress(console, quiet=quiet)
    try:
        yield waiting
    finally:
        waiting.stop()


def answer_line(answer: "Answer", wall_s: float) -> str:
    """Return how many tokens there were, how fast they came, what the whole command took, and
    whether the answer was cut."""
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
    """Return when the first token came and how fast the others; nothing where there are none."""
    rest_s = answer.run_s - answer.first_token_s
    if count < 2 or not answer.first_token_s or rest_s <= 0:
        return ""
    return f" (first after {answer.first_token_s:.2f} s, then {(count - 1) / rest_s:.1f} tokens/s)"
