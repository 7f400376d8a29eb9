"""JSON lines on stderr for `--progress json`: objects with a key `event`."""

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
    """Return whether a command line, valid or not, has `--progress json`."""
    wanted = False
    for index, word in enumerate(words):
        if word == "--":
            break
        if word == _FLAG:
            wanted = words[index + 1 : index + 2] == ["json"]
        elif word.startswith(f"{_FLAG}="):
            wanted = word == f"{_FLAG}=json"
    return wanted


def json_line(event: str, **values: Any) -> str:
    """Return an event as a line of ASCII JSON, in which control characters are escaped."""
    return json.dumps({"event": event, **values}, ensure_ascii=True) + "\n"


class JsonLines:
    """Text stream that converts lines to events; lines that are events pass unchanged.

    Lines of prose become `note`, `warning` or `error` events. Any thread may write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = threading.local()  # incomplete lines, one per thread

    def write(self, text: str) -> int:
        """Write the lines completed by `text`."""
        begun = getattr(self._begun, "text", "") + text.replace("\r", "\n")
        *lines, self._begun.text = begun.split("\n")
        if told := "".join(_event(line) for line in lines):
            self._stream.write(told)
        return len(text)

    def isatty(self) -> bool:
        """Return False, which disables colors and live displays."""
        return False

    def finish(self) -> None:
        """Write the incomplete line of this thread."""
        if getattr(self._begun, "text", ""):
            self.write("\n")
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def use_json_lines() -> None:
    """Convert all further lines on stderr to JSON objects."""
    if not isinstance(sys.stderr, JsonLines):
        sys.stderr = cast(TextIO, JsonLines(sys.stderr))


@contextmanager
def json_stderr(words: Sequence[str]) -> Iterator[None]:
    """Convert lines on stderr if the command line `words` has `--progress json`, and restore stderr
    at the end, whether it was converted here or by `use_json_lines`."""
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
    """Return a line as an event, an empty line as ""."""
    prose = _ESCAPES.sub("", line).rstrip()
    if prose.startswith('{"event": '):
        return f"{prose}\n"
    event = next((name for prefix, name in _PREFIXES.items() if prose.startswith(prefix)), "note")
    for prefix in _PREFIXES:
        prose = prose.removeprefix(prefix)
    return json_line(event, message=prose) if prose else ""
