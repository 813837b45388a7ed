"""Translation of lines of text with a trained model."""

import logging
import math
import re
from collections.abc import Callable, Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from diglot.checkpoint import file as checkpoint
from diglot.data.batching import in_batches
from diglot.data.flat import FlatIds
from diglot.data.language import find_language
from diglot.data.tokenizer import PAD, Encoded, Tokenizer, to_select
from diglot.decoding import BeamSearch, Ensemble, Hypothesis, Search
from diglot.decoding.layout import Precision, check_precision, pack_for_decoding
from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.system.gpu import exclude_cudnn_attention, why_no_gpu
from diglot.system.progress import step

warn = logging.getLogger("diglot").warning
TOKENS_PER_BATCH = 16_384


class Translation(NamedTuple):
    """One translation of a line.

    Attributes:
        text: the translation, without line breaks.
        score: score of the search; if the line was split into pieces, the sum of their scores.
        cut: whether the length limit ended the translation.
        tokens: subwords of the target and </s>; if the line was split, those of all pieces. The tokenizer's own prefix
            of a target, such as a language tag, is left out here, in log_probs and in attention.
        log_probs: the model's natural log-probability of each token.
        source_tokens: subwords of the source and </s>, as read by the model; if the line was split, those of all
            pieces.
        attention: cross-attention weights (H, T, S) of each layer, if requested.
        near_tie: whether a choice was so close that rounding may change it; see diglot.decoding.Hypothesis.
    """

    text: str
    score: float
    cut: bool
    tokens: tuple[str, ...] = ()
    log_probs: tuple[float, ...] = ()
    source_tokens: tuple[str, ...] = ()
    attention: tuple[np.ndarray, ...] = ()
    near_tie: bool = False


class _Unit(NamedTuple):
    """The unit of a search: a line, or a piece of a line that is too long.

    Attributes:
        line: number of the line, from 0.
        source: token ids and placeholders.
        prefix: token ids that the translation must begin with: the tokenizer's own prefix, and the user's.
        separator: text between the translations of the previous piece and of this one.
    """

    line: int
    source: Encoded
    prefix: list[int]
    separator: str


