"""Training loop, curriculum, auxiliary losses and optimizer.

Directories grow as soon as the model answers the present size well: with 40 entries from the start
the model learns nothing in the time, with 4 it finds the look-up. Auxiliary losses teach it in the
first minutes, while directories are small: the input of the last layer must identify the entry
that a token belongs to, and two heads of the last layer must attend to the next fact. With the
answer loss alone the model settles on copying some entry at random.

Muon updates the matrices inside the layers, AdamW the rest. With AdamW alone the same run has
hardly begun to copy facts after 300 steps.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from pagedrun.recipes.demo.training.batch import Batch, BatchMaker, BatchSpec
from pagedrun.recipes.demo.training.directory import FIRST_NAMES, LAST_NAMES
from pagedrun.recipes.demo.training.model import AttentionTrace, DemoModel, ModelConfig, ModelOutput

STAGE_SIZES = (4, 8, 16, 28, 40)
LAST_HINTED_SIZE = 8  # auxiliary losses stop after this stage
PROMOTION_ACCURACY = 0.93
MIN_STAGE_STEPS = 30
ACCURACY_SMOOTHING = 0.9
CURRENT_SIZE_SHARE = 0.6  # of the batches; the others revisit smaller directories
CROWDED_SHARE = 0.35
GAPPED_SHARE = 0.6
NUM_POSITION_SLOTS = 60  # teaches 1.5 times the longest directory's positions
TOKENS_PER_STEP_START, TOKENS_PER_STEP = 5000, 9000


class Curriculum:
    """Chooses the specification of each batch by the accuracy of the last ones."""

    def __init__(self, max_entries: int, token_scale: float = 1.0) -> None:
        """`max_entries` cuts the curriculum short; `token_scale` scales the batches."""
        self._sizes = [size for size in STAGE_SIZES if size <= max_entries]
        self._token_scale = token_scale
        self._stage = 0
        self._accuracy = 0.0
        self._num_stage_steps = 0

    @property
    def size(self) -> int:
        """Entries per directory at the present stage."""
        return self._sizes[self._stage]

    @property
    def accuracy(self) -> float:
        """Moving average of the share of exact answers at the present size."""
        return self._accuracy

    @property
    def is_hinted(self) -> bool:
        """True if the auxiliary losses are on."""
        return self.size <= LAST_HINTED_SIZE

    def next_spec(self, rng: np.random.Generator) -> BatchSpec:
        """Draw the specification of the next batch."""
        num_entries = self.size
        if self._stage > 0 and rng.random() > CURRENT_SIZE_SHARE:
            num_entries = int(rng.integers(self._sizes[0], self.size))
        num_questions = 12 if num_entries <= 8 else 24
        budget = TOKENS_PER_STEP_START if self._stage == 0 else TOKENS_PER_STEP
        example_tokens = 25 + 17 * num_entries + 30 * num_questions
        return BatchSpec(
            num_directories=max(1, round(budget * self._token_scale / example_tokens)),
            num_entries=num_entries,
            num_questions=num_questions,
            crowded=bool(rng.random() < CROWDED_SHARE),
            num_position_slots=NUM_POSITION_SLOTS if rng.random() < GAPPED_SHARE else num_entries,
        )

    def observe(self, spec: BatchSpec, accuracy: float) -> None:
        """Record a batch's share of exact answers; start the next stage if it is high enough."""
        if spec.num_entries != self.size:
            return
        self._num_stage_steps += 1
        self._accuracy += (1 - ACCURACY_SMOOTHING) * (accuracy - self._accuracy)
        ready = self._accuracy > PROMOTION_ACCURACY and self._num_stage_steps >= MIN_STAGE_STEPS
        if ready and self._stage + 1 < len(self._sizes):
            self._stage += 1
            self._accuracy = 0.0
            self._num_stage_steps = 0


ENTRY_PROBE_WEIGHT = 0.5
ANSWER_PROBE_WEIGHT = 0.5
ATTENTION_WEIGHT = 1.0
NUM_SUPERVISED_HEADS = 2


