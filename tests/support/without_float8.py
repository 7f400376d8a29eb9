"""Triton's interpreter as a chip without float8, one before sm_89: it refuses what that refuses."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pagedrun.kernels.gpu import chip


def refuse_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be launched as on an sm_80, and fail where one reads or writes float8 as such."""
    from triton.runtime.interpreter import InterpreterBuilder

    on = chip.chip_of(torch.device("cpu"))
    monkeypatch.setattr(chip, "chip_of", lambda device: replace(on, arch=80))
    for name in ("create_masked_load", "create_masked_store"):  # what has no mask calls these too
        monkeypatch.setattr(InterpreterBuilder, name, _refusing(getattr(InterpreterBuilder, name)))


def _refusing(access: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, pointers: Any, *rest: Any) -> Any:
        assert not pointers.get_element_ty().is_fp8(), "an sm_80 has no float8"
        return access(self, pointers, *rest)

    return checked
