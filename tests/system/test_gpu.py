"""The reason why no GPU can be used, and the choice of attention kernels."""

import pytest
import torch

from diglot.system.gpu import exclude_cudnn_attention, why_no_gpu


def test_the_reason_is_the_build_a_variable_or_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert why_no_gpu() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "is built for the CPU only" in str(why_no_gpu())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "does nvidia-smi list one" in str(why_no_gpu())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert str(why_no_gpu()).endswith("the environment variable CUDA_VISIBLE_DEVICES is ''")


def test_attention_is_never_computed_by_cudnn_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", calls.append)
    exclude_cudnn_attention()
    assert calls == [False]
