"""Comparison of an export for transformers with its model, in a process that has neither diglot nor a network."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from diglot.checkpoint.file import Checkpoint
from diglot.errors import UserError
from diglot.export.huggingface import exported
from diglot.export.parity import NEAR, ROWS, Output, Sentences, compare, of_model

_WORKER = Path(__file__).with_name("transformers_worker.py")


def checked(loaded: Checkpoint, folder: Path, sentences: Sentences, longest: int) -> tuple[dict[str, Any], list[str]]:
    """Compare an export with its model: tokens of greedy search, log-probabilities of these tokens, and tokenizers.

    Args:
        loaded: the checkpoint.
        folder: the folder of the export.
        sentences: the sentences to translate.
        longest: maximum number of target positions of the export.

    Returns:
        The figures, and lines to print.

    Raises:
        UserError: the translations or the log-probabilities differ by more than rounding, or transformers fails.
    """
    model, tokenizer, search = loaded.model, loaded.tokenizer, loaded.search
    sources = [source.ids for source in sentences.sources]
    outputs = of_model(model, tokenizer, search, sentences.tgt_prefix)(sources)
    targets = [[*output.tokens, tokenizer.eos_id][:longest] for output in outputs]
    limits = search.limits(torch.tensor([len(source) + 1 for source in sources]), longest).tolist()
    lines = [] if sentences.pairs is None else _plain_lines(loaded, sentences)

    def exchanged(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return [exported(row, tokenizer, loaded.record["model"]) for row in rows]

    request = {"folder": str(folder), "sources": exchanged(sources), "targets": exchanged(targets), "limits": limits}
    found = _ask({**request, "rows": ROWS, "lines": lines})
    theirs = [
        Output(tokens[:limit], len(tokens) > limit)
        for tokens, limit in zip(exchanged(found["greedy"]), limits, strict=True)
    ]
    parity = compare(model, tokenizer, sources, outputs, theirs, engine="transformers")
    difference = _greatest_difference(loaded, sources, targets, found["log_probs"])
    if difference > NEAR:
        raise UserError(
            f"transformers computes log-probabilities that differ by {difference:.1e} from the model's: the export was "
            "not written"
        )
    expected = [[*encoded.ids, tokenizer.eos_id] for encoded in tokenizer.encode(lines, loaded.record["tgt_lang"])]
    if tokenizer.languages:  # the tag is part of the text there
        expected = [ids[1:] for ids in expected]
    n_equal = sum(map(list.__eq__, exchanged(expected), found["ids"]))
    ties = f", {parity.near_ties} more apart from rounding" if parity.near_ties else ""
    report = [
        f"{sentences.description}: {parity.identical} of {parity.sentences} sentences have the same tokens{ties}; "
        f"log-probabilities differ by at most {difference:.1e}"
    ]
    if lines:
        report.append(f"tokenizer: {n_equal} of {len(lines)} lines without placeholders have the same tokens")
    figures = {"text": sentences.description, **parity._asdict(), "log_probs": difference}
    return figures | {"lines": len(lines), "lines_with_same_tokens": n_equal}, report


def _plain_lines(loaded: Checkpoint, sentences: Sentences) -> list[str]:
    """Return the source lines without placeholders."""
    assert sentences.pairs is not None
    return [line for line in sentences.pairs.src if not loaded.tokenizer.find_placeholders(line)]


@torch.inference_mode()
def _greatest_difference(
    loaded: Checkpoint, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], theirs: list[list[float]]
) -> float:
    """Return the greatest difference of the log-probabilities of the targets' tokens from the model's."""
    special, differences = loaded.tokenizer.special, [0.0]
    for source, target, found in zip(sources, targets, theirs, strict=True):
        src, tgt_in = torch.tensor([[*source, special.eos]]), torch.tensor([[special.bos, *target[:-1]]])
        log_probs = loaded.model(src, tgt_in)[0].log_softmax(-1)  # (T, V)
        ours = log_probs[torch.arange(len(target)), torch.tensor(target)]
        differences.append((ours - torch.tensor(found)).abs().max().item())
    return max(differences)


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the worker (see diglot.export.transformers_worker).

    Raises:
        UserError: the worker failed.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        process = subprocess.run(
            [sys.executable, "-I", str(_WORKER), str(file)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if process.returncode:
            reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"transformers could not use the export ({reason}): the export was not written")
        answer: dict[str, Any] = json.loads(file.read_text())
    return answer
