"""Programs that answer like the peers of `bench throughput`, without computing anything."""

import sys
from pathlib import Path

# A prompt token takes 1 ms and a generated one 10 ms, of each row that has its own.
BATCHED_BENCH = """
import json, sys
from pathlib import Path
here = Path(__file__).parent
given = sys.argv[1:]
if given == ["--version"]:
    sys.exit(print("version: 1.2 (build 3)", file=sys.stderr))
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(given) + "\\n")
if (here / "loses").exists():
    sys.exit((here / "loses").unlink())
if (here / "fails").exists():
    sys.exit("error: unable to load model")
value = {flag: given[at + 1] for at, flag in enumerate(given[:-1])}
pp, tg = int(value["-npp"]), int(value["-ntg"])
print("a line of its log")
for rows in map(int, value["-npl"].split(",")):
    prompts = 1 if "-pps" in given else rows
    point = {"pp": pp, "tg": tg, "pl": rows}
    print(json.dumps({**point, "t_pp": pp * prompts / 1000, "t_tg": tg * rows / 100}))
"""

VLLM = """
__version__ = "0.99"

class SamplingParams:
    def __init__(self, max_tokens, **fields):
        assert fields["temperature"] == 0.0 and fields["ignore_eos"], fields
        self.max_tokens = max_tokens

class Output:
    def __init__(self, request_id, token):
        self.request_id, self.token_ids = request_id, [token]
        self.outputs = [self]

class LLM:
    def __init__(self, **fields):
        if fields["max_model_len"] > 1000:
            raise ValueError("no memory")
        assert fields["enable_prefix_caching"]
        self.llm_engine, self.rows = self, {}

    def reset_prefix_cache(self):
        assert not self.rows

    def add_request(self, request_id, prompt, params):
        self.rows[request_id] = params.max_tokens

    def step(self):
        outputs = [Output(each, left) for each, left in self.rows.items()]
        self.rows = {each: left - 1 for each, left in self.rows.items() if left > 1}
        return outputs
"""

OPENVINO = """
class Core:
    def get_property(self, device, name):
        return ["FP32"]

def Tensor(values):
    return values.tolist()
"""

OPENVINO_GENAI = """
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.99"
SchedulerConfig = GenerationConfig = SimpleNamespace
GenerationStatus = SimpleNamespace(RUNNING=1)

class Handle:
    def __init__(self, left):
        self.left, self.unread = left, False

    def can_read(self):
        return self.unread

    def read(self):
        self.unread = False
        return {0: SimpleNamespace(generated_ids=[self.left])}

    def get_status(self):
        return GenerationStatus.RUNNING if self.left else 2

class ContinuousBatchingPipeline:
    def __init__(self, folder, scheduler, device, options):
        assert Path(folder, "exported").exists() and device == "CPU"
        assert scheduler.enable_prefix_caching and scheduler.cache_size >= 1
        self.handles, self.queued, self.computed = [], set(), set()

    def add_request(self, row_id, prompt, config):
        handle = Handle(config.max_new_tokens)
        self.handles.append(handle)
        # Only after the step of a row can others have its beginning from the cache.
        beginning = tuple(prompt[0][:48])
        assert beginning in self.computed or beginning not in self.queued
        self.queued.add(beginning)
        return handle

    def step(self):
        self.computed |= self.queued
        for each in self.handles:
            if each.left:
                each.unread, each.left = True, each.left - 1
"""

OPTIMUM_INTEL = """
from pathlib import Path

class OVModelForCausalLM:
    @classmethod
    def from_pretrained(cls, folder, **fields):
        assert Path(folder, "model.safetensors").exists() and Path(folder, "config.json").exists()
        return cls()

    def save_pretrained(self, folder):
        Path(folder).mkdir()
        Path(folder, "exported").touch()
"""

MODULES = {
    "vllm": {
        "vllm/__init__.py": VLLM,
        "vllm/sampling_params.py": "class RequestOutputKind:\n    DELTA = 1\n",
    },
    "openvino": {
        "openvino/__init__.py": OPENVINO,
        "openvino_genai/__init__.py": OPENVINO_GENAI,
        "optimum/__init__.py": "",
        "optimum/intel/__init__.py": OPTIMUM_INTEL,
    },
}


def executable(path: Path, text: str) -> Path:
    """Write an executable file; return its path."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def batched_bench(folder: Path) -> Path:
    """Write a llama-batched-bench, which notes its arguments in `calls`; return its path.

    A file `loses` beside it makes one call print nothing, `fails` all of them fail.
    """
    return executable(folder / "llama-batched-bench", f"#!{sys.executable}\n{BATCHED_BENCH}")


def interpreter(folder: Path, name: str) -> Path:
    """Write an interpreter that has the packages of a peer; return its path."""
    for path, text in MODULES[name].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return executable(
        folder / "python", f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n'
    )
