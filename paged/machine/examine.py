"""A look at the machine: versions, processor, limits, caches, GPU and hub."""

import os

from pagedrun.kernels.environment.threads import prepare_environment
from pagedrun.paged.machine.code_caches import cache_facts
from pagedrun.paged.machine.examination import Examination
from pagedrun.paged.machine.findings import Findings
from pagedrun.paged.machine.gpu_facts import gpu_facts
from pagedrun.paged.machine.hub_facts import hub_facts
from pagedrun.paged.machine.limits import limit_facts
from pagedrun.paged.machine.processor_facts import processor_facts
from pagedrun.paged.machine.versions import versions


def examine() -> Examination:
    """Return what is found; takes as long as importing torch does, and 3 s for a hub that is
    silent. Nothing is compiled, downloaded or written.
    """
    asked = dict(os.environ)  # before it is prepared: what the user has set
    prepare_environment()
    findings = Findings()
    return {
        "versions": versions(findings),
        "processor": processor_facts(findings),
        "limits": limit_facts(findings, asked),
        "caches": cache_facts(findings),
        "gpu": gpu_facts(findings),
        "hub": hub_facts(),
        "problems": findings.problems,
        "advice": findings.advice,
    }