class Translator:
    """Translator of lines, which consists of a model, its tokenizer and a search.

    Args:
        model: the model, on the device to translate on; it is put into evaluation mode.
        tokenizer: the tokenizer of the model.
        search: the search for translations.
        record: metadata of the checkpoint.
        tgt_lang: code of the target language, for a model of several languages; None: that of the checkpoint.
        precision: the precision that the model was packed in; see `pack_for_decoding`.
        src_lang: code of the language of the lines, for a model with tags for it; None: that of the checkpoint.

    Raises:
        UserError: the model does not translate from or into that language.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        search: Search,
        record: dict[str, Any] | None = None,
        tgt_lang: str | None = None,
        precision: Precision = "float32",
        src_lang: str | None = None,
    ) -> None:
        self.precision = precision
        self.model, self.tokenizer, self.search, self.record = model.eval(), tokenizer, search, record or {}
        problems: list[str] = []
        self.tgt_lang = self._language("tgt_lang", tgt_lang, bool(tokenizer.languages), problems)
        self.src_lang = self._language("src_lang", src_lang, tokenizer.reads_src_lang, problems)
        if problems:
            raise UserError("; ".join(problems))
        self.special = tokenizer.special

    def _language(
        self, key: Literal["src_lang", "tgt_lang"], code: str | None, has_tag: bool, problems: list[str]
    ) -> str | None:
        """Return the requested language of a side, or else that of the checkpoint.

        If the model does not know the language, or if another one is requested of a model that has no tags for this
        side, the reason is added to the problems.
        """
        recorded = self.record.get(key)
        requested = code or recorded
        if requested is None or (requested == recorded and not has_tag):
            return requested
        if has_tag and self.tokenizer.find_language(requested) is not None:
            return requested
        if not has_tag and recorded is not None and find_language(requested, [recorded]) is not None:
            return recorded  # in another spelling
        problems.append(self._why_unknown(key, code, has_tag))
        return None

    def _why_unknown(self, key: Literal["src_lang", "tgt_lang"], code: str | None, has_tag: bool) -> str:
        """Return why a language cannot be selected, and what to type.

        Args:
            key: the key that selects it.
            code: the language that was typed; None: none, and the model does not know that of its checkpoint.
            has_tag: whether the model has tags for this side.
        """
        side, preposition = ("target", "into") if key == "tgt_lang" else ("source", "from")
        if not has_tag:
            recorded = self.record.get(key)
            name = "which its checkpoint does not name" if recorded in (None, "src", "tgt") else recorded
            return f"{key}={code}: this model has only one {side} language, {name}: leave {key} out"
        reason = f"{key}={code}: this model does not translate {preposition} {code}"
        if code is None:
            reason = f"{key}: the checkpoint does not say {preposition} which language to translate"
        return f"{reason}; {to_select(key, self.tokenizer.languages, code)}"

    def _encode(self, lines: Sequence[str]) -> list[Encoded]:
        return self.tokenizer.encode(lines, self.tgt_lang, self.src_lang)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | None = None,
        search: Search | None = None,
        tgt_lang: str | None = None,
        trust: Collection[str] = (),
        precision: Precision = "float32",
        src_lang: str | None = None,
    ) -> "Translator":
        """Load a translator from a checkpoint file or a run's folder.

        Args:
            path: the checkpoint.
            device: cpu, cuda, ...; None: a GPU if there is one.
            search: the search for translations; None: that of the checkpoint.
            tgt_lang: see Translator.
            trust: see `diglot.checkpoint.file.load`.
            precision: of the linear layers; bfloat16 and int8 are faster and less exact. See `pack_for_decoding`.
            src_lang: see Translator.

        Raises:
            UserError: the checkpoint cannot be loaded, or the device, a language or the precision cannot be used.
        """
        return cls.of(checkpoint.load(path, trust), device, search, tgt_lang, precision, src_lang)

    @classmethod
    def of(
        cls,
        loaded: checkpoint.Checkpoint,
        device: str | None,
        search: Search | None,
        tgt_lang: str | None,
        precision: Precision = "float32",
        src_lang: str | None = None,
    ) -> "Translator":
        """Create a translator from a loaded checkpoint, whose model it takes over; see `load`."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            model = loaded.model.to(torch.device(device))
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = why_no_gpu() if device.startswith("cuda") else None
            cause = f": {reason}; to use the CPU, type device=cpu" if reason else f" ({str(error).splitlines()[0]})"
            raise UserError(f"device={device}: cannot be used{cause}") from None
        if device.startswith("cuda"):
            exclude_cudnn_attention()
        check_precision(precision, torch.device(device))
        pack_for_decoding(model, precision)
        return cls(model, loaded.tokenizer, search or loaded.search, loaded.record, tgt_lang, precision, src_lang)

    def translate(self, lines: Sequence[str], beam: int | None = None) -> list[str]:
        """Return the best translation of each line, in order; that of a blank line (see `Encoded`) is blank.

        Args:
            lines: texts without line breaks.
            beam: beam size; None: that of the search.
        """
        return [translation.text for translation in self.translate_all(lines, beam)]

    def translate_all(
        self,
        lines: Sequence[str],
        beam: int | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        show: bool = False,
    ) -> list[Translation]:
        """Return the best translation of each line, with score and details.

        Args:
            lines: see n_best.
            beam: see translate.
            tokens_per_batch: see n_best.
            show: whether to show progress.

        Raises:
            ValueError: `beam` is given, but the search is not a beam search.
            UserError: see n_best.
        """
        search = None
        if beam is not None:
            if not isinstance(self.search, BeamSearch):
                raise ValueError(f"beam ({beam}): {type(self.search).__name__} has no beam")
            search = self.search.with_beam(beam)
        if not show:
            return [best for best, *_ in self.n_best(lines, search, tokens_per_batch=tokens_per_batch)]
        with step(f"translating {len(lines):,} lines", total=len(lines)) as advance:
            translations = self.n_best(lines, search, tokens_per_batch=tokens_per_batch, advance=advance)
        return [best for best, *_ in translations]

    def n_best(
        self,
        lines: Sequence[str],
        search: Search | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        too_long: Literal["pieces", "cut"] = "pieces",
        attention: bool = False,
        first_line: int = 1,
        advance: Callable[[int], None] = lambda done: None,
    ) -> list[list[Translation]]:
        """Return all hypotheses of the search for each line; for a blank line, a single blank one.

        A beam search returns the best first. Of several hypotheses with the same text it returns only the best, so
        there may be fewer than `n_best`. Samples are returned in the order in which they were drawn, or, with a
        utility, by expected utility.

        Args:
            lines: texts without line breaks.
            search: the search to use; None: that of the translator.
            prefixes: text that each translation must begin with; None: no prefixes.
            tokens_per_batch: maximum size of a batch, in source tokens plus the maximum number of target tokens of all
                hypotheses, including padding. It limits memory use. A longer sentence is searched alone.
            too_long: how to handle a line longer than the model's maximum, which is also warned about. "pieces"
                translates it in pieces and joins their translations; "cut" drops its end.
            attention: whether to return cross-attention weights, which takes another forward pass per hypothesis.
            first_line: number of the first line in messages.
            advance: called with the number of lines, or pieces of lines, that were just translated.

        Raises:
            TypeError: `lines` is a single string.
            ValueError: tokens_per_batch is not positive.
            UserError: a prefix is longer than its translation may be, a single line does not fit into memory, or the
                model's output is not finite.
        """
        if isinstance(lines, str):
            raise TypeError("lines must be a list of lines, not a single string")
        if tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch ({tokens_per_batch}) must be positive")
        search = search or self.search
        units = self._units(lines, prefixes, too_long, first_line)
        results: list[list[Translation]] = [[] for _ in units]
        sources = FlatIds.from_sequences([unit.source.ids for unit in units], self.tokenizer.src_vocab_size)
        lengths = torch.from_numpy(np.asarray(sources.lengths))  # </s> counted
        for unit, limit in zip(units, search.limits(lengths, self.model.max_tgt_positions).tolist(), strict=True):
            if len(unit.prefix) > limit:
                raise UserError(
                    f"line {first_line + unit.line}: its prefix has {len(unit.prefix)} tokens, but its translation "
                    f"is limited to {limit} (search.max_len_a, search.max_len_b)"
                )
        costs = (lengths + search.n_positions(lengths, self.model.max_tgt_positions)).numpy()

        def work(rows: np.ndarray) -> None:
            of_rows = self._search(search, [units[i] for i in rows], sources.padded(rows), attention, first_line)
            for i, hypotheses in zip(rows.tolist(), of_rows, strict=True):
                results[i] = hypotheses
            advance(len(rows))

        def too_large(i: int) -> str:
            message = f"line {first_line + units[i].line} has {lengths[i]} tokens"
            return f"{message}: out of memory; a smaller search.beam_size, search.max_len_a or search.max_len_b may fit"

        in_batches(costs, tokens_per_batch, work, too_large)
        of_lines: list[list[Translation]] = [[] for _ in lines]
        for unit, hypotheses in zip(units, results, strict=True):
            joined = of_lines[unit.line]
            of_lines[unit.line] = _joined(search, joined, unit.separator, hypotheses) if joined else hypotheses
        return [hypotheses or [Translation("", 0.0, False)] for hypotheses in of_lines]

    def _units(
        self, lines: Sequence[str], prefixes: Sequence[str] | None, too_long: str, first_line: int
    ) -> list[_Unit]:
        longest = self.model.max_src_positions
        indices = [i for i, line in enumerate(lines) if line.strip()]
        encoded = self._encode([lines[i] for i in indices])
        prefix_ids = [list(source.tgt_prefix) for source in encoded]
        if prefixes is not None:
            prefix_ids = self.tokenizer.encode_targets([prefixes[i] for i in indices], encoded)
        units = []
        for i, source, prefix in zip(indices, encoded, prefix_ids, strict=True):
            if source.is_blank:
                continue
            if longest is None or len(source.ids) < longest:
                units.append(_Unit(i, source, prefix, ""))
                continue
            message = f"line {first_line + i} has {len(source.ids) + 1:,} tokens; this model's maximum is {longest:,}"
            if too_long == "cut":
                warn(f"{message}: its end is cut off")
                units.append(_Unit(i, source._replace(ids=source.ids[: longest - 1]), prefix, ""))
                continue
            pieces = split_text(
                lines[i],
                lambda text: len(self._encode([text])[0].ids) < longest,
                unsplittable=self.tokenizer.find_placeholders(lines[i]),
            )
            warn(f"{message}: translated in {len(pieces)} pieces")
            for separator, text in pieces:
                piece = self._encode([text])[0]
                if piece.is_blank:
                    continue
                units.append(_Unit(i, piece._replace(ids=piece.ids[: longest - 1]), prefix, separator))
                prefix = list(piece.tgt_prefix)  # the user's prefix applies to the first piece only
        return units

    def _search(
        self, search: Search, units: Sequence[_Unit], src_ids: np.ndarray, attention: bool, first_line: int
    ) -> list[list[Translation]]:
        src = torch.from_numpy(src_ids).to(next(self.model.parameters()).device)
        results = search(self.model, src, src != PAD, self.special, [unit.prefix for unit in units])
        translations: list[list[Translation]] = []
        for unit, hypotheses in zip(units, results, strict=True):
            if hypotheses[0].score == -math.inf:
                raise UserError(
                    f"line {first_line + unit.line}: the model's output is not finite, so there is no translation; "
                    "the cause is the model's weights or the precision"
                )

            def decode(ids: list[int], unit: _Unit = unit) -> str:
                text = self.tokenizer.decode(ids, unit.source.placeholders)
                return text.rstrip("\r")  # \r before a line feed would be read as part of the line break

            n_prefix = len(unit.source.tgt_prefix)
            source_tokens = (*self.tokenizer.pieces(unit.source.ids, "src"), "</s>")
            translations.append([])
            for hypothesis in search.ranked(hypotheses, decode):
                translations[-1].append(
                    Translation(
                        decode(hypothesis.tokens),
                        hypothesis.score,
                        hypothesis.cut,
                        (*self.tokenizer.pieces(hypothesis.tokens[n_prefix:], "tgt"), "</s>"),
                        tuple(hypothesis.log_probs[n_prefix:]),
                        source_tokens,
                        self._attention(unit, hypothesis) if attention else (),
                        hypothesis.near_tie,
                    )
                )
        return translations

    def cross_heads(self) -> list[int]:
        """Return the number of heads of each cross-attention layer."""
        device = next(self.model.parameters()).device
        src, tgt_in = (torch.tensor([[token]], device=device) for token in (self.special.eos, self.special.bos))
        return [weights.size(1) for weights in self.model.attention_weights(src, tgt_in).cross]

    def _attention(self, unit: _Unit, hypothesis: Hypothesis) -> tuple[np.ndarray, ...]:
        device = next(self.model.parameters()).device
        src = torch.tensor([[*unit.source.ids, self.special.eos]], device=device)
        tgt_in = torch.tensor([[self.special.bos, *hypothesis.tokens]], device=device)
        maps = self.model.attention_weights(src, tgt_in).cross
        return tuple(weights[0, :, len(unit.source.tgt_prefix) :].cpu().numpy() for weights in maps)


