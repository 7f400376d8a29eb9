"""Rotary tables: cos and sin of the angles of each position, shared by layers of one rotation.

Frequencies and angles are computed in float32, in the order of operations of transformers 5
(`modeling_rope_utils`), because the engine is tested for equality with it, token for token.
Powers, cosines and sines are computed in float64 by NumPy and rounded: those of torch in float32
had two versions, with different tokens, in 2 of 58 fresh processes on a Xeon.
"""

import math

import numpy as np
import torch
from torch import Tensor

from pagedrun.paged.models.modules.rotary import QueryScaling, RopeConfig


class RotaryTables:
    """Tables of `num_positions` positions on `device`, computed at first use.

    `max_position_embeddings` is the default of `original_max_positions`.
    """

    def __init__(
        self, num_positions: int, max_position_embeddings: int, device: torch.device
    ) -> None:
        self.num_positions = num_positions
        self._max_position_embeddings = max_position_embeddings
        self._device = device
        self._tables: dict[tuple[RopeConfig | None, int], Tensor] = {}

    def table(self, rope: RopeConfig | None, head_dim: int) -> Tensor:
        """Return cos and sin, [num_positions, 2, rotary_dim // 2] float32; see `rotary_table`.

        Without a rope they rotate nothing.
        """
        key = (rope, head_dim)
        if key not in self._tables:
            self._tables[key] = self._made(rope, head_dim).to(self._device)
        return self._tables[key]

    def factors(self, query_scaling: QueryScaling) -> Tensor:
        """Return the factor of the query at each position, [num_positions] float32."""
        times = torch.arange(self.num_positions).numpy() // query_scaling.length
        return (
            torch.from_numpy(1 + query_scaling.beta * np.log(1.0 + times)).float().to(self._device)
        )

    def _made(self, rope: RopeConfig | None, head_dim: int) -> Tensor:
        if rope is None:
            identity = torch.tensor([1.0, 0.0])[:, None]
            return identity.repeat(self.num_positions, 1, head_dim // 2)
        return rotary_table(rope, head_dim, self.num_positions, self._max_position_embeddings)


_POSITIONS_AT_ONCE = 1 << 14


def rotary_table(
    rope: RopeConfig, head_dim: int, num_positions: int, max_position_embeddings: int
) -> torch.Tensor:
    """Return [num_positions, 2, rotary_dim // 2] float32: cos and sin of each position's angles.

    `rotary_dim` is the rotated part of `head_dim`, all of it for most models. Dimension i of the
    first half and dimension i of the second half are rotated together by angle i, the layout of
    Hugging Face. For yarn and longrope both rows are multiplied by the attention factor.
    `max_position_embeddings` is the default of `rope.original_max_positions`.
    """
    rotary_dim = int(head_dim * rope.partial_rotary_factor)
    original = rope.original_max_positions or max_position_embeddings
    frequencies = _frequencies(rope, rotary_dim, original)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    scaling = 1.0
    if rope.kind == "yarn":
        scaling = _attention_factor(rope)
    elif rope.kind == "longrope":
        scaling = _long_attention_factor(rope, original)
    table = torch.empty(num_positions, 2, rotary_dim // 2, dtype=torch.float32)
    for start in range(0, num_positions, _POSITIONS_AT_ONCE):
        wide = angles[start : start + _POSITIONS_AT_ONCE].double().numpy()
        for row, function in enumerate((np.cos, np.sin)):
            values = torch.from_numpy(function(wide).astype(np.float32))
            table[start : start + _POSITIONS_AT_ONCE, row] = values * scaling
    return table


def _frequencies(rope: RopeConfig, dim: int, original_max_positions: int) -> torch.Tensor:
    """Return [dim // 2] float32: radians per position of each pair of dimensions.

    The plain ones are theta^(-2i / dim): Su et al. 2021, "RoFormer", arXiv 2104.09864, section
    3.2.2. "linear" divides them by the factor: Chen et al. 2023, arXiv 2306.15595.
    """
    exponents = (torch.arange(0, dim, 2, dtype=torch.float32) / dim).double().numpy()
    periods = torch.from_numpy(np.power(np.float64(rope.theta), exponents).astype(np.float32))
    if rope.kind == "yarn":
        return _yarn_frequencies(rope, periods, dim, original_max_positions)
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.periods) * periods)
    frequencies = 1.0 / periods
    if rope.kind == "proportional":
        frequencies[int(rope.rotated_pairs_share * dim // 2) :] = 0.0  # cosines of 1, sines of 0
    if rope.kind in ("linear", "proportional"):
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies, original_max_positions)
    return frequencies


def _llama3_frequencies(
    rope: RopeConfig, frequencies: torch.Tensor, original_max_positions: int
) -> torch.Tensor:
    """Stretch long waves by the factor, leave short ones, and blend in between.

    Llama 3.1, `apply_scaling` in github.com/meta-llama/llama-models; also arXiv 2407.21783.
    """
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if low is None or high is None:
        raise ValueError("llama3 needs low_freq_factor and high_freq_factor")
    wavelength = 2 * math.pi / frequencies  # in positions
    is_long = wavelength > original_max_positions / low
    is_short = wavelength < original_max_positions / high
    share = (original_max_positions / wavelength - low) / (high - low)
    blend = (1 - share) * frequencies / rope.factor + share * frequencies
    return torch.where(
        is_long, frequencies / rope.factor, torch.where(is_short, frequencies, blend)
    )


def _yarn_frequencies(
    rope: RopeConfig, periods: torch.Tensor, dim: int, original_max_positions: int
) -> torch.Tensor:
    """Stretch dimensions with fewer than `beta_slow` rotations over the original context.

    Those with more than `beta_fast` rotations are left, a linear ramp joins the two: Peng et al.
    2023, "YaRN", arXiv 2309.00071, section 3.2.
    """

    def dimension_of(num_rotations: float) -> float:
        period = original_max_positions / (num_rotations * 2 * math.pi)
        return (dim * math.log(period)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * periods) * (1 - kept) + 1.0 / periods * kept


def _long_attention_factor(rope: RopeConfig, original_max_positions: int) -> float:
    """Return the factor of cos and sin in longrope.

    sqrt(1 + ln(factor) / ln(original)), unless given: Ding et al. 2024, "LongRoPE",
    arXiv 2402.13753, and the code of Phi-3.
    """
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(original_max_positions))


def _attention_factor(rope: RopeConfig) -> float:
    """Return the factor of cos and sin in yarn: 0.1 ln(factor) + 1, unless given.

    arXiv 2309.00071, equation 22; with both mscale fields, DeepSeek-V2's ratio of two such terms.
    """
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
