"""Options of the data module that apply to any corpus."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diglot.data.noise import Noise
from diglot.data.preparation import Cleaning


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options for preparing, batching and loading the text of any corpus.

    These are the keys of the config node `data` that do not belong to a particular corpus.

    Args:
        vocab_size: vocabulary size that suits the corpus. It is only the default of the config key
            `tokenizer.vocab_size`.
        cache_dir: folder for everything that is downloaded or computed once.
        tokens_per_batch: budget of a training batch in tokens: number of rows times the longest side, including padding
            and </s>.
        batches_per_update: number of batches whose gradients are accumulated for one update, over all processes; None:
            one batch, whose rows the processes share.
        max_rows: greatest number of rows in a training batch, even if the budget allows more; None: no limit.
        shapes: shapes of training batches. free: as long as the longest pair in the batch; buckets or fine_buckets: one
            of a few or of some dozen shapes (see `bucket_shapes`), so that shapes recur on a GPU; auto: chosen by the
            device (see diglot.config.build.choose_shapes), or free if there is no device.
        eval_tokens_per_batch: budget of a dev batch, counted in the same way.
        max_len: greatest number of tokens per side, including </s>. Longer training pairs are left out; dev and test
            pairs are kept.
        clean: further rules that leave out training pairs; see `Cleaning`.
        noise: noise in training pairs; see `Noise`. None: no noise.
        n_processes: number of processes that tokenise a large corpus; None: one per core, at most eight.
        n_workers: number of processes that collate training batches; 0: the training process collates them.
        memory_baseline: whether to compare the results with a translation memory; see
            diglot.evaluation.translation_memory.
        further_dev: further dev sets by name, which validations score beside dev; see `FurtherDev` in
            diglot.data.held_out. None: there are none.

    Raises:
        ValueError: a value is too small, or max_len is above tokens_per_batch.
    """

    vocab_size: int = 8000
    cache_dir: str = "cache"
    tokens_per_batch: int = 4096
    batches_per_update: int | None = None
    max_rows: int | None = None
    shapes: Literal["auto", "free", "buckets", "fine_buckets"] = "free"
    eval_tokens_per_batch: int = 4096
    max_len: int = 256
    clean: Cleaning | None = None
    noise: Noise | None = None
    n_processes: int | None = None
    n_workers: int = 0
    memory_baseline: bool = False
    further_dev: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("tokens_per_batch", self.tokens_per_batch, 2),
            ("batches_per_update", self.batches_per_update, 1),
            ("max_rows", self.max_rows, 1),
            ("eval_tokens_per_batch", self.eval_tokens_per_batch, 1),
            ("max_len", self.max_len, 2),
            ("n_processes", self.n_processes, 1),
            ("n_workers", self.n_workers, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} ({value}) must be at least {least}")
        if self.max_len > self.tokens_per_batch:
            raise ValueError(f"max_len ({self.max_len}) must not be above tokens_per_batch ({self.tokens_per_batch})")
