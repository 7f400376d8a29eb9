"""Which kernel sets run, which is chosen, and what a run writes down about it."""

import json
from collections.abc import Callable, Iterator

import numba
import pytest

from pagedrun.kernels import kernel_set as kernel_set_module
from pagedrun.kernels import kernel_set as processor
from pagedrun.kernels.kernel_set import VARIABLE, KernelSet, features, has_features

Have = Callable[..., None]
TILES = ("amx-tile", "amx-bf16", "avx512bf16", "avx512f", "avx2", "fma")


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    """Give the processor these instructions, and say whether the system allows tiles."""

    def pretend(*names: str, tiles_are_allowed: bool = True) -> None:
        for module in (processor, kernel_set_module):
            monkeypatch.setattr(module, "features", lambda: frozenset(names))
        monkeypatch.setattr(kernel_set_module, "_tiles_are_allowed", lambda: tiles_are_allowed)

    monkeypatch.delenv(VARIABLE, raising=False)
    return pretend


def test_what_a_processor_runs_fastest_first(have: Have) -> None:
    have(*TILES)
    assert KernelSet.supported() == [KernelSet.AMX, KernelSet.AVX512_BF16, KernelSet.PORTABLE]
    assert KernelSet.best() is KernelSet.AMX
    have("avx512bf16", "avx512f", "avx2")
    assert KernelSet.supported() == [KernelSet.AVX512_BF16, KernelSet.PORTABLE]
    have("avx512f", "avx2")
    assert KernelSet.supported() == [KernelSet.PORTABLE]
    have()
    assert KernelSet.best() is KernelSet.PORTABLE


def test_tiles_need_the_systems_leave(have: Have) -> None:
    have(*TILES, tiles_are_allowed=False)
    assert KernelSet.best() is KernelSet.AVX512_BF16
    with pytest.raises(ValueError, match="cannot run the kernel set amx; it runs avx512-bf16, p"):
        KernelSet.named("amx")


@pytest.mark.parametrize("missing", TILES[:2])
def test_tiles_need_each_of_their_instructions(missing: str, have: Have) -> None:
    have(*(name for name in TILES if name != missing))
    assert not KernelSet.AMX.is_supported


def test_named(have: Have) -> None:
    have("avx512bf16", "avx512f")
    assert KernelSet.named("portable") is KernelSet.PORTABLE
    assert KernelSet.named(KernelSet.AVX512_BF16) is KernelSet.AVX512_BF16
    with pytest.raises(ValueError, match="no kernel set 'nonsense'; this processor runs avx512-bf"):
        KernelSet.named("nonsense")
    with pytest.raises(ValueError, match="cannot run the kernel set amx; it runs avx512-bf16, po"):
        KernelSet.named("amx")


def test_usable(have: Have) -> None:
    have(*TILES)
    assert KernelSet.usable(None) is KernelSet.AMX
    assert KernelSet.usable(KernelSet.PORTABLE) is KernelSet.PORTABLE
    have()
    with pytest.raises(ValueError, match="cannot run"):
        KernelSet.usable(KernelSet.AMX)


def test_the_variable_decides_where_nothing_is_asked_for(
    have: Have, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(*TILES)
    monkeypatch.setenv(VARIABLE, "portable")
    assert KernelSet.best() is KernelSet.usable(None) is KernelSet.PORTABLE
    assert KernelSet.usable(KernelSet.AMX) is KernelSet.AMX
    monkeypatch.setenv(VARIABLE, "")
    assert KernelSet.best() is KernelSet.AMX
    monkeypatch.setenv(VARIABLE, "fastest")
    with pytest.raises(ValueError, match="no kernel set 'fastest'"):
        KernelSet.best()
    have()
    monkeypatch.setenv(VARIABLE, "avx512-bf16")
    with pytest.raises(ValueError, match="cannot run the kernel set avx512-bf16"):
        KernelSet.best()


def test_what_is_written_down(have: Have, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN picks its kernels by more than we know: then the processor itself is named."""
    have(*TILES, "sse4.2")
    tiles = KernelSet.AMX.describe("bfloat16")
    assert tiles["kernel_set"] == "amx"
    assert tiles["processor_features"] == sorted(TILES[1:])
    assert tiles["read_once"] == [KernelSet.AMX.read_once.min_rows, 2048]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    of_onednn = {"processor", "torch", "onednn_max_cpu_isa"}
    for each in KernelSet:
        for dtype in ("float32", "bfloat16"):
            described = each.describe(dtype)
            assert described["kernel_set"] == each.value
            assert json.loads(json.dumps(described)) == described
            if (each, dtype) != (KernelSet.AVX512_BF16, "bfloat16"):
                assert not described.keys() & of_onednn
                continue
            assert described["onednn_max_cpu_isa"] == "AVX2"
            assert described["processor"]
            assert described["torch"]


def test_versions() -> None:
    """Bits of float32 are those of one implementation in every set."""
    assert {each.version_for("float32") for each in KernelSet} == {3}
    of_bfloat16 = {each: each.version_for("bfloat16") for each in KernelSet}
    assert of_bfloat16 == {KernelSet.AMX: 2, KernelSet.AVX512_BF16: 3, KernelSet.PORTABLE: 3}
    assert KernelSet.PORTABLE.describe("float32")["version"] == 3


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set Numba's features, as NUMBA_CPU_FEATURES does."""

    def set_features(names: str) -> None:
        monkeypatch.setattr(numba.config, "CPU_FEATURES", names)
        features.cache_clear()

    yield set_features
    monkeypatch.undo()
    features.cache_clear()


def test_what_numba_may_not_compile_does_not_run(narrow: Callable[[str], None]) -> None:
    here = features()
    narrow(",".join(f"+{name}" for name in here))
    assert features() == here
    assert has_features()
    narrow(",".join(f"{'-' if 'avx512' in name else '+'}{name}" for name in here))
    assert not any("avx512" in name for name in features())
    assert KernelSet.supported() == [KernelSet.PORTABLE]
    narrow("+sse2,+no-such-instruction")
    assert features() <= {"sse2"}
    narrow("")
    assert features() == frozenset()
    assert KernelSet.best() is KernelSet.PORTABLE
