"""Comparison of an export for transformers with its model, in a process that has neither diglot nor a network."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from diglot.checkpoint.file import Checkpoint
from diglot.errors import UserError
from diglot.export.parity import ROWS, Output, Rounding, Sentences, compare, of_model
from diglot.huggingface.stock_tokenizer import StockTokenizer

_WORKER = Path(__file__).with_name("transformers_worker.py")


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of diglot.export.transformers_worker in a process of its own.

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


def checked(
    loaded: Checkpoint,
    folder: Path,
    stock: StockTokenizer,
    sentences: Sentences,
    longest: int,
    suppressed: list[int] | None = None,
    ask: Callable[[dict[str, Any]], dict[str, Any]] = ask,
) -> tuple[dict[str, Any], list[str]]:
    """Compare a folder with its model: tokens of greedy search, log-probabilities of these tokens, and tokenizers.

    Args:
        loaded: the checkpoint. Both sides compute in the type of its weights.
        folder: the folder.
        stock: the checkpoint's tokenizer as the class in the folder.
        sentences: the sentences to translate.
        longest: maximum number of target positions of the folder's model.
        suppressed: ids in the folder that no translation has; None: the folder's generation_config.json has them.
        ask: the function that asks transformers.

    Returns:
        The figures, and lines to print.

    Raises:
        UserError: the translations or the log-probabilities differ by more than rounding, or transformers fails.
    """
    model, tokenizer, sources = loaded.model, loaded.tokenizer, sentences.sources
    outputs = of_model(model, tokenizer, loaded.search)(sources)
    targets = [[*output.tokens, tokenizer.eos_id][:longest] for output in outputs]
    limits = loaded.search.limits(torch.tensor([len(source.ids) + 1 for source in sources]), longest).tolist()
    texts, expected = _texts(loaded, stock, sentences)
    rows = [
        {
            "source": [stock.src_ids[token] for token in source.ids],
            "target": [stock.tgt_ids[token] for token in target],
            "prefix": [stock.tgt_ids[token] for token in source.tgt_prefix],
            "limit": limit,
        }
        for source, target, limit in zip(sources, targets, limits, strict=True)
    ]
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    request = {"folder": str(folder), "dtype": dtype, "rows": ROWS, "suppressed": suppressed}
    found = ask({**request, "sentences": rows, "texts": texts})
    ours = {theirs: our for our, theirs in enumerate(stock.tgt_ids)}
    theirs = [
        Output([ours[token] for token in tokens[:limit]], len(tokens) > limit)
        for tokens, limit in zip(found["greedy"], limits, strict=True)
    ]
    ids = [source.ids for source in sources]
    parity = compare(model, tokenizer, ids, outputs, theirs, engine="transformers")
    difference = _greatest_difference(loaded, ids, targets, found["log_probs"])
    n_equal = sum(map(list.__eq__, expected, found["ids"]))
    ties = f", {parity.near_ties} more apart from rounding" if parity.near_ties else ""
    report = [
        f"{sentences.description}: {parity.identical} of {parity.sentences} sentences have the same tokens{ties}; "
        f"log-probabilities differ by at most {difference:.1e}"
    ]
    if texts:
        report.append(f"tokenizer: {n_equal} of {len(texts)} lines without placeholders have the same tokens")
    figures = {"text": sentences.description, **parity._asdict(), "log_probs": difference}
    return figures | {"lines": len(texts), "lines_with_same_tokens": n_equal}, report


def _texts(
    loaded: Checkpoint, stock: StockTokenizer, sentences: Sentences
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Return the lines without placeholders as requests to tokenise them, sources first, and the expected ids."""
    tokenizer, texts, expected = loaded.tokenizer, list[dict[str, Any]](), list[list[int]]()
    lines = {"src": sentences.lines or []}
    encoded = {"src": [source.ids for source in sentences.sources]}
    if sentences.pairs is not None:
        lines["tgt"] = sentences.pairs.tgt
        encoded["tgt"] = tokenizer.encode_targets(lines["tgt"], sentences.sources)
    for side, ids_of_class in (("src", stock.src_ids), ("tgt", stock.tgt_ids)):
        for line, languages, ids in zip(lines.get(side, []), sentences.languages, encoded.get(side, [])):
            if tokenizer.find_placeholders(line):
                continue
            codes = {key: tokenizer.find_language(code) for key, code in zip(("src_lang", "tgt_lang"), languages)}
            (tag,) = [codes[name] for name in getattr(tokenizer.prefixes, side) if name in codes] or [None]
            names = {key: stock.language(code) for key, code in codes.items()}
            texts.append({"side": side, "line": stock.spelt(line, tag), **names})
            expected.append([ids_of_class[token] for token in [*ids, tokenizer.eos_id]])
    return texts, expected


@torch.inference_mode()
def _greatest_difference(
    loaded: Checkpoint, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], theirs: list[list[float]]
) -> float:
    """Return the greatest difference of the log-probabilities of the targets' tokens from the model's.

    Raises:
        UserError: a difference is greater than rounding explains.
    """
    special, rounding, greatest = loaded.tokenizer.special, Rounding(loaded.model), 0.0
    for source, target, found in zip(sources, targets, theirs, strict=True):
        src, tgt_in = torch.tensor([[*source, special.eos]]), torch.tensor([[special.bos, *target[:-1]]])
        log_probs = loaded.model(src, tgt_in)[0].log_softmax(-1)  # (T, V)
        ours = log_probs[torch.arange(len(target)), torch.tensor(target)]
        difference = (ours - torch.tensor(found, dtype=ours.dtype)).abs().max().item()
        if not rounding.explains(difference, src, tgt_in):
            raise UserError(
                f"transformers computes log-probabilities that differ by {difference:.1e} from the model's, which is "
                "more than rounding: the export was not written"
            )
        greatest = max(greatest, difference)
    return greatest
