"""Codes of few bits, taken out of 32-bit words."""

import torch
from torch import Tensor


def unpack_codes(words: Tensor, num_bits: int, order: tuple[int, ...]) -> Tensor:
    """Return the codes in `words`, each less 2^(num_bits - 1), so that they are signed.

    words: [num_rows, num_words] int32. num_bits: of a code, 2, 4 or 8. order: [32 / num_bits];
    the code in the bits from i * num_bits on is element order[i] of its word's.
    Returns [num_rows, num_words * 32 / num_bits] int8.
    """
    shifts = torch.arange(0, 32, num_bits, dtype=torch.int32, device=words.device)
    fields = (words.unsqueeze(-1) >> shifts) & ((1 << num_bits) - 1)
    places = torch.tensor(order, device=words.device).argsort()
    codes = (fields[..., places] - (1 << (num_bits - 1))).to(torch.int8)
    return codes.flatten(1)
