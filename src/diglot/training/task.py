"""The LightningModule, which computes the training and validation steps."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from diglot.data.batch import Batch
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import Hypothesis, Search
from diglot.decoding.layout import packed_for_decoding
from diglot.model import EncoderDecoder
from diglot.model.lora import merged
from diglot.training.gradients import GradientCheck, Update, gradient_norms
from diglot.training.groups import arrange, parameter_groups, scheduled_rate
from diglot.training.loss import batch_loss, token_loss
from diglot.training.state import RunState


class _Shared:
    """Holder of a function that deep copies of its owner share, because copying what the function needs may fail."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Shared":
        return self


class TranslationTask(L.LightningModule):
    """LightningModule that trains an encoder-decoder with teacher forcing.

    The loss of an update is the smoothed cross-entropy of its target tokens divided by their number. It does not depend
    on how the tokens are distributed over micro-batches and processes.

    Args:
        model: the network.
        tokenizer: tokenizer of both sides.
        search: search for validation.
        optimizer: creates the optimizer from parameters and lr.
        scheduler: creates the learning rate schedule from optimizer and total_updates.
        total_updates: length of the run.
        label_smoothing: eps of Szegedy et al. (2016); Vaswani et al. (2017) use 0.1.
        seed: seed of dropout.
        record: plain data stored in every checkpoint, which makes it self-contained (see diglot.checkpoint.file).
        state: state of the run, which is also stored in every checkpoint; None for a new run.
        decode_pair: returns the text of a translation, given the number of the dev pair and the tokens. A search may
            compare such texts. None decodes the tokens alone.
        skip_non_finite: number of updates with a gradient that is not finite that are skipped; the next one ends the
            run.
        factors: factors of the learning rate by weight of the model; see `parameter_groups`.
    """

    def __init__(
        self,
        *,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        search: Search,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[..., LRScheduler],
        total_updates: int,
        label_smoothing: float,
        seed: int,
        record: dict[str, Any],
        state: RunState | None = None,
        decode_pair: Callable[[int, list[int]], str] | None = None,
        skip_non_finite: int = 0,
        factors: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.state = state or RunState()
        self.gradient_check = GradientCheck(self.state, skip_non_finite)
        self._pairs: list[Tensor] = []  # numbers of the pairs of the current update
        self.model, self.search = model, search
        # Weight averaging copies the task. The copy must not contain the data, with Lightning's trainer and processes.
        self._decode_pair = _Shared(decode_pair or (lambda pair, tokens: tokenizer.decode(tokens)))
        self.special, self._n_prefix = tokenizer.special, tokenizer.n_tgt_prefix
        self.make_optimizer, self.make_scheduler, self.total_updates = optimizer, scheduler, total_updates
        self.label_smoothing, self.seed, self.record, self.factors = label_smoothing, seed, record, dict(factors)
        self._sums: Tensor | None = None  # smoothed loss, nll and tokens of the current update
        self._newest: tuple[Tensor, float] | None = None  # sums and learning rate of the last complete update
        self._gradient_norm: Tensor | None = None  # of the newest update, before clipping

    def configure_optimizers(self) -> Any:
        optimizer = self._new_optimizer()
        scheduler = self.make_scheduler(optimizer=optimizer, total_updates=self.total_updates)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _new_optimizer(self) -> Optimizer:
        return self.make_optimizer(parameter_groups(self.model, self.factors), lr=1.0)  # the schedule sets the rate

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        names, norms, norm = gradient_norms(self)
        self._gradient_norm = norm
        # In float16, gradients overflow routinely because the loss scale is too large. The scaler then skips the update
        # and halves the scale. Without a scale, the gradients themselves are not finite.
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is None or scaler.get_scale() <= 1.0:
            own = self.trainer.optimizers[0]  # Lightning may have wrapped the other one
            update = Update(self.trainer.global_step + 1, scheduled_rate(own), list(self._pairs), names, norms, norm)
            # DDP has already reduced the gradients, so all processes take the same decision.
            if not self.gradient_check.accept(update, own):
                for parameter in self.parameters():
                    parameter.grad = None  # optimizers skip parameters without a gradient
                return
        elif not torch.isfinite(norm):
            return
        # Clip without Lightning. It refuses to clip for a fused optimizer in any precision, because such an optimizer
        # unscales float16 gradients itself.
        if gradient_clip_val and gradient_clip_algorithm != "value":
            torch.nn.utils.clip_grads_with_norm_(self.parameters(), gradient_clip_val, norm)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout depends only on the position in the stream, so that no random state needs to be saved. The
        # micro-batch's number in the whole stream already differs between processes.
        torch.manual_seed((self.seed * 1_000_003 + batch.position) * 7_919 % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self._pairs.append(batch.pairs)
        sums = batch_loss(self.model, batch, self.label_smoothing)
        self._log_update(torch.stack((sums.smoothed.detach(), sums.nll, sums.tokens)), batch.ends_update)
        # Lightning divides by the accumulation and DDP by the number of processes: undo both.
        shares = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return sums.smoothed * shares / batch.update_target_tokens

    def _log_update(self, sums: Tensor, ends_update: bool) -> None:
        """Log the sums of an update's micro-batches, after the last of them and as often as the trainer logs."""
        self._sums = sums if self._sums is None else self._sums + sums
        if not ends_update:
            return
        self._newest, self._sums = (self._sums, scheduled_rate(self.trainer.optimizers[0])), None
        update = self.trainer.global_step + 1  # the optimizer step follows right after this
        if self.is_logged(update):
            self._log_newest(update)

    def _log_newest(self, update: int) -> None:
        assert self._newest is not None
        smoothed, nll, tokens = self.trainer.strategy.reduce(self._newest[0], reduce_op="sum").unbind()
        self.log("train/loss", smoothed / tokens)
        self.log("train/perplexity", (nll / tokens).exp())
        self.log("train/learning_rate", self._newest[1])
        self.log("step", float(update))  # otherwise Lightning logs one less, and a constant epoch

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if batch.ends_update:
            self._pairs = []
        update = self.trainer.global_step
        # If a run is stopped early, Lightning logs once more. Log this update then, not an old one again.
        is_stopping = self.trainer.should_stop and not self.is_logged(update) and self._newest is not None
        if is_stopping:
            self._log_newest(update)
        if self._gradient_norm is not None and (is_stopping or self.is_logged(update)):
            self.log("train/gradient_norm", self._gradient_norm)
            self.gradient_check.report()
        self._gradient_norm = None

    def is_logged(self, update: int) -> bool:
        """Return whether the figures of an update are logged, and so fetched from the device."""
        return update % self.trainer.log_every_n_steps == 0 or update == self.trainer.max_steps  # type: ignore[attr-defined]

    def figures(self) -> tuple[Tensor, Tensor]:
        """Return figures of the newest complete update, without waiting for the device.

        They are available from the gradient's clipping to the end of the callbacks' `on_train_batch_end`.

        Returns:
            The sums of the smoothed loss, the negative log-likelihood and the tokens on this process (3,), and the norm
            of the gradient before clipping.
        """
        assert self._newest is not None
        assert self._gradient_norm is not None
        return self._newest[0], self._gradient_norm

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """Compute the teacher-forced likelihood and decode translations.

        Both use the weights' own precision and merge adapters. So a dev score equals the score from evaluating the
        checkpoint, regardless of the precision in training.
        """
        with torch.autocast(self.device.type, enabled=False), merged(self.model):
            logits = self.model(batch.src, batch.tgt_in, batch.src_mask)
            sums = token_loss(logits, batch.labels, batch.tgt_mask, 0.0)
            began = time.perf_counter()
            hypotheses = self.translate(batch)
            seconds = time.perf_counter() - began  # no work is pending: the hypotheses are on the CPU
            return {"nll": sums.nll, "tokens": sums.tokens, "hypotheses": hypotheses, "search_seconds": seconds}

    def translate(self, batch: Batch) -> list[Hypothesis]:
        """Return the best hypothesis of each source.

        A search that compares texts compares them with placeholders filled in. A translation begins with the prefix of
        its target (see `diglot.data.encoding.Prefixes`).
        """
        prefixes = batch.labels[:, : self._n_prefix].tolist() if self._n_prefix else None
        with packed_for_decoding(self.model):
            results = self.search(self.model, batch.src, batch.src_mask, self.special, prefixes)
        return [
            self.search.ranked(hypotheses, partial(self._decode_pair.function, pair))[0]
            for pair, hypotheses in zip(batch.pairs.tolist(), results, strict=True)
        ]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Lightning converts the model to its precision only after loading the weights, so float64 would be rounded.
        self.model.to(next(value.dtype for value in checkpoint["state_dict"].values() if value.is_floating_point()))

        # If the run was extended, its former last batch is no longer the last.
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False
        # Betas, weight decay, factors and the like come from the config; the checkpoint provides the moments.
        for state in checkpoint.get("optimizer_states", []):
            arrange(state, checkpoint.get("lr_schedulers", []), self.model, self._new_optimizer())

    def on_validation_start(self) -> None:
        self.gradient_check.report()

    def on_train_end(self) -> None:
        self.gradient_check.report()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.gradient_check.report()
        checkpoint["diglot"] = {**self.record, **self.state.to_record()}
