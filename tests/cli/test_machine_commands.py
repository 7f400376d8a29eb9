"""`doctor` and `warmup`: what they print where, and how they end."""

import json

import pytest

from pagedrun.kernels.kernel_set import VARIABLE
from tests.support.command import Command


def test_doctor_names_what_is_broken_and_ends_with_one(
    pagedrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, out, err = pagedrun("doctor", "--json")
    found = json.loads(out)
    assert (status, found["problems"]) == (0, [])
    assert {"versions", "processor", "limits", "caches", "gpu", "hub", "advice"} <= set(found)
    assert found["processor"]["kernel_set"] in found["processor"]["kernel_sets"]
    titles = ["Versions", "Processor", "Limits", "Caches", "GPU", "Hub"]
    assert [line for line in err.splitlines() if line in titles] == titles
    assert [line for line in err.splitlines() if len(line) > 80 and " " in line.strip()] == []
    monkeypatch.setenv(VARIABLE, "mmx")
    status, out, err = pagedrun("doctor", "--quiet")
    assert (status, out) == (1, "")
    assert err.startswith(f"Broken: {VARIABLE}: there is no kernel set 'mmx'")
    assert "unset it" in err


def test_warmup_says_what_it_compiled_and_where_it_is_kept(pagedrun: Command) -> None:
    status, out, err = pagedrun("warmup", "--dtype", "float32", "--json", "--progress", "none")
    done = json.loads(out)
    assert (status, done["device"], done["dtypes"]) == (0, "cpu", ["float32"])
    (kernels,) = [each for each in done["caches"] if each["name"] == "CPU kernels"]
    assert kernels["files"] > 0
    assert f"kept in {kernels['path']}" in " ".join(err.split())
    status, out, err = pagedrun("warmup", "--dtype", "float32", "--json", "--quiet")
    assert (status, json.loads(out)["new_files"], err) == (0, 0, "")


def test_warmup_of_a_model_that_is_not_there_is_refused(pagedrun: Command) -> None:
    status, out, err = pagedrun("warmup", "--model", "./no\x1b[2Jwhere", "--quiet")
    assert (status, out) == (2, "")
    assert "no such folder" in err
    assert "\x1b" not in err
