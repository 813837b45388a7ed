"""Script that translates with an exported folder by the library transformers alone, in a process without diglot.

It reads a request as JSON from stdin, and writes the answer as JSON to the file that its argument names.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, logging


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the greedy translations, the log-probabilities of given targets, and the ids of given texts.

    Args:
        request: "folder": path of the export; "dtype": type of its weights; "rows": sentences per batch;
            "sentences": for each sentence, "source": ids without </s>, "target": ids of a target with </s>, "prefix":
            ids with which its translation begins, "limit": greatest number of tokens of the translation;
            "suppressed": ids that no translation has (None: those of generation_config.json); "texts": for each text,
            "line", "side" (src or tgt), and "src_lang" and "tgt_lang" (None: the tokenizer has none).
    """
    dtype = getattr(torch, request["dtype"])
    model = AutoModelForSeq2SeqLM.from_pretrained(request["folder"], local_files_only=True, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(request["folder"], local_files_only=True)
    greedy: list[list[int]] = []
    log_probs: list[list[float]] = []
    for start in range(0, len(request["sentences"]), request["rows"]):
        sentences = request["sentences"][start : start + request["rows"]]
        greedy += _greedy(model, sentences, request["suppressed"])
        log_probs += _log_probs(model, sentences)
    return {"greedy": greedy, "log_probs": log_probs, "ids": [_ids(tokenizer, text) for text in request["texts"]]}


def _sources(model: Any, sentences: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the arguments of a model for a batch of sources."""
    sources = [[*sentence["source"], model.config.eos_token_id] for sentence in sentences]
    mask = _padded([[1] * len(source) for source in sources], 0)
    return {"input_ids": _padded(sources, model.config.pad_token_id), "attention_mask": mask}


@torch.inference_mode()
def _greedy(model: Any, sentences: list[dict[str, Any]], suppressed: list[int] | None) -> list[list[int]]:
    """Return the translations with their prefixes, which have the same length in all sentences, and without </s>."""
    start, eos = model.config.decoder_start_token_id, model.config.eos_token_id
    begun = torch.tensor([[start, *sentence["prefix"]] for sentence in sentences])
    # One more token than the limit shows that an output did not end at the limit.
    longest = max(sentence["limit"] for sentence in sentences) + 1
    if (n_positions := getattr(model.config, "max_position_embeddings", None)) is not None:
        longest = min(longest, n_positions - 1)
    limit = {"max_new_tokens": max(1, longest - begun.size(1) + 1), "max_length": None}
    options = limit | ({} if suppressed is None else {"suppress_tokens": suppressed})
    inputs = _sources(model, sentences)
    found = model.generate(**inputs, decoder_input_ids=begun, num_beams=1, do_sample=False, **options)
    return [row[: row.index(eos)] if eos in row else row for row in found[:, 1:].tolist()]


@torch.inference_mode()
def _log_probs(model: Any, sentences: list[dict[str, Any]]) -> list[list[float]]:
    """Return the log-probability of each token of the targets."""
    targets = [sentence["target"] for sentence in sentences]
    tgt = _padded(targets, model.config.pad_token_id)
    inputs = torch.cat((torch.full_like(tgt[:, :1], model.config.decoder_start_token_id), tgt[:, :-1]), 1)
    scores = model(**_sources(model, sentences), decoder_input_ids=inputs).logits.log_softmax(-1)
    chosen = scores.gather(-1, tgt[..., None])[..., 0].tolist()
    return [row[: len(target)] for row, target in zip(chosen, targets)]


def _ids(tokenizer: Any, text: dict[str, Any]) -> list[int]:
    for key in ("src_lang", "tgt_lang"):
        if text[key] is not None:
            setattr(tokenizer, key, text[key])
    found: list[int] = (
        tokenizer(text["line"]) if text["side"] == "src" else tokenizer(text_target=text["line"])
    ).input_ids
    return found


def _padded(rows: list[list[int]], pad: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))))
