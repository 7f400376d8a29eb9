"""What doctor finds: a fault is a sentence with what mends it, and nothing it asks can hang it."""

import shutil
import threading
from pathlib import Path

import pytest

from pagedrun.kernels.kernel_set import VARIABLE, KernelSet
from pagedrun.paged.machine.examination import (
    Findings,
    cache_facts,
    gpu_facts,
    hub_facts,
    limit_facts,
    processor_facts,
    versions,
)


def test_a_missing_package_is_a_problem_and_an_optional_one_is_not() -> None:
    findings = Findings()
    found = versions(findings, ("no-such-package", "numpy"))
    assert found["no-such-package"] is None
    assert found["numpy"]
    assert findings.problems == ["no-such-package is not installed: pip install no-such-package"]


def test_a_version_that_is_not_supported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.paged.machine.examination.version", lambda name: "0.0.1")
    findings = Findings()
    assert versions(findings, ("numpy",))["numpy"] == "0.0.1"
    (sentence,) = findings.problems
    assert sentence.startswith("numpy 0.0.1 is not supported (pagedrun needs ")
    assert "pip install 'numpy" in sentence


def test_a_package_that_does_not_load_is_a_problem() -> None:
    """Its version is there, so that a look at versions alone would find nothing."""

    def load(name: str) -> None:
        raise OSError("libgomp.so.1: cannot open shared object file")

    findings = Findings()
    assert versions(findings, ("numba",), load)["numba"]
    (sentence,) = findings.problems
    assert sentence.startswith("numba cannot be imported (OSError: libgomp.so.1")
    assert "pip install --force-reinstall numba" in sentence


def test_a_kernel_set_that_cannot_run_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mmx")
    findings = Findings()
    assert processor_facts(findings)["kernel_set"] is None
    assert findings.problems[0].startswith(f"{VARIABLE}: there is no kernel set 'mmx'")
    monkeypatch.setenv(VARIABLE, "portable")
    slow = Findings()
    facts = processor_facts(slow)
    assert facts["kernel_set"] == "portable"
    assert facts["quantized"] == "quantized in memory, experts too"
    assert facts["activations"] == "int8 for integer codes, else exact; --activations exact for all"
    is_best = KernelSet.supported()[0] is KernelSet.PORTABLE
    assert [slow.problems, len(slow.advice)] == [[], 0 if is_best else 1]


def test_a_hub_that_never_answers_does_not_hold_anybody_up() -> None:
    never = threading.Event()

    def wait(endpoint: str) -> None:
        never.wait(60)

    try:
        facts = hub_facts(wait, 0.05, offline=False)
    finally:
        never.set()
    assert (facts["reachable"], facts["why"]) == (False, "no answer within 0.05 s")


def test_a_hub_that_refuses_and_offline_mode_are_told_apart() -> None:
    def refuse(endpoint: str) -> None:
        raise ConnectionRefusedError("refused")

    assert hub_facts(refuse, offline=False)["why"] == "ConnectionRefusedError: refused"
    assert hub_facts(lambda endpoint: None, offline=False)["reachable"] is True
    offline = hub_facts(refuse, offline=True)
    assert offline["reachable"] is None
    assert "HF_HUB_OFFLINE" in (offline["why"] or "")


def test_a_driver_that_torch_cannot_use_is_worth_a_word(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    driver = tmp_path / "nvidiactl"
    driver.touch()
    for files, num_told in (([driver], 1), ([tmp_path / "none"], 0)):
        findings = Findings()
        assert gpu_facts(findings, files)["why"]
        assert [len(findings.advice), findings.problems] == [num_told, []]


def test_what_the_user_has_set_is_shown_and_not_what_was_prepared() -> None:
    facts = limit_facts(Findings(), {"OMP_NUM_THREADS": "3", "HOME": "/home/ann"})
    assert facts["environment"] == {"OMP_NUM_THREADS": "3"}
    assert facts["threads"] >= 1


@pytest.mark.parametrize(("threads", "num_told"), [(2, 0), (3, 1)])
def test_more_threads_than_processors_are_worth_a_word(
    threads: int, num_told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"OMP_NUM_THREADS": str(threads)}
    monkeypatch.setenv(*next(iter(asked.items())))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    findings = Findings()
    limit_facts(findings, asked)
    told = [each for each in findings.advice if "OMP_NUM_THREADS" in each]
    assert len(told) == num_told
    findings = Findings()
    limit_facts(findings, {})  # set by the program itself
    assert not [each for each in findings.advice if "OMP_NUM_THREADS" in each]


@pytest.mark.parametrize(("free", "is_told"), [(5 * 2**20, True), (2**40, False)])
def test_a_disk_that_is_nearly_full_is_named(
    free: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    usage = type(shutil.disk_usage(tmp_path))(2**41, 2**41 - free, free)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    findings = Findings()
    cache_facts(findings)
    assert (f"{tmp_path}: only 5 MiB are free on this disk" in findings.advice) == is_told


def test_a_folder_that_cannot_keep_kernels_is_worth_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    (kept / "sub").mkdir(parents=True)
    (kept / "sub" / "a.nbc").write_bytes(b"12345")
    (kept / "sub" / "a.txt").write_bytes(b"no code")
    for folder, num_told in ((kept, 0), (tmp_path / "gone", 1)):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        findings = Findings()
        (facts,) = [each for each in cache_facts(findings) if each["name"] == "CPU kernels"]
        assert (facts["files"], facts["bytes"]) == ((1, 5) if folder is kept else (0, 0))
        assert (
            sum("compiled kernels cannot be kept" in each for each in findings.advice) == num_told
        )
