"""Reports of a training run, before it starts and after it ends."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from diglot.config import meaning_of
from diglot.data.held_out import score_of
from diglot.data.module import TranslationData
from diglot.data.text import ParallelText, write_json
from diglot.evaluation.scorer import Score, label
from diglot.model.lora import is_adapter
from diglot.runs.folder import RESULTS
from diglot.system.console import render
from diglot.system.quoting import printable
from diglot.training.checkpoint_writer import CheckpointWriter
from diglot.training.throughput import Throughput, peak_memory


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters in each part of a model; shared ones count only for the first part with them.

    A part is a stack's sublayers of one kind ("encoder self_attention") or a child module that is not a stack. Adapters
    do not count.
    """
    shared = Counter(name for name, _ in model.named_parameters(remove_duplicate=False))
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        shared.pop(name)
        if is_adapter(name):
            continue
        stack, *path = name.split(".")
        part = f"{stack} {path[1]}" if len(path) > 1 and path[0].isdigit() else stack
        parts[part] = parts.get(part, 0) + parameter.numel()
    for name in shared:
        parts[name.split(".")[0]] = parts.get(name.split(".")[0], 0)
    return parts


def start_report(
    folder: Path,
    data: TranslationData,
    model: nn.Module,
    trainer: L.Trainer,
    precision: str,
    fine_tuning: Sequence[str] = (),
) -> str:
    """Return a description of what is trained, on which data, for how long and on which device.

    Args:
        folder: the run's folder.
        data: the run's data.
        model: the model.
        trainer: the run's trainer.
        precision: a description of the precision.
        fine_tuning: lines that state which weights are trained, unless all are.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    sizes = ", ".join(f"{split} {n:,}" for split, n in data.sizes.items())
    table.add_row("data", Text("\n".join([data.corpus.describe(), f"pairs: {sizes}", *data.notes])))
    tokenizer = data.tokenizer
    hidden = f", {tokenizer.placeholder} never split" if tokenizer.placeholder else ""
    if tokenizer.is_joint:
        vocabulary = f"{tokenizer.src_vocab_size:,} pieces for both sides"
    else:
        vocabulary = f"{tokenizer.src_vocab_size:,} pieces of the source, {tokenizer.tgt_vocab_size:,} of the target"
    sampled = f", segmented at random in {data.sampling.samples} versions" if data.sampling.samples else ""
    tags = f", tags for {', '.join(tokenizer.languages)}" if tokenizer.languages else ""
    table.add_row("vocabulary", Text(vocabulary + hidden + tags + sampled))
    parts = parameters_by_part(model)
    n_parameters = sum(parts.values())
    width = max(map(len, parts))
    lines = [f"{n_parameters:,} parameters"]
    for part, size in parts.items():
        description = f"{size:>12,}  {size / n_parameters:>4.0%}" if size else f"{'shared':>12}"
        lines.append(f"{part:<{width}}{description}")
    table.add_row("model", Text("\n".join([*lines, *fine_tuning])))
    updates = data.updates(world_size=trainer.world_size)
    batches = data.batching.count(0)
    passes = data.n_updates * updates.batches_per_update / batches
    sharing = f", shared by {trainer.world_size} processes" if trainer.world_size > 1 else ""
    n_batches = "a batch" if updates.batches_per_update == 1 else f"{updates.batches_per_update} batches"
    done = f", {data.start:,} of them done" if data.start else ""
    table.add_row(
        "run",
        Text(
            f"{data.n_updates:,} updates{done}, {passes:.1f} passes; "
            f"an update is {n_batches} of at most {data.options.tokens_per_batch:,} tokens per side{sharing}"
        ),
    )
    if trainer.strategy.root_device.type == "cuda":
        device = torch.cuda.get_device_name()
    else:
        device = "CPU, 1 thread" if torch.get_num_threads() == 1 else f"CPU, {torch.get_num_threads()} threads"
    processes = f"{trainer.world_size} processes, each: " if trainer.world_size > 1 else ""
    table.add_row("device", Text(f"{processes}{device}, {precision}"))
    table.add_row("folder", Text(f"{printable(folder)}/"))
    return "\n".join(render(table, width=120))


def samples(translate: Callable[[list[str]], list[str]], pairs: ParallelText, n: int = 3) -> list[str]:
    """Return sentences of short, medium and greater length with their translations.

    The choice of sentences does not depend on `translate`.
    """
    lengths = [len(source) for source in pairs.src]
    by_length = sorted(range(len(pairs)), key=lambda i: (lengths[i], i))
    indices = sorted({by_length[len(by_length) * (k + 1) // (n + 1)] for k in range(n)}) if by_length else []
    translations = translate([pairs.src[i] for i in indices])
    lines = []
    for i, translation in zip(indices, translations, strict=True):
        lines += [
            f"  source       {pairs.src[i]}",
            *(f"  reference    {line}" for line in pairs.select([i]).reference_lines),
            f"  translation  {translation}",
            "",
        ]
    return lines[:-1]


def best_scores(writer: CheckpointWriter) -> dict[str, float]:
    """Return the dev scores of the best checkpoint, and the update after which it was written."""
    scores = {name.removeprefix("dev/"): value for name, value in writer.best_metrics.items()}
    return {**scores, "update": writer.best_update}


def write_results(
    folder: Path,
    writer: CheckpointWriter,
    throughput: Throughput,
    model: nn.Module,
    n_trained: int,
    updates: int,
    test: Mapping[str, Any] | None,
    contents: Mapping[str, str],
) -> None:
    """Write the results of a finished run into its folder; this file marks the run as finished."""
    speed = throughput.dev_sentences_per_second
    results = {
        "finished": True,
        "best": best_scores(writer),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_parameters": n_trained,
        "tokens_per_second": round(throughput.target_tokens_per_second, 1),
        "minutes": round(throughput.seconds / 60, 3),
        "dev_sentences_per_second": speed if speed is None else round(speed, 1),
        "updates": updates,
        "checkpoint": writer.best.name,
        "memory_gb": round(peak_memory(), 2),
        "test": test,
        "contents": dict(contents),
    }
    write_json(folder / RESULTS, results)


def end_report(writer: CheckpointWriter, throughput: Throughput, updates: int, scores: Sequence[Score]) -> str:
    """Return a summary of a run's training.

    Args:
        writer: knows the best checkpoint.
        throughput: knows the speed.
        updates: number of updates.
        scores: scores of the newest validation, the monitored one first; empty if this process has not validated.
    """
    signature = "".join(f" ({score.signature})" for score in scores[:1])
    dev_set, _, metric = score_of(writer.monitor).partition("/")
    return (
        f"Trained {updates:,} updates in {throughput.seconds / 60:.1f} minutes, not counting validations "
        f"({throughput.target_tokens_per_second:,.0f} target tokens per second) with {peak_memory():.1f} GB of memory; "
        f"best {dev_set} {label(metric)} {writer.best_score:.2f} at update {writer.best_update:,}{signature}."
    )


def hyper_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config's hyperparameters as one flat mapping, for TensorBoard's table of runs."""
    flat: dict[str, Any] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, Mapping):
            if "_target_" in node and meaning_of(path).is_hyper_parameter:
                flat[path] = str(node["_target_"]).rpartition(".")[2]
            for key, value in node.items():
                if key not in ("_target_", "_partial_"):
                    walk(value, f"{path}.{key}" if path else key)
        elif isinstance(node, (bool, int, float, str)) and meaning_of(path).is_hyper_parameter:
            flat[path] = node

    walk(config, "")
    return flat
