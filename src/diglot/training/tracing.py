"""Where the loss of an update comes from: its pairs, its tokens, and the modules of the model."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diglot.data.batch import Batch


class PairLoss(NamedTuple):
    """The loss of a pair, without label smoothing.

    Attributes:
        pair: number of the pair.
        loss: mean loss of its target tokens, in nats.
        tokens: number of its target tokens.
        worst: position of the target token with the greatest loss.
        worst_loss: the loss of this token.
    """

    pair: int
    loss: float
    tokens: int
    worst: int
    worst_loss: float


class Token(NamedTuple):
    """A token of a batch: its pair, its side, its position, and its id."""

    pair: int
    side: Literal["src", "tgt"]
    position: int
    id: int


class Origin(NamedTuple):
    """The first module, in the order of computation, with values that are not finite.

    Attributes:
        module: name of the module.
        is_own: forward: whether its inputs were finite, so that the module itself computed the values. Otherwise they
            were computed between the modules of its parent.
        token: the first token with such a value; None if the values do not belong to tokens.
    """

    module: str
    is_own: bool
    token: Token | None


class Trace:
    """Trace of the forward and backward passes of an update, by hooks that do not change its values.

    Args:
        model: the model.

    Attributes:
        forward: where values first were not finite; None if all were finite.
        backward: where gradients, which are computed from the loss backwards, first were not finite.
        pairs: losses of the update's pairs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.forward: Origin | None = None
        self.backward: Origin | None = None
        self.pairs: list[PairLoss] = []
        self._batch: Batch
        self._inputs_are_finite: list[bool] = []  # of the modules whose call has not ended, from the outermost
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(_named(self._leave, name or "the model"))
        model.register_forward_hook(self._add_pairs)

    def follow(self, batch: Batch) -> None:
        """Set the batch whose passes follow."""
        self._batch = batch

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._inputs_are_finite.append(all(_is_finite(x) for x in _tensors(inputs)))

    def _leave(self, name: str, inputs: tuple[Any, ...], outputs: Any) -> None:
        inputs_are_finite = self._inputs_are_finite.pop()
        batch = self._batch
        for output in _tensors(outputs):
            if self.forward is None and not _is_finite(output):
                self.forward = Origin(name, inputs_are_finite, _token(batch, name, inputs, output))
            if output.requires_grad:
                output.register_hook(lambda gradient: self._look_back(name, batch, inputs, gradient))

    def _look_back(self, name: str, batch: Batch, inputs: tuple[Any, ...], gradient: Tensor) -> None:
        if self.backward is None and not _is_finite(gradient):
            self.backward = Origin(name, False, _token(batch, name, inputs, gradient))

    def _add_pairs(self, module: nn.Module, inputs: Any, logits: Tensor) -> None:
        with torch.no_grad():
            self.pairs += pair_losses(logits, self._batch)


def _named(hook: Any, name: str) -> Any:
    return lambda module, inputs, outputs: hook(name, inputs, outputs)


def _tensors(values: Any) -> list[Tensor]:
    """Return the floating tensors in an argument or result of a module, which may be a tuple."""
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() else []
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, (tuple, list)) else []


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _token(batch: Batch, name: str, inputs: tuple[Any, ...], values: Tensor) -> Token | None:
    """Return the first token with a value that is not finite; None if the values are not those of tokens."""
    n_rows, src_width = batch.src.shape
    tgt_width = batch.tgt_in.size(1)
    if values.dim() < 2 or values.size(0) != n_rows or values.size(1) not in (src_width, tgt_width):
        return None
    if src_width != tgt_width:
        is_src = values.size(1) == src_width
    elif inputs and isinstance(inputs[0], Tensor) and not inputs[0].is_floating_point():  # an embedding
        is_src = torch.equal(inputs[0], batch.src)
    else:
        is_src = name.startswith(("encoder", "src"))
    row, position = (~values[:, :, None].isfinite()).flatten(2).any(2).nonzero()[0].tolist()
    if row >= len(batch.pairs):
        return None  # padding that fills a fixed shape
    ids = batch.src if is_src else batch.tgt_in
    return Token(int(batch.pairs[row]), "src" if is_src else "tgt", position, int(ids[row, position]))


def pair_losses(logits: Tensor, batch: Batch) -> list[PairLoss]:
    """Return the losses of a batch's pairs, given the logits (B, T, V)."""
    log_probs = F.log_softmax(logits.float(), -1)
    losses = -log_probs.gather(-1, batch.labels[..., None]).squeeze(-1).masked_fill(~batch.tgt_mask, 0.0)
    counts = batch.tgt_mask.sum(1)
    means = (losses.sum(1) / counts.clamp(min=1)).tolist()
    worst_losses, worst = losses.nan_to_num(nan=torch.inf).max(1)
    rows = zip(batch.pairs.tolist(), means, counts.tolist(), worst.tolist(), worst_losses.tolist())
    return [PairLoss(*row) for row in rows if row[2]]


def greatest(pairs: Sequence[PairLoss], n: int) -> list[PairLoss]:
    """Return the n pairs with the greatest loss per token, the greatest first; losses that are not numbers first."""
    return sorted(pairs, key=lambda pair: (pair.loss != pair.loss, pair.loss), reverse=True)[:n]


def norms_by_module(model: nn.Module) -> dict[str, float]:
    """Return the norm of the gradient of each module's own parameters, in the order of the modules."""
    gradients: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():  # a shared parameter only once
        if parameter.grad is not None:
            gradients.setdefault(name.rpartition(".")[0] or "the model", []).append(parameter.grad)
    return {module: float(torch.nn.utils.get_total_norm(tensors)) for module, tensors in gradients.items()}
