"""How many positions get their rotations."""

from pathlib import Path

from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError, option

MAX_ROTARY_BYTES = 2**30  # two million positions at 128 dimensions a head


def num_rotary_positions(config: ModelConfig, asked: int | None, folder: Path) -> int:
    """Return how many positions get their rotations: the model's, if they are not absurd.

    asked: the most that a row may have; None, or more than the model's: what the model was made
    for. Raises `ModelError`, which names the `folder`, where that is more than can be kept.
    """
    most = config.max_position_embeddings
    max_model_len = min(asked or most, most)
    widest = max(each.head_dim for each in config.network.attentions.values())
    num_fit = MAX_ROTARY_BYTES // (4 * widest)
    if most > num_fit and max_model_len > num_fit:
        raise ModelError(
            f"{folder}/config.json: max_position_embeddings is {most}, more than "
            f"the {num_fit} positions with precomputed rotations; pass "
            f"{option('max_model_len')} with at most that"
        )
    return most if most <= num_fit else max_model_len
