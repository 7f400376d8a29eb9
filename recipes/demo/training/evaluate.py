"""Exact-match accuracy on fresh random directories, by size."""

import numpy as np
import torch
from tokenizers import Tokenizer

from pagedrun.recipes.demo.training.batch import BatchMaker, BatchSpec
from pagedrun.recipes.demo.training.model import DemoModel
from pagedrun.recipes.demo.training.train import answer_loss, run_model

SIZES = (4, 8, 16, 24, 32, 40, 48, 60)
HELD_OUT_SEED = 1_000_003  # no training run uses it
NUM_QUESTIONS_PER_DIRECTORY = 24


def exact_match(
    model: DemoModel, tokenizer: Tokenizer, num_entries: int, num_questions: int
) -> float:
    """Return the share of exact answers over at least `num_questions` questions, in float32.

    Weights are rounded to bfloat16 first, as they ship. Directories have no gaps in their
    positions, and their names are drawn from the whole lists.
    """
    rng = np.random.default_rng([HELD_OUT_SEED, num_entries])
    maker = BatchMaker(tokenizer)
    rounded = DemoModel(model.config)
    rounded.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    spec = BatchSpec(
        num_directories=8,
        num_entries=num_entries,
        num_questions=NUM_QUESTIONS_PER_DIRECTORY,
        crowded=False,
        num_position_slots=num_entries,
    )
    num_batches = -(-num_questions // (spec.num_directories * spec.num_questions))
    num_exact = 0
    with torch.inference_mode():
        for _ in range(num_batches):
            batch = maker.make(rng, spec)
            _, exact = answer_loss(rounded, run_model(rounded, batch), batch)
            num_exact += int(exact.sum())
    return num_exact / (num_batches * spec.num_directories * spec.num_questions)
