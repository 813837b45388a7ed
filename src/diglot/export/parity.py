"""Comparison of an exported model with the original: equality of the output, effect of int8 on the score, and speed."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch.nn.utils.rnn import pad_sequence

from diglot.checkpoint.file import Checkpoint, home
from diglot.data.text import ParallelText, read_lines
from diglot.data.tokenizer import Encoded, Tokenizer
from diglot.decoding import BeamSearch, Search
from diglot.errors import UserError
from diglot.evaluation.evaluate import read_evaluation_set
from diglot.evaluation.scorer import Scorer, label, recorded_metrics, recorded_tokenizer
from diglot.model import EncoderDecoder
from diglot.system.console import render

ROWS = 32  # sentences per batch
NEAR = 1e-4  # log-probabilities that differ by no more than this are tied up to rounding


class Sentences(NamedTuple):
    """The sentences on which two engines are compared.

    Attributes:
        sources: encoded source lines, whose targets all begin with the same prefix.
        pairs: their source lines and references; None: no references.
        description: a description of their origin.
    """

    sources: list[Encoded]
    pairs: ParallelText | None
    description: str

    @property
    def tgt_prefix(self) -> list[int]:
        """Token ids with which each translation begins."""
        return list(self.sources[0].tgt_prefix) if self.sources else []


class Output(NamedTuple):
    """Token ids without <s> and </s>, and whether the length limit ended them."""

    tokens: list[int]
    cut: bool


Greedy = Callable[[Sequence[Sequence[int]]], list[Output]]


class Parity(NamedTuple):
    """The numbers of identical outputs, and of outputs that first differ at two tokens of nearly equal probability."""

    sentences: int
    identical: int
    near_ties: int


def some_sentences(loaded: Checkpoint, n: int, file: str | None, longest: int | None) -> Sentences:
    """Return the first sentences of a file, or of the dev text in the checkpoint's run folder, or else random tokens.

    Args:
        loaded: the checkpoint.
        n: maximum number of sentences.
        file: a file of source lines; None: use the dev text.
        longest: maximum number of tokens of a source, including </s>; None: any number. Longer ones are skipped.

    Raises:
        UserError: there are no suitable sentences.
    """
    record, tokenizer = loaded.record, loaded.tokenizer
    dev_text = read_evaluation_set(home(loaded.path) / "text", "dev", record["src_lang"], record["tgt_lang"])
    if file is None and dev_text is None:
        random = torch.Generator().manual_seed(1)
        lengths = torch.randint(1, min(30, longest or 30), (n,), generator=random).tolist()
        ids = [torch.randint(4, tokenizer.src_vocab_size, (length,), generator=random) for length in lengths]
        ((src_prefix, _, _, tgt_prefix),) = tokenizer.encode([""], record["tgt_lang"], record["src_lang"])
        encoded = [Encoded([*src_prefix, *source.tolist()], (), tgt_prefix=tgt_prefix) for source in ids]
        return Sentences(encoded, None, "random tokens")
    pairs: ParallelText | None = None
    if file is not None:
        lines, description = read_lines(file), file
    elif dev_text is not None:
        lines, pairs, description = dev_text.pairs.src, dev_text.pairs, f"the dev text of {dev_text.name}"
    encoded = tokenizer.encode(lines, record["tgt_lang"], record["src_lang"])
    fit = [
        i
        for i, sentence in enumerate(encoded)
        if not sentence.is_blank and (longest is None or len(sentence.ids) < longest)
    ][:n]
    if n and not fit:
        raise UserError(f"{description}: there is no sentence to compare")
    return Sentences([encoded[i] for i in fit], pairs and pairs.select(fit), description)


def checked(
    loaded: Checkpoint, folder: Path, sentences: Sentences, longest: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Compare an export with its model by greedy search in float32; with references, also score both and int8.

    Args:
        loaded: the checkpoint.
        folder: the folder of the export.
        sentences: the sentences to translate.
        longest: maximum number of target positions of the export; None: any number.

    Returns:
        The figures, and lines to print.

    Raises:
        UserError: the translations differ by more than rounding.
    """
    model, tokenizer, search = loaded.model, loaded.tokenizer, loaded.search
    sources, prefix = [source.ids for source in sentences.sources], sentences.tgt_prefix
    runs = {"diglot, float32": _timed(of_model(model, tokenizer, search, prefix), sources)}
    runs["CTranslate2, float32"] = _timed(of_export(folder, "float32", tokenizer, search, longest, prefix), sources)
    (model_outputs, seconds), (export_outputs, _) = runs.values()
    parity = compare(model, tokenizer, sources, model_outputs, export_outputs, "CTranslate2")
    ties = f", {parity.near_ties} more apart from rounding" if parity.near_ties else ""
    lines = [f"{sentences.description}: {parity.identical} of {parity.sentences} sentences have the same tokens{ties}"]
    figures: dict[str, Any] = {"text": sentences.description, **parity._asdict()}
    if sentences.pairs is None:
        return figures, lines
    runs["CTranslate2, int8"] = _timed(of_export(folder, "int8", tokenizer, search, longest, prefix), sources)
    tgt_lang = loaded.record["tgt_lang"]
    metrics, _ = recorded_metrics(loaded.record)
    scorer = Scorer(tgt_lang, sentences.pairs.reference_lines, recorded_tokenizer(loaded.record, tgt_lang), metrics)
    metric = scorer.in_validations[0]
    table = Table(title="greedy search", title_justify="left")
    for title in ("", label(metric), "seconds", "times as fast"):
        table.add_column(title, justify="right" if title else "left")
    figures["greedy"] = {}
    for name, (outputs, took) in runs.items():
        pairs = zip(outputs, sentences.sources, strict=True)
        texts = [tokenizer.decode(output.tokens, source.placeholders) for output, source in pairs]
        score = scorer(texts, *sentences.pairs.references, with_slow=False)[0]
        figures["greedy"][name] = {metric: score.value, "seconds": took, "times_as_fast": seconds / took}
        table.add_row(name, f"{score.value:.2f}", f"{took:.2f}", f"{seconds / took:.1f}")
    return {**figures, "signature": score.signature}, [*lines, *render(table), f"{score.name}: {score.signature}"]


