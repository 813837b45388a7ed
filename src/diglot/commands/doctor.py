"""diglot-doctor: read the data as training would, and report likely problems before a run."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("doctor")


import io
import math
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig
from rich import box
from rich.table import Table

from diglot.commands.frame import command
from diglot.commands.schema import TrainKeys
from diglot.config import build, build_corpus, build_data, check_tying, settle_shapes, trial_build
from diglot.data.batching import Batching, widths
from diglot.data.doctor import N_GRAM, Diagnosis, some_lengths
from diglot.data.forms import mixed_forms
from diglot.data.module import TranslationData
from diglot.data.text import write_bytes, write_json
from diglot.data.tokenizer import TokenizerSource
from diglot.errors import UserError
from diglot.evaluation.metrics import Scorer
from diglot.sweeps.job import say
from diglot.system.console import quiet, render
from diglot.training.loss import batch_loss
from diglot.training.run import Budget


class DoctorOptions(TypedDict):
    """The keys of the config's node `doctor`."""

    max_near: float | None
    probe: int
    folder: str | None


class DoctorKeys(TrainKeys):
    """The keys of conf/doctor.yaml."""

    doctor: Annotated[DictConfig, DoctorOptions]


@command("doctor", DoctorKeys)
def main(config: DictConfig) -> None:
    quiet()
    model = trial_build(config)
    max_near, n_probed = config.doctor.max_near, config.doctor.probe
    if max_near is not None and not 0 <= max_near <= 1:
        raise UserError(f"doctor.max_near={max_near}: must be from 0 to 1, or null")
    if n_probed < 0:
        raise UserError(f"doctor.probe={n_probed}: must not be negative")
    corpus = build_corpus(config.data)
    Scorer(corpus.tgt_lang, tokenizer=config.bleu_tokenizer)  # fails now if a package is missing that training needs
    tokenizer: TokenizerSource = build(config.tokenizer, "tokenizer")
    settle_shapes(config, _device(config).type)
    data = build_data(config.data, corpus, tokenizer, tokenizer.sampling, config.seed)
    check_tying(model, tokenizer)
    data.prepare_data(diagnosed=math.inf)
    data.setup()
    budget: Budget = build(config.run, "run")
    found = data.diagnose()
    plan = planned(data, budget)
    if n_probed:
        plan |= probed(config, data, plan["updates"], n_probed)
    folder = Path(config.doctor.folder or data.cache_dir / "doctor")
    notes = [note for note in data.notes if not note.startswith("doctor: ")]
    write_json(folder / "doctor.json", {**asdict(found), "notes": notes, "plan": plan})
    write_bytes(folder / "doctor.png", histograms(data))
    say("\n".join([*notes, *render(table(found, plan))]))
    say(f"{found.summary()}\nMade in {folder}/: doctor.json, doctor.png")
    too_near = [
        f"{split}: {o.near / o.long:.1%} of the sources with at least {N_GRAM} words share {N_GRAM} consecutive words "
        f"with train, more than doctor.max_near={max_near}"
        for split, o in found.overlap.items()
        if max_near is not None and o.long and o.near / o.long > max_near
    ]
    for line in [*Scorer(corpus.tgt_lang, data.held_out["dev"].tgt, config.bleu_tokenizer).notes, *too_near]:
        say(line)
    if found.faults or too_near:
        sys.exit(1)


def planned(data: TranslationData, budget: Budget) -> dict[str, Any]:
    """Return the padding, updates and passes of a run on the data."""
    updates = budget.total_updates(data)
    batches, padding = passed(data.batching)
    per_update = data.options.batches_per_update or 1
    return {"padding": padding, "updates_per_pass": batches / per_update, "updates": updates} | {
        "passes": updates * per_update / batches
    }


def passed(batching: Batching, most: int = 3) -> tuple[float, float]:
    """Estimate the number of batches in a pass, and their share of padding, from the first pools of a pass.

    Args:
        batching: the batches.
        most: the maximum number of pools.
    """
    n_pools = min(most, batching.n_pools)
    n_batches = n_pairs = real = area = 0
    for number in range(n_pools):
        for pairs, shape in batching.pool(0, number):
            lengths = [side[pairs] for side in (batching.src_lengths, batching.tgt_lengths)]
            n_batches += 1
            n_pairs += len(pairs)
            real += sum(int(side.sum()) for side in lengths)
            if shape:
                area += 2 * shape.rows * shape.length
            else:
                area += len(pairs) * sum(widths(*(int(side.max()) for side in lengths)))
    return n_batches * len(batching) / n_pairs, 1 - real / area


