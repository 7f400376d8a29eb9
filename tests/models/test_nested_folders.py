"""Folders whose decoder lies beside parts for images: read from there, under their names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pagedrun import LLM, SamplingParams
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.conftest import save_byte_tokenizer
from tests.support.families import TINY, disturb

NUM_TOKENS = 8
PROMPT = list(range(20, 90))
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def gemma3() -> Any:
    config = transformers.Gemma3Config(
        text_config=TINY["gemma3"].config().to_dict(),
        vision_config={"model_type": "siglip_vision_model", **_VISION},
        mm_tokens_per_image=4,
        eos_token_id=[258, 259],
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def mistral3() -> Any:
    config = transformers.Mistral3Config(
        text_config=TINY["ministral3"].config().to_dict(),
        vision_config={"model_type": "pixtral", "head_dim": 8, **_VISION},
        tie_word_embeddings=False,
    )
    return transformers.Mistral3ForConditionalGeneration(config)


def gemma4() -> Any:
    vision = {"model_type": "gemma4_vision", **_VISION, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.Gemma4Config(
        text_config=TINY["gemma4-e"].config().to_dict() | {"pad_token_id": 0},
        vision_config=vision,
        eos_token_id=[258, 259],
    )
    return transformers.Gemma4ForConditionalGeneration(config)


def gemma4_unified() -> Any:
    config = transformers.Gemma4UnifiedConfig(
        text_config=TINY["gemma4_unified"].config().to_dict() | {"pad_token_id": 0},
        eos_token_id=[258, 259],
    )
    return transformers.Gemma4UnifiedForConditionalGeneration(config)


MODELS = [gemma3, gemma4, gemma4_unified, mistral3]


@pytest.fixture(scope="module", params=MODELS, ids=lambda make: make.__name__)
def nested(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[int]]:
    """A folder as transformers saves it, and what it generates."""
    folder = tmp_path_factory.mktemp("nested")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = request.param().eval()
        disturb(model)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder, adds_bos=False)
    out = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        ),
    )
    return folder, out[0, len(PROMPT) :].tolist()


def generated(folder: Path) -> list[int]:
    llm = LLM(folder, dtype="float32", device="cpu")
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    [answer] = llm.generate([PROMPT], params)
    return list(answer.outputs[0].token_ids)


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Give tensors whose names begin with a key that beginning which is its value."""
    path = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(path).items():
        start = next((each for each in names if name.startswith(each)), "")
        tensors[names.get(start, "") + name.removeprefix(start)] = tensor.clone()
    save_file(tensors, path, metadata={"format": "pt"})


# What stands for "model.language_model." in the hub's newer folders, and in its older ones.
LAYOUTS = [
    {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."},
    {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.": "",
    },
]


@pytest.mark.parametrize("names", [{}, *LAYOUTS], ids=["saved", "new", "old"])
def test_the_decoder_gives_what_the_whole_gives(
    nested: tuple[Path, list[int]], names: dict[str, str], tmp_path: Path
) -> None:
    folder, expected = nested
    copy = shutil.copytree(folder, tmp_path / "copy")
    renamed(copy, names)
    assert generated(copy) == expected


def test_end_tokens_of_all_configs_count(nested: tuple[Path, list[int]], tmp_path: Path) -> None:
    copy = shutil.copytree(nested[0], tmp_path / "copy")
    (copy / "generation_config.json").write_text('{"eos_token_id": [260]}')
    config = json.loads((copy / "config.json").read_text())
    config["eos_token_id"] = 259
    (copy / "config.json").write_text(json.dumps(config))
    assert ModelConfig.from_folder(copy).eos_token_ids == (260, 259, 258)


def test_a_head_that_the_outer_config_denies(
    nested: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, expected = nested
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["tie_word_embeddings"] = not config["tie_word_embeddings"]
    (copy / "config.json").write_text(json.dumps(config))
    if config["tie_word_embeddings"]:
        assert generated(copy) == expected  # it is not the embedding: transformers keeps both
        return
    with pytest.raises(ModelError, match=r"missing: \S*lm_head\.weight"):
        LLM(copy, dtype="float32", device="cpu")


def test_what_is_no_part_for_images_is_not_dropped(
    nested: tuple[Path, list[int]], tmp_path: Path
) -> None:
    copy = shutil.copytree(nested[0], tmp_path / "copy")
    path = copy / "model.safetensors"
    save_file({**load_file(path), "adapter.weight": torch.ones(1)}, path)
    with pytest.raises(ModelError, match=r"extra: adapter\.weight"):
        LLM(copy, dtype="float32", device="cpu")


def test_quantized_decoders_are_refused_by_the_outer_config(
    nested: tuple[Path, list[int]], tmp_path: Path
) -> None:
    copy = shutil.copytree(nested[0], tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "hqq"}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="quantized"):
        ModelConfig.from_folder(copy)
