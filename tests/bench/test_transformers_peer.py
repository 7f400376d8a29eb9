"""`bench throughput` against Transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pagedrun.cli.bench.throughput import PeerName, open_peer
from pagedrun.paged.bench.contender import Peer
from pagedrun.paged.bench.throughput import ThroughputBench
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import UsageError
from tests.bench.tiny import FLOAT32, TINY, silent
from tests.conftest import MakeModel

LLAMA = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 16_384,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}

QWEN2 = {**LLAMA, "model_type": "qwen2", "rope_scaling": None, "tie_word_embeddings": True}


def transformers(batch_rows: int | None) -> Peer:
    peer = open_peer(PeerName.TRANSFORMERS, batch_rows=batch_rows)
    assert peer is not None
    return peer


class TestTransformers:
    @pytest.mark.parametrize("fields", [None, LLAMA, QWEN2], ids=["qwen3", "llama", "qwen2"])
    def test_the_same_weights_give_the_same_tokens(self, fields: dict[str, Any] | None) -> None:
        model = TINY
        if fields is not None:
            config = ModelConfig.from_json(JsonObject("config.json", fields))
            model = BenchModel("small", config, fields=fields)
        bench = ThroughputBench(model, Workload(5, 48, 8, 8), FLOAT32, peer=transformers(2))
        result: Any = bench.run(silent)
        (ratio,) = result["ratios"]
        assert (ratio["name"], ratio["rows_alike"], ratio["rows"]) == ("transformers", 5, 5)
        (run,) = result["contenders"][1]["runs"]
        assert (run.batch_rows, run.prompt_tokens, run.generated_tokens) == (2, 280, 40)
        assert run.decode_step.count == 2 * 7  # of the full batches
        assert 0 < run.prefill_s < run.total_s

    def test_a_folder_is_loaded_by_both(self, make_model: MakeModel) -> None:
        model = BenchModel.from_folder(make_model("mistral", "bench"))
        bench = ThroughputBench(model, Workload(3, 20, 8, 8), FLOAT32, peer=transformers(None))
        (ratio,) = bench.run(silent)["ratios"]
        assert ratio["rows_alike"] == 3

    def test_as_many_rows_as_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cpu = torch.device("cpu")
        peer = transformers(None)
        peer.load(TINY, torch.float32, cpu)
        requests = Workload(3, 20, 8, 2).requests(512)
        figures: Any = peer.run(requests)[0]
        assert figures.batch_rows == 3
        nothing = type("Nothing", (), {"read": lambda: type("Bytes", (), {"available": 1})})
        monkeypatch.setattr("benchmarks.peers.transformers_peer.HostMemory", nothing)
        figures = peer.run(requests)[0]
        assert figures.batch_rows == 1

    def test_without_the_adapter_it_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="in the repository of pagedrun"):
            open_peer(PeerName.TRANSFORMERS, benchmarks=tmp_path)

    def test_rows_of_several_lengths_are_refused(self) -> None:
        for workload in (Workload(3, 20, Lengths(4, 8), 2), Workload(3, 20, 8, Lengths(2, 3))):
            with pytest.raises(UsageError, match="rows of one length"):
                ThroughputBench(TINY, workload, FLOAT32, peer=transformers(None))
