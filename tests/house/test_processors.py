"""Feature levels of `make test-processors`: which run here, and masks that do nothing."""

import os
import platform
from pathlib import Path

import pytest

from pagedrun.kernels.kernel_set import features
from tests import processors
from tests.processors import LEVELS, Outcome, mask_fault, probe, run_level, skip_reason, table

V3, V3_VNNI, V4, VNNI, BF16, AMX = LEVELS
is_v3 = platform.machine() in ("x86_64", "AMD64") and features() >= V3.features
needs_v3 = pytest.mark.skipif(not is_v3, reason="x86-64-v3 instructions")
HELD = """onednn_verbose,v1,info,cpu,isa:Intel AVX2
aten avx2
features avx2 fma
registers ymm
"""
PASSES_AND_FAILS = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skipped(): pass
"""


def run_here(host: frozenset[str]) -> list[str]:
    return [each.name for each in LEVELS if skip_reason(each, host) is None]


def test_levels_below_the_hosts_run() -> None:
    """An Alder Lake has AVX-VNNI and no AVX-512, a Skylake-X the other way round."""
    assert run_here(V3.features) == []
    assert run_here(V3_VNNI.features) == [V3.name]
    assert run_here(V4.features) == [V3.name]
    assert run_here(BF16.features) == [V3.name, V4.name, VNNI.name]
    zen_5 = BF16.features | V3_VNNI.features
    assert run_here(zen_5) == [V3.name, V3_VNNI.name, V4.name, VNNI.name]
    assert run_here(AMX.features) == [each.name for each in LEVELS[:-1]]
    reasons = [skip_reason(each, V3.features) for each in LEVELS]
    assert all(reason is not None for reason in reasons)
    assert "avxvnni" in str(reasons[1])


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("aten avx2", "aten avx512"),
        ("isa:Intel AVX2", "isa:Intel AVX-512 with Intel DL Boost"),
        ("isa:Intel AVX2", ""),
        ("features avx2 fma", "features avx2 avx512vnni fma"),
        ("registers ymm", "registers ymm zmm"),
        ("aten avx2", "ModuleNotFoundError"),
    ],
)
def test_each_part_of_a_mask_is_checked(line: str, instead: str) -> None:
    assert mask_fault(V3, HELD) is None
    assert line in HELD
    assert mask_fault(V3, HELD.replace(line, instead)) is not None


@needs_v3
@pytest.mark.long
def test_a_level_takes_all_its_variables() -> None:
    bare = {name: value for name, value in os.environ.items() if name not in V3.variables()}
    assert mask_fault(V3, probe({**bare, **V3.variables()})) is None
    if "avx512f" not in features():
        pytest.skip("only a processor with AVX-512 shows what a mask leaves on")
    for forgotten in V3.variables():
        rest = {name: value for name, value in V3.variables().items() if name != forgotten}
        assert mask_fault(V3, probe({**bare, **rest})) is not None, forgotten


@needs_v3
def test_a_level_with_a_failed_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_few.py").write_text(PASSES_AND_FAILS)
    outcome = run_level(V3, [str(tmp_path), "-p", "no:cacheprovider", f"--rootdir={tmp_path}"])
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 1, 1)
    lines = table([outcome, Outcome(AMX, note="skipped: no tiles")]).splitlines()
    assert lines[1].split()[-4:-1] == ["1", "1", "1"]
    assert lines[2].endswith("skipped: no tiles")


def test_a_level_without_tests_or_without_a_mask_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processors, "probe", lambda _: HELD)
    assert run_level(V3, [str(tmp_path / "gone.py"), f"--rootdir={tmp_path}"]).failed == 1
    monkeypatch.setattr(processors, "probe", lambda _: HELD.replace("aten avx2", "aten avx512"))
    unmasked = run_level(V3, ["no tests are run"])
    assert unmasked.failed == 1
    assert "avx512" in unmasked.note
