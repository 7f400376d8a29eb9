"""Auxiliary losses that teach the look-up in the first minutes; their heads are thrown away.

With the answer loss alone the model settles on copying some entry at random and stays there.
Two hints, used only while directories are small, show it the way: the input of the last layer
must know whose entry a token belongs to, and two heads of the last layer must look at the fact
that comes next.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pagedrun.recipes.demo.training.batch import Batch
from pagedrun.recipes.demo.training.model import AttentionTrace, ModelOutput
from pagedrun.recipes.demo.training.names import FIRST_NAMES, LAST_NAMES

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
