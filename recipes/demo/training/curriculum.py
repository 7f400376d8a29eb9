"""The curriculum: directories grow as soon as the model answers the present size well.

Straight at 40 entries the model learns nothing in the time; at 4 it finds the look-up.
"""

import numpy as np

from pagedrun.recipes.demo.training.batch import BatchSpec

STAGE_SIZES = (4, 8, 16, 28, 40)
LAST_HINTED_SIZE = 8  # auxiliary losses stop after this stage
PROMOTION_ACCURACY = 0.93
MIN_STAGE_STEPS = 30
ACCURACY_SMOOTHING = 0.9
CURRENT_SIZE_SHARE = 0.6  # of the batches; the others revisit smaller directories
CROWDED_SHARE = 0.35
GAPPED_SHARE = 0.6
NUM_POSITION_SLOTS = 60  # teaches 1.5 times the longest directory's positions
TOKENS_PER_STEP_START, TOKENS_PER_STEP = 5000, 9000


class Curriculum:
    """Chooses each batch's specification from how well the last ones were answered."""

    def __init__(self, max_entries: int, token_scale: float = 1.0) -> None:
        """`max_entries` cuts the curriculum short; `token_scale` scales the batches."""
        self._sizes = [size for size in STAGE_SIZES if size <= max_entries]
        self._token_scale = token_scale
        self._stage = 0
        self._accuracy = 0.0
        self._num_stage_steps = 0

    @property
    def size(self) -> int:
        """Entries per directory at the present stage."""
        return self._sizes[self._stage]

    @property
    def accuracy(self) -> float:
        """Moving average of the share of exact answers at the present size."""
        return self._accuracy

    @property
    def is_hinted(self) -> bool:
        """Whether the auxiliary losses are on."""
        return self.size <= LAST_HINTED_SIZE

    def next_spec(self, rng: np.random.Generator) -> BatchSpec:
        """Draw what the next batch should be."""
        num_entries = self.size
        if self._stage > 0 and rng.random() > CURRENT_SIZE_SHARE:
            num_entries = int(rng.integers(self._sizes[0], self.size))
        num_questions = 12 if num_entries <= 8 else 24
        budget = TOKENS_PER_STEP_START if self._stage == 0 else TOKENS_PER_STEP
        example_tokens = 25 + 17 * num_entries + 30 * num_questions
        return BatchSpec(
            num_directories=max(1, round(budget * self._token_scale / example_tokens)),
            num_entries=num_entries,
            num_questions=num_questions,
            crowded=bool(rng.random() < CROWDED_SHARE),
            num_position_slots=NUM_POSITION_SLOTS if rng.random() < GAPPED_SHARE else num_entries,
        )

    def observe(self, spec: BatchSpec, accuracy: float) -> None:
        """Take note of a batch's share of exact answers; move on when it is good enough."""
        if spec.num_entries != self.size:
            return
        self._num_stage_steps += 1
        self._accuracy += (1 - ACCURACY_SMOOTHING) * (accuracy - self._accuracy)
        ready = self._accuracy > PROMOTION_ACCURACY and self._num_stage_steps >= MIN_STAGE_STEPS
        if ready and self._stage + 1 < len(self._sizes):
            self._stage += 1
            self._accuracy = 0.0
            self._num_stage_steps = 0
