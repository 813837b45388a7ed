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
from diglot.config import FineTuning, build, build_corpus, build_data, check_tying, settle_shapes, trial_build
from diglot.data.batching import Batching, widths
from diglot.data.doctor import N_GRAM, Diagnosis, sample_lengths
from diglot.data.forms import mixed_forms
from diglot.data.module import TranslationData
from diglot.data.text import write_bytes, write_json
from diglot.data.tokenizer import TokenizerSource
from diglot.errors import UserError
from diglot.runs.inheritance import inherit, load_initial, tokenizer_of
from diglot.runs.scoring import build_scorer
from diglot.sweeps.job import say
from diglot.system.console import quiet, render
from diglot.training.groups import parameter_groups
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
    inherit(config)
    model = trial_build(config)
    max_near, n_probed = config.doctor.max_near, config.doctor.probe
    if max_near is not None and not 0 <= max_near <= 1:
        raise UserError(f"doctor.max_near={max_near}: must be from 0 to 1, or null")
    if n_probed < 0:
        raise UserError(f"doctor.probe={n_probed}: must not be negative")
    corpus = build_corpus(config.data)
    build_scorer(config, corpus.tgt_lang)  # fails now if a package is missing that training needs
    source: TokenizerSource = build(config.tokenizer, "tokenizer")
    initial = load_initial(config)
    tokenizer = tokenizer_of(config, source, initial, corpus.tgt_lang)
    settle_shapes(config, _device(config).type)
    data = build_data(config.data, corpus, tokenizer, source.sampling, config.seed)
    check_tying(model, tokenizer)
    data.prepare_data(max_diagnosed_pairs=math.inf)
    data.setup()
    budget: Budget = build(config.run, "run")
    diagnosis = data.diagnose()
    plan = planned(data, budget)
    if n_probed:
        plan |= probe(config, data, plan["updates"], n_probed)
    folder = Path(config.doctor.folder or data.cache_dir / "doctor")
    notes = [note for note in data.notes if not note.startswith("doctor: ")]
    noise = data.shards.metadata.get("noise", {})
    write_json(folder / "doctor.json", {**asdict(diagnosis), "notes": notes, "plan": plan, "noise": noise})
    write_bytes(folder / "doctor.png", histograms(data))
    say("\n".join([*notes, *render(table(diagnosis, plan, noise))]))
    say(f"{diagnosis.summary()}\nMade in {folder}/: doctor.json, doctor.png")
    too_near = [
        f"{split}: {o.near / o.long:.1%} of the sources with at least {N_GRAM} words share {N_GRAM} consecutive words "
        f"with train, more than doctor.max_near={max_near}"
        for split, o in diagnosis.overlap.items()
        if max_near is not None and o.long and o.near / o.long > max_near
    ]
    scorer = build_scorer(config, corpus.tgt_lang, data.held_out["dev"].reference_lines)
    for line in [*scorer.notes, *too_near]:
        say(line)
    if diagnosis.faults or too_near:
        sys.exit(1)


def planned(data: TranslationData, budget: Budget) -> dict[str, Any]:
    """Return the padding, updates and passes of a run on the data."""
    updates = budget.total_updates(data)
    batches, padding = estimate_pass(data.batching)
    per_update = data.options.batches_per_update or 1
    return {"padding": padding, "updates_per_pass": batches / per_update, "updates": updates} | {
        "passes": updates * per_update / batches
    }


def estimate_pass(batching: Batching, max_pools: int = 3) -> tuple[float, float]:
    """Estimate the number of batches in a pass, and their share of padding, from the first pools of a pass.

    Args:
        batching: the batches.
        max_pools: the maximum number of pools.
    """
    n_pools = min(max_pools, batching.n_pools)
    n_batches = n_pairs = n_tokens = area = 0
    for pool in range(n_pools):
        for pairs, shape in batching.pool(0, pool):
            lengths = [side[pairs] for side in (batching.src_lengths, batching.tgt_lengths)]
            n_batches += 1
            n_pairs += len(pairs)
            n_tokens += sum(int(side.sum()) for side in lengths)
            if shape:
                area += 2 * shape.rows * shape.length
            else:
                area += len(pairs) * sum(widths(*(int(side.max()) for side in lengths)))
    return n_batches * len(batching) / n_pairs, 1 - n_tokens / area


def _device(config: DictConfig) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu")


