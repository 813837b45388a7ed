"""Training speed on a CPU, beside a plain loop of PyTorch's parts, and the effect of each optimisation.

    python benchmarks/training.py [--threads 2] [--rounds 15] [--length 17] [--steps-only]

Each round times all variants in turn, so that other load on the machine slows them equally. The first table gives the
median time of a step, target tokens per second, and the median over the rounds of each variant's time as a multiple of
that of the actual step. With one thread, times are CPU times. The model is the default one, on batches of about 1,105
tokens per side. The plain loop trains torch.nn.Transformer of the same sizes, with torch's cross-entropy and AdamW.

The last table compares how threads wait, on an idle machine and beside one busy process per core; --steps-only leaves
it out, and the comparison of ways to handle freed memory.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from unittest import mock

from diglot.system.glibc import keep_freed_memory  # before torch: see diglot.threads
from diglot.system.threads import SHORT_SPIN

# isort: split
import torch
from gpu import TorchTransformer
from hydra import compose, initialize_config_dir
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from diglot.config import CONF, build, choose_precision
from diglot.model import cpu_attention
from diglot.model.dropout import Dropout
from diglot.training.loss import TokenLoss, token_loss

VOCAB_SIZE, TOKENS = 4000, 1105  # tokens per side
# The environment variables for each way of waiting; diglot sets a short spin if none is set.
WAYS_TO_WAIT = {
    "short spin, as it is": {},
    "GNU's default spin": {"GOMP_SPINCOUNT": "300000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
SET_BY_USERS = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", *SHORT_SPIN}
# The precision that a run chooses on this processor comes first.
PRECISIONS = [torch.bfloat16, torch.float32]
if choose_precision("auto", "cpu") == "32-true":
    PRECISIONS.reverse()
NATIVE, OTHER = PRECISIONS


def composed_loss(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, eps: float) -> TokenLoss:
    """Compute the sums of `token_loss` with PyTorch's own functions."""
    log_probs = F.log_softmax(logits, -1, dtype=torch.float32)
    nll = -log_probs.gather(-1, labels[..., None]).squeeze(-1) * mask
    uniform = -log_probs.mean(-1) * mask
    return TokenLoss((1 - eps) * nll.sum() + eps * uniform.sum(), nll.sum().detach(), mask.sum())


class Step:
    """A training step of the default model on random tokens."""

    def __init__(self, length: int, fused_adam: bool = True) -> None:
        torch.manual_seed(1)
        rows = max(1, TOKENS // length)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("train")
        sizes = {"src_vocab_size": VOCAB_SIZE, "tgt_vocab_size": VOCAB_SIZE}
        self.model = build(config.model, "model", **sizes).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused_adam)
        self.src, self.tgt, self.labels = torch.randint(4, VOCAB_SIZE, (3, rows, length))
        lengths = torch.randint(max(1, length - 3), length + 1, (2, rows, 1))
        self.src_mask, self.tgt_mask = torch.arange(length) < lengths

    def __call__(self, loss: Callable[..., TokenLoss] = token_loss, precision: torch.dtype = NATIVE) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            logits = self.model(self.src, self.tgt, self.src_mask)
            sums = loss(logits, self.labels, self.tgt_mask, 0.1)
        (sums.smoothed / sums.tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class PlainStep(Step):
    """The same step, as a plain loop of PyTorch's parts would have it."""

    def __init__(self, length: int) -> None:
        super().__init__(length, fused_adam=False)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            sizes = compose("train").model
        self.model = TorchTransformer(VOCAB_SIZE, sizes.d_model, sizes.n_heads, sizes.d_ff, sizes.n_encoder_layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)


def plain_loss(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, eps: float) -> TokenLoss:
    labels = labels.masked_fill(~mask, -100)
    sums = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=eps, reduction="sum")
    return TokenLoss(sums, sums.detach(), mask.sum())


@contextmanager
def torch_dropout() -> Iterator[None]:
    with mock.patch.object(Dropout, "forward", nn.Dropout.forward):
        yield


