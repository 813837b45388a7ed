"""GPUs: the likely reason why PyTorch finds none, and its choice of attention kernels."""

import os

import torch


def why_no_gpu() -> str | None:
    """Return why no GPU can be used and what to do about it, or None if there is one."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        built = f"torch {torch.__version__} is built for the CPU only; https://pytorch.org/get-started has other builds"
        return f"no GPU can be used: {built}"
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in os.environ:
            return f"no GPU can be used: the environment variable {name} is {os.environ[name]!r}"
    return "no GPU was found: does nvidia-smi list one, and is its driver recent enough for this build of torch?"


def exclude_cudnn_attention() -> None:
    """Let torch choose among its attention kernels without cuDNN's, in this process.

    cuDNN plans a kernel for every new shape, for up to a second each, and lengths of sentences vary. Its kernels would
    otherwise be preferred on recent GPUs.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
