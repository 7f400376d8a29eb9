"""Kernels compiled ahead of a run: which they are, by which process, and when that is told."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from pagedrun.kernels.cpu import compile_ahead, jit
from pagedrun.kernels.cpu.compile_ahead import (
    AheadCompiler,
    PanelKey,
    RunKernel,
    RunKernels,
    notify_compiling,
)
from pagedrun.kernels.cpu.quantized.linear import QuantizedLinear
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import Activations
from pagedrun.kernels.quantized_weight import PackedWeight
from tests.support import packed_forms
from tests.support.every_pair import long_except
from tests.support.kernel_cases import PRODUCTS, skip_unless_supported

# A run, and the signatures of all kernels that it called.
PROGRAM = """
import gc, json
from pagedrun.kernels.environment.threads import prepare_environment
prepare_environment()
from numba.core.registry import CPUDispatcher
from pagedrun.kernels.cpu.compile_ahead import RunKernels
from pagedrun.kernels.kernel_set import KernelSet
from tests.support.tiny_models import published_config, tiny_engine
from pagedrun import SamplingParams
from pagedrun.paged.values.request import Request

def name(kernel, arguments):
    return [f"{kernel.py_func.__module__}.{kernel.py_func.__name__}", str(tuple(arguments))]

# Heads of whole vectors, as those of all models people run.
engine = tiny_engine(model=published_config("tiny", head_dim=32), dtype="DTYPE")
engine.warm_up()
params = SamplingParams(max_tokens=4, ignore_eos=True)
# A step of more than 384 tokens, of which two threads have rows of their own.
prompts = [tuple(range(1, 140)) + tuple(range(k, k + 40)) for k in range(20)]
for _ in engine.start([Request(i, prompt, params) for i, prompt in enumerate(prompts)]):
    pass
kernels = [each for each in gc.get_objects() if isinstance(each, CPUDispatcher)]
called = [
    name(each, signature)
    for each in kernels
    if each.py_func.__module__.startswith("pagedrun.kernels")
    and not each.targetoptions.get("no_cpython_wrapper")  # as parts of kernels have
    for signature in each.signatures
]
wanted = RunKernels("DTYPE", "DTYPE", KernelSet.best(), ("silu",)).all()
print(json.dumps([called, [name(*each) for each in wanted]]))
"""
LAST = 14  # `_first_rows`, which takes least


@pytest.mark.heavy("a run in a process of its own, with all kernels")
@pytest.mark.parametrize("dtype", long_except(["bfloat16", "float32"], ["bfloat16"]))
def test_a_run_calls_what_is_compiled_ahead_and_nothing_else(dtype: str) -> None:
    """A kernel more, or one more form of one, lengthens the first run on every machine."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("DTYPE", dtype)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],  # where `tests` is found
        env={**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"},
    )
    assert told.returncode == 0, told.stderr
    called, wanted = json.loads(told.stdout)
    assert sorted(called) == sorted(wanted)
    num_linears = 3 if dtype == "float32" or KernelSet.best() is not KernelSet.AVX512_BF16 else 0
    assert len(wanted) == LAST + 1 + num_linears


def added_by(
    weight: PackedWeight, kernel_set: KernelSet, dtype: str, *, rounds_inputs: bool
) -> list[RunKernel]:
    """Return the kernels that a run with such weights has more."""
    key = PanelKey.of(weight.form, rounds_inputs=rounds_inputs)
    of_run = RunKernels(dtype, dtype, kernel_set, ())
    plain = {(id(each.dispatcher), each.arguments) for each in of_run.all()}
    return [
        each
        for each in of_run._replace(codes=(key,)).all()
        if (id(each.dispatcher), each.arguments) not in plain
    ]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize(
    "form", long_except(["q4_0", "awq", "q5_k", "q6_k", "q8_0", "float8"], ["q4_0", "q6_k"])
)
def test_quantized_layers_call_what_is_compiled_ahead(
    form: str, product: tuple[Activations, torch.dtype]
) -> None:
    activations, dtype = product
    rounds_inputs = activations is Activations.INT8
    weight = getattr(packed_forms, form)(40, 256)
    if weight.form.is_float and rounds_inputs:
        pytest.skip("floats are multiplied exactly")
    layer = QuantizedLinear(weight, None, KernelSet.PORTABLE, dtype=dtype, activations=activations)
    layer(torch.ones(2, 256, dtype=dtype))
    name = str(dtype).removeprefix("torch.")
    added = added_by(weight, KernelSet.PORTABLE, name, rounds_inputs=rounds_inputs)
    assert len(added) == 1
    assert added[0].arguments in added[0].dispatcher.signatures


