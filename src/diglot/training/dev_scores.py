"""The callback that scores the translations of every validation."""

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.module import TranslationData
from diglot.data.text import write_lines
from diglot.errors import UserError
from diglot.evaluation.scorer import Score, Scorer
from diglot.system.console import say


class DevScores(L.Callback):
    """Callback that logs the dev metrics, perplexity, and the number of outputs that the length limit cut.

    The metrics are those of decoded translations. Every sentence counts once, however many processes there are.

    Args:
        data: provides the dev text.
        scorer: computes the scores in the target language.
        output: file for the newest translations, one line per dev source; None writes no file.

    Attributes:
        latest: scores of the newest validation.
        translations: translations of the newest validation by number of the dev pair, on every process.
    """

    def __init__(self, data: TranslationData, scorer: Scorer, output: Path | None = None) -> None:
        self.data, self.scorer, self.output = data, scorer, output
        self.latest: list[Score] = []
        self.translations: dict[int, str] = {}
        self._reset()

    def _reset(self) -> None:
        self._texts: dict[int, str] = {}
        self._cut: set[int] = set()
        self._nll, self._tokens = 0.0, 0

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
        self._nll += float(outputs["nll"])
        self._tokens += int(outputs["tokens"])
        for pair, hypothesis in zip(batch.pairs.tolist(), outputs["hypotheses"], strict=True):
            self._texts[pair] = self.data.decode_dev(pair, hypothesis.tokens)
            if hypothesis.cut and not self.data.dev_sources[pair].is_blank:
                self._cut.add(pair)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        local = (self._nll, self._tokens, self._texts, self._cut)
        gathered: list[Any] = [local]
        if trainer.world_size > 1:
            gathered = [None] * trainer.world_size
            torch.distributed.all_gather_object(gathered, local)
        nll, tokens = sum(part[0] for part in gathered), sum(part[1] for part in gathered)
        texts = {pair: text for part in gathered for pair, text in part[2].items()}
        n_cut = len(set().union(*(part[3] for part in gathered)))
        self._reset()
        if trainer.sanity_checking:
            return
        if not math.isfinite(nll):
            raise UserError(
                f"training has diverged: dev loss is {nll} at update {trainer.global_step:,}; "
                "a lower scheduler.lr or a longer scheduler.warmup may help"
            )
        pairs = sorted(texts)
        self.translations = {pair: texts[pair] for pair in pairs}
        if self.output is not None and trainer.is_global_zero:
            write_lines(self.output, [text.rstrip("\r") for text in self.translations.values()])
        references = self.data.held_out["dev"].select(pairs).references
        scores = self.scorer([texts[i] for i in pairs], *references, with_slow=False)
        if not self.latest and trainer.is_global_zero:
            say(f"dev scores: {', '.join(f'{score.name} {score.signature}' for score in scores)}")
        self.latest = scores
        loss = nll / max(1, tokens)  # there are no tokens if all pairs are blank
        values = {f"dev/{name}": score.value for name, score in zip(self.scorer.in_validations, scores, strict=True)}
        monitored = next(iter(values))
        values |= {
            "dev/loss": loss,
            "dev/perplexity": math.exp(min(loss, 700)),
            "dev/cut": float(n_cut),
        }
        for name, value in values.items():
            exact = torch.tensor(value, dtype=torch.float64)  # Lightning would round a number to float32
            pl_module.log(name, exact, prog_bar=name == monitored, rank_zero_only=False)
        pl_module.log("step", float(trainer.global_step))
