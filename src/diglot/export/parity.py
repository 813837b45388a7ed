"""Comparison of an exported model with the original: equality of the output, effect of int8 on the score, and speed."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor
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
MARGIN = 10  # another order of operations rounds differently, by less than this factor
N_LANGUAGES = 3  # languages whose pairs are compared, if a model has more


class Rounding:
    """Rounding errors of a model's log-probabilities.

    No fixed limit fits all models: each layer may amplify the errors of the one before, and large logits round more
    coarsely. So if `NEAR` is exceeded, the model is computed in float64 as well as in float32. An error of the export
    is amplified as much as the rounding to a share of 6e-8, so that even a weight that is wrong by 0.1% stands out.

    Args:
        model: the model, in float32 or in float64.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        self._model = model
        self._other: EncoderDecoder | None = None

    @torch.inference_mode()
    def explains(self, difference: float, src: Tensor, tgt_in: Tensor) -> bool:
        """Return whether rounding explains a difference of log-probabilities of a sentence.

        Args:
            difference: the difference.
            src: ids of the source, as a batch (1, S).
            tgt_in: ids of the target's inputs (1, T).
        """
        if difference <= NEAR:
            return True
        if self._other is None:
            is_double = next(self._model.parameters()).dtype == torch.float64
            self._other = copy.deepcopy(self._model).to(torch.float32 if is_double else torch.float64)
        both = [model(src, tgt_in).double().log_softmax(-1) for model in (self._model, self._other)]
        return difference <= MARGIN * (both[0] - both[1]).abs().max().item()


class Sentences(NamedTuple):
    """The sentences on which two engines are compared.

    Attributes:
        sources: encoded source lines.
        languages: codes of the source and target language of each sentence.
        lines: their texts; None: they are random tokens.
        pairs: their source lines and references; None: no references.
        description: a description of their origin.
    """

    sources: list[Encoded]
    languages: list[tuple[str, str]]
    lines: list[str] | None
    pairs: ParallelText | None
    description: str


class Output(NamedTuple):
    """Token ids without <s> and </s>, and whether the length limit ended them."""

    tokens: list[int]
    cut: bool


Greedy = Callable[[Sequence[Encoded]], list[Output]]


class Parity(NamedTuple):
    """The numbers of identical outputs, and of outputs that first differ at two tokens of nearly equal probability."""

    sentences: int
    identical: int
    near_ties: int


def language_pairs(tokenizer: Tokenizer, record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of languages to compare: that of the checkpoint's run, and others if the tokenizer has tags.

    If the run's languages have no tags, as in a folder that names none, there are only others.
    """
    own = (record["src_lang"], record["tgt_lang"])
    if not tokenizer.languages:
        return [own]
    known = [code for code in dict.fromkeys(map(tokenizer.find_language, own[::-1])) if code is not None]
    some = list(dict.fromkeys([*known, *tokenizer.languages]))[: max(N_LANGUAGES, len(known))]
    if not tokenizer.reads_src_lang:
        return [(own[0], code) for code in some]
    pairs = [(src, tgt) for tgt in some for src in some if src != tgt] or [(some[0], some[0])]
    if (mine := tuple(map(tokenizer.find_language, own))) in pairs:
        pairs.sort(key=lambda pair: pair != mine)
    return pairs


def prefix_tokens(tokenizer: Tokenizer, record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the tokens that precede each source and each target in the first pair of `language_pairs`."""
    (src_lang, tgt_lang), *_ = language_pairs(tokenizer, record)
    (empty,) = tokenizer.encode([""], tgt_lang, src_lang)
    return {"src": tokenizer.pieces(empty.ids, "src"), "tgt": tokenizer.pieces(empty.tgt_prefix, "tgt")}


def some_sentences(
    loaded: Checkpoint, n: int, file: str | None, longest: int | None, pairs: Sequence[tuple[str, str]] | None = None
) -> Sentences:
    """Return the first sentences of a file, or of the dev text in the checkpoint's run folder, or else random tokens.

    Args:
        loaded: the checkpoint.
        n: maximum number of sentences.
        file: a file of source lines; None: use the dev text.
        longest: maximum number of tokens of a source, including </s>; None: any number. Longer ones are skipped.
        pairs: languages that take turns; None: those of the run, or the first ones that have tags.

    Raises:
        UserError: there are no suitable sentences.
    """
    record, tokenizer = loaded.record, loaded.tokenizer
    pairs = pairs or language_pairs(tokenizer, record)[:1]
    dev_text = read_evaluation_set(home(loaded.path) / "text", "dev", record["src_lang"], record["tgt_lang"])
    if file is None and dev_text is None:
        return _random_tokens(tokenizer, n, longest, pairs)
    text: ParallelText | None = None
    if file is not None:
        lines, description = read_lines(file), file
    elif dev_text is not None:
        lines, text, description = dev_text.pairs.src, dev_text.pairs, f"the dev text of {dev_text.name}"
    languages = [pairs[i % len(pairs)] for i in range(len(lines))]
    encoded: list[Encoded] = [Encoded([], (), is_blank=True)] * len(lines)
    for start, (src_lang, tgt_lang) in enumerate(pairs):
        encoded[start :: len(pairs)] = tokenizer.encode(lines[start :: len(pairs)], tgt_lang, src_lang)
    fit = [
        i
        for i, sentence in enumerate(encoded)
        if not sentence.is_blank and (longest is None or len(sentence.ids) < longest)
    ][:n]
    if n and not fit:
        raise UserError(f"{description}: there is no sentence to compare")
    return Sentences(
        [encoded[i] for i in fit],
        [languages[i] for i in fit],
        [lines[i] for i in fit],
        text and text.select(fit),
        description,
    )


def _random_tokens(tokenizer: Tokenizer, n: int, longest: int | None, pairs: Sequence[tuple[str, str]]) -> Sentences:
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, min(30, longest or 30), (n,), generator=random).tolist()
    prefixes = [tokenizer.encode([""], tgt_lang, src_lang)[0] for src_lang, tgt_lang in pairs]
    sources = []
    for i, length in enumerate(lengths):
        ids = torch.randint(4, tokenizer.src_vocab_size, (length,), generator=random)
        prefix = prefixes[i % len(pairs)]
        sources.append(prefix._replace(ids=[*prefix.ids, *ids.tolist()], is_blank=False))
    return Sentences(sources, [pairs[i % len(pairs)] for i in range(n)], None, None, "random tokens")


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
    sources = sentences.sources
    runs = {"diglot, float32": _timed(of_model(model, tokenizer, search), sources)}
    runs["CTranslate2, float32"] = _timed(of_export(folder, "float32", tokenizer, search, longest), sources)
    (model_outputs, seconds), (export_outputs, _) = runs.values()
    ids = [source.ids for source in sources]
    parity = compare(model, tokenizer, ids, model_outputs, export_outputs, "CTranslate2")
    ties = f", {parity.near_ties} more apart from rounding" if parity.near_ties else ""
    lines = [f"{sentences.description}: {parity.identical} of {parity.sentences} sentences have the same tokens{ties}"]
    figures: dict[str, Any] = {"text": sentences.description, **parity._asdict()}
    if sentences.pairs is None:
        return figures, lines
    runs["CTranslate2, int8"] = _timed(of_export(folder, "int8", tokenizer, search, longest), sources)
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


