"""Handler of SIGBUS: memory of a mapped file that was cut, or of a disk that fails.

Python's own handlers run between two of its instructions, which a thread in such memory never
reaches. This one is machine code: it writes the signal's number into a pipe, where a thread waits
that can say more, and ends the process if that thread does not.
"""

import ctypes
import os
import signal
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]

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


def _compiled(code: str) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(code), machine)
    engine.finalize_object()
    return engine
