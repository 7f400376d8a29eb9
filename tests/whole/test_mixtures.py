"""Mixtures of experts, whole: Transformers' tokens, and bytes that no company changes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.paged.execution.run import DEFAULT_POLICY, RunPolicy
from pagedrun.paged.models.checkpoint.checkpoint import Checkpoint
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel
from tests.support.admit_all import AdmitAll
from tests.support.engines import load_engine
from tests.support.every_pair import every_pair
from tests.support.oracle import Oracle

NUM_GENERATED = 16
NUM_TOP = 20
# Where the likeliest two are this near, two programs may differ.
MARGIN = 1e-3
LENGTHS = [1, 15, 16, 17, 64, 65, 130, 200]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-one-dense-layer": (
        "qwen3_moe",
        {"num_hidden_layers": 3, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "qwen3-every-other-tied": (
        "qwen3_moe",
        {"num_experts_per_tok": 2, "decoder_sparse_step": 2, "tie_word_embeddings": True},
    ),
    "qwen2-shared": ("qwen2_moe", {}),
    "mixtral-window": ("mixtral", {"sliding_window": 100}),
}


@pytest.fixture
def oracle(
    request: pytest.FixtureRequest, make_model: MakeModel, oracles: dict[str, Oracle]
) -> Oracle:
    if request.param in oracles:
        return oracles[request.param]
    family, overrides = MODELS[request.param]
    folder = make_model(family, request.param, **overrides)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(256, (max(LENGTHS),), generator=generator).tolist()
    prompts = [shared[:length] for length in LENGTHS]
    prompts += [[*shared[: length - 1], 7] for length in LENGTHS[::2]]
    return oracles.setdefault(request.param, Oracle(model, folder, prompts))


def run(
    folder: Path, prompts: list[list[int]], policy: RunPolicy = DEFAULT_POLICY, **engine: Any
) -> Any:
    """Return the completions in order, and the report."""
    engine.setdefault("dtype", "float32")
    config = EngineConfig(model=folder, **engine)
    params = SamplingParams(max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=NUM_TOP)
    requests = [Request(i, tuple(prompt), params) for i, prompt in enumerate(prompts)]
    going = load_engine(config, policy).start(requests)
    answers = sorted(going, key=lambda each: each.request.index)
    assert [each.error for each in answers] == [None] * len(prompts)
    return answers, going.report()


def check(oracle: Oracle, answers: Any) -> None:
    """Compare tokens up to a near tie, and the first step's log-probabilities, which show more."""
    found = [each.outputs[0] for each in answers]
    num_sure = 0
    for answer, logits in zip(
        found, oracle.logits([each.token_ids for each in found]), strict=True
    ):
        top = logits.topk(2)
        for step, token in enumerate(answer.token_ids):
            if top.values[step, 0] - top.values[step, 1] < MARGIN:
                break
            assert token == top.indices[step, 0]
            num_sure += 1
        logprobs = logits[0].log_softmax(-1)
        assert answer.logprobs is not None
        for each in answer.logprobs[0].top:
            assert each.logprob == pytest.approx(float(logprobs[each.token_id]), abs=1e-4)
    assert num_sure > len(found) * NUM_GENERATED / 2


@pytest.mark.parametrize("oracle", MODELS, indirect=True)
def test_tokens_and_first_logits_equal_transformers(oracle: Oracle) -> None:
    answers, report = run(oracle.folder, oracle.prompts, block_size=16, max_num_batched_tokens=37)
    check(oracle, answers)
    assert report["prefix"]["hit_tokens"] > 0
    network = ModelConfig.from_folder(oracle.folder).network
    twice = network.embedding.num_bytes(4) if network.head is None else 0  # a tied head is packed
    assert report["memory"]["weights"] == network.num_bytes(4) + twice


