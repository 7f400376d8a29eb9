"""Control groups of this process: Linux limits of its CPU time and memory.

A limit may be set at any level: the container's group, its pod, the slice above. All of them hold
at once, so the effective limit is the tightest of all groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Folder of one group. Names and formats of its files depend on the version."""

    folder: Path
    version: int  # 1, or 2 for the unified hierarchy

    def read(self, name: str) -> str | None:
        """Return the contents of the file `name`, `None` if it cannot be read."""
        try:
            return (self.folder / name).read_text()
        except (OSError, UnicodeDecodeError):
            return None

    def read_int(self, name: str) -> int | None:
        """Return the number in the file `name`; `None` for "max", which is no limit."""
        try:
            return int(self.read(name) or "")
        except ValueError:
            return None


def control_groups(controller: str) -> Iterator[ControlGroup]:
    """Yield the groups of this process that may limit `controller`, each after those inside it.

    `controller` is "cpu" or "memory". A folder that is yielded need not exist: inside a container
    the membership often names a path of the host, of which only the root is seen.
    """
    for root, group, version in _memberships(controller):
        folder = root / group.lstrip("/")
        yield ControlGroup(folder, version)
        while folder != root:
            folder = folder.parent
            yield ControlGroup(folder, version)


def _memberships(controller: str) -> Iterator[tuple[Path, str, int]]:
    """Yield (root of a hierarchy, path of this process's group in it, version)."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers == "":
            yield ROOT, group, 2
            yield ROOT / "unified", group, 2  # beside version 1
        elif controller in controllers.split(","):
            yield ROOT / controller, group, 1
            if controllers != controller:
                yield ROOT / controllers, group, 1
