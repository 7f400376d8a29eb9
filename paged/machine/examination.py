"""Examination: what `pagedrun doctor` finds, as scripts read it. Bytes, seconds and tokens."""

from typing import TypedDict

from pagedrun.paged.machine.code_caches import CacheFacts
from pagedrun.paged.machine.gpu_facts import GpuFacts
from pagedrun.paged.machine.hub_facts import HubFacts
from pagedrun.paged.machine.limits import LimitFacts
from pagedrun.paged.machine.processor_facts import ProcessorFacts


class Examination(TypedDict):
    """`versions` are of packages, None for one that is not there. `problems` are sentences about
    what is broken, each with what mends it; `advice` about what works and could be better.
    """

    versions: dict[str, str | None]
    processor: ProcessorFacts
    limits: LimitFacts
    caches: list[CacheFacts]
    gpu: GpuFacts
    hub: HubFacts
    problems: list[str]
    advice: list[str]