@every_pair("oracle", in_turn="oracle", oracle=[*MODELS], mode=["swap", "recompute"])
def test_and_when_preempted(oracle: Oracle, mode: str) -> None:
    answers, report = run(
        oracle.folder,
        oracle.prompts,
        RunPolicy(AdmitAll),  # so that somebody must give way
        block_size=8,
        num_blocks=-(-(max(LENGTHS) + NUM_GENERATED) // 8) + 2,
        preemption_mode=mode,
        speculate="off",  # drafts follow measured times
        max_num_batched_tokens=101,
        prefix_caching=False,
    )
    check(oracle, answers)
    assert report["preemptions"][mode] > 0


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_do_not_depend_on_who_else_runs(make_model: MakeModel, dtype: str) -> None:
    """Tokens and log-probabilities, to the last bit: alone, among all, cached or not."""
    family, overrides = MODELS["qwen2-shared"]
    folder = make_model(family, "invariant", **overrides)
    generator = torch.Generator().manual_seed(2)
    prompts = torch.randint(256, (12, 40), generator=generator).tolist()
    prompts = [[*prompts[0][:33], *each[33:]] if i % 2 else each for i, each in enumerate(prompts)]
    expected, _ = run(folder, prompts, dtype=dtype)
    others: list[dict[str, Any]] = [
        {"max_num_seqs": 1, "max_num_batched_tokens": 16},
        {"max_num_seqs": 8, "prefix_caching": False},
    ]
    for engine in others:
        found, _ = run(folder, prompts, dtype=dtype, **engine)
        assert [each.outputs for each in found] == [each.outputs for each in expected]


def stacked(folder: Path, target: Path) -> Path:
    """Copy a model folder, its experts in one tensor for gates and ups and one for downs."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    config = ModelConfig.from_folder(folder)
    names = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}
    for layer in range(config.num_layers):
        for block in ("mlp", "block_sparse_moe"):
            prefix = f"model.layers.{layer}.{block}.experts"
            own = {name for name in tensors if name.startswith(f"{prefix}.")}
            if not own:
                continue
            parts = {
                part: torch.stack(
                    [
                        tensors[f"{prefix}.{expert}.{name}.weight"]
                        for expert in range(8)
                        for name in either
                        if f"{prefix}.{expert}.{name}.weight" in own
                    ]
                )
                for part, either in names.items()
            }
            for name in own:
                del tensors[name]
            tensors[f"{prefix}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
            tensors[f"{prefix}.down_proj"] = parts["down"]
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.invariant("same bytes whatever runs beside a row")
@pytest.mark.parametrize("name", ["qwen3-one-dense-layer", "mixtral-window"])
def test_both_layouts_give_the_same_bytes(make_model: MakeModel, name: str, tmp_path: Path) -> None:
    family, overrides = MODELS[name]
    folder = make_model(family, name, **overrides)
    prompts = [[1, 2, 3], list(range(40))]
    expected, _ = run(folder, prompts)
    found, report = run(stacked(folder, tmp_path / "stacked"), prompts)
    assert [each.outputs for each in found] == [each.outputs for each in expected]
    assert report["memory"]["weights"] == ModelConfig.from_folder(folder).network.num_bytes(4)


def test_experts_stay_in_their_files_where_nothing_is_converted(
    make_model: MakeModel, tmp_path: Path
) -> None:
    family, overrides = MODELS["qwen2-shared"]
    folder = make_model(family, "mapped", **overrides)
    of_experts = sum(
        tensor.nbytes
        for name, tensor in load_file(folder / "model.safetensors").items()
        if ".experts." in name
    )
    for each in (folder, stacked(folder, tmp_path / "stacked")):
        engine = load_engine(EngineConfig(model=each, dtype="float32"))
        assert engine.loaded.model.mapped_bytes == of_experts
    engine = load_engine(EngineConfig(model=folder, dtype="bfloat16"))
    assert engine.loaded.model.mapped_bytes == 0


def test_what_is_kept_lies_in_the_file(make_model: MakeModel) -> None:
    family, overrides = MODELS["qwen2-shared"]
    folder = make_model(family, "mapped", **overrides)
    [parameter, *_] = [
        each
        for each in ModelConfig.from_folder(folder).network.parameters()
        if ".experts." in each.name
    ]
    with Checkpoint.open(folder) as checkpoint:
        cpu = torch.device("cpu")
        source = WeightSource(checkpoint.tensor, torch.float32, cpu, CpuBackend(), is_mapped=True)
        address = source.kept(parameter).data_ptr()
        [mapping] = [
            line
            for line in Path("/proc/self/maps").read_text().splitlines()
            if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
        ]
    assert mapping.endswith("/model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"missing: model\.layers\.1\.mlp\.experts\.5\.up_proj\.weight\)"),
        ("extra", r"extra: model\.layers\.1\.mlp\.experts\.8\.up_proj\.weight\)"),
        ("misshapen", r"experts\.5\.up_proj\.weight is \[31, 64\] and must be \[32, 64\]"),
        ("both", r"extra: model\.layers\.1\.mlp\.experts\.gate_up_proj\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    make_model: MakeModel, change: str, message: str, tmp_path: Path
) -> None:
    family, overrides = MODELS["qwen2-shared"]
    folder = tmp_path / "model"
    shutil.copytree(make_model(family, "refused", **overrides), folder)
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.layers.1.mlp.experts"
    name = f"{prefix}.5.up_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "extra":
        tensors[f"{prefix}.8.up_proj.weight"] = tensors[name].clone()
    elif change == "misshapen":
        tensors[name] = tensors[name][:31].clone()
    else:
        tensors[f"{prefix}.gate_up_proj"] = torch.zeros(8, 64, 64)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        load_engine(EngineConfig(model=folder, dtype="float32"))
