"""Which kernels hold which codes, and where inputs are rounded."""

import pytest

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import BLOCK_FORMS, Activations, CodeForm, CodeKernels

TILES, PAIRS, PANELS, GPU = (
    CodeKernels.TILES,
    CodeKernels.PAIRS,
    CodeKernels.PANELS,
    CodeKernels.GPU,
)
FOUR, EIGHT = CodeForm(4, 32, 2), CodeForm(8, None, 4)
FLOAT8 = CodeForm(8, 128, 4, is_float=True)
FLOAT4 = CodeForm(4, 32, 1, is_float=True)


def test_kernels_of_the_sets() -> None:
    assert KernelSet.PORTABLE.code_kernels is PANELS
    assert KernelSet.AMX.code_kernels is TILES
    assert KernelSet.AVX512_BF16.code_kernels is PAIRS


@pytest.mark.parametrize("kernels", [TILES, PAIRS, PANELS])
def test_processors_hold_the_same_forms_in_both_dtypes(kernels: CodeKernels) -> None:
    for dtype in ("float32", "bfloat16"):
        for form in (FOUR, EIGHT, FLOAT8, *BLOCK_FORMS.values()):
            assert kernels.hold(form, 256, dtype), form
        assert not kernels.hold(FLOAT4, 256, dtype)
        assert not kernels.hold(CodeForm(4, 32, 2, is_scattered=True), 256, dtype)
        assert not kernels.hold(CodeForm(4, 40, 2), 256, dtype)
    assert not kernels.hold(FOUR, 256, "float16")


def test_kernels_of_experts() -> None:
    assert PAIRS.of_experts is PANELS.of_experts is PANELS
    for own in (TILES, GPU, CodeKernels.NONE):
        assert own.of_experts is own


@pytest.mark.parametrize("form", [FOUR, EIGHT, *BLOCK_FORMS.values()], ids=str)
def test_inputs_of_integer_codes(form: CodeForm) -> None:
    for kernels in CodeKernels:
        assert not form.rounds_inputs(Activations.EXACT, kernels)
    for kernels in (TILES, PAIRS, PANELS):
        assert form.rounds_inputs(Activations.INT8, kernels)
    for kernels in (PAIRS, PANELS):
        assert form.rounds_inputs(Activations.AUTO, kernels)
    has_large_groups = form.group_size is None or form.group_size >= 128
    assert form.rounds_inputs(Activations.AUTO, TILES) == has_large_groups


@pytest.mark.parametrize("activations", Activations)
def test_inputs_that_are_never_rounded(activations: Activations) -> None:
    for kernels in CodeKernels:
        assert not FLOAT8.rounds_inputs(activations, kernels)
        assert not FLOAT4.rounds_inputs(activations, kernels)
    for form in (FOUR, EIGHT):
        assert not form.rounds_inputs(activations, GPU)
        assert not form.rounds_inputs(activations, CodeKernels.NONE)
