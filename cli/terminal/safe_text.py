"""Text from users, files and models, made fit for a terminal.

An id or a prompt may hold escape sequences that clear the screen, set the clipboard or turn text
around, and square brackets that Rich would read as markup. Data files keep such text exactly; a
terminal only ever gets it through `safe`.
"""

import unicodedata

MAX_SHOWN = 2000
# Cc: control characters. Cf: format characters, among them the ones that reverse the direction of
# text. Cs: halves of surrogate pairs. Zl, Zp: line ends that are no newline.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str, limit: int = MAX_SHOWN) -> str:
    """Return `text` with everything invisible written as an escape, cut to `limit` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(
        _escape(char) if unicodedata.category(char) in _HIDDEN_CATEGORIES else char for char in cut
    )


def safe_lines(text: str) -> str:
    """Return `text` whole, with everything invisible but line ends and tabs as an escape."""
    return "".join(
        _escape(char)
        if unicodedata.category(char) in _HIDDEN_CATEGORIES and char not in "\n\t"
        else char
        for char in text
    )


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
