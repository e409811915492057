"""The kernels with specialised warps are used where they give the plain ones' bits, and nowhere else."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from magi2.kernels import proof
from magi2.kernels.chosen import CHOSEN
from magi2.kernels.fp8_experts import FP8_EXPERT_SETTINGS
from magi2.kernels.settings import features

VALUES = torch.arange(4.0)


def breaks() -> Tensor:
    raise AttributeError("module 'triton' has no attribute 'thread_barrier'")


def test_equal_bits_admit_the_specialised_kernel() -> None:
    assert proof._agree("a step", VALUES.clone, VALUES.clone)
    assert CHOSEN["a step"] == proof.SPECIALISED


@pytest.mark.parametrize(
    ("specialised", "reason"), [(breaks, "no attribute 'thread_barrier'"), (lambda: VALUES + 1e-6, "other bits")]
)
def test_a_kernel_that_breaks_or_differs_is_left_out_with_a_word(
    specialised, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not proof._agree("a step", VALUES.clone, specialised)
    assert reason in caplog.text
    assert CHOSEN["a step"] == proof.PLAIN


def test_without_warpgroups_nothing_is_tried() -> None:
    cpu = torch.device("cpu")
    assert proof.expert_features(256, 1280, 256, 6, torch.bfloat16, cpu) == features(cpu)
    assert proof.fp8_expert_features(256, 1280, 256, 6, torch.bfloat16, cpu) == features(cpu)
    assert proof.window_features(32, 8, 128, torch.bfloat16, cpu) == features(cpu)


def test_the_proofs_inputs_fit_the_plain_kernels() -> None:
    """In the interpreter the plain kernels take what the proof would run on an accelerator."""
    cpu = torch.device("cpu")
    available = features(cpu)
    settings = proof.expert_settings(available, 16, 32, 4)
    rows = proof._ExpertRun(16, 32, 8, 3, torch.float32, cpu)(available, settings)
    assert rows.isfinite().all() and rows.any(dim=1).all()
    rows = proof._Fp8ExpertRun(32, 32, 8, 3, torch.float32, cpu)(available, FP8_EXPERT_SETTINGS[-1])
    assert rows.isfinite().all() and rows.any(dim=1).all()
    assert proof._WindowRun(2, 1, 16, torch.float32, cpu)(available).isfinite().all()


@pytest.mark.gpu
def test_on_a_hopper_accelerator_both_are_used(device: torch.device) -> None:
    if not features(device).warpgroups:
        pytest.skip("needs warpgroup products")
    assert proof.expert_features(256, 1280, 256, 6, torch.bfloat16, device).warpgroups
    assert proof.fp8_expert_features(256, 1280, 256, 6, torch.bfloat16, device).warpgroups
    assert proof.window_features(32, 8, 128, torch.bfloat16, device).warpgroups
