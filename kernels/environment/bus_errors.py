"""Handler of SIGBUS: memory of a mapped file that was cut, or of a disk that fails.

Python's own handlers run between two of its instructions, which a thread in such memory never
reaches. This one is machine code: it writes the signal's number into a pipe, where a thread waits
that can say more, and ends the process if that thread does not.
"""

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]

CUT_FILE = "a file in use, such as the weights of the model, was cut or cannot be read"
GRACE_SECONDS = 10
STATUS = 1
# Pointers are passed as integers, which is the same in C's calling conventions.
_CODE = """
declare i64 @write(i32, i64, i64)
declare i32 @sleep(i32)
declare void @_exit(i32)
define void @on_bus_error(i32 %signum) {{
    call i64 @write(i32 {pipe}, i64 {byte}, i64 1)
    call i32 @sleep(i32 {seconds})
    call i64 @write(i32 2, i64 {text}, i64 {length})
    call void @_exit(i32 {status})
    ret void
}}
"""


class BusErrors:
    """Installed handler, for the rest of the process.

    pipe: descriptor to write to. sentence: written to stderr if nobody ends the process meanwhile.
    """

    def __init__(self, pipe: int, sentence: str) -> None:
        self._byte = ctypes.create_string_buffer(bytes([signal.SIGBUS]))
        text = os.fsencode(f"{sentence}\n")
        self._text = ctypes.create_string_buffer(text)
        code = _CODE.format(
            pipe=pipe,
            byte=ctypes.addressof(self._byte),
            seconds=GRACE_SECONDS,
            text=ctypes.addressof(self._text),
            length=len(text),
            status=STATUS,
        )
        self._engine = _compiled(code)
        address = self._engine.get_function_address("on_bus_error")
        handle = ctypes.CDLL(None).signal
        handle.restype, handle.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
        handle(signal.SIGBUS, address)


def watch_bus_errors(tell: Callable[[str], None]) -> BusErrors:
    """Install the handler in a process without another watchdog.

    tell: called with the sentence in a thread of its own; the process should end soon after.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        if os.read(read_end, 1):
            tell(unreadable_memory())

    Thread(target=wait, name="bus errors", daemon=True).start()
    return BusErrors(write_end, f"Error: {CUT_FILE}")


def _compiled(code: str) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(code), machine)
    engine.finalize_object()
    return engine


def unreadable_memory() -> str:
    """Return the sentence about a mapped file that has become shorter."""
    for path, end, size in _mapped_files():
        if size <= end - mmap.PAGESIZE:
            return f"{path} was cut while it was in use; put the whole file back"
    return "a file in use can no longer be read: check its disk, and the system's log"


def _mapped_files() -> Iterator[tuple[str, int, int]]:
    """Yield the path of each mapped file that still has its name, the end of the mapping in it, and
    its size; of programs and libraries none, since these may be mapped beyond their ends."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = maps.readlines()
    except OSError:  # not Linux
        return
    # "7f01-7f02 r--p 00001000 08:01 1234   /path"
    mapped = [fields for line in lines if len(fields := line.rstrip("\n").split(maxsplit=5)) == 6]
    programs = {fields[5] for fields in mapped if "x" in fields[1]}
    for addresses, _, offset, _, inode, path in mapped:
        if not path.startswith("/") or path in programs:
            continue
        try:
            status = os.stat(path)
        except OSError:  # removed, and still there for this process
            continue
        if status.st_ino == int(inode):
            start, end = (int(each, 16) for each in addresses.split("-"))
            yield path, int(offset, 16) + end - start, status.st_size
