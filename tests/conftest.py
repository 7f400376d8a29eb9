"""The command, and model folders: small random decoders, as transformers saves them."""

import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, Phase, settings

from pagedrun.kernels.environment.threads import cpu_quota, prepare_environment

prepare_environment()  # before any test imports torch
# Processes of pytest-xdist share the processors: with a thread for each of these in every one, the
# threads wait for one another. The tests of kernels, and of the same bytes, take all threads.
if num_processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ["OMP_NUM_THREADS"] = str(max(1, cpu_quota() // int(num_processes)))

import torch  # noqa: E402

# Without a GPU the Triton kernels are interpreted. Triton asks when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.support.command import Command, run_command  # noqa: E402
from tests.support.interpreter import patch_language_once  # noqa: E402
from tests.support.processor_time import ProcessorTime  # noqa: E402

# An example takes as long as the machine is busy: none is too slow.
ANY_LOAD: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("default-run", max_examples=25, **ANY_LOAD)
settings.register_profile("thorough", max_examples=500, **ANY_LOAD)
settings.load_profile("default-run")
# For planted faults: that an example fails is enough, the smallest takes minutes to find.
settings.register_profile(
    "no-shrinking", settings.get_profile("default-run"), phases=[Phase.explicit, Phase.generate]
)

NUM_BYTES = 256
# Ids 256 and up, in this order.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")
IM_END = NUM_BYTES + 2
BOS = NUM_BYTES + 3
HAVE_BOS = ("llama", "mistral", "mixtral")
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Weights this large keep the logits of a random model far apart, so that an argmax is no tie.
INITIALIZER_RANGE = 0.15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help="write tests/durations.json anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessorTime())


def pytest_collection_finish() -> None:
    """Let searches for garbage pass over the modules and tests that are there now, to the end.

    They are a million objects: to walk them takes half a second.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let libraries see their objects go: they complain of each that stays."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Halve the time of interpreted kernels, where any test module has imported them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if "triton.runtime.interpreter" in sys.modules:
            patch_language_once(monkeypatch)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_defaults_of_the_developer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Hide the configuration file and variables of whoever runs the tests, from all programs that
    tests start too. Returns the folder that is looked in instead."""
    folder = tmp_path_factory.mktemp("config")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
        monkeypatch.delenv("PAGEDRUN_MODEL", raising=False)
        yield folder


@pytest.fixture
def pagedrun(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process."""
    return partial(run_command, capsys)


@pytest.fixture
def planners() -> Callable[[], list[str]]:
    """Return the names of planning threads that began in this test and still run.

    A run that another test left open is that test's failure alone.
    """
    before = set(threading.enumerate())
    return lambda: [
        each.name for each in threading.enumerate() if each not in before and each.name == "planner"
    ]


class MakeModel(Protocol):
    """`make_model(family, name, **config_overrides)`; see the fixture."""

    def __call__(self, family: str, name: str, **config_overrides: Any) -> Path: ...


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Build a Hugging Face folder of a small model with random weights.

    A llama, mistral, qwen2 or qwen3, or a mixture of 8 experts (`MIXTURES`).

    `config_overrides` go to the transformers config class; `max_shard_size` goes to
    `save_pretrained` and `dtype` ("bfloat16", …) converts the weights. Folders are shared by the
    session, by family and overrides: copy one before changing it.
    """
    built: dict[tuple[str, str], Path] = {}

    def make(family: str, name: str, **config_overrides: Any) -> Path:
        key = (family, json.dumps(config_overrides, sort_keys=True))
        if key not in built:
            folder = tmp_path_factory.mktemp(f"{family}-{name}")
            save_random_model(folder, family, **config_overrides)
            save_byte_tokenizer(folder, adds_bos=family in HAVE_BOS)
            built[key] = folder
        return built[key]

    return make


@pytest.fixture(scope="session")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a fresh folder that holds the small byte-level tokenizer and no model."""

    def make(adds_bos: bool = False) -> Path:
        folder = tmp_path_factory.mktemp("tokenizer")
        save_byte_tokenizer(folder, adds_bos=adds_bos)
        return folder

    return make


def save_random_model(
    folder: Path,
    family: str,
    *,
    max_shard_size: str = "1GB",
    dtype: str = "float32",
    **config_overrides: Any,
) -> None:
    import torch
    import transformers

    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
        "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    }[family]
    shape = {
        "vocab_size": 320,  # past the tokenizer's 261, as real models are padded
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": INITIALIZER_RANGE,
        "bos_token_id": BOS if family in HAVE_BOS else None,
        "eos_token_id": IM_END,
        "pad_token_id": None,
    }
    if family == "mistral":
        shape["sliding_window"] = None
    if family in MIXTURES:
        shape |= MIXTURES[family]
    config = config_class(**{**shape, **config_overrides})
    with torch.random.fork_rng():
        torch.manual_seed(20_261_120)
        model = model_class(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Fresh norms are ones and fresh biases zeros: a test could not tell them forgotten.
                if "norm" in name:
                    parameter.uniform_(0.7, 1.3)
                elif name.endswith("bias"):
                    parameter.normal_(std=INITIALIZER_RANGE)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)


def save_byte_tokenizer(folder: Path, *, adds_bos: bool) -> None:
    """Save a tokenizer of 256 bytes and five special tokens, with a ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: token_id for token_id, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    if adds_bos:
        config["bos_token"] = "<s>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
