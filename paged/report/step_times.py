"""StepTimes: what a prompt token costs, told from how long steps take."""


class StepTimes:
    """Fits `seconds = a * prompt tokens + b * generated tokens` to a run's steps.

    Ordinary least squares for two unknowns, of which only five sums are kept.
    """

    def __init__(self) -> None:
        self._prompt_prompt = self._prompt_generated = self._generated_generated = 0.0
        self._prompt_seconds = self._generated_seconds = 0.0
        self._seconds = 0.0
        self._tokens = 0

    def add(self, seconds: float, num_prompt: int, num_generated: int) -> None:
        """Note a step that computed so many prompt tokens and made so many new ones."""
        self._prompt_prompt += num_prompt * num_prompt
        self._prompt_generated += num_prompt * num_generated
        self._generated_generated += num_generated * num_generated
        self._prompt_seconds += num_prompt * seconds
        self._generated_seconds += num_generated * seconds
        self._seconds += seconds
        self._tokens += num_prompt + num_generated

    @property
    def seconds_per_prompt_token(self) -> float:
        """The fitted `a`; the mean over all tokens where the steps do not tell them apart."""
        squares = self._prompt_prompt * self._generated_generated
        determinant = squares - self._prompt_generated**2
        if determinant > 1e-9 * squares:
            seconds = (
                self._prompt_seconds * self._generated_generated
                - self._generated_seconds * self._prompt_generated
            ) / determinant
            if seconds > 0:
                return seconds
        return self._seconds / self._tokens if self._tokens else 0.0
