"""Script that translates with an exported folder by the library transformers alone, in a process without diglot.

It reads a request as JSON from stdin, and writes the answer as JSON to the file that its argument names.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, logging


@torch.inference_mode()
def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the greedy translations, the log-probabilities of given targets, and the ids of given lines.

    Args:
        request: "folder": path of the export; "sources": ids without </s> of each source; "targets": ids with </s> of a
            target of each source; "limits": greatest number of tokens of each translation; "lines": lines to tokenise;
            "rows": sentences per batch.
    """
    model = AutoModelForSeq2SeqLM.from_pretrained(request["folder"], local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(request["folder"], local_files_only=True)
    pad, bos, eos = model.config.pad_token_id, model.config.decoder_start_token_id, model.config.eos_token_id
    greedy: list[list[int]] = []
    log_probs: list[list[float]] = []
    for start in range(0, len(request["sources"]), request["rows"]):
        rows = slice(start, start + request["rows"])
        sources = [[*source, eos] for source in request["sources"][rows]]
        src, mask = _padded(sources, pad), _padded([[1] * len(source) for source in sources], 0)
        # One more token than the limit shows that an output did not end at the limit.
        longest = max(request["limits"][rows]) + 1
        if (n_positions := getattr(model.config, "max_position_embeddings", None)) is not None:
            longest = min(longest, n_positions - 1)
        limit = {"max_new_tokens": longest, "max_length": None}
        found = model.generate(input_ids=src, attention_mask=mask, num_beams=1, do_sample=False, **limit)
        for row in found[:, 1:].tolist():
            greedy.append(row[: row.index(eos)] if eos in row else row)
        tgt = _padded(request["targets"][rows], pad)
        inputs = torch.cat((torch.full_like(tgt[:, :1], bos), tgt[:, :-1]), 1)
        scores = model(input_ids=src, attention_mask=mask, decoder_input_ids=inputs).logits.log_softmax(-1)
        chosen = scores.gather(-1, tgt[..., None])[..., 0]
        log_probs += [row[: len(target)] for row, target in zip(chosen.tolist(), request["targets"][rows])]
    ids = [tokenizer(line).input_ids for line in request["lines"]]
    return {"greedy": greedy, "log_probs": log_probs, "ids": ids}


def _padded(rows: list[list[int]], pad: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))))
