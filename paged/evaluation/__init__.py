"""pagedrun as a model of lm-evaluation-harness; needs the extra `eval`.

Importing a module of this package raises `UsageError` without lm_eval.
"""

from importlib.util import find_spec

from pagedrun.paged.values.errors import UsageError

if find_spec("lm_eval") is None:
    raise UsageError(
        "evaluation needs lm_eval, which is not installed; run pip install 'lm_eval>=0.4.13'"
    )
