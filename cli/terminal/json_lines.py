"""Stderr of a command with `--progress json`: every line is a JSON object with a key `event`."""

import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

_FLAG = "--progress"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIXES = {"Warning: ": "warning", "Error: ": "error"}


def wants_json_lines(words: Sequence[str]) -> bool:
    """Return whether a command line asks for `--progress json`, however wrong the rest of it is."""
    wanted = False
    for place, word in enumerate(words):
        if word == "--":
            break
        if word == _FLAG:
            wanted = words[place + 1 : place + 2] == ["json"]
        elif word.startswith(f"{_FLAG}="):
            wanted = word == f"{_FLAG}=json"
    return wanted


def json_line(event: str, **values: Any) -> str:
    """Return an event as a line, in ASCII: no control character of a message reaches a terminal."""
    return json.dumps({"event": event, **values}, ensure_ascii=True) + "\n"


class JsonLines:
    """A text stream below which every line is an event; what is one already is left as it is.

    Lines of prose become `note`, `warning` or `error`. Any thread may write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = threading.local()  # lines, whose parts come from one thread each

    def write(self, text: str) -> int:
        """Write the lines that `text` completes."""
        begun = getattr(self._begun, "text", "") + text.replace("\r", "\n")
        *lines, self._begun.text = begun.split("\n")
        if told := "".join(_event(line) for line in lines):
            self._stream.write(told)
        return len(text)

    def isatty(self) -> bool:
        """Return False: nothing is drawn and nothing has a color."""
        return False

    def finish(self) -> None:
        """Write the line that this thread has begun."""
        if getattr(self._begun, "text", ""):
            self.write("\n")
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def use_json_lines() -> None:
    """Make a JSON object of every line on stderr from now on."""
    if not isinstance(sys.stderr, JsonLines):
        sys.stderr = cast(TextIO, JsonLines(sys.stderr))


@contextmanager
def json_stderr(words: Sequence[str]) -> Iterator[None]:
    """Make JSON objects of the lines on stderr if the command line `words` asks for that, and give
    stderr back as it was when the block ends, whoever made them JSON."""
    stream = sys.stderr
    if wants_json_lines(words):
        use_json_lines()
    try:
        yield
    finally:
        lines = cast(object, sys.stderr)
        if lines is not stream and isinstance(lines, JsonLines):
            lines.finish()
            sys.stderr = stream


def _event(line: str) -> str:
    """Return a line as an event, "" for an empty one."""
    prose = _ESCAPES.sub("", line).rstrip()
    if prose.startswith('{"event": '):
        return f"{prose}\n"
    event = next((name for prefix, name in _PREFIXES.items() if prose.startswith(prefix)), "note")
    for prefix in _PREFIXES:
        prose = prose.removeprefix(prefix)
    return json_line(event, message=prose) if prose else ""