def _joined(search: Search, left: list[Translation], separator: str, right: list[Translation]) -> list[Translation]:
    """Combine the translations of two consecutive parts of a line."""
    if isinstance(search, BeamSearch):  # the best combinations; the score of each is a sum
        best_of_text: dict[str, tuple[Translation, Translation]] = {}
        for a, b in sorted(product(left, right), key=lambda pair: -(pair[0].score + pair[1].score)):
            best_of_text.setdefault(separator.join((a.text, b.text)), (a, b))
        pairs = list(best_of_text.values())[: search.n_best]
    else:
        pairs = list(zip(left, right, strict=False))
    return [
        Translation(
            separator.join((a.text, b.text)),
            a.score + b.score,
            a.cut or b.cut,
            a.tokens + b.tokens,
            a.log_probs + b.log_probs,
            a.source_tokens + b.source_tokens,
            tuple(map(_block_diagonal, a.attention, b.attention)),
            a.near_tie or b.near_tie,
        )
        for a, b in pairs
    ]


def _block_diagonal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Combine the attention weights (H, T, S) of two parts into a block-diagonal tensor."""
    heads, rows, columns = a.shape
    combined = np.zeros((heads, rows + b.shape[1], columns + b.shape[2]), a.dtype)
    combined[:, :rows, :columns], combined[:, rows:, columns:] = a, b
    return combined


# Where to split a long text, in order of preference: after a sentence, after other punctuation, between words.
_SPLITS = [re.compile(p) for p in (r"(?<=[.!?…])\s+|(?<=[。！？])\s*", r"(?<=[;:,–—])\s+|(?<=[、，；：])", r"\s+")]


def split_text(
    text: str, fits: Callable[[str], bool], separator: str = "", unsplittable: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Split a text near its middle, recursively, until all pieces fit.

    Args:
        text: a text without line breaks.
        fits: returns whether a piece is short enough.
        separator: text between the translation of the previous piece and that of this text.
        unsplittable: substrings that must not be split, such as placeholders.

    Returns:
        Pairs of a separator and a piece. The separator goes between the translations of the previous piece and of this
        one: a space if the text had white space there, else an empty string.
    """
    text = text.strip()
    if len(text) < 2 or fits(text):
        return [(separator, text)]
    middle = len(text) / 2
    names = "|".join(map(re.escape, sorted(unsplittable, key=len, reverse=True)))
    spans = [m.span() for m in re.finditer(names, text)] if names else []

    def is_inside(start: int, end: int) -> bool:
        return any(a < end and start < b for a, b in spans)

    for pattern in _SPLITS:
        # A split near an end would hardly shorten the text.
        candidates = [m for m in pattern.finditer(text) if len(text) / 5 <= m.start() <= len(text) * 4 / 5]
        candidates = [m for m in candidates if not is_inside(*m.span())]
        if candidates:
            best = min(candidates, key=lambda m: abs(m.start() - middle))
            left, right, gap = text[: best.start()], text[best.end() :], " " if best.group() else ""
            break
    else:
        cuts = [i for i in range(1, len(text)) if not is_inside(i, i)]
        if not cuts:
            return [(separator, text)]
        cut = min(cuts, key=lambda i: abs(i - int(middle)))
        left, right, gap = text[:cut], text[cut:], ""
    return split_text(left, fits, separator, unsplittable) + split_text(right, fits, gap, unsplittable)


def as_ensemble(loaded: Sequence[checkpoint.Checkpoint]) -> checkpoint.Checkpoint:
    """Combine checkpoints into one with an ensemble of their models; all else is taken from the first.

    Raises:
        UserError: the tokenizers or languages of two checkpoints differ; the message names them.
    """
    first = loaded[0]
    for other in loaded[1:]:
        if other.tokenizer.digest() != first.tokenizer.digest():
            raise UserError(
                f"{other.path} and {first.path} differ in their tokenizers: an ensemble needs one vocabulary"
            )
        direction, other_direction = (f"{x.record['src_lang']}-{x.record['tgt_lang']}" for x in (first, other))
        if direction != other_direction:
            raise UserError(f"{other.path} translates {other_direction}, but {first.path} {direction}")
    return first._replace(model=Ensemble([member.model for member in loaded]))
