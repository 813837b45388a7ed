"""The callback that scores the translations of every validation."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.held_out import DevSet
from diglot.data.module import TranslationData
from diglot.data.text import write_lines
from diglot.errors import UserError
from diglot.evaluation.scorer import Score, Scorer
from diglot.system.console import say


class Scoring(NamedTuple):
    """How a dev set is scored.

    Attributes:
        scorer: computes the scores in the target language.
        output: file for the newest translations, one line per source; None writes no file.
    """

    scorer: Scorer
    output: Path | None = None


class DevScores(L.Callback):
    """Callback that logs the dev metrics, perplexity, and the number of outputs that the length limit cut.

    The metrics are those of decoded translations. Every sentence counts once, however many processes there are. Further
    dev sets are scored in the same way.

    Args:
        data: provides the dev text.
        scorer: computes the scores of dev in the target language.
        output: file for the newest translations of dev, one line per source; None writes no file.
        further: how each further dev set is scored, by its name.

    Attributes:
        latest: scores of dev in the newest validation.
        translations: translations of dev in the newest validation by number of the pair, on every process.
    """

    def __init__(
        self,
        data: TranslationData,
        scorer: Scorer,
        output: Path | None = None,
        further: Mapping[str, Scoring] = MappingProxyType({}),
    ) -> None:
        self.data, self.scorer = data, scorer
        self._scorings = {"dev": Scoring(scorer, output), **further}
        self.latest: list[Score] = []
        self.translations: dict[int, str] = {}
        self._reset()

    def _reset(self) -> None:
        self._texts: dict[int, str] = {}
        self._cut: set[int] = set()
        self._sums: dict[str, tuple[float, int]] = dict.fromkeys(self._scorings, (0.0, 0))

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._reset()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        pairs, validation = batch.pairs.tolist(), self.data.validation
        name = validation.set_of(pairs[0]).name  # a batch has pairs of one dev set only
        nll, tokens = self._sums[name]
        self._sums[name] = nll + float(outputs["nll"]), tokens + int(outputs["tokens"])
        for pair, hypothesis in zip(pairs, outputs["hypotheses"], strict=True):
            self._texts[pair] = self.data.decode_dev(pair, hypothesis.tokens)
            if hypothesis.cut and not validation.sources[pair].is_blank:
                self._cut.add(pair)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        local = (self._sums, self._texts, self._cut)
        gathered: list[Any] = [local]
        if trainer.world_size > 1:
            gathered = [None] * trainer.world_size
            torch.distributed.all_gather_object(gathered, local)
        texts = {pair: text for part in gathered for pair, text in part[1].items()}
        cut = set[int]().union(*(part[2] for part in gathered))
        self._reset()
        if trainer.sanity_checking:
            return
        announces = not self.latest and trainer.is_global_zero
        for dev_set in self.data.validation.sets:
            sums = [part[0][dev_set.name] for part in gathered]
            loss = self._loss(dev_set, sums, trainer.global_step)
            numbers = self.data.validation.numbers(dev_set)
            translations = {pair - numbers.start: texts[pair] for pair in numbers if pair in texts}
            scores = self._score(dev_set, translations, trainer.is_global_zero)
            if announces:
                say(f"{dev_set.name} scores: {', '.join(f'{score.name} {score.signature}' for score in scores)}")
            names = self._scorings[dev_set.name].scorer.in_validations
            values = {name: score.value for name, score in zip(names, scores, strict=True)}
            n_cut = sum(pair in cut for pair in numbers)
            values |= {"loss": loss, "perplexity": math.exp(min(loss, 700)), "cut": float(n_cut)}
            for name, value in values.items():
                exact = torch.tensor(value, dtype=torch.float64)  # Lightning would round a number to float32
                is_first = dev_set.name == "dev" and name == names[0]
                pl_module.log(f"{dev_set.name}/{name}", exact, prog_bar=is_first, rank_zero_only=False)
            if dev_set.name == "dev":
                self.latest, self.translations = scores, translations
        pl_module.log("step", float(trainer.global_step))

    def _loss(self, dev_set: DevSet, sums: list[tuple[float, int]], update: int) -> float:
        """Return the loss on a dev set.

        Args:
            dev_set: the dev set.
            sums: negative log-likelihood and number of target tokens on each process.
            update: number of updates.

        Raises:
            UserError: it is not finite.
        """
        nll, tokens = sum(part[0] for part in sums), sum(part[1] for part in sums)
        if not math.isfinite(nll):
            raise UserError(
                f"training has diverged: {dev_set.name} loss is {nll} at update {update:,}; "
                "a lower scheduler.lr or a longer scheduler.warmup may help"
            )
        return nll / max(1, tokens)  # there are no tokens if all pairs are blank

    def _score(self, dev_set: DevSet, translations: Mapping[int, str], is_first: bool) -> list[Score]:
        """Return the scores of a dev set's translations, and write these to its file in the first process.

        Args:
            dev_set: the dev set.
            translations: the translations by number of the pair in the set.
            is_first: whether this is the first process.
        """
        scorer, output = self._scorings[dev_set.name]
        texts = list(translations.values())
        if output is not None and is_first:
            write_lines(output, [text.rstrip("\r") for text in texts])
        references = self.data.held_out[dev_set.name].select(list(translations)).references
        return scorer(texts, *references, with_slow=False)
