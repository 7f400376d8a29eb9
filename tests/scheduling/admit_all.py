"""Admission without a prediction, so that running sequences must give way."""

import pytest

from pagedrun.paged.scheduling.output_length_predictor import OutputLengthPredictor


def admit_all(patch: pytest.MonkeyPatch) -> None:
    """Let in every sequence that fits now, however long the answers may become."""
    patch.setattr(OutputLengthPredictor, "allows", lambda *_: True)
