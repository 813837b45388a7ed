"""Fine-tuning: the weights of a model that a run trains, and at which rates."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf
from torch import nn

from diglot.errors import UserError
from diglot.model import EncoderDecoder
from diglot.model.lora import Lora, add, is_adapter
from diglot.model.parts import Parts, factors_of
from diglot.system.masking import shortened
from diglot.system.quoting import spelled


@dataclass(frozen=True)
class FineTuning:
    """The keys of a config that decide which weights are trained.

    Attributes:
        freeze: parts whose weights are not trained; see `diglot.model.parts.Parts`.
        learning_rates: factors of the learning rate by part.
        lora: low-rank adapters, which are trained instead of the model's own weights; None: none.
    """

    freeze: tuple[str, ...] = ()
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    lora: Lora | None = None

    @classmethod
    def of(cls, config: Mapping[Any, Any]) -> "FineTuning":
        """Read the keys of a run's config. A config from before they existed trains all weights.

        Raises:
            UserError: a value is invalid, or two keys exclude each other.
        """
        freeze, factors, node = (_plain(config.get(key)) for key in ("freeze", "learning_rates", "lora"))
        freeze, factors = [freeze] if isinstance(freeze, str) else freeze or [], factors or {}
        if not isinstance(freeze, list) or not all(isinstance(part, str) for part in freeze):
            raise UserError(f"freeze={shortened(freeze, 60)}: must be a list of parts, such as [encoder,embeddings]")
        if not isinstance(factors, dict):
            raise UserError(f"learning_rates={shortened(factors, 60)}: must be a mapping, such as {{encoder: 0.1}}")
        factors = {str(part): factor for part, factor in factors.items()}
        _check_factors(factors)
        with _naming("lora"):
            lora = None if node is None else Lora(**node)
        if lora is not None and freeze:
            raise UserError(
                "freeze and lora: with lora, all weights are frozen except for its adapters; lora.on chooses their "
                "layers, and lora.train the weights to train beside them"
            )
        if lora is not None and config.get("init_from") is None:
            raise UserError("lora: adapters adapt a trained model: name it by init_from=CHECKPOINT")
        return cls(tuple(freeze), factors, lora)

    def apply(self, model: EncoderDecoder) -> None:
        """Add the adapters to a model, and freeze weights, in place.

        Raises:
            UserError: a key names no part of the model, or nothing is left to train.
        """
        if self.lora is not None:
            for key, parts in (("lora.on", self.lora.on), ("lora.train", self.lora.train)):
                with _naming(key):
                    Parts(model).union(parts)
            with _naming("lora"):
                add(model, self.lora)
        elif self.freeze:
            with _naming(f"freeze=[{','.join(self.freeze)}]"):
                frozen = Parts(model).union(self.freeze)
                for name, weight in model.named_parameters():
                    weight.requires_grad_(weight.requires_grad and name not in frozen)
                if not any(weight.requires_grad for weight in model.parameters()):
                    raise ValueError("no weight is left to train")
        self.factors(model)

    def factors(self, model: EncoderDecoder) -> dict[str, float]:
        """Return the factor of the learning rate of each trained weight; empty if all weights have the same rate.

        Args:
            model: a model to which this has been applied.

        Raises:
            UserError: a key names no part of the model, or two parts overlap.
        """
        if not self.learning_rates:
            return {}
        with _naming("learning_rates"):
            return factors_of(model, self.learning_rates)

    def describe(self, model: EncoderDecoder) -> list[str]:
        """Return lines that state which weights of a model are trained and at which rates; none if all are, alike.

        Args:
            model: a model to which this has been applied.
        """
        lines = []
        n_trained, n_all = n_weights(model, trained=True), n_weights(model)
        if self.lora is not None:
            n_adapters = n_weights(model, adapters=True)
            adapted = f"LoRA of rank {self.lora.rank} on {', '.join(self.lora.on)}"
            lines.append(f"training {n_adapters:,} weights of adapters: {adapted}")
            if self.lora.train:
                beside = ", ".join(self.lora.train)
                lines.append(f"training {n_trained - n_adapters:,} of {n_all:,} weights: {beside}")
        elif n_trained < n_all:
            frozen = f"; frozen: {', '.join(self._with_shared(model))}" if self.freeze else ""
            lines.append(f"training {n_trained:,} of {n_all:,} weights{frozen}")
        if self.learning_rates:
            rates = ", ".join(f"{part} x {factor:g}" for part, factor in self.learning_rates.items())
            lines.append(f"learning rates: {rates}")
        return lines

    def _with_shared(self, model: EncoderDecoder) -> Iterator[str]:
        parts = Parts(model)
        for part in self.freeze:
            shared = parts.shared(part, self.freeze)
            yield f"{part} (with {', '.join(shared)}, the same matrix)" if shared else part


def n_weights(model: nn.Module, trained: bool = False, adapters: bool = False) -> int:
    """Return the number of weights of a model without its adapters.

    Args:
        model: the model.
        trained: count the weights that are trained instead, those of adapters included.
        adapters: count the weights of adapters instead.
    """
    return sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if (weight.requires_grad if trained else is_adapter(name) == adapters)
    )


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _check_factors(factors: Mapping[str, Any]) -> None:
    """Check that all factors of learning rates are positive numbers.

    Raises:
        UserError: one is not.
    """
    for part, factor in factors.items():
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool) and math.isfinite(factor)
        if not is_number or factor < 0:
            raise UserError(
                f"learning_rates: {part} is {shortened(spelled(factor), 60)}, and must be a positive number"
            )
        if factor == 0:
            raise UserError(f"learning_rates: {part} is 0, which trains nothing: type freeze=[{part}]")


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Turn an error about a value of a key into a user error that names the key."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(f"{key}: {error}") from None
