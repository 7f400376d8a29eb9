"""`bench throughput` against programs in processes of their own, which are fakes here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig

from benchmarks.peers.llama_cpp_peer import LlamaCppPeer
from benchmarks.peers.saved_model import rotary_factors, save_gguf, turned
from pagedrun.cli.bench.throughput import PeerName, open_peer
from pagedrun.paged.bench.contender import Peer
from pagedrun.paged.bench.throughput import ThroughputBench
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.values.errors import UsageError
from tests.bench.tiny import FLOAT32, TINY, silent
from tests.support.fake_peers import batched_bench, executable, interpreter

CPU = torch.device("cpu")
WORKERS = [PeerName.VLLM, PeerName.OPENVINO]
VARIABLES = {
    PeerName.LLAMA_CPP: "PAGEDRUN_LLAMA_CPP",
    PeerName.VLLM: "PAGEDRUN_VLLM_PYTHON",
    PeerName.OPENVINO: "PAGEDRUN_OPENVINO_PYTHON",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def opened(name: PeerName, path: Path) -> Peer:
    peer = open_peer(name, path)
    assert peer is not None
    return peer


class TestLlamaCpp:
    @pytest.fixture
    def peer(self, tmp_path: Path) -> Peer:
        return opened(PeerName.LLAMA_CPP, batched_bench(tmp_path).parent)

    def run(self, peer: Peer, workload: Workload) -> Any:
        peer.load(TINY, torch.float32, CPU)
        peer.warm_up(workload)
        figures, tokens = peer.run(())
        peer.close()
        assert tokens == []
        return figures

    def calls(self, tmp_path: Path) -> list[list[str]]:
        """Return the arguments of the calls after those of the warm-up."""
        lines = (tmp_path / "calls").read_text().splitlines()
        return [json.loads(line) for line in lines[len(lines) // 2 :]]

    def test_a_shared_beginning_is_computed_once(self, peer: Peer, tmp_path: Path) -> None:
        figures = self.run(peer, Workload(5, 48, 8, 4))
        # One prompt of 56, four own parts of 8; three steps for five rows.
        assert figures.prefill_s == pytest.approx(0.056 + 4 * 0.008)
        assert figures.total_s == pytest.approx(figures.prefill_s + 3 * 5 * 0.01)
        assert figures.decode_step.median == pytest.approx(5 * 0.01)
        assert (figures.prompt_tokens, figures.generated_tokens) == (5 * 56, 5 * 4)
        first, second = self.calls(tmp_path)
        assert {"-pps", "-kvu"} <= set(first)
        assert "-pps" not in second
        assert peer.version == "1.2 (build 3)"

    def test_rows_without_one_are_measured_in_one_call(self, peer: Peer, tmp_path: Path) -> None:
        figures = self.run(peer, Workload(5, 0, 8, 4))
        assert figures.total_s == pytest.approx(5 * 0.008 + 3 * 5 * 0.01)
        assert len(self.calls(tmp_path)) == 1

    def test_many_rows_run_in_batches(self, peer: Peer) -> None:
        figures = self.run(peer, Workload(600, 48, 8, 4))
        assert figures.prefill_s == pytest.approx(0.056 + 599 * 0.008)
        assert figures.total_s == pytest.approx(figures.prefill_s + 3 * 600 * 0.01)
        assert figures.decode_rows == 256

    def test_a_lost_line_is_asked_for_again(self, peer: Peer, tmp_path: Path) -> None:
        (tmp_path / "loses").touch()
        assert self.run(peer, Workload(5, 0, 8, 4)).rows == 5

    def test_it_takes_turns(self, peer: Peer) -> None:
        result: Any = ThroughputBench(TINY, Workload(3, 48, 8, 4), FLOAT32, peer=peer).run(silent)
        (ratio,) = result["ratios"]
        assert (ratio["rows_alike"], ratio["first_tokens_alike"], ratio["rows"]) == (None, None, 3)
        assert result["contenders"][1]["version"] == "1.2 (build 3)"

    def test_a_gguf_file_is_passed_as_it_is(self, peer: Peer, tmp_path: Path) -> None:
        path = tmp_path / "own.gguf"
        path.write_bytes(b"GGUF")
        model = BenchModel("own", TINY.config, path)
        peer.check(model, Workload(5, 0, 8, 4))
        peer.load(model, torch.float32, CPU)
        peer.warm_up(Workload(5, 0, 8, 4))
        (call,) = map(json.loads, (tmp_path / "calls").read_text().splitlines())
        assert call[call.index("-m") + 1] == str(path)

    def test_its_failure_is_a_sentence(self, peer: Peer, tmp_path: Path) -> None:
        (tmp_path / "fails").touch()
        with pytest.raises(UsageError, match=r"llama-batched-bench failed: .*unable to load"):
            self.run(peer, Workload(5, 0, 8, 4))

    def test_rows_and_models_that_it_cannot_measure(self, peer: Peer, tmp_path: Path) -> None:
        rows = Workload(4, 20, 8, 2)
        for other in (Workload(4, 20, Lengths(4, 8), 2), Workload(4, 20, 8, 2, group_size=2)):
            with pytest.raises(UsageError, match="rows of one length in one group"):
                peer.check(TINY, other)
        with pytest.raises(UsageError, match=r"model as a \.gguf file"):
            peer.check(BenchModel("folder", TINY.config, tmp_path), rows)
        for shape in ("gemma-2-2b", "qwen3-30b-a3b"):
            with pytest.raises(UsageError, match=f"qwen3, llama, mistral, and {shape} is another"):
                peer.check(BenchModel.from_shape(shape), rows)

    def test_a_program_that_does_not_run(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="has no llama-batched-bench; build it"):
            open_peer(PeerName.LLAMA_CPP, tmp_path)
        program = executable(tmp_path / "llama-batched-bench", "#!/bin/sh\necho no ISA; exit 4\n")
        with pytest.raises(UsageError, match=r"does not run \(no ISA\)"):
            LlamaCppPeer(program)


class TestGguf:
    def test_the_weights_are_the_random_ones(self, tmp_path: Path) -> None:
        for dtype in (torch.bfloat16, torch.float32):
            path = save_gguf(TINY, dtype, tmp_path / f"{dtype}.gguf")
            reader = gguf.GGUFReader(path)
            found = {each.name: each for each in reader.tensors}
            parameters = list(TINY.config.network.parameters())
            assert len(found) == len(parameters)
            weights = TINY.weights(dtype)
            for theirs, ours in (
                ("token_embd.weight", "model.embed_tokens.weight"),
                ("blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight"),
                ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
            ):
                stored = gguf.quants.dequantize(found[theirs].data, found[theirs].tensor_type)
                assert torch.equal(torch.from_numpy(stored.copy()), weights.read(ours).float())

    def test_heads_are_turned_as_llama_cpp_turns_them(self) -> None:
        rows = torch.arange(8).reshape(8, 1)
        ours = turned(rows, "model.layers.0.self_attn.q_proj.weight", 2, 1)
        assert ours.flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
        assert turned(rows, "model.layers.0.self_attn.v_proj.weight", 2, 1) is rows

    def test_rotary_factors_are_those_of_transformers(self) -> None:
        model = BenchModel.from_shape("llama-3.2-1b", 1)
        fields = dict(model.fields or {})
        base, dim = fields["rope_theta"], model.config.head_dim
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**fields), CPU)
        plain = 1 / base ** (torch.arange(0, dim, 2) / dim)
        factors = rotary_factors(fields["rope_scaling"], base, dim)
        torch.testing.assert_close(plain / factors, scaled)


@pytest.mark.parametrize("name", WORKERS)
class TestWorkers:
    def test_they_take_turns_and_give_tokens(self, name: PeerName, tmp_path: Path) -> None:
        peer = opened(name, interpreter(tmp_path, name))
        bench = ThroughputBench(
            TINY, Workload(5, 48, Lengths(4, 8), Lengths(3, 6)), FLOAT32, peer=peer, repeat=2
        )
        result: Any = bench.run(silent)
        ours, theirs = result["contenders"]
        assert (theirs["name"], theirs["version"]) == (name, "0.99")
        for mine, run in zip(ours["runs"], theirs["runs"], strict=True):
            assert (run.prompt_tokens, run.generated_tokens) == (
                mine.prompt_tokens,
                mine.generated_tokens,
            )
            assert 0 < run.prefill_s < run.total_s
            assert run.decode_step is not None
            assert run.peak_memory >= 0
        (ratio,) = result["ratios"]
        assert (ratio["name"], ratio["rows"]) == (name, 5)
        assert isinstance(ratio["first_tokens_alike"], int)

    def test_a_failure_is_one_sentence(self, name: PeerName, tmp_path: Path) -> None:
        python = interpreter(tmp_path, name)
        failing = {PeerName.VLLM: "vllm", PeerName.OPENVINO: "optimum/intel"}[name]
        (tmp_path / failing / "__init__.py").write_text(
            "import atexit, sys\n"
            "atexit.register(print, '[ERROR] leaked blocks', file=sys.stderr)\n"
            "raise ValueError('this model\\nneeds\\nno such processor')"
        )
        bench = ThroughputBench(TINY, Workload(2, 8, 8, 2), FLOAT32, peer=opened(name, python))
        with pytest.raises(
            UsageError, match=f"{name} in .* failed: ValueError: .*no such processor"
        ):
            bench.run(silent)

    def test_bfloat16_on_a_processor_held_below_it(
        self, name: PeerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """OpenVINO names what the processor has, and fails where oneDNN may not use it."""
        if name is not PeerName.OPENVINO:
            pytest.skip("another program")
        python = interpreter(tmp_path, name)
        core = tmp_path / "openvino" / "__init__.py"
        core.write_text(core.read_text().replace('["FP32"]', '["FP32", "BF16"]'))
        pipeline = tmp_path / "openvino_genai" / "__init__.py"
        before = "        self.handles"
        refusing = f"        raise ValueError(str(options))\n{before}"
        pipeline.write_text(pipeline.read_text().replace(before, refusing, 1))
        given = {**FLOAT32, "dtype": "bfloat16"}
        for isa, precision in (("AVX2", "f32"), ("AVX512_CORE_AMX", "bf16")):
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
            bench = ThroughputBench(TINY, Workload(2, 8, 8, 2), given, peer=opened(name, python))
            with pytest.raises(UsageError, match=f"INFERENCE_PRECISION_HINT': '{precision}'"):
                bench.run(silent)

    def test_its_package_must_be_there(self, name: PeerName, tmp_path: Path) -> None:
        package = {PeerName.VLLM: "vllm", PeerName.OPENVINO: "openvino_genai"}[name]
        python = executable(tmp_path / "python", "#!/bin/sh\necho False\n")
        with pytest.raises(UsageError, match=f"has no package {package}"):
            open_peer(name, python)
        executable(python, "#!/bin/sh\necho gone >&2; exit 3\n")
        with pytest.raises(UsageError, match=r"does not run \(gone\)"):
            open_peer(name, python)
        python.chmod(0o644)
        with pytest.raises(UsageError, match="does not run"):
            open_peer(name, python)

    def test_models_and_devices_that_it_does_not_run(self, name: PeerName, tmp_path: Path) -> None:
        peer = opened(name, interpreter(tmp_path, name))
        path = tmp_path / "own.gguf"
        path.write_bytes(b"GGUF")
        with pytest.raises(UsageError, match="needs a model folder with safetensors"):
            peer.check(BenchModel("own", TINY.config, path), Workload(2, 8, 8, 2))
        with pytest.raises(UsageError, match="compares on a CPU only"):
            peer.load(TINY, torch.float32, torch.device("cuda"))


@pytest.mark.parametrize("name", list(VARIABLES))
class TestPlaces:
    def test_a_variable_names_the_place(
        self, name: PeerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: Callable[[Path], Path] = (
            batched_bench if name == "llama.cpp" else lambda folder: interpreter(folder, name)
        )
        monkeypatch.setenv(VARIABLES[name], str(made(tmp_path)))
        peer = open_peer(name)
        assert peer is not None
        assert peer.name == name
        with pytest.raises(UsageError, match="hf_batch belongs to against transformers"):
            open_peer(name, batch_rows=2)

    def test_without_a_place_it_is_refused(
        self, name: PeerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(UsageError, match=f"with peer_path or {VARIABLES[name]}"):
            open_peer(name)
        with pytest.raises(UsageError, match=r"peer_path is .*nowhere, which does not exist"):
            open_peer(name, tmp_path / "nowhere")
        monkeypatch.setenv(VARIABLES[name], str(tmp_path / "nowhere"))
        with pytest.raises(UsageError, match=f"{VARIABLES[name]} is .*nowhere, which does not"):
            open_peer(name)


def test_flags_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="peer_path belongs to against"):
        open_peer(None, tmp_path)
    with pytest.raises(UsageError, match="peer_path belongs to the other programs"):
        open_peer(PeerName.TRANSFORMERS, tmp_path)
    assert open_peer(None) is None
