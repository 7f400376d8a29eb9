"""The training loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from pagedrun.recipes.demo.training.auxiliary import AuxiliaryHeads
from pagedrun.recipes.demo.training.batch import Batch, BatchMaker
from pagedrun.recipes.demo.training.curriculum import STAGE_SIZES, Curriculum
from pagedrun.recipes.demo.training.model import DemoModel, ModelConfig, ModelOutput
from pagedrun.recipes.demo.training.optimizer import DemoOptimizer

LOG_INTERVAL = 25


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """One run. `max_entries` and `token_scale` make it small for tests."""

    num_steps: int = 1200
    seed: int = 0
    max_entries: int = STAGE_SIZES[-1]
    token_scale: float = 1.0
    model: ModelConfig = field(default_factory=ModelConfig)


def train(config: TrainingConfig, tokenizer: Tokenizer, log: Callable[[str], None]) -> DemoModel:
    """Train a model from scratch; float32 weights, bf16 products. `log` gets progress lines."""
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    maker = BatchMaker(tokenizer)
    model = DemoModel(config.model)
    heads = AuxiliaryHeads(config.model.hidden_size)
    optimizer = DemoOptimizer(model, heads, config.num_steps)
    curriculum = Curriculum(config.max_entries, config.token_scale)
    start, num_tokens = time.perf_counter(), 0
    for step in range(1, config.num_steps + 1):
        spec = curriculum.next_spec(rng)
        batch = maker.make(rng, spec)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = run_model(model, batch)
            loss, exact = answer_loss(model, output, batch)
            if curriculum.is_hinted:
                loss = loss + heads.loss(output, batch)
        optimizer.step(loss)
        curriculum.observe(spec, exact.float().mean().item())
        num_tokens += batch.num_tokens
        if step % LOG_INTERVAL == 0 or step == config.num_steps:
            seconds = time.perf_counter() - start
            log(
                f"step {step} of {config.num_steps}: {curriculum.size} entries, "
                f"exact {curriculum.accuracy:.1%}, loss {loss.item():.3f}, "
                f"{seconds:.0f} s, {num_tokens / seconds:.0f} tokens/s"
            )
    return model


def run_model(model: DemoModel, batch: Batch) -> ModelOutput:
    """Run the model over a batch."""
    output: ModelOutput = model(
        batch.directory_ids,
        batch.directory_positions,
        batch.question_ids,
        batch.question_positions,
    )
    return output


def answer_loss(model: DemoModel, output: ModelOutput, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the weighted cross-entropy of the answers, and bool [B, Q]: exact or not.

    An answer is exact if each of its tokens is the most probable one after the true ones before
    it, which is the same as exact greedy decoding.
    """
    hidden = output.hidden[:, batch.directory_ids.shape[1] :]  # [B, Q·T, C]
    weights = batch.loss_weights.flatten(1)  # [B, Q·T]
    chosen = weights > 0
    logits = model.logits(hidden[chosen]).float()
    targets = batch.target_ids.flatten(1)[chosen]
    losses = F.cross_entropy(logits, targets, reduction="none")
    loss = (losses * weights[chosen]).sum() / weights.sum()
    wrong = torch.zeros_like(chosen)
    wrong[chosen] = logits.argmax(-1) != targets
    return loss, ~wrong.view(batch.target_ids.shape).any(-1)
