"""The callback that scores the translations of every validation."""

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor

from diglot.data.batch import Batch
from diglot.data.module import TranslationData
from diglot.training.metrics import Score, Scorer


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
        self._sums: list[Tensor] = []

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
        self._sums.append(torch.stack((outputs["nll"].double(), outputs["tokens"].double())))
        for pair, hypothesis in zip(batch.pairs.tolist(), outputs["hypotheses"], strict=True):
            self._texts[pair] = self.data.decode_dev(pair, hypothesis.tokens)
            if hypothesis.cut:
                self._cut.add(pair)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        sums = torch.stack(self._sums).sum(0) if self._sums else torch.zeros(2, device=pl_module.device).double()
        parts: list[Any] = [(sums.tolist(), self._texts, self._cut)]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            torch.distributed.all_gather_object(parts, (sums.tolist(), self._texts, self._cut))
        texts = {pair: text for _, part, _ in parts for pair, text in part.items()}
        n_cut = len(set().union(*(cut for _, _, cut in parts)))
        self._reset()
        if trainer.sanity_checking:
            return
        nll, tokens = (sum(part[0][i] for part in parts) for i in (0, 1))
        pairs = sorted(texts)
        self.latest = self.scorer(
            [texts[i] for i in pairs], [self.data.text["dev"].tgt[i] for i in pairs], with_ter=False
        )
        bleu, chrf = self.latest
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
