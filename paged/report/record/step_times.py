"""StepTimes: what a prompt token costs, estimated from how long steps take."""

# A step with fewer prompt tokens is all overhead: such ones say nothing about a prompt.
MIN_PROMPT_TOKENS = 256


class StepTimes:
    """Fits `seconds = a * prompt tokens + b * generated tokens` to a run's steps.

    Ordinary least squares for two unknowns, of which only five sums are kept.
    """

    def __init__(self) -> None:
        self._prompt_prompt = self._prompt_generated = self._generated_generated = 0.0
        self._prompt_seconds = self._generated_seconds = 0.0
        self._most_prompt_tokens = 0

    def add(self, seconds: float, num_prompt: int, num_generated: int) -> None:
        """Note a step that computed so many prompt tokens and made so many new ones."""
        self._prompt_prompt += num_prompt * num_prompt
        self._prompt_generated += num_prompt * num_generated
        self._generated_generated += num_generated * num_generated
        self._prompt_seconds += num_prompt * seconds
        self._generated_seconds += num_generated * seconds
        self._most_prompt_tokens = max(self._most_prompt_tokens, num_prompt)

    @property
    def seconds_per_prompt_token(self) -> float | None:
        """The fitted `a`; None where the steps do not determine it."""
        if self._most_prompt_tokens < MIN_PROMPT_TOKENS:
            return None
        if not self._generated_generated:  # no step generated anything
            return self._prompt_seconds / self._prompt_prompt
        squares = self._prompt_prompt * self._generated_generated
        determinant = squares - self._prompt_generated**2
        if determinant <= 1e-9 * squares:
            return None
        seconds = (
            self._prompt_seconds * self._generated_generated
            - self._generated_seconds * self._prompt_generated
        ) / determinant
        return seconds if seconds > 0 else None
