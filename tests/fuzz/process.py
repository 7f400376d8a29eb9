"""The process that fuzzes one reader until its time is over, or until an input ends it.

Below build/fuzz/READER are `corpus/`, the inputs that reached something new, `findings/`, and
`current`, the length and the bytes of the input being read, for whoever sees this process die.
"""

import hashlib
import io
import math
import mmap
import os
import resource
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NoReturn

import atheris

ROOT = Path(__file__).resolve().parents[2]
# Nothing is read there, and to instrument a module takes a tenth of a second.
_NOT_READERS = ("kernels", *(f"paged/{room}" for room in ("execution", "planning", "scheduling")))
INSTRUMENTED: dict[str, Any] = {
    "include": ["pagedrun", "jinja2"],
    "exclude": [
        ".".join(("pagedrun", *path.relative_to(ROOT).with_suffix("").parts))
        for folder in _NOT_READERS
        for path in (ROOT / folder).rglob("*.py")
    ],
}
with redirect_stderr(io.StringIO()), atheris.instrument_imports(**INSTRUMENTED):
    from tests.fuzz.readers import READERS, Reader

BUILD = ROOT / "build" / "fuzz"
MAX_INPUT_BYTES = 2**14
SLOW_SECONDS = 5  # of the processor, instrumented; at twice as many the process ends
GROWTH_BYTES = 2**28
ADDRESS_SPACE = 2**32  # more than the process has at its start


def own_folder(name: str) -> Path:
    """Return the folder of a reader."""
    folder = BUILD / name
    for each in ("corpus", "findings"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    return folder


def keep_finding(folder: Path, kind: str, data: bytes, why: str) -> None:
    """Keep the shortest input of each kind of finding, and what happened."""
    path = folder / "findings" / f"{kind}-{hashlib.sha256(kind.encode()).hexdigest()[:8]}"
    if not path.exists() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(why, encoding="utf-8", errors="replace")


def kind_of(error: BaseException) -> str:
    """Return a name for equal errors: the type, and the last place in a module of pagedrun's."""
    places = [
        each for each in traceback.extract_tb(error.__traceback__) if "/paged" in each.filename
    ]
    place = places[-1] if places else None
    where = "" if place is None else f"-{Path(place.filename).stem}-{place.lineno}"
    return f"{type(error).__name__}{where}"


class Watched:
    """Reads inputs in `folder`, and keeps those that break the promise of a reader: an error that
    is not documented, seconds of the processor, or memory."""

    def __init__(self, folder: Path, read: Callable[[bytes], str]) -> None:
        self._folder = folder
        self._read = read
        with (folder / "current").open("w+b") as file:
            file.truncate(8 + 2 * MAX_INPUT_BYTES)
            self._current = mmap.mmap(file.fileno(), 0)
        self._most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def __call__(self, data: bytes) -> None:
        kept = data[: 2 * MAX_INPUT_BYTES]
        self._current[: 8 + len(kept)] = len(kept).to_bytes(8, "little") + kept
        begin = time.process_time()
        last = math.ceil(begin) + 2 * SLOW_SECONDS
        limit_softly(resource.RLIMIT_CPU, last)
        try:
            self._read(data)
        except BaseException as error:  # a panic in Rust is not an Exception
            keep_finding(self._folder, kind_of(error), data, traceback.format_exc())
        seconds = time.process_time() - begin
        limit_softly(resource.RLIMIT_CPU, resource.RLIM_INFINITY)  # mutations are not the reader's
        if seconds > SLOW_SECONDS:
            keep_finding(self._folder, "slow", data, f"{seconds:.1f} s of the processor")
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if (most - self._most) << 10 > GROWTH_BYTES:
            keep_finding(self._folder, "growth", data, f"{(most - self._most) >> 10} MiB")
        self._most = most


def limit_softly(what: int, limit: int) -> None:
    """Limit what this process may take; it and those that it starts may raise it again."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (hard if limit == resource.RLIM_INFINITY else limit, hard))


def mutator(reader: Reader) -> Callable[[bytes, int, int], bytes]:
    """Return the fuzzer's mutation within the form of a reader's files."""

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        def change(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, max_size))

        return reader.mutate(data, change)[:max_size]

    return mutated


def fuzz(name: str, seconds: int, seed: int, place: Path) -> NoReturn:
    """Fuzz a reader of files in the folder `place`; exits with 0 when the time is over."""
    reader, folder = READERS[name], own_folder(name)
    with atheris.instrument_imports(**INSTRUMENTED):
        read = reader.within(place)
        seeds = reader.seeds()
        for each in seeds:
            read(each)  # modules that are imported late are instrumented, too
    for each in seeds:
        (folder / "corpus" / hashlib.sha256(each).hexdigest()[:16]).write_bytes(each)
    space = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    limit_softly(resource.RLIMIT_AS, space + ADDRESS_SPACE)
    limit_softly(resource.RLIMIT_CORE, 0)
    options = {
        "max_total_time": seconds,
        "seed": seed,
        "max_len": MAX_INPUT_BYTES,
        "timeout": 10**6,  # its clock is that of the wall
        "rss_limit_mb": 0,
        "artifact_prefix": f"{place}/",
        "print_final_stats": 1,
    }
    arguments = ["fuzz", str(folder / "corpus"), *(f"-{k}={v}" for k, v in options.items())]
    atheris.Setup(arguments, Watched(folder, read), custom_mutator=mutator(reader))
    atheris.Fuzz()
    os._exit(0)
