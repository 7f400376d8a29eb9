"""The processes below one, as the kernel has them."""

import os
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of all processes below `pid`, by their ids."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            parent = _parent(int(each.name))
            children.setdefault(parent, []).append(int(each.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = command_line(child)
            waiting.append(child)
    return found


def replica_pids() -> list[int]:
    """Return the processes of replicas that were started by this one."""
    return sorted(pid for pid, line in descendants(os.getpid()).items() if "ray::RayActor" in line)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening_addresses(pids: list[int]) -> set[str]:
    """Return the IPv4 and IPv6 addresses at which processes listen, in the kernel's hexadecimal."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _sockets(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(each)
            if name.startswith("socket:["):
                found.add(name[8:-1])
    except OSError:
        pass
    return found
