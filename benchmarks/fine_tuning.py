"""Cost of an update if all weights are trained, if parts are frozen, and with low-rank adapters.

    python benchmarks/fine_tuning.py [--model tiny] [--threads 1] [--rounds 7] [--length 17] [--device cpu]

Each round times an update of every variant in turn, so that other load on the machine slows them equally. The table
gives the number of trained weights, the size of the optimizer's state, the median time of an update, and the median
over the rounds of its share of the first variant's time. With one thread, times are CPU times. A batch has about 1,105
random tokens per side, and the weights are random: neither affects the time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from diglot.system.glibc import keep_freed_memory  # before torch: see diglot.threads

# isort: split
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from diglot.config import CONF, FineTuning, build
from diglot.training.groups import parameter_groups
from diglot.training.loss import token_loss

VOCAB_SIZE, TOKENS = 8000, 1105  # tokens per side
VARIANTS = {
    "all weights": [],
    "encoder and embeddings frozen": ["freeze=[encoder,embeddings]"],
    "LoRA, rank 8, query and value": ["lora={rank: 8}", "init_from=run"],
    "LoRA, rank 8, all linear layers": ["lora={rank: 8, on: [attention, feed_forward]}", "init_from=run"],
}


class Update:
    """An update of a model on random tokens."""

    def __init__(self, config: DictConfig, length: int, device: torch.device) -> None:
        torch.manual_seed(1)
        model = build(config.model, "model", src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)
        FineTuning.of(config).apply(model)
        self.model = model.to(device).train()
        self.optimizer = build(config.optimizer, "optimizer")(parameter_groups(self.model, {}), lr=1e-4)
        shape = (3, max(1, TOKENS // length), length)
        self.src, self.tgt, self.labels = torch.randint(4, VOCAB_SIZE, shape, device=device)
        self.mask = torch.ones_like(self.src, dtype=torch.bool)

    def __call__(self) -> None:
        sums = token_loss(self.model(self.src, self.tgt, self.mask), self.labels, self.mask, 0.1)
        (sums.smoothed / sums.tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.src.is_cuda:
            torch.cuda.synchronize()

    @property
    def n_trained(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    @property
    def state_bytes(self) -> int:
        """Return the size of the optimizer's state, after an update."""
        states = self.optimizer.state.values()
        return sum(value.nbytes for state in states for value in state.values() if isinstance(value, torch.Tensor))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="tiny")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--length", type=int, default=17, help="tokens of a sentence")
    arguments.add_argument("--device", default="cpu")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    device = torch.device(options.device)
    updates = {name: Update(composed(options.model, words), options.length, device) for name, words in VARIANTS.items()}
    times: dict[str, list[float]] = {name: [] for name in updates}
    for update in updates.values():
        timed(update, device)
    for _ in range(options.rounds):
        for name, update in updates.items():
            times[name].append(timed(update, device))
    first = next(iter(times.values()))
    print(f"{options.model}, torch {torch.__version__}, {options.device}, {options.threads} threads")
    print("| | trained weights | optimizer's state | an update | share |\n|---|---:|---:|---:|---:|")
    for name, update in updates.items():
        share = statistics.median(own / full for own, full in zip(times[name], first, strict=True))
        size, seconds = update.state_bytes / 1e6, statistics.median(times[name])
        print(f"| {name} | {update.n_trained:,} | {size:,.1f} MB | {1000 * seconds:,.1f} ms | {share:.2f} |")


def composed(model: str, words: list[str]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [f"model={model}", *words])
    return OmegaConf.create(OmegaConf.to_container(config))


def timed(function: Callable[[], None], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    function()
    return clock() - start


if __name__ == "__main__":
    main()