class AuxiliaryHeads(nn.Module):
    """Linear probes from the input of the last layer to the first and the last name."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.first = nn.Linear(hidden_size, len(FIRST_NAMES))
        self.last = nn.Linear(hidden_size, len(LAST_NAMES))

    def loss(self, output: ModelOutput, batch: Batch) -> Tensor:
        """Return the weighted sum of all hints, a float32 scalar."""
        num_directory_tokens = batch.directory_ids.shape[1]
        copies = batch.sources.flatten(1) >= 0  # [B, Q·T]

        facts = output.last_input[:, batch.fact_places.flatten()]
        num_facts = batch.fact_places.shape[1]
        entry_loss = self._names(
            facts.flatten(0, 1),
            batch.first_ids.repeat_interleave(num_facts, dim=1).flatten(),
            batch.last_ids.repeat_interleave(num_facts, dim=1).flatten(),
        )

        answers = output.last_input[:, num_directory_tokens:][copies]
        num_question_tokens = batch.question_ids.shape[2]
        asked = batch.asked.repeat_interleave(num_question_tokens, dim=1)  # [B, Q·T]
        answer_loss = self._names(
            answers,
            batch.first_ids.gather(1, asked)[copies],
            batch.last_ids.gather(1, asked)[copies],
        )
        return (
            ENTRY_PROBE_WEIGHT * entry_loss
            + ANSWER_PROBE_WEIGHT * answer_loss
            + ATTENTION_WEIGHT * _attention_loss(output.last_attention, batch.sources.flatten(1))
        )

    def _names(self, states: Tensor, first_ids: Tensor, last_ids: Tensor) -> Tensor:
        states = F.rms_norm(states.float(), states.shape[-1:])
        first_loss = F.cross_entropy(self.first(states).float(), first_ids)
        return first_loss + F.cross_entropy(self.last(states).float(), last_ids)


def _attention_loss(trace: AttentionTrace, sources: Tensor) -> Tensor:
    """Return the mean of -log(attention to the source) over facts and supervised heads.

    `sources`: int64 [B, Q·T], -1 where the next token is not a fact.
    """
    directory_ids, places = (sources >= 0).nonzero(as_tuple=True)
    num_directory_tokens = trace.queries.shape[2] - sources.shape[1]
    places_in_example = places + num_directory_tokens
    group = trace.queries.shape[1] // trace.keys.shape[1]
    losses = []
    for head in range(NUM_SUPERVISED_HEADS):
        queries = trace.queries[directory_ids, head, places_in_example].float()
        keys = trace.keys[directory_ids, head // group, sources[directory_ids, places]].float()
        scores = (queries * keys).sum(-1) * queries.shape[-1] ** -0.5
        log_sums = trace.row_sums[directory_ids, head, places_in_example].log()
        losses.append((log_sums - scores).mean())
    return torch.stack(losses).mean()


MUON_LEARNING_RATE = 0.02
MUON_MOMENTUM = 0.95
ADAMW_LEARNING_RATE = 4e-3
ADAMW_BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
DECAY_SHARE = 0.4  # of the steps, at the end: the learning rates go down linearly to 0
NUM_WARMUP_STEPS = 10


class DemoOptimizer:
    """Optimizers of a model and its auxiliary heads for `num_steps` updates."""

    def __init__(self, model: nn.Module, heads: nn.Module, num_steps: int) -> None:
        self._num_steps = num_steps
        self._parameters = [*model.parameters(), *heads.parameters()]
        matrices = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.ndim == 2 and "embed" not in name
        ]
        chosen = set(map(id, matrices))
        others = [parameter for parameter in self._parameters if id(parameter) not in chosen]
        self._optimizers = _optimizers(matrices, others)
        self._schedulers = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate_factor)
            for optimizer in self._optimizers
        ]

    def step(self, loss: torch.Tensor) -> None:
        """Update the parameters by the clipped gradient of `loss`."""
        loss.backward()  # type: ignore[no-untyped-call]
        used = [parameter for parameter in self._parameters if parameter.grad is not None]
        nn.utils.clip_grad_norm_(used, MAX_GRADIENT_NORM)
        for optimizer, scheduler in zip(self._optimizers, self._schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()

    def _rate_factor(self, step: int) -> float:
        """Return the factor of the learning rates at `step`."""
        warmup = (step + 1) / NUM_WARMUP_STEPS
        decay = (self._num_steps - step) / (DECAY_SHARE * self._num_steps)
        return max(0.0, min(1.0, warmup, decay))


def _optimizers(
    matrices: Iterable[nn.Parameter], others: Iterable[nn.Parameter]
) -> list[torch.optim.Optimizer]:
    muon = torch.optim.Muon(
        matrices, lr=MUON_LEARNING_RATE, momentum=MUON_MOMENTUM, weight_decay=0.0
    )
    adamw = torch.optim.AdamW(
        others, lr=ADAMW_LEARNING_RATE, betas=ADAMW_BETAS, weight_decay=0.0, fused=True
    )
    return [muon, adamw]


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
