"""diglot-score: compute the log-probability of given translations under a model, per line and in total."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("score")


import json
import math
import sys
from typing import Any

from diglot.checkpoint import file as checkpoints
from diglot.commands.frame import command
from diglot.commands.output import refuse_same, written
from diglot.config import trusted
from diglot.data.text import read_parallel, refuse_address
from diglot.errors import UserError
from diglot.inference.scoring import PairScore, score_pairs
from diglot.inference.translator import Translator
from diglot.system.glibc import keep_freed_memory
from diglot.system.quoting import printable


@command("score")
def main(
    *,
    checkpoint: str,
    src: str,
    tgt: str,
    output: str | None,
    pieces: bool,
    tokens_per_batch: int,
    src_lang: str | None,
    tgt_lang: str | None,
    device: str | None,
    trust: str | list[str],
) -> None:
    keep_freed_memory()
    if tokens_per_batch < 1:
        raise UserError(f"tokens_per_batch={tokens_per_batch}: must be positive")
    refuse_address("src", src)
    refuse_address("tgt", tgt)
    pairs = read_parallel(src, tgt, "src and tgt")
    loaded = checkpoints.load(checkpoint, trusted({"trust": trust}))
    refuse_same({"output": output}, {"checkpoint": loaded.path, "src": src, "tgt": tgt})
    translator = Translator.of(loaded, device, None, tgt_lang, src_lang=src_lang)
    with written(output) as write:
        scores = [score for score in score_pairs(translator, pairs, tokens_per_batch, show=True) if score]
        write("".join(f"{json.dumps(_line(score, pieces), ensure_ascii=False)}\n" for score in scores))
    stream = sys.stderr if output is None else sys.stdout
    print("\n".join(summary(scores)), file=stream)
    if output is not None:
        print(f"{len(scores):,} lines: {printable(output)}")


def _line(score: PairScore, with_pieces: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "log_prob": score.log_prob,
        "tokens": len(score.token_log_probs),
        "token_log_probs": score.token_log_probs,
        "unknown": score.n_unknown,
    }
    return line | ({"pieces": score.pieces} if with_pieces else {})


def summary(scores: list[PairScore]) -> list[str]:
    """Return the totals over all pairs, as lines to print."""
    total, n_tokens = math.fsum(score.log_prob for score in scores), sum(len(score.token_log_probs) for score in scores)
    perplexity = f"{math.exp(min(-total / n_tokens, 700)):.4f}" if n_tokens else "none"
    lines = [
        f"total log-probability: {total:.4f} ({len(scores):,} lines, {n_tokens:,} tokens, </s> counted)",
        f"perplexity per token: {perplexity}; log-probability per line: {total / len(scores):.4f}",
    ]
    unknown = sum(score.n_unknown > 0 for score in scores)
    if unknown:
        lines.append(f"lines with characters that the tokenizer does not know, scored as <unk>: {unknown:,}")
    return lines