def probe(config: DictConfig, data: TranslationData, n_updates: int, n_probed: int) -> dict[str, Any]:
    """Estimate a run's training time in seconds and its memory in bytes, by training a model for `n_probed` updates."""
    device = _device(config)
    torch.manual_seed(config.seed)
    model = build(config.model, "model", **data.tokenizer.vocab_sizes)
    FineTuning.of(config).apply(model)
    model.to(device)
    optimizer = build(config.optimizer, "optimizer")(parameter_groups(model, {}), lr=1e-6)
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
    seconds_per_update = float(np.median(seconds)) * (data.options.batches_per_update or 1)
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "device": str(device),
        "seconds_per_update": seconds_per_update,
        "training_seconds": seconds_per_update * n_updates,
        "memory": memory,
    }


def table(diagnosis: Diagnosis, plan: dict[str, Any], noise: dict[str, Any]) -> Table:
    """Return the report for a terminal.

    Args:
        diagnosis: the faults of the data.
        plan: the padding, updates and passes of a run, and its estimated time.
        noise: for each kind of noise: number of pairs, and examples (source, source with noise, target with noise).
    """
    report = Table(box=box.SIMPLE, show_header=False, padding=(0, 1))
    report.add_column(style="bold")
    report.add_column()

    def share(n: float) -> str:
        return f"{n:,} ({n / max(1, diagnosis.read):.2%} of all pairs read)"

    left_out = ", ".join(f"{n:,} {rule}" for rule, n in diagnosis.left_out.items()) or "none"
    report.add_row("train pairs", f"{diagnosis.pairs:,} of {diagnosis.read:,} read; left out: {left_out}")
    for corpus, counts in diagnosis.corpora.items() if len(diagnosis.corpora) > 1 else ():
        src, tgt = counts["mean_tokens"].values()
        rules = "".join(f"; {n:,} {rule}" for rule, n in counts["dropped"].items())
        report.add_row(
            f"  {corpus}", f"{counts['kept']:,} of {counts['read']:,}, {src:.1f} and {tgt:.1f} tokens{rules}"
        )
    report.add_row("repeated", share(diagnosis.duplicates))
    report.add_row("identical sides", share(diagnosis.identical))
    report.add_row("other script", share(diagnosis.scripts))
    report.add_row(
        "possibly swapped sides", "\n".join([share(diagnosis.swapped), *map(" | ".join, diagnosis.swapped_examples)])
    )
    if forms := mixed_forms(diagnosis.forms):
        report.add_row("forms", forms)
    for side, name in (("src", "source tokens"), ("tgt", "target tokens")):
        report.add_row(name, ", ".join(f"{key} {value:,.4g}" for key, value in diagnosis.lengths[side].items()))
    report.add_row("target / source", ", ".join(f"{key} {value:.2f}" for key, value in diagnosis.ratio.items()))
    report.add_row(
        "tokenizer",
        f"{diagnosis.changed_by_tokenizer:.2%} of lines change when encoded and decoded; "
        f"{diagnosis.unknown:.2%} unknown tokens, {diagnosis.bytes:.2%} byte tokens",
    )
    for kind, counts in noise.items():
        examples = [" | ".join(example) for example in counts["examples"]]
        report.add_row(f"noise: {kind}", "\n".join([f"{counts['pairs']:,} pairs of all versions", *examples]))
    for split, overlap in diagnosis.overlap.items():
        lines = [
            f"in train: {overlap.pairs:,} pairs, {overlap.sources:,} sources; {overlap.near:,} of the {overlap.long:,} "
            f"sources with at least {N_GRAM} words share {N_GRAM} consecutive words with it"
        ]
        lines += [f"{source} | {target}" for source, target in overlap.examples or overlap.near_examples[:2]]
        report.add_row(f"{split}, {overlap.size:,} pairs", "\n".join(lines))
    report.add_row("batches", f"{plan['padding']:.1%} padding")
    report.add_row(
        "run", f"{plan['updates']:,} updates, {plan['passes']:.1f} passes of {plan['updates_per_pass']:,.0f} updates"
    )
    if "device" in plan:
        report.add_row(
            plan["device"],
            f"{plan['seconds_per_update']:.2f} s an update, {plan['training_seconds'] / 60:,.0f} minutes of training, "
            f"{plan['memory'] / 2**30:.1f} GB",
        )
    return report


def histograms(data: TranslationData) -> bytes:
    """Return histograms of the lengths and of their ratio, as a PNG."""
    lengths = sample_lengths(data.shards)
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
