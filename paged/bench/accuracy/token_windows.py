"""TokenWindow: a piece of a text that a model reads at once to score the tokens in it."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """`token_ids` are read, and those from the place `first` on are scored."""

    token_ids: tuple[int, ...]
    first: int

    @property
    def num_scored(self) -> int:
        """Tokens that are scored."""
        return len(self.token_ids) - self.first


def token_windows(token_ids: Seq[int], chunk: int, stride: int) -> list[TokenWindow]:
    """Return windows of at most `chunk` tokens that begin `stride` tokens apart, 1 to `chunk`.

    Together they score every token once, behind as many others as its window has before it; but
    one that nothing in its window comes before is not scored: the first of the text and, where
    `stride` is `chunk`, that of each window. A text of fewer than two tokens has none.
    """
    windows = []
    done = 0
    for begin in range(0, len(token_ids), stride):
        end = min(begin + chunk, len(token_ids))
        first = max(done, begin + 1)
        if first < end:
            windows.append(TokenWindow(tuple(token_ids[begin:end]), first - begin))
        done = end
        if end == len(token_ids):
            break
    return windows
