"""ReplicaOffer: what a replica says of itself before it is given rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagedrun.paged.planning.sizing import PlanBasis
from pagedrun.paged.report.record.report_sections import Hardware

VERSION = "version of pagedrun"  # in a fingerprint
# What a fingerprint's entries are called in a sentence.
_CALLED = {"weights": "weights of the model", "config": "description of the model"}


@dataclass(frozen=True, slots=True)
class ReplicaOffer:
    """What a plan needs to know of a replica, and what must be alike in all of them.

    `node` is the machine that it is on. `fingerprint` decides the bytes that it computes: versions,
    weights, description of the model, processor or GPU, kernels, threads. `arithmetic` is what a
    manifest says of that. `warnings` are for the user.
    """

    node: str
    fingerprint: Mapping[str, str]
    basis: PlanBasis
    arithmetic: Mapping[str, object] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        """The version of pagedrun that the replica has, as far as it is known."""
        return self.fingerprint.get(VERSION)

    def differing(self, other: "ReplicaOffer") -> list[str]:
        """Return in words where another replica computes otherwise than this one."""
        ours, theirs = self.fingerprint, other.fingerprint
        names = [*ours, *(name for name in theirs if name not in ours)]
        return [
            f"{_CALLED.get(name, name)} ({_short(theirs.get(name))}, not {_short(ours.get(name))})"
            for name in names
            if ours.get(name) != theirs.get(name)
        ]


def _short(value: str | None) -> str:
    """Return a value as a sentence has it: of a digest, how it begins."""
    if value is None:
        return "none"
    return value[:12] if len(value) == 64 and value.isalnum() else value
