"""The callback that scores the translations of every validation."""

import logging
import math
from typing import Any

import lightning as L
import torch

from diglot.data.batch import Batch
from diglot.data.module import TranslationData
from diglot.errors import UserError
from diglot.training.metrics import Score, Scorer

say = logging.getLogger("diglot").info


class Scores(L.Callback):
    """Logs dev BLEU and chrF++ of real decoding, perplexity, and how many outputs the length limit cut.

    Every sentence counts once, whatever the number of processes.
    """

    def __init__(self, data: TranslationData, scorer: Scorer) -> None:
        self.data, self.scorer = data, scorer
        self.latest: list[Score] = []
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
            if hypothesis.cut:
                self._cut.add(pair)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        mine = (self._nll, self._tokens, self._texts, self._cut)
        parts: list[Any] = [mine]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            torch.distributed.all_gather_object(parts, mine)
        nll, tokens = sum(part[0] for part in parts), sum(part[1] for part in parts)
        texts = {pair: text for part in parts for pair, text in part[2].items()}
        n_cut = len(set().union(*(part[3] for part in parts)))
        self._reset()
        if trainer.sanity_checking:
            return
        if not math.isfinite(nll):
            raise UserError(
                f"training has diverged: dev loss is {nll} at update {trainer.global_step:,}; "
                "a lower scheduler.lr or a longer scheduler.warmup may help"
            )
        pairs = sorted(texts)
        references = [self.data.text["dev"].tgt[i] for i in pairs]
        bleu, chrf = scores = self.scorer([texts[i] for i in pairs], references, with_ter=False)
        if not self.latest and trainer.is_global_zero:
            say(f"dev scores: {bleu.name} {bleu.signature}, {chrf.name} {chrf.signature}")
        self.latest = scores
        values = {
            "dev/bleu": bleu.value,
            "dev/chrf": chrf.value,
            "dev/loss": nll / tokens,
            "dev/perplexity": math.exp(min(nll / tokens, 700)),
            "dev/cut": float(n_cut),
        }
        for name, value in values.items():
            pl_module.log(name, value, prog_bar=name == "dev/bleu", rank_zero_only=False)
        pl_module.log("step", float(trainer.global_step))
