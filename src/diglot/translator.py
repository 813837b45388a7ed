"""Translates lines of text with a trained model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from diglot import checkpoint
from diglot.data.batching import split_by_budget
from diglot.data.flat import FlatIds
from diglot.data.progress import step
from diglot.data.tokenizer import PAD, Tokenizer
from diglot.decoding import BeamSearch, SpecialIds
from diglot.errors import UserError, is_out_of_memory
from diglot.model import EncoderDecoder


class Translation(NamedTuple):
    """A line's translation, its score (see BeamSearch), and whether the length limit cut it."""

    text: str
    score: float
    cut: bool


class Translator:
    """A model, its tokenizer and a search: lines in, as many lines out, in the same order.

    Args:
        model: in evaluation mode, on the device to translate on.
        tokenizer: the model's.
        search: how to find a translation.
        record: what the checkpoint says of itself.
        tgt_lang: code of the language to translate into, where the model was trained for several; None: the one that
            it was scored on.

    Raises:
        UserError: the model does not translate into that language.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        search: BeamSearch,
        record: dict[str, Any] | None = None,
        tgt_lang: str | None = None,
    ) -> None:
        self.model, self.tokenizer, self.search, self.record = model.eval(), tokenizer, search, record or {}
        own = self.record.get("tgt_lang")
        self.tgt_lang = tgt_lang or own
        known = tokenizer.languages or ([own] if own else [])
        if self.tgt_lang is not None and self.tgt_lang not in known:
            raise UserError(f"tgt_lang={self.tgt_lang}: this model translates into {', '.join(known)}")
        self.special = SpecialIds(tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | None = None,
        search: BeamSearch | None = None,
        tgt_lang: str | None = None,
    ) -> "Translator":
        """Rebuild a translator from a checkpoint file or a run's folder.

        Args:
            path: the checkpoint.
            device: cpu, cuda, ...; None: a GPU if there is one.
            search: None: the checkpoint's own.
            tgt_lang: see Translator.
        """
        return cls.of(checkpoint.load(path), device, search, tgt_lang)

    @classmethod
    def of(
        cls, loaded: checkpoint.Checkpoint, device: str | None, search: BeamSearch | None, tgt_lang: str | None
    ) -> "Translator":
        """See `load`."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            model = loaded.model.to(torch.device(device))
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise UserError(f"device={device}: cannot be used ({str(error).splitlines()[0]})") from None
        return cls(model, loaded.tokenizer, search or loaded.search, loaded.record, tgt_lang)

    def translate(self, lines: Sequence[str], beam: int | None = None) -> list[str]:
        """The best translation of each line; that of a blank line is blank.

        Args:
            lines: texts without line breaks.
            beam: how many prefixes the search keeps; None: as the search says.
        """
        return [translation.text for translation in self.translate_all(lines, beam)]

    def translate_all(
        self, lines: Sequence[str], beam: int | None = None, tokens_per_batch: int = 4096, show: bool = False
    ) -> list[Translation]:
        """The best translation of each line, with its score.

        Args:
            lines: see translate.
            beam: see translate.
            tokens_per_batch: sentences searched at once have at most this many source tokens, padding counted.
            show: whether to show progress.

        Raises:
            UserError: naming a line that is longer than the model's positions reach.
        """
        if isinstance(lines, str):
            raise TypeError("lines must be a list of lines, not one text")
        if tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch ({tokens_per_batch}) must be positive")
        search = self.search
        if beam is not None:
            search = BeamSearch(
                beam_size=beam,
                length_penalty=search.length_penalty,
                max_len_a=search.max_len_a,
                max_len_b=search.max_len_b,
            )
        results = [Translation("", 0.0, False) for _ in lines]
        numbers = [i for i, line in enumerate(lines) if line.strip()]
        encoded = self.tokenizer.encode([lines[i] for i in numbers], self.tgt_lang)
        sources = FlatIds.of([source.ids for source in encoded], self.tokenizer.src_vocab_size)
        lengths = np.asarray(sources.lengths)
        longest = self.model.max_src_positions
        if longest is not None and len(lengths) and lengths.max() > longest:
            i = int(lengths.argmax())
            raise UserError(f"line {numbers[i] + 1} has {lengths[i]} tokens; this model's positions reach to {longest}")
        order = np.argsort(lengths, kind="stable")
        device = next(self.model.parameters()).device

        def run(advance: Any) -> None:
            batches = [order[start:stop] for start, stop in split_by_budget(lengths[order], tokens_per_batch)]
            while batches:
                rows = batches.pop()
                try:
                    src = torch.from_numpy(sources.ended(rows)).to(device)
                    found = search(self.model, src, src != PAD, self.special)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    if len(rows) == 1:
                        number = f"line {numbers[rows[0]] + 1} has {lengths[rows[0]]} tokens"
                        raise UserError(f"{number}: out of memory; a smaller search.beam_size may fit") from None
                    batches += np.array_split(rows, 2)
                    continue
                for i, (best, *_) in zip(rows.tolist(), found, strict=True):
                    text = self.tokenizer.decode(best.tokens, encoded[i].placeholders)
                    text = text.rstrip("\r")  # before a line feed it would be taken for half of a line's end
                    results[numbers[i]] = Translation(text, best.score, best.cut)
                advance(len(rows))

        if show:
            with step(f"translating {len(lines):,} lines", total=len(numbers)) as advance:
                run(advance)
        else:
            run(lambda done: None)
        return results
