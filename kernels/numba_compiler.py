"""Kernels compiled as a whole: LLVM sees a kernel and all of its parts once, together.

Numba optimizes and translates each function separately, and again within each caller: more than
half of the time goes into code that is never called. Here parts, parallel loops and NumPy functions
stay lowered IR until the kernel around them is complete. A kernel has one machine code, the same in
the process that compiles it as in those that read it from disk.
"""

import gc
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import codegen
from numba.core.compiler import Compiler

# Numba's names: of the body of a parallel loop, and of the code by which Python and C call it.
_PARALLEL_LOOP = "__numba_parfor_gufunc"
_FROM_PYTHON, _FROM_C = "wrapper", "cfunc_wrapper"


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Numba's pipeline for a function that Python calls: its `pipeline_class`."""

    def _compile_core(self) -> Any:
        target = self.state.targetctx.codegen()
        before, is_collecting = target._library_class, gc.isenabled()
        target._library_class = _Library  # while Numba's lock is held
        gc.disable()  # collection took a fifth of compile time: the objects stay alive
        try:
            return super()._compile_core()
        finally:
            target._library_class = before
            if is_collecting:
                gc.enable()


class ReorderedCompiler(Compiler):  # type: ignore[misc]
    """Numba's pipeline for a part whose sums LLVM may reorder.

    The order depends on the code around a sum, so LLVM optimizes the part alone before it is
    linked: its bits are the same in each kernel.
    """

    def _compile_core(self) -> Any:
        library = self.state.targetctx.codegen().create_library(self.state.func_id.func_qualname)
        library.enable_object_caching()
        library.is_alone = True
        self.state.library = library
        return super()._compile_core()


class _Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code of one function, compiled when its address is asked for and not when it is linked."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._environments: list[tuple[str, Any]] = []
        self.is_alone = False
        self._was_optimized = False

    @property
    def codegen(self) -> Any:
        """Numba's code generator; until there is code, this object, which stores environments."""
        return self if not self._finalized else super().codegen

    def set_env(self, name: str, environment: Any) -> None:
        """Store an environment: the Python objects that a function refers to."""
        self._environments.append((name, environment))

    def add_ir_module(self, ir_module: Any) -> None:
        """Add lowered code, except unused entries."""
        is_loop = self.name.startswith(_PARALLEL_LOOP)
        if ir_module.name != _FROM_C and not (is_loop and ir_module.name == _FROM_PYTHON):
            super().add_ir_module(ir_module)

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function of this library, 0 if it has none of that name."""
        if not self._finalized:
            if name not in (each.name for each in self.get_defined_functions()):
                return 0
            self.finalize()
        return int(super().get_pointer_to_function(name))

    def finalize(self) -> None:
        """Link all that is called from here, then optimize and translate it together."""
        self._codegen._check_llvm_bugs()
        self._raise_if_finalized()
        libraries = self._optimize_together()
        self._final_module.verify()
        self._finalize_final_module()
        for library in (self, *filter(_is_open, libraries)):
            for name, environment in library._environments:
                if self._codegen._engine.is_symbol_defined(name):
                    self._codegen.set_env(name, environment)

    def _optimize_together(self) -> list[Any]:
        """Link and optimize; return the libraries that were linked."""
        libraries = self._called()
        for library in libraries:
            if hasattr(self, "_reload_init"):  # Numba 0.61 has none
                self._reload_init.update(library._reload_init)
            if _is_open(library):
                self._final_module.link_in(library._own_code())
            else:
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._optimize_final_module()
        return libraries

    def _own_code(self) -> Any:
        """Return the code to link: as it was lowered, or of `ReorderedCompiler`, optimized."""
        if self.is_alone and not self._was_optimized:
            self._optimize_together()
            self._was_optimized = True
        return _for_linking(self._final_module)

    @property
    def has_dynamic_globals(self) -> bool:
        """True if the code contains addresses of this process and cannot be cached."""
        self._complete()
        return bool(super().has_dynamic_globals)

    def _complete(self) -> None:
        if not self._finalized:
            self.finalize()

    def _ensure_finalized(self) -> None:
        """Do nothing: Numba asks for it wherever it links."""

    def _get_module_for_linking(self) -> Any:
        self._complete()  # a function that is not of a kernel calls it
        return super()._get_module_for_linking()

    def _get_compiled_object(self) -> Any:
        self._complete()
        return super()._get_compiled_object()

    def _called(self) -> list[Any]:
        """Return the libraries that are called from here, callers before those that they call.

        LLVM links a function only where one is linked already that calls it.
        """
        found: list[Any] = []
        seen = {self}

        def visit(library: Any) -> None:
            for each in library._linking_libraries:
                if each not in seen:
                    seen.add(each)
                    if _is_open(each):
                        visit(each)
                    found.append(each)

        visit(self)
        return found[::-1]


def _is_open(library: Any) -> bool:
    return isinstance(library, _Library) and not library._finalized


def _for_linking(module: Any) -> Any:
    """Return a copy whose functions may be in several modules and are dropped if not called."""
    copy = module.clone()
    for function in copy.functions:
        if not function.is_declaration and function.linkage == binding.Linkage.external:
            function.linkage = "linkonce_odr"
    return copy
