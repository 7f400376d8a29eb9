"""StepWatch: notices an engine that goes from step to step without getting anywhere."""

# Steps without a token that are never too many, whatever the batch.
MIN_STEPS = 1000


class StepWatch:
    """Counts the steps in which no sequence got a token.

    The oldest sequence goes first in every step. Without a token for anybody it has all the tokens
    of the step for its prompt, so a prompt is done after `max_model_len / max_num_batched_tokens`
    steps; many times as many mean that sequences only take each other's memory away.
    """

    def __init__(
        self, max_model_len: int, max_num_batched_tokens: int, min_steps: int = MIN_STEPS
    ) -> None:
        self.max_steps = min_steps + 4 * -(-max_model_len // max_num_batched_tokens)
        self.num_steps = 0  # since the last token

    def is_stalled(self, num_grown: int) -> bool:
        """Take note of a step in which so many sequences got a token."""
        self.num_steps = 0 if num_grown else self.num_steps + 1
        return self.num_steps > self.max_steps
