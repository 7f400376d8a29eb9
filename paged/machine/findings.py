"""Findings: sentences about what is broken, and about what could be better."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Findings:
    """Each sentence says what is so and what mends it."""

    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