@pytest.mark.parametrize("rounds_inputs", [False, True])
@pytest.mark.parametrize("form", ["q4_0", "awq", "q5_k", "q6_k", "q8_0", "float8"])
def test_on_tiles_few_and_many_rows_call_what_is_compiled_ahead(
    form: str, rounds_inputs: bool
) -> None:
    skip_unless_supported(KernelSet.AMX)
    weight = getattr(packed_forms, form)(40, 256)
    if weight.form.is_float and rounds_inputs:
        pytest.skip("floats are multiplied exactly")
    activations = Activations.INT8 if rounds_inputs else Activations.EXACT
    layer = QuantizedLinear(weight, None, KernelSet.AMX, activations=activations)
    for num_rows in (2, 64):
        layer(torch.ones(num_rows, 256, dtype=torch.bfloat16))
    added = added_by(weight, KernelSet.AMX, "bfloat16", rounds_inputs=rounds_inputs)
    of_rounded = 1 if form == "q6_k" else 2
    assert len(added) == (of_rounded if rounds_inputs else 3)
    assert all(each.arguments in each.dispatcher.signatures for each in added)


def begin(cache: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "pagedrun.kernels.cpu.compile_worker"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wanted() -> RunKernels:
    return RunKernels("float32", "float32", KernelSet.PORTABLE, ("silu",))


def test_another_process_leaves_its_code_where_this_one_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(wanted())}\n{len(wanted().all()) - 1}\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdin.close()
        assert process.wait(30) == 0
    assert [each.name.partition("-")[0] for each in tmp_path.rglob("*.nbi")] == [
        "token_rows._first_rows"
    ]


def test_a_process_that_compiles_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    with begin(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(wanted())}\n0\n")  # the one that takes longest
        process.stdin.flush()
        time.sleep(0.5)
        process.stdin.close()
        assert process.wait(30) == 0
    assert not list(tmp_path.rglob("*.nbi"))


class Kernel:
    """In the place of a kernel that is compiled: notes that it was."""

    def __init__(self, is_cached: bool | None) -> None:
        self.is_cached = is_cached
        self.compiled = 0

    def compile(self) -> None:
        self.compiled += 1


class TestAhead:
    def ahead(
        self, kernels: list[Kernel], command: str, monkeypatch: pytest.MonkeyPatch
    ) -> AheadCompiler:
        monkeypatch.setattr(RunKernels, "all", lambda _: kernels)
        monkeypatch.setattr(compile_ahead, "num_threads", lambda: 2)
        monkeypatch.setattr(compile_ahead, "_COMMAND", [sys.executable, "-c", command])
        return AheadCompiler(wanted())

    def test_what_is_on_disk_begins_no_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernels = [Kernel(is_cached=True), Kernel(is_cached=True)]
        ahead = self.ahead(kernels, "raise SystemExit(1)", monkeypatch)
        told: list[str] = []
        ahead.finish(lambda: told.append("compiling"))
        assert told == []
        assert [each.compiled for each in kernels] == [0, 0]

    def test_where_nothing_can_be_kept_other_processes_are_of_no_use(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernels = [Kernel(is_cached=None) for _ in range(3)]
        self.ahead(kernels, "raise SystemExit(1)", monkeypatch).finish()
        assert [each.compiled for each in kernels] == [0, 0, 0]

    def test_kernels_are_shared_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other process says that it is done as soon as it is asked."""
        answer = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
        kernels = [Kernel(is_cached=False) for _ in range(4)]
        ahead = self.ahead(kernels, answer, monkeypatch)
        told: list[str] = []
        while any(each.is_alive() for each in ahead._threads):
            time.sleep(0.01)
        ahead.finish(lambda: told.append("compiling"))
        assert told == []  # by now there is nothing to wait for
        assert [each.compiled for each in kernels] == [0, 0, 0, 0]

    def test_a_process_that_fails_leaves_the_others_kernels_to_this_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wait = "import time; time.sleep(1); raise SystemExit(1)"
        kernels = [Kernel(is_cached=False) for _ in range(4)]
        told: list[str] = []
        self.ahead(kernels, wait, monkeypatch).finish(lambda: told.append("compiling"))
        assert told == ["compiling"]
        assert sum(each.compiled for each in kernels) == 3  # but for the one that it was given


def test_compiling_is_told_once_and_reading_from_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def fill(out: Any) -> None:
        for i in numba.prange(out.shape[0]):
            out[i] = i

    def times_told() -> int:
        told: list[str] = []
        with notify_compiling(lambda: told.append("compiling")):
            compiled = jit.kernel(fill)
            compiled(np.zeros(3))
            compiled(np.zeros(3))
        return len(told)

    assert times_told() == 1
    assert times_told() == 0
