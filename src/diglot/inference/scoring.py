"""Log-probabilities of given translations under a trained model."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from diglot.data.batching import in_batches
from diglot.data.flat import FlatIds
from diglot.data.forms import comparable
from diglot.data.text import ParallelText
from diglot.data.tokenizer import is_blank
from diglot.decoding import pair_scores
from diglot.errors import UserError
from diglot.inference.translator import Translation, Translator
from diglot.system.progress import step

# Two computations of the same score in different batches may differ by this much, so closer scores are tied.
TIE = 1e-4


class PairScore(NamedTuple):
    """Score of a translation under a model.

    Attributes:
        log_prob: natural log-probability of the target, including </s>, given its prefix (see
            `diglot.data.encoding.Prefixes`).
        token_log_probs: log-probability of each target token, </s> last; log_prob is their sum.
        pieces: the target tokens as text.
        n_unknown: number of tokens that are <unk>, because the tokenizer does not know their characters.
        prefix_log_probs: log-probability of each token of the prefix, which the other fields leave out.
    """

    log_prob: float
    token_log_probs: list[float]
    pieces: list[str]
    n_unknown: int
    prefix_log_probs: list[float] = []  # noqa: RUF012 - never changed


def score_pairs(
    translator: Translator, pairs: ParallelText, tokens_per_batch: int = 4096, strict: bool = True, show: bool = False
) -> list[PairScore | None]:
    """Score each pair by its log-probability under the model.

    If both sides of a pair are blank (see `Encoded`), it has no tokens and the log-probability 0, because a blank line
    is translated to a blank line. If only one side is blank, the pair is scored like any other.

    Args:
        translator: provides the model and the target language.
        pairs: sources and targets.
        tokens_per_batch: maximum number of tokens per batch on either side, including padding.
        strict: whether a pair longer than the model's maximum is an error; otherwise its score is None.
        show: whether to show progress.

    Raises:
        UserError: a pair is too long and `strict` is set, or its score is not finite; the message names its line.
    """
    model, tokenizer = translator.model, translator.tokenizer
    results: list[PairScore | None] = [PairScore(0.0, [], [], 0) for _ in range(len(pairs))]
    sources = tokenizer.encode(pairs.src, translator.tgt_lang, translator.src_lang)
    encoded_pairs = zip(sources, tokenizer.encode_targets(pairs.tgt, sources), pairs.tgt, strict=True)
    non_blank = [
        (i, source, ids)
        for i, (source, ids, tgt) in enumerate(encoded_pairs)
        if not (source.is_blank and is_blank(tgt, ids, len(source.tgt_prefix)))
    ]
    line_indices = np.array([i for i, _, _ in non_blank], np.int64)
    encoded, targets = [source for _, source, _ in non_blank], [ids for _, _, ids in non_blank]
    src = FlatIds.from_sequences([source.ids for source in encoded], tokenizer.src_vocab_size)
    tgt = FlatIds.from_sequences(targets, tokenizer.tgt_vocab_size)
    src_lengths, tgt_lengths = np.asarray(src.lengths), np.asarray(tgt.lengths)
    fits = np.ones(len(line_indices), bool)
    for side, lengths, longest in (
        ("source", src_lengths, model.max_src_positions),
        ("target", tgt_lengths, model.max_tgt_positions),
    ):
        for i in np.flatnonzero(lengths > longest) if longest is not None else ():
            if strict:
                message = f"line {line_indices[i] + 1}: the {side} has {lengths[i]} tokens; this model's maximum"
                raise UserError(f"{message} is {longest}")
            fits[i], results[line_indices[i]] = False, None
    order = np.flatnonzero(fits)
    widths = np.maximum(src_lengths, tgt_lengths)[order]
    device = next(model.parameters()).device
    progress = step(f"scoring {len(pairs):,} pairs", total=len(order)) if show else nullcontext(lambda done: None)
    with progress as advance:

        def work(batch: np.ndarray) -> None:
            rows = order[batch]
            src_ids, labels = (torch.from_numpy(side.padded(rows)).to(device) for side in (src, tgt))
            batch_scores = pair_scores(model, src_ids, labels, translator.special)
            for i, all_log_probs in zip(rows.tolist(), batch_scores, strict=True):
                n_prefix = len(encoded[i].tgt_prefix)
                prefix_log_probs, log_probs = all_log_probs[:n_prefix], all_log_probs[n_prefix:]
                log_prob = math.fsum(log_probs)
                if not math.isfinite(log_prob):
                    raise UserError(f"line {line_indices[i] + 1}: the model gives it a log-probability of {log_prob}")
                pieces = tokenizer.pieces([*targets[i][n_prefix:], tokenizer.eos_id], "tgt")
                n_unknown = targets[i].count(tokenizer.unk_id)
                results[line_indices[i]] = PairScore(log_prob, log_probs, pieces, n_unknown, prefix_log_probs)
            advance(len(rows))

        def too_large(i: int) -> str:
            return f"line {line_indices[order[i]] + 1} has {widths[i]} tokens: out of memory"

        in_batches(widths, tokens_per_batch, work, too_large)
    return results


SEARCH_ERROR = (
    "a source with a reference that differs from the output and that the model scores higher than the output by more "
    "than 1e-4: the search has missed it. Scores are those that the search compares (with search.length_penalty and "
    "search.word_reward, but without the coverage penalty; for samples, the log-probability). If the output equals no "
    "reference and no reference scores higher, it is a model error. Blank sources are left out, and so are references "
    "that are longer than the model's maximum or contain unknown tokens"
)


def search_errors(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[Sequence[str | None]],
    translations: Sequence[Translation],
) -> dict[str, Any]:
    """Count search errors and model errors (Stahlberg and Byrne, 2019); `SEARCH_ERROR` defines them.

    Args:
        translator: the translator that produced the output.
        sources: the source lines.
        references: one or more lists of references, each with one line per source; None: the source does not have it.
        translations: the output.

    Returns:
        The numbers of search errors, model errors, sources counted and sources left out, the share of search errors,
        and their definition.
    """
    targets = [[line or "" for line in lines] for lines in references]
    scores = [score_pairs(translator, ParallelText(list(sources), lines), strict=False) for lines in targets]
    encoded = translator.tokenizer.encode(sources, translator.tgt_lang, translator.src_lang)

    def score_of(log_probs: Sequence[float], prefix_log_probs: Sequence[float]) -> float:
        all_log_probs = [*prefix_log_probs, *log_probs]
        return translator.search.score(sum(all_log_probs), len(all_log_probs))

    n_search_errors = n_model_errors = n = 0
    for i, output in enumerate(translations):
        given = [
            (comparable(lines[i] or ""), scored[i]) for lines, scored in zip(references, scores) if lines[i] is not None
        ]
        is_reference = comparable(output.text) in [line for line, _ in given]
        # A reference equal to the output is left out: its score differs from the output's only by rounding.
        other_references = [scored for line, scored in given if line != comparable(output.text)]
        reference_scores = [
            score_of(score.token_log_probs, score.prefix_log_probs)
            for score in other_references
            if score and not score.n_unknown
        ]
        # The output begins with the same prefix as the references.
        prefix_log_probs = next((score.prefix_log_probs for of_line in scores if (score := of_line[i])), [])
        if encoded[i].is_blank or not (reference_scores or is_reference):
            continue
        n += 1
        is_search_error = max(reference_scores, default=-math.inf) > score_of(output.log_probs, prefix_log_probs) + TIE
        n_search_errors += is_search_error
        n_model_errors += not is_search_error and not is_reference
    share = n_search_errors / n if n else None
    counts = {
        "n_search_errors": n_search_errors,
        "share": share,
        "n_model_errors": n_model_errors,
        "of": n,
        "left_out": len(translations) - n,
    }
    return counts | {"search_error": SEARCH_ERROR}
