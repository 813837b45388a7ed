"""A page that shows translations: the n-best lists, how sure each token was, and what the cross-attention looked at.

It is one HTML file that opens no address: page.html beside this file, with the lines put in.
"""

import base64
import html
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# HTML cannot hold some characters and shows nothing for others: pictures of them stand instead, as in page.html.
PICTURES = {code: 0x2400 + code for code in range(0x20) if code != ord("\t")} | {0x7F: 0x2421}


def page(title: str, records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The page, in pieces to be written as UTF-8 one after the other; there may be more lines than memory holds.

    A record is a line's `source`, `source_tokens` and `hypotheses`, best first, each with its `text`, `score`,
    `tokens`, their `log_probs`, whether it was `cut`, and `attention`: the cross-attention's weights (layers, heads,
    tokens, source tokens), which may be missing.

    Raises:
        ValueError: the sizes of a record's parts do not fit each other.
    """
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    before, after = template.split("<!-- lines -->")
    yield before.replace("<!-- title -->", _escaped(title))
    for record in records:
        yield _line(record)
    yield after


def pack(attention: np.ndarray) -> dict[str, Any]:
    """Weights from 0 to 1 in 1/255 (none is off by more than 1/510, 0.002), a byte each, deflated, in base64."""
    steps = np.rint(np.clip(np.nan_to_num(attention), 0, 1) * 255).astype(np.uint8)
    return {"shape": attention.shape, "bytes": base64.b64encode(zlib.compress(steps.tobytes())).decode()}


def _line(record: Mapping[str, Any]) -> str:
    number, best = record["line"], record["hypotheses"][0]
    cut = '<b class="cut">cut</b>' if best.get("cut") else ""
    data = {
        "source_tokens": record["source_tokens"],
        "hypotheses": [_hypothesis(record, hypothesis) for hypothesis in record["hypotheses"]],
    }
    # Nothing in a script is markup but what begins with "<".
    script = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""
<details class="line" id="line-{number}">
<summary><span class="number">{number}</span><span class="text" dir="auto">{_escaped(record["source"])}</span>
<span class="text" dir="auto">{_escaped(best["text"])}</span>{cut}</summary>
<script type="application/json">{script}</script>
</details>"""


def _hypothesis(record: Mapping[str, Any], hypothesis: Mapping[str, Any]) -> dict[str, Any]:
    tokens, log_probs = hypothesis["tokens"], hypothesis["log_probs"]
    if len(tokens) != len(log_probs):
        raise ValueError(f"line {record['line']}: {len(tokens)} tokens have {len(log_probs)} log_probs")
    packed = None
    weights = hypothesis.get("attention")
    if weights is not None and np.size(weights):
        attention = np.asarray(weights, dtype=np.float32)
        if attention.ndim != 4 or attention.shape[2:] != (len(tokens), len(record["source_tokens"])):
            wanted = f"(layers, heads, {len(tokens)}, {len(record['source_tokens'])})"
            raise ValueError(f"line {record['line']}: attention is {attention.shape}, not {wanted}")
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
    """JSON has no number that is not finite."""
    return round(float(value), 4) if value is not None and math.isfinite(value) else None


def _escaped(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", html.escape(text.translate(PICTURES)))
