"""Overlong: what becomes of a prompt that leaves no room for an answer."""

from enum import StrEnum


class Overlong(StrEnum):
    """Fail the row, or drop tokens from the beginning or from the end of its prompt."""

    ERROR = "error"
    TRUNCATE_LEFT = "truncate-left"
    TRUNCATE_RIGHT = "truncate-right"

    def cut(self, ids: tuple[int, ...], max_model_len: int, max_tokens: int) -> tuple[int, ...]:
        """Return the ids of a prompt, cut if there is no room for a single token of its answer.

        A prompt that is cut leaves room for `max_tokens`, but keeps at least half of the context.
        """
        if self is Overlong.ERROR or len(ids) < max_model_len:
            return ids
        num_kept = max_model_len - max(min(max_tokens, max_model_len // 2), 1)
        return ids[len(ids) - num_kept :] if self is Overlong.TRUNCATE_LEFT else ids[:num_kept]
