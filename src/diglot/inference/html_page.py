"""An HTML page of translations: n-best lists, token probabilities and cross-attention.

The page is page.html in this folder, with the lines filled in; see `diglot.system.pages`.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diglot.system.pages import embedded, escaped, template


def page(title: str, records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the page in pieces, to be written consecutively as UTF-8, so that the page need not fit into memory.

    A record has the number of a `line`, its `source`, `source_tokens` and `hypotheses`, best first. A hypothesis has
    `text`, `score`, `tokens` and their `log_probs`, and optionally `cut`, whether the length limit ended it, and
    `attention`, the cross-attention weights (layers, heads, tokens, source tokens).

    Raises:
        ValueError: the sizes of a record's parts do not match.
    """
    head, tail = template(Path(__file__).with_name("page.html")).split("<!-- lines -->")
    yield head.replace("<!-- title -->", escaped(title))
    for record in records:
        yield _line(record)
    yield tail


def pack(attention: np.ndarray) -> dict[str, Any]:
    """Quantise weights in [0, 1] to one byte each (error at most 1/510, 0.002), compress them, and encode as base64."""
    steps = np.rint(np.clip(np.nan_to_num(attention), 0, 1) * 255).astype(np.uint8)
    return {"shape": attention.shape, "bytes": base64.b64encode(zlib.compress(steps.tobytes())).decode()}


def _line(record: Mapping[str, Any]) -> str:
    number, best = record["line"], record["hypotheses"][0]
    cut = '<b class="cut">cut</b>' if best.get("cut") else ""
    data = {
        "source_tokens": record["source_tokens"],
        "hypotheses": [_hypothesis(record, hypothesis) for hypothesis in record["hypotheses"]],
    }
    return f"""
<details class="line" id="line-{number}">
<summary><span class="number">{number}</span><span class="text" dir="auto">{escaped(record["source"])}</span>
<span class="text" dir="auto">{escaped(best["text"])}</span>{cut}</summary>
<script type="application/json">{embedded(data)}</script>
</details>"""


def _hypothesis(record: Mapping[str, Any], hypothesis: Mapping[str, Any]) -> dict[str, Any]:
    tokens, log_probs = hypothesis["tokens"], hypothesis["log_probs"]
    if len(tokens) != len(log_probs):
        raise ValueError(f"line {record['line']}: {len(tokens)} tokens, but {len(log_probs)} log_probs")
    packed = None
    weights = hypothesis.get("attention")
    if weights is not None and np.size(weights):
        attention = np.asarray(weights, dtype=np.float32)
        if attention.ndim != 4 or attention.shape[2:] != (len(tokens), len(record["source_tokens"])):
            expected = f"(layers, heads, {len(tokens)}, {len(record['source_tokens'])})"
            raise ValueError(f"line {record['line']}: attention is {attention.shape}, not {expected}")
        packed = pack(attention)
    return {
        "text": hypothesis["text"],
        "score": _number(hypothesis["score"]),
        "tokens": tokens,
        "log_probs": [_number(log_prob) for log_prob in log_probs],
        "cut": bool(hypothesis.get("cut")),
        "attention": packed,
    }


def _number(value: float | None) -> float | None:
    """Round a number; return None if it is not finite, because JSON has no NaN or infinity."""
    return round(float(value), 4) if value is not None and math.isfinite(value) else None
