"""Answers to random schemas, of a trained model and of one that is half noise."""

import json
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.checkpoint.checkpoint import Checkpoint
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, FinishReason, Request
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder
from tests.whole.structured.random_schemas import random_schema

MAX_TOKENS = 200


def engine(noise: float, **config: Any) -> Engine:
    """Return the demo model, its weights moved by `noise` times their own spread."""
    folder = demo_model_folder()
    generator = torch.Generator().manual_seed(1)
    made = EngineConfig(model=folder, dtype="float32", **config)
    with Checkpoint.open(folder) as checkpoint:

        def read(name: str) -> Tensor:
            weight = checkpoint.tensor(name).float()
            moved = torch.randn(weight.shape, generator=generator) * weight.std() * noise
            return weight + moved if noise else weight

        shape, tokenizer = ModelConfig.from_folder(folder), Tokenizer.from_folder(folder)
        return Engine(made, LoadedModel.load(made, shape, tokenizer, read=read))


def requests(tokenizer: Tokenizer, num_schemas: int) -> list[Request]:
    """One row with a schema, one without, and so on."""
    made = []
    for index in range(2 * num_schemas):
        prompt = tokenizer.encode_batch([f"Write number {index // 4}: "], True)[0]
        schema: Any = random_schema(index // 2) if index % 2 == 0 else None
        params = SamplingParams(
            json_schema=schema,
            max_tokens=MAX_TOKENS if schema else 20,
            temperature=index // 2 % 3 * 0.7,
            seed=index,
        )
        made.append(Request(index, tuple(prompt), params))
    return made


def answers(made: Engine, asked: list[Request]) -> dict[int, Completion]:
    return {completion.request.index: completion for completion in made.start(asked)}


def outputs(found: dict[int, Completion]) -> dict[int, Any]:
    return {index: (each.outputs, each.error) for index, each in sorted(found.items())}


@pytest.mark.parametrize(
    "num_schemas", [9, pytest.param(250, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_answers_that_ended_satisfy_their_schemas(noise: float, num_schemas: int) -> None:
    made = engine(noise)
    asked = requests(made.loaded.tokenizer, num_schemas)
    found = answers(made, asked)
    num_ended = 0
    for request in asked:
        [output] = found[request.index].outputs
        if request.params.json_schema is None:
            continue
        if output.finish_reason is FinishReason.LENGTH:
            assert len(output.token_ids) == MAX_TOKENS
            continue
        num_ended += 1
        schema = json.loads(request.params.json_schema)
        jsonschema.validate(json.loads(output.text), schema, jsonschema.Draft202012Validator)
    assert num_ended > num_schemas // 2
    free = [each for each in asked if each.params.json_schema is None]
    alone = outputs(answers(made, free))
    assert alone == {index: outputs(found)[index] for index in alone}
    step_by_step = answers(engine(noise, jump_ahead=False), asked)
    assert outputs(step_by_step) == outputs(found)
