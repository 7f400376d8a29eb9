"""The rotary table must be bit-equal to what transformers computes in float32."""

from typing import Any

import pytest
import torch

from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.modules.rotary_tables import rotary_table

NUM_POSITIONS = 10_000
MAX_POSITIONS = 131_072

CASES: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "default": ({}, RopeConfig(theta=10_000.0)),
    "default-1e6": ({"rope_theta": 1e6}, RopeConfig(theta=1e6)),
    "linear": (
        {"rope_type": "linear", "factor": 2.5},
        RopeConfig(theta=10_000.0, kind="linear", factor=2.5),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        RopeConfig(
            theta=5e5,
            kind="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_positions=8192,
        ),
    ),
    "yarn": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
        RopeConfig(theta=1e6, kind="yarn", factor=4.0, original_max_positions=32768),
    ),
    "yarn-own-length": (
        {"rope_type": "yarn", "factor": 4.0},
        RopeConfig(theta=10_000.0, kind="yarn", factor=4.0),
    ),
    "yarn-everything": (
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24,
            "beta_slow": 2,
            "mscale": 0.707,
            "mscale_all_dim": 0.5,
            "truncate": False,
        },
        RopeConfig(
            theta=10_000.0,
            kind="yarn",
            factor=16.0,
            original_max_positions=4096,
            beta_fast=24.0,
            beta_slow=2.0,
            mscale=0.707,
            mscale_all_dim=0.5,
            truncate=False,
        ),
    ),
    "proportional": (  # of heads of 10 and 2 it turns one pair, and none
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
        RopeConfig(theta=10_000.0, kind="proportional", factor=2.0, rotated_pairs_share=0.25),
    ),
    "yarn-step": (  # a context so short that the ramp has no width
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6},
        RopeConfig(theta=10_000.0, kind="yarn", factor=4.0, original_max_positions=6),
    ),
    "yarn-given-factor": (
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 64,  # so short that the ramp is cut off below
            "attention_factor": 0.75,
        },
        RopeConfig(
            theta=10_000.0,
            kind="yarn",
            factor=16.0,
            original_max_positions=64,
            attention_factor=0.75,
        ),
    ),
}


@pytest.mark.parametrize("head_dim", [2, 10, 16, 64, 128])
@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(case: str, head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters, rope = CASES[case]
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, **parameters},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(NUM_POSITIONS)[None])
    table = rotary_table(rope, head_dim, NUM_POSITIONS, MAX_POSITIONS)

    assert table.shape == (NUM_POSITIONS, 2, head_dim // 2)
    assert table.dtype == torch.float32
    # Not bit for bit: theirs comes out in more than one version on one machine.
    assert torch.allclose(table[:, 0], cos[0, :, : head_dim // 2], rtol=0, atol=2e-4)
    assert torch.allclose(table[:, 1], sin[0, :, : head_dim // 2], rtol=0, atol=2e-4)


def test_longrope_equals_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    short, long = [1.0, 1.0, 1.25, 2.0], [3.0, 4.0, 9.0, 30.0]
    original = 32_768
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        head_dim=8,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "factor": MAX_POSITIONS / original,
            "original_max_position_embeddings": original,
            "short_factor": short,
            "long_factor": long,
        },
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(NUM_POSITIONS)[None])
    rope = RopeConfig(
        theta=10_000.0,
        kind="longrope",
        factor=MAX_POSITIONS / original,
        original_max_positions=original,
        periods=tuple(short),
    )
    table = rotary_table(rope, 8, NUM_POSITIONS, MAX_POSITIONS)
    assert cos[0, 0, 0] > 1.01  # the attention factor
    assert torch.allclose(table[:, 0], cos[0, :, :4], rtol=0, atol=2e-4)
    assert torch.allclose(table[:, 1], sin[0, :, :4], rtol=0, atol=2e-4)


def test_positions_of_long_contexts_have_their_own_angles() -> None:
    """The first pair turns by one radian a position; tables are made in pieces."""
    table = rotary_table(RopeConfig(theta=1e4), 4, 40_000, MAX_POSITIONS)[:, :, 0].double()
    angles = torch.arange(40_000).double()
    assert torch.allclose(table[:, 0], angles.cos(), rtol=0, atol=1e-6)
    assert torch.allclose(table[:, 1], angles.sin(), rtol=0, atol=1e-6)


def test_position_zero_turns_nothing_and_each_pair_has_unit_length() -> None:
    table = rotary_table(RopeConfig(theta=1e4), 64, 100, 2048).double()
    assert torch.equal(table[0, 0], torch.ones(32, dtype=torch.float64))
    assert torch.equal(table[0, 1], torch.zeros(32, dtype=torch.float64))
    assert torch.allclose(table.square().sum(1), torch.ones(100, 32, dtype=torch.float64))


def test_a_longer_table_begins_with_the_shorter_one() -> None:
    rope = CASES["yarn"][1]
    short, long = (rotary_table(rope, 64, length, MAX_POSITIONS) for length in (77, 1000))
    assert torch.equal(long[:77], short)


def test_part_of_a_head_may_turn() -> None:
    rope = RopeConfig(theta=1e4, partial_rotary_factor=0.5)
    whole = rotary_table(RopeConfig(theta=1e4), 32, 50, 2048)
    assert torch.equal(rotary_table(rope, 64, 50, 2048), whole)
