"""Costs of steps, prompt tokens and generated tokens, fitted to a run's steps by least squares."""

from itertools import combinations
from typing import TypedDict

import numpy as np

from pagedrun.kernels.array_types import Float64s

MIN_STEPS = 20
# Usual cost of a step and of a generated token, in prompt tokens.
USUAL_STEP, USUAL_NEW_TOKEN = 64.0, 8.0
_USUAL = np.array([USUAL_STEP, 1.0, USUAL_NEW_TOKEN])
PULL = 0.02  # weight of the usual costs, as a share of the weight of the steps


class StepCosts(TypedDict):
    """`step_costs` of a report: the time of a step is a sum of the first three, times their counts.

    `usual_token_s`: time of a prompt token if a step costs as much as `USUAL_STEP` of them and a
    generated token as much as `USUAL_NEW_TOKEN`.
    """

    step_s: float
    prompt_token_s: float
    generated_token_s: float
    usual_token_s: float


class StepFit:
    """Least-squares fit of `StepCosts` to the steps of a run, without negative costs.

    Steps of one kind do not determine the split of their time; then the usual costs are fitted.
    """

    def __init__(self) -> None:
        self._products = np.zeros((3, 3))
        self._seconds = np.zeros(3)

    def include(self, other: "StepFit") -> None:
        """Add all steps of another fit."""
        self._products += other._products
        self._seconds += other._seconds

    def add(self, seconds: float, num_prompt: int, num_generated: int) -> None:
        """Add the duration of a step of these prompt and generated tokens."""
        made = np.array([1.0, num_prompt, num_generated])
        self._products += np.outer(made, made)
        self._seconds += made * seconds

    @property
    def costs(self) -> StepCosts | None:
        """Fitted costs; None with too few steps."""
        return self.costs_after(MIN_STEPS)

    def costs_after(self, min_steps: int) -> StepCosts | None:
        """Return the fitted costs; None with fewer than `min_steps` steps."""
        if self._products[0, 0] < min_steps:
            return None
        found = [self._fitted(kept) for size in (1, 2, 3) for kept in combinations(range(3), size)]
        best = min((each for each in found if (each >= 0).all()), key=self._error)
        step, prompt, generated = best.tolist()
        return {
            "step_s": step,
            "prompt_token_s": prompt,
            "generated_token_s": generated,
            "usual_token_s": self._usual_token_s,
        }

    def _fitted(self, kept: tuple[int, ...]) -> Float64s:
        """Return the best costs with non-zero values at the indices `kept` only."""
        products, seconds = self._pulled
        costs, at = np.zeros(3), list(kept)
        costs[at] = np.linalg.lstsq(products[np.ix_(at, at)], seconds[at])[0]
        return costs

    def _error(self, costs: Float64s) -> float:
        """Return the sum of squared errors, up to a constant."""
        products, seconds = self._pulled
        return float(costs @ products @ costs - 2 * seconds @ costs)

    @property
    def _pulled(self) -> tuple[Float64s, Float64s]:
        """Products and seconds with a regularization towards the usual costs."""
        pull = PULL * np.diag(self._products)
        usual = _USUAL * self._usual_token_s
        return self._products + np.diag(pull), self._seconds + pull * usual

    @property
    def _usual_token_s(self) -> float:
        made = self._products[0]  # steps, prompt tokens and new ones
        return float(self._seconds[0] / max(made @ _USUAL, 1.0))


# Steps with fewer prompt tokens are dominated by overhead.
MIN_PROMPT_TOKENS = 256


class StepTimes:
    """Fits `seconds = a * prompt tokens + b * generated tokens` to a run's steps.

    Ordinary least squares for two unknowns, from five sums.
    """

    def __init__(self) -> None:
        self._prompt_prompt = self._prompt_generated = self._generated_generated = 0.0
        self._prompt_seconds = self._generated_seconds = 0.0
        self._most_prompt_tokens = 0

    def add(self, seconds: float, num_prompt: int, num_generated: int) -> None:
        """Add the duration of a step of these prompt and generated tokens."""
        self._prompt_prompt += num_prompt * num_prompt
        self._prompt_generated += num_prompt * num_generated
        self._generated_generated += num_generated * num_generated
        self._prompt_seconds += num_prompt * seconds
        self._generated_seconds += num_generated * seconds
        self._most_prompt_tokens = max(self._most_prompt_tokens, num_prompt)

    @property
    def seconds_per_prompt_token(self) -> float | None:
        """Fitted `a`; None if the steps do not determine it."""
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
