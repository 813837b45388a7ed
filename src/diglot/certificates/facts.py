"""What a certificate states about a run, computed from the run's folder: to write it down, or to check it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from diglot.certificates.content import Adapters, Environment, Score, Training, Validation
from diglot.checkpoint import file as checkpoints
from diglot.config import FineTuning, check_tokenizer
from diglot.config.fine_tuning import n_weights
from diglot.data.corpus import SPLITS
from diglot.data.references import check_count
from diglot.data.text import ParallelText, ending_of, file_hash, read_lines, side_endings
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.evaluation.evaluate import read_evaluation_set
from diglot.evaluation.openings import openings_in, text_hash
from diglot.evaluation.scorer import Scorer, recorded_metrics, recorded_tokenizer
from diglot.inference.translator import Translator
from diglot.runs.folder import CONFIG, dev_outputs
from diglot.training.logged import logged

BEST = "best.ckpt"
TOKENIZERS = ("tokenizer.model", "tokenizer.tgt.model")
N_LINES = 50


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, and the files in it that a certificate covers.

    Attributes:
        path: the folder.
        src_lang: code of the source language.
        tgt_lang: code of the target language.
    """

    path: Path
    src_lang: str
    tgt_lang: str

    def outputs(self, split: str) -> str:
        """Return the path, within the folder, of the kept outputs of a split: dev or test."""
        if split == "dev":
            return dev_outputs(self.path, self.tgt_lang).best.relative_to(self.path).as_posix()
        return f"evaluation/test/hypotheses.{ending_of(self.tgt_lang)}"

    def text(self, split: str) -> list[str]:
        """Return the paths, within the folder, of the kept text of a split."""
        return [f"text/{split}.{ending}" for ending in (*side_endings(self.src_lang, self.tgt_lang), "json")]

    def files(self) -> dict[str, str]:
        """Return the hash of each existing file that a certificate covers, by its path within the folder."""
        of_splits = [path for split in ("dev", "test") for path in (*self.text(split), self.outputs(split))]
        names = [CONFIG, *TOKENIZERS, BEST, *of_splits]
        return {name: file_hash(self.path / name) for name in names if (self.path / name).is_file()}

    def pairs(self, split: str) -> ParallelText:
        """Return the kept text of a split.

        Raises:
            UserError: there is none, or it is damaged.
        """
        kept = read_evaluation_set(self.path / "text", split, self.src_lang, self.tgt_lang)
        if kept is None:
            raise UserError(f"{self.path}: there is no copy of the {split} text in its folder text/")
        return kept.pairs

    def lines(self, split: str) -> list[str]:
        """Return the kept outputs of a split, one per line of its text.

        Raises:
            UserError: there are none, or their number is wrong.
        """
        file, pairs = self.path / self.outputs(split), self.pairs(split)
        lines = read_lines(file)
        check_count("outputs", str(file), len(lines), len(pairs), f"the {split} text")
        return lines

    def scores(self, split: str, record: Mapping[str, Any]) -> list[Score]:
        """Score the kept outputs of a split by the metrics of the run.

        Args:
            split: dev or test.
            record: the record of the run's checkpoint.
        """
        pairs = self.pairs(split)
        metrics, _ = recorded_metrics(record)
        tokenizer = recorded_tokenizer(record, self.tgt_lang)
        scorer = Scorer(self.tgt_lang, pairs.reference_lines, tokenizer, metrics)
        scores = scorer(self.lines(split), *pairs.references)
        return [{"name": s.name, "value": s.value, "signature": s.signature} for s in scores]

    def openings(self) -> dict[str, int]:
        """Return how often the kept test text was opened, by command."""
        text = text_hash(self.pairs("test"))
        return dict(Counter(o.command for o in openings_in(self.path) if o.text in (text, None)))

    def validations(self) -> list[Validation]:
        """Return the dev loss of each validation that the run has logged."""
        return [{"update": update, "loss": loss} for update, loss in logged(self.path, "dev/loss").items()]

    def tokenizer(self, record: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer in the folder.

        Args:
            record: the record of the run's checkpoint.

        Raises:
            UserError: it is missing, or not a SentencePiece model.
        """
        files = [self.path / name for name in TOKENIZERS]
        if not files[0].is_file():
            raise UserError(f"{files[0]}: no such file")
        for file in filter(Path.is_file, files):
            check_tokenizer(file.name, file.stat().st_size)
        models = [file.read_bytes() if file.is_file() else None for file in files]
        assert models[0] is not None
        return Tokenizer(models[0], record["placeholder"], models[1], record["languages"])

    def retranslation(self, loaded: checkpoints.Checkpoint, device: str) -> "Retranslation":
        """Translate some dev sources with the checkpoint, and compare the result with the kept outputs.

        Args:
            loaded: the checkpoint, whose model is moved to the device.
            device: cpu or cuda.
        """
        pairs, kept = self.pairs("dev"), self.lines("dev")
        chosen = evenly(len(pairs), N_LINES)
        translator = Translator.of(loaded, device, None, None)
        translations = translator.translate_all([pairs.src[i] for i in chosen])
        differing = [t.near_tie for i, t in zip(chosen, translations, strict=True) if t.text != kept[i]]
        return Retranslation(len(chosen), len(differing), sum(differing))


def training_of(config: Mapping[str, Any], loaded: checkpoints.Checkpoint, init_from: str | None) -> Training:
    """Return what a run has trained.

    Args:
        config: the run's config.
        loaded: a checkpoint of the run, whose model is changed.
        init_from: hash of the checkpoint that the run started from, if it is known.

    Raises:
        UserError: the config does not fit the model.
    """
    tuning = FineTuning.of(config)
    tuning.apply(loaded.model)
    lora: Adapters | None = None
    if (chosen := tuning.lora) is not None:
        lora = {
            "rank": chosen.rank,
            "alpha": float(chosen.alpha),
            "dropout": float(chosen.dropout),
            "on": list(chosen.on),
            "train": list(chosen.train),
        }
    return {
        "trained_parameters": n_weights(loaded.model, trained=True),
        "freeze": list(tuning.freeze),
        "learning_rates": {part: float(factor) for part, factor in tuning.learning_rates.items()},
        "lora": lora,
        "init_from": init_from,
    }


class Retranslation(NamedTuple):
    """A comparison of new translations with kept ones.

    Attributes:
        n: number of sources.
        n_different: number of translations that differ.
        n_near_ties: number of those whose search had a near tie, which rounding in another batch may decide.
    """

    n: int
    n_different: int
    n_near_ties: int


def evenly(n: int, maximum: int) -> list[int]:
    """Return at most `maximum` of the numbers below `n`, at even distances."""
    return sorted({i * n // min(n, maximum) for i in range(min(n, maximum))})


def environment_of(stored: Mapping[str, Any]) -> Environment:
    """Return code, packages and machine from the environment that a run has recorded.

    Raises:
        UserError: the record is incomplete.
    """
    try:
        return {
            "diglot": stored["diglot"],
            "commit": stored["commit"],
            "sources": stored.get("sources"),
            "python": stored["python"],
            "packages": dict(stored["packages"]),
            "machine": stored.get("machine"),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"environment.json is damaged ({type(error).__name__}: {error})") from None


def device_of(config: Mapping[str, Any]) -> Literal["cpu", "cuda"]:
    """Return the device that a run's config selects on this machine."""
    accelerator = config["trainer"].get("accelerator", "auto")
    return "cuda" if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda") else "cpu"


def different_texts(text: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the splits whose text has another hash than one that was found for it."""
    return [split for split in SPLITS if split in text and split in found and text[split] != found[split]]
