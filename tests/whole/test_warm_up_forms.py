"""Warm-up on a GPU: it launches each kernel in every form that a run launches."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.families import RECURRENT, TINY
from tests.support.mixture_families import MIXTURES

SHORT = ("qwen3",)


def forms_of(*families: str) -> list[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.launched_forms", *families],
        env={**environment, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.heavy("a warm-up and a run on the interpreted kernels, in a process of its own")
def test_a_run_compiles_nothing() -> None:
    """A form that comes during a run stops all of its rows for a second or two."""
    found = {each["family"]: each for each in forms_of(*SHORT)}
    assert list(found) == list(SHORT)
    for each in found.values():
        assert each["new"] == [], each["family"]
    kernels = found["qwen3"]["kernels"]
    assert {"_attend_chunks", "_prefill_attention", "_attend_units", "attend_units"} <= {*kernels}
    assert {"single_pass", "partial_states", "find_thresholds", "_token_logprobs"} <= {*kernels}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_of_any_family_compiles_nothing() -> None:
    families = [name for name in (*TINY, *RECURRENT, *MIXTURES) if name not in SHORT]
    found = forms_of(*families)
    assert [each["family"] for each in found] == families
    assert [each for each in found if each["new"]] == []