@contextmanager
def torch_attention() -> Iterator[None]:
    with mock.patch.object(cpu_attention, "is_faster", return_value=False):
        yield


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--length", type=int, default=17, help="tokens of a sentence")
    arguments.add_argument("--steps-only", action="store_true")
    arguments.add_argument("--memory", choices=["kept", "given-back"], help=argparse.SUPPRESS)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory != "given-back":
        keep_freed_memory()
    if options.memory:
        step = Step(options.length)
        timed(lambda: step(), 2)
        print(statistics.median(timed(lambda: step(), options.rounds)))
        return
    step, unfused = Step(options.length), Step(options.length, fused_adam=False)
    plain = PlainStep(options.length)

    def within(*contexts: Callable[[], AbstractContextManager]) -> Callable[[], None]:
        def run() -> None:
            with ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())
                step()

        return run

    variants: dict[str, Callable[[], None]] = {
        f"diglot: {name_of(NATIVE)}": lambda: step(),
        f"diglot: {name_of(OTHER)}": lambda: step(precision=OTHER),
        f"plain loop of torch.nn: {name_of(NATIVE)}": lambda: plain(plain_loss),
        f"plain loop of torch.nn: {name_of(OTHER)}": lambda: plain(plain_loss, OTHER),
        "PyTorch's attention, its choice of kernel": within(torch_attention),
        "PyTorch's attention, math kernel": within(torch_attention, partial(sdpa_kernel, SDPBackend.MATH)),
        "torch.nn.Dropout": within(torch_dropout),
        "loss of PyTorch's functions": lambda: step(composed_loss),
        "AdamW not fused": lambda: unfused(),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        timed(variant, 2)
    for _ in range(options.rounds):
        for name, variant in variants.items():
            times[name] += timed(variant, 1)
    actual, tokens = next(iter(times.values())), int(step.tgt_mask.sum())
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds, {tokens} target tokens")
    for name, found in times.items():
        ratio = statistics.median(time / ours for time, ours in zip(found, actual, strict=True))
        median = statistics.median(found)
        print(f"{name:42} {1000 * median:7.1f} ms {tokens / median:9,.0f} target tokens a second  x{ratio:.2f}")
    if not options.steps_only:
        compare_memory(options)
        compare_waiting(options)


def compare_memory(options: argparse.Namespace) -> None:
    """Measure a step with each way to handle freed memory, and print the ratio.

    glibc's handling of freed memory cannot be changed back, so each way runs in separate processes, in turn.
    """
    by_memory: dict[str, list[float]] = {"kept": [], "given-back": []}
    for _ in range(3):
        for way, found in by_memory.items():
            found.append(in_process(options, way, os.environ, options.rounds))
    ratio = statistics.median(by_memory["given-back"]) / statistics.median(by_memory["kept"])
    print(f"{'freed memory given back to the system':42} {'':10}  x{ratio:.2f}")


def in_process(options: argparse.Namespace, memory: str, environment: Mapping[str, str], rounds: int) -> float:
    """Return the median time of a step, measured in a new process."""
    threads = environment.get("OMP_NUM_THREADS", str(options.threads))
    words = ["--threads", threads, "--rounds", str(rounds), "--length", str(options.length), "--memory", memory]
    command = [sys.executable, __file__, *words]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def compare_waiting(options: argparse.Namespace) -> None:
    """Measure each way of waiting in turn, on an idle machine and beside other work, and print the times."""
    bare = {name: value for name, value in os.environ.items() if name not in SET_BY_USERS}
    times: dict[tuple[str, bool], list[float]] = {(way, busy): [] for way in WAYS_TO_WAIT for busy in (False, True)}
    for _ in range(2):
        for (way, busy), found in times.items():
            rounds = -(-options.rounds // 5) if busy else options.rounds  # a step may then take 20 times as long
            with busy_cores() if busy else nullcontext():
                found.append(in_process(options, "kept", {**bare, **WAYS_TO_WAIT[way]}, rounds))
    medians = {case: statistics.median(found) for case, found in times.items()}
    print(f"{'how threads wait':30} {'alone':>18} {'beside busy cores':>20}")
    for way in WAYS_TO_WAIT:
        cells = [(medians[way, busy], medians[next(iter(WAYS_TO_WAIT)), busy]) for busy in (False, True)]
        print(f"{way:30} " + "  ".join(f"{1000 * time:9.1f} ms x{time / ours:5.2f}" for time, ours in cells))


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep each core busy with one process."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def name_of(precision: torch.dtype) -> str:
    return "bfloat16 autocast" if precision is torch.bfloat16 else "float32"


def timed(function: Callable[[], None], times: int) -> list[float]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    found = []
    for _ in range(times):
        start = clock()
        function()
        found.append(clock() - start)
    return found


if __name__ == "__main__":
    main()
