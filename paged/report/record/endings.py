"""How answers ended: the one number that every share of them is a share of."""

from collections.abc import Mapping

FAILED = "error"  # the reason of a row without an answer


def endings(finish_reasons: Mapping[str, int]) -> dict[str, int]:
    """Return the answers by why they ended; rows without an answer are left out.

    A row with several outputs has several answers. Shares of answers are of the sum of these.
    """
    return {reason: number for reason, number in finish_reasons.items() if reason != FAILED}
