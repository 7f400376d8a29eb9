"""Overlong: what becomes of a prompt that leaves no room for an answer."""

from enum import StrEnum


class Overlong(StrEnum):
    """Fail the row, or drop tokens from the beginning or from the end of its prompt."""

    ERROR = "error"
    TRUNCATE_LEFT = "truncate-left"
    TRUNCATE_RIGHT = "truncate-right"

    def cut(
        self, ids: tuple[int, ...], max_model_len: int, max_tokens: int, num_needed: int = 1
    ) -> tuple[int, ...]:
        """Return the ids of a prompt, cut if it leaves no room for `num_needed` tokens behind it.

        A prompt that is cut leaves room for `max_tokens`, but keeps at least half of the context,
        unless those needed take more.
        """
        if self is Overlong.ERROR or len(ids) + num_needed <= max_model_len:
            return ids
        num_kept = max(max_model_len - max(min(max_tokens, max_model_len // 2), num_needed), 0)
        return ids[len(ids) - num_kept :] if self is Overlong.TRUNCATE_LEFT else ids[:num_kept]