def of_model(model: EncoderDecoder, tokenizer: Tokenizer, limits: Search) -> Greedy:
    """Return a function that translates sources without </s> by greedy search with diglot's model.

    The maximum length is that of the search `limits`. Each translation begins with the prefix of its source's target.
    """
    search = BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=limits.max_len_a, max_len_b=limits.max_len_b)
    special = tokenizer.special

    def translate(sources: Sequence[Encoded]) -> list[Output]:
        rows = [torch.tensor([*source.ids, special.eos]) for source in sources]
        src = pad_sequence(rows, batch_first=True, padding_value=special.pad)  # (B, S)
        found = search(model, src, src != special.pad, special, [list(source.tgt_prefix) for source in sources])
        return [Output(best.tokens, best.cut) for best, *_ in found]

    return translate


def of_export(folder: Path, compute_type: str, tokenizer: Tokenizer, limits: Search, longest: int | None) -> Greedy:
    """Return the function of `of_model` for CTranslate2, on the CPU with as many threads as torch.

    Targets have at most `longest` positions.
    """
    import ctranslate2

    engine = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, intra_threads=torch.get_num_threads()
    )
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.tgt_vocab_size), "tgt"))}

    def translate(sources: Sequence[Encoded]) -> list[Output]:
        max_lengths = limits.limits(torch.tensor([len(source.ids) + 1 for source in sources]), longest).tolist()
        prefixes = [tokenizer.pieces(source.tgt_prefix, "tgt") for source in sources]
        results = engine.translate_batch(
            [tokenizer.pieces(source.ids, "src") for source in sources],
            target_prefix=prefixes if any(prefixes) else None,
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
    rounding = Rounding(model)
    for n, (source, *outputs) in enumerate(zip(sources, model_outputs, export_outputs, strict=True), start=1):
        a, b = ([*tokens, *([] if cut else [tokenizer.eos_id])] for tokens, cut in outputs)
        position = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
        if position is None:
            identical += 1
            continue
        src, tgt_in = torch.tensor([[*source, tokenizer.eos_id]]), torch.tensor([[tokenizer.bos_id, *a[:position]]])
        log_probs = model(src, tgt_in)[0, -1].log_softmax(-1)  # (V,)
        if rounding.explains((log_probs[a[position]] - log_probs[b[position]]).abs().item(), src, tgt_in):
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


def _timed(translate: Greedy, sources: Sequence[Encoded]) -> tuple[list[Output], float]:
    """Translate in batches of sources of similar length, and return the outputs and the seconds taken."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i].ids))
    translate(sources[:1])  # warm-up: the first call is slower
    began, outputs = time.perf_counter(), dict[int, Output]()
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        outputs |= zip(rows, translate([sources[i] for i in rows]), strict=True)
    return [outputs[i] for i in range(len(sources))], time.perf_counter() - began
