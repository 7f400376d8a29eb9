"""Named shapes, random weights for them, and engines that need no model folder."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from pagedrun.paged.bench.model_shapes import SHAPE_NAMES, Shape
from pagedrun.paged.bench.workload import BenchModel
from pagedrun.paged.llm import LLM
from pagedrun.paged.models.checkpoint.checkpoint import RandomWeights
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.conftest import MakeModel

# What the models' own pages say, to the parameter.
NUM_PARAMETERS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "llama-3.3-70b": 70_553_706_496,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "mistral-small-3.1-24b": 23_572_403_200,
    "ministral-3-8b": 8_489_553_920,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "phi-4-mini": 3_836_021_760,
    "seed-oss-36b": 36_151_104_512,
    "ernie-4.5-0.3b": 360_748_032,
    "qwen2.5-0.5b": 494_032_768,
    "mistral-7b": 7_248_023_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-4-e2b": 4_628_569_379,
    "gemma-4-e4b": 7_463_013_418,
    "gemma-4-12b": 11_907_350_320,
    "gemma-4-26b-a4b": 25_233_141_790,
    "gemma-4-31b": 30_697_345_340,
    "glm-4-9b-0414": 9_400_279_040,
    "granite-3.3-2b": 2_533_539_840,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "phi-4": 14_659_507_200,
    "smollm3-3b": 3_075_098_624,
    "qwen3.5-0.8b": 752_393_024,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "lfm2-350m": 354_483_968,
    "lfm2-1.2b": 1_170_340_608,
    "lfm2-8b-a1b": 8_339_930_560,
    "glm-4.5-air": 106_852_251_264,
    "glm-4.5": 352_797_829_024,
    "minimax-m2": 228_689_764_864,
    "dots.llm1": 142_774_381_696,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "olmoe-1b-7b": 6_919_161_856,
    "granite-3.1-1b-a400m": 1_334_628_352,
    "granite-3.1-3b-a800m": 3_298_793_472,
    "granite-4.0-micro": 3_402_836_480,
    "hunyuan-a13b": 80_393_183_232,
}


def num_parameters(shape: Shape) -> int:
    return sum(math.prod(each.shape) for each in shape.config.network.parameters())


@pytest.mark.parametrize("name", sorted(set(SHAPE_NAMES) - {"tiny"}))
def test_a_shape_has_the_parameters_of_its_model(name: str) -> None:
    assert num_parameters(Shape.named(name)) == NUM_PARAMETERS[name]


class TestCutting:
    def test_keeps_the_proportions(self) -> None:
        whole, cut = Shape.named("qwen3-0.6b"), Shape.named("qwen3-0.6b", 7)
        assert cut.config.num_layers == 7
        assert num_parameters(cut) / num_parameters(whole) == pytest.approx(1 / 4, rel=0.01)
        assert cut.config.network.layers == whole.config.network.layers[:7]
        assert (cut.config.dtype, cut.config.bos_token_id) == (whole.config.dtype, 0)

    @pytest.mark.parametrize(("num_layers", "num_readers"), [(1, 0), (5, 0), (6, 1), (14, 8)])
    def test_layers_that_read_the_keys_of_others_become_fewer(
        self, num_layers: int, num_readers: int
    ) -> None:
        cut = Shape.named("gemma-4-e2b", num_layers).config
        sources = [each.source for each in cut.network.attentions.values()]
        assert (len(sources), sources.count(None)) == (num_layers, num_layers - num_readers)
        whole = Shape.named("gemma-4-e2b").config
        assert cut.windows[:-1] == whole.windows[: num_layers - 1]

    def test_to_the_whole_changes_nothing(self) -> None:
        assert Shape.named("tiny", 2) == Shape.named("tiny")

    @pytest.mark.parametrize("num_layers", [0, -1, 3])
    def test_to_what_is_not_there(self, num_layers: int) -> None:
        with pytest.raises(UsageError, match=r"layers is .*; tiny has 2 layers"):
            Shape.named("tiny", num_layers)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"shape gpt-9 is not known.*qwen3-0\.6b.*model"):
        Shape.named("gpt-9")


class TestRandomWeights:
    config = Shape.named("tiny").config

    def test_every_tensor_of_the_model_in_its_shape_and_dtype(self) -> None:
        weights = RandomWeights(self.config, torch.bfloat16)
        for each in self.config.network.parameters():
            tensor = weights.read(each.name)
            assert (tensor.shape, tensor.dtype) == (each.shape, torch.bfloat16)

    def test_the_same_name_is_the_same_tensor_whatever_was_read_before(self) -> None:
        first, second = (RandomWeights(self.config, torch.float32) for _ in range(2))
        name, other = "model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"
        second.read(other)
        assert torch.equal(first.read(name), second.read(name))
        assert not torch.equal(first.read(other)[0], first.read(name)[0])

    def test_another_seed_is_another_tensor(self) -> None:
        name = "model.layers.0.mlp.down_proj.weight"
        first, second = (RandomWeights(self.config, torch.float32, seed) for seed in (0, 1))
        assert not torch.equal(first.read(name), second.read(name))

    def test_products_keep_the_scale(self) -> None:
        weight = RandomWeights(self.config, torch.float32).read(
            "model.layers.0.mlp.down_proj.weight"
        )
        assert weight.std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.05)

    def test_norms_are_ones_and_biases_zeros(self) -> None:
        config = Shape.named("qwen2.5-0.5b").config
        weights = RandomWeights(config, torch.float32)
        assert weights.read("model.norm.weight").eq(1).all()
        assert weights.read("model.layers.0.self_attn.q_proj.bias").eq(0).all()

    def test_an_unknown_name(self) -> None:
        with pytest.raises(KeyError):
            RandomWeights(self.config, torch.float32).read("model.layers.9.mlp.up_proj.weight")


class TestEngineWithoutAFolder:
    params = SamplingParams(max_tokens=4, ignore_eos=True)

    def requests(self) -> list[Request]:
        return [Request(i, tuple(range(i, i + 40)), self.params) for i in range(3)]

    def test_runs_and_other_settings_share_its_weights(self) -> None:
        engine = BenchModel.from_shape("tiny").engine(dtype="float32", max_num_seqs=2)
        other = engine.reconfigured(prefix_caching=False, max_num_seqs=1)
        assert other.loaded is engine.loaded
        assert (engine.config.prefix_caching, engine.config.max_num_seqs) == (True, 2)
        assert (other.config.prefix_caching, other.config.max_num_seqs) == (False, 1)
        answers = [
            {done.request.index: done.outputs[0].token_ids for done in each.start(self.requests())}
            for each in (engine, other)
        ]
        assert answers[0] == answers[1]
        assert all(len(ids) == 4 for ids in answers[0].values())

    def test_other_settings_are_checked(self) -> None:
        engine = BenchModel.from_shape("tiny").engine(dtype="float32")
        with pytest.raises(UsageError, match="block_size"):
            engine.reconfigured(block_size=0)

    def test_the_text_names_the_tokens(self) -> None:
        model = BenchModel.from_shape("tiny")
        assert model.tokenizer().decode([3, 511, 0]) == "3 511 0"
        assert model.tokenizer().vocab_size == 512

    def test_a_folder_without_a_tokenizer_has_numbers_as_tokens(
        self, make_model: MakeModel, tmp_path: Path
    ) -> None:
        folder = tmp_path / "weights"
        shutil.copytree(make_model("qwen3", "bench"), folder)
        for each in folder.glob("*token*"):
            each.unlink()
        assert BenchModel.from_folder(folder).tokenizer().decode([3, 5]) == "3 5"

    def test_a_folder_has_its_own_weights(self, make_model: MakeModel) -> None:
        folder = make_model("qwen3", "bench")
        model = BenchModel.from_folder(folder)
        request = Request(0, (5, 6, 7), self.params)
        (done,) = model.engine(dtype="float32").start([request])
        (expected,) = LLM(folder, dtype="float32").generate([[5, 6, 7]], self.params)
        assert model.name == folder.name
        assert done.outputs == expected.outputs
