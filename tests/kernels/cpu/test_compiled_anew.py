"""A kernel has the bits of its code on disk in the process that compiles it too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Answers with their log-probabilities, of kernels that this process compiles or reads from disk.
PROGRAM = """
import hashlib

from pagedrun.kernels.environment.threads import prepare_environment
prepare_environment()
from pagedrun.recipes.demo import demo_model_folder
from pagedrun import LLM, SamplingParams
llm = LLM(demo_model_folder(), dtype="float32")
params = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=5)
prompts = [{"prompt_token_ids": [(7 * i * i + k) % 500 + 5 for i in range(90)]} for k in range(6)]
answers = llm.generate(prompts, params)
told = repr([[each.logprobs for each in answer.outputs] for answer in answers])
print(hashlib.sha256(told.encode()).hexdigest())
"""


@pytest.mark.long
def test_the_process_that_compiles_has_the_bits_of_those_that_read(tmp_path: Path) -> None:
    def digest() -> str:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    compiling = digest()
    assert list(tmp_path.rglob("*.nbi")), "nothing was kept, so nothing was read"
    assert digest() == compiling