def of_model(model: EncoderDecoder, tokenizer: Tokenizer, limits: Search, tgt_prefix: Sequence[int] = ()) -> Greedy:
    """Return a function that translates sources without </s> by greedy search with diglot's model.

    The maximum length is that of the search `limits`. Each translation begins with `tgt_prefix`.
    """
    search = BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=limits.max_len_a, max_len_b=limits.max_len_b)
    special = tokenizer.special

    def translate(sources: Sequence[Sequence[int]]) -> list[Output]:
        rows = [torch.tensor([*source, special.eos]) for source in sources]
        src = pad_sequence(rows, batch_first=True, padding_value=special.pad)  # (B, S)
        found = search(model, src, src != special.pad, special, [tgt_prefix] * len(rows))
        return [Output(best.tokens, best.cut) for best, *_ in found]

    return translate


def of_export(
    folder: Path,
    compute_type: str,
    tokenizer: Tokenizer,
    limits: Search,
    longest: int | None,
    tgt_prefix: Sequence[int] = (),
) -> Greedy:
    """Return the function of `of_model` for CTranslate2, on the CPU with as many threads as torch.

    Targets have at most `longest` positions.
    """
    import ctranslate2

    engine = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, intra_threads=torch.get_num_threads()
    )
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.tgt_vocab_size), "tgt"))}

    def translate(sources: Sequence[Sequence[int]]) -> list[Output]:
        max_lengths = limits.limits(torch.tensor([len(source) + 1 for source in sources]), longest).tolist()
        results = engine.translate_batch(
            [tokenizer.pieces(source, "src") for source in sources],
            target_prefix=[tokenizer.pieces(tgt_prefix, "tgt")] * len(sources) if tgt_prefix else None,
            beam_size=1,
            max_decoding_length=max(max_lengths) + 1,  # one extra token shows that the output did not end at the limit
            **options(tokenizer),
        )
        outputs = [[ids[token] for token in result.hypotheses[0]] for result in results]
        return [Output(tokens[:limit], len(tokens) > limit) for tokens, limit in zip(outputs, max_lengths, strict=True)]

    return translate


def options(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the options of translate_batch that match diglot's search: any length, and no <pad>, <unk> or start."""
    banned = sorted({tokenizer.pad_id, tokenizer.bos_id} - {tokenizer.eos_id})
    return {
        "max_input_length": 0,
        "min_decoding_length": 0,
        "disable_unk": True,
        "suppress_sequences": [[piece] for piece in tokenizer.pieces(banned, "tgt")],
    }


@torch.inference_mode()
def compare(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    sources: Sequence[Sequence[int]],
    model_outputs: Sequence[Output],
    export_outputs: Sequence[Output],
    engine: str,
) -> Parity:
    """Compare the outputs of two searches token by token, up to the shorter output if the length limit cut one.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        sources: the sources, without </s>.
        model_outputs: the outputs of the model.
        export_outputs: the outputs of the export.
        engine: name of the engine that computed them, for errors.

    Raises:
        UserError: some outputs differ by more than rounding.
    """
    identical = near_ties = 0
    different: list[str] = []
    for n, (source, *outputs) in enumerate(zip(sources, model_outputs, export_outputs, strict=True), start=1):
        a, b = ([*tokens, *([] if cut else [tokenizer.eos_id])] for tokens, cut in outputs)
        position = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
        if position is None:
            identical += 1
            continue
        src, tgt_in = torch.tensor([[*source, tokenizer.eos_id]]), torch.tensor([[tokenizer.bos_id, *a[:position]]])
        log_probs = model(src, tgt_in)[0, -1].log_softmax(-1)  # (V,)
        if (log_probs[a[position]] - log_probs[b[position]]).abs() <= NEAR:
            near_ties += 1
        else:
            pieces = tokenizer.pieces([a[position], b[position]], "tgt")
            different.append(f"sentence {n}, token {position + 1}: {pieces[1]!r} instead of {pieces[0]!r}")
    if different:
        raise UserError(
            f"{engine} translates {len(different)} of {len(sources)} sentences differently from the model "
            f"({different[0]}): the export was not written"
        )
    return Parity(len(sources), identical, near_ties)


def _timed(translate: Greedy, sources: Sequence[Sequence[int]]) -> tuple[list[Output], float]:
    """Translate in batches of sources of similar length, and return the outputs and the seconds taken."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    translate(sources[:1])  # warm-up: the first call is slower
    began, outputs = time.perf_counter(), dict[int, Output]()
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        outputs |= zip(rows, translate([sources[i] for i in rows]), strict=True)
    return [outputs[i] for i in range(len(sources))], time.perf_counter() - began