def _device(config: DictConfig) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu")


def probed(config: DictConfig, data: TranslationData, n_updates: int, n_probed: int) -> dict[str, Any]:
    """Estimate a run's training time in seconds and its memory in bytes, by training a model for `n_probed` updates."""
    device = _device(config)
    torch.manual_seed(config.seed)
    model = build(config.model, "model", **data.tokenizer.vocab_sizes).to(device)
    optimizer = build(config.optimizer, "optimizer")(model.parameters(), lr=1e-6)
    data.set_length(n_probed)
    seconds: list[float] = []
    for micro_batch in data.updates():
        batch = data.train_pairs[micro_batch]
        began = time.perf_counter()
        sums = batch_loss(model, batch.on(device), config.label_smoothing)
        (sums.smoothed / batch.update_target_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    each = float(np.median(seconds)) * (data.options.batches_per_update or 1)
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"device": str(device), "seconds_per_update": each, "training_seconds": each * n_updates, "memory": memory}


def table(found: Diagnosis, plan: dict[str, Any]) -> Table:
    """Return the report for a terminal."""
    about = Table(box=box.SIMPLE, show_header=False, padding=(0, 1))
    about.add_column(style="bold")
    about.add_column()

    def share(n: float) -> str:
        return f"{n:,} ({n / max(1, found.read):.2%} of all pairs read)"

    left_out = ", ".join(f"{n:,} {rule}" for rule, n in found.left_out.items()) or "none"
    about.add_row("train pairs", f"{found.pairs:,} of {found.read:,} read; left out: {left_out}")
    for corpus, counts in found.corpora.items() if len(found.corpora) > 1 else ():
        src, tgt = counts["mean_tokens"].values()
        rules = "".join(f"; {n:,} {rule}" for rule, n in counts["dropped"].items())
        about.add_row(f"  {corpus}", f"{counts['kept']:,} of {counts['read']:,}, {src:.1f} and {tgt:.1f} tokens{rules}")
    about.add_row("repeated", share(found.duplicates))
    about.add_row("identical sides", share(found.identical))
    about.add_row("other script", share(found.scripts))
    about.add_row("possibly swapped sides", "\n".join([share(found.swapped), *map(" | ".join, found.swapped_examples)]))
    if forms := mixed_forms(found.forms):
        about.add_row("forms", forms)
    for side, name in (("src", "source tokens"), ("tgt", "target tokens")):
        about.add_row(name, ", ".join(f"{key} {value:,.4g}" for key, value in found.lengths[side].items()))
    about.add_row("target / source", ", ".join(f"{key} {value:.2f}" for key, value in found.ratio.items()))
    about.add_row(
        "tokenizer",
        f"{found.changed_by_tokenizer:.2%} of lines change when encoded and decoded; "
        f"{found.unknown:.2%} unknown tokens, {found.bytes:.2%} byte tokens",
    )
    for split, overlap in found.overlap.items():
        lines = [
            f"in train: {overlap.pairs:,} pairs, {overlap.sources:,} sources; {overlap.near:,} of the {overlap.long:,} "
            f"sources with at least {N_GRAM} words share {N_GRAM} consecutive words with it"
        ]
        lines += [f"{one} | {other}" for one, other in overlap.examples or overlap.near_examples[:2]]
        about.add_row(f"{split}, {overlap.size:,} pairs", "\n".join(lines))
    about.add_row("batches", f"{plan['padding']:.1%} padding")
    about.add_row(
        "run", f"{plan['updates']:,} updates, {plan['passes']:.1f} passes of {plan['updates_per_pass']:,.0f} updates"
    )
    if "device" in plan:
        about.add_row(
            plan["device"],
            f"{plan['seconds_per_update']:.2f} s an update, {plan['training_seconds'] / 60:,.0f} minutes of training, "
            f"{plan['memory'] / 2**30:.1f} GB",
        )
    return about


def histograms(data: TranslationData) -> bytes:
    """Return histograms of the lengths and of their ratio, as a PNG."""
    lengths = some_lengths(data.shards)
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    bins = np.arange(0.5, max(side.max() for side in lengths) + 1.5)
    for side, name in zip(lengths, (data.corpus.src_lang, data.corpus.tgt_lang)):
        left.hist(side, bins=bins, histtype="step", label=name)
    left.set_xlabel("tokens, </s> counted")
    left.set_ylabel("train pairs")
    left.legend()
    right.hist(np.log2(lengths[1] / lengths[0]), bins=80)
    right.set_xlabel("log2 of target tokens for each source token")
    right.set_yscale("log")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()
