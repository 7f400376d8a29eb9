"""StepCounts: what steps asked of a device that computes nothing."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class StepCounts:
    """Counted in one run.

    `prefills`, `decodes`: steps whose prompt tokens, whose generated ones were computed kernel by
    kernel; a mixed step counts in both, unless its generated tokens were a captured step's.
    `replays`: launches of captured steps, `captures` how many there are. `copies`, `bytes_copied`:
    from host to device.
    """

    prefills: int = 0
    decodes: int = 0
    replays: int = 0
    captures: int = 0
    copies: int = 0
    bytes_copied: int = 0

    def clear(self) -> None:
        """Count from nothing."""
        for each in fields(self):
            setattr(self, each.name, 0)
