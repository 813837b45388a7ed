"""Names for parts of a model: the weights that fine-tuning freezes, adapts or trains at another rate."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping

from diglot.model.encoder_decoder import EncoderDecoder

Path = tuple[str, ...]  # the name of a weight, split at its dots

_ATTENTIONS = {"attention", "self_attention", "cross_attention"}
_MODULES = ("self_attention", "cross_attention", "feed_forward", "query", "key", "value", "out", "up", "down", "gate")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def _has(*names: str) -> Callable[[Path], bool]:
    return lambda path: not set(names).isdisjoint(path[:-1])


# The names of parts that all models share, with a test of a weight's name. The stacks are the model's own.
WORDS: Mapping[str, Callable[[Path], bool]] = {
    "embeddings": _has("src_embedding", "tgt_embedding"),
    "output": lambda path: path[0] == "output",
    "position": lambda path: path[0].endswith("_position"),
    "layers": lambda path: any(name.isdecimal() for name in path),
    "attention": _has(*_ATTENTIONS),
    **{name: _has(name) for name in _MODULES},
    "norms": lambda path: any(name == "norm" or name.endswith("_norm") for name in path[:-1]),
    "biases": lambda path: path[-1].startswith("bias"),
}


class Parts:
    """The parts of a model.

    A part is a word (encoder, norms, ...), the number of a layer from 0, or a range of layers such as 0-3. A dot
    narrows a part: encoder.attention is the attention of the encoder, and encoder.layers.0-3.norms are the norms of
    four of its layers. Anything else is the name of a module or weight, or a pattern with * and ?.

    Args:
        model: the model.

    Attributes:
        names: all names of each weight, by its first name, in the model's order. A tied weight has several.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        self._stacks = model.stacks
        names: dict[int, list[str]] = {}
        for name, weight in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(weight), []).append(name)
        self.names = {name: tuple(names[id(weight)]) for name, weight in model.named_parameters()}

    def __getitem__(self, part: str) -> list[str]:
        """Return the first names of the weights in a part, in the model's order. A tied weight is in all its parts.

        Raises:
            ValueError: the part contains no weight, or a layer does not exist. The message names those that exist.
        """
        found = self._where(self.test(part))
        if not found:
            known = ", ".join(word for word in (*self._stacks, *WORDS) if self._where(self.test(word)))
            raise ValueError(
                f"{part!r} is no part of this model: type one of {known}, or the name of a module, such as "
                f"{next(iter(self.names)).rpartition('.')[0]}"
            )
        _refuse_missing_layers(part, found)
        return found

    def test(self, part: str) -> Callable[[str], bool]:
        """Return a function that returns whether a name of a weight is in a part."""
        tests = [self._test(segment) for segment in part.split(".")]
        if all(tests):
            return lambda name: all(test(tuple(name.split("."))) for test in tests if test)
        return lambda name: fnmatch.fnmatchcase(name, part) or name.startswith(f"{part}.")

    def union(self, parts: Iterable[str]) -> set[str]:
        """Return the first names of the weights in any of several parts."""
        return {name for part in parts for name in self[part]}

    def shared(self, part: str, others: Iterable[str] = ()) -> list[str]:
        """Return the modules outside of a part, and of other parts, that share a matrix with it."""
        tests = [self.test(each) for each in (part, *others)]
        names = [name for first in self[part] for name in self.names[first] if not any(test(name) for test in tests)]
        return list(dict.fromkeys(name.rpartition(".")[0] for name in names))

    def _where(self, contains: Callable[[str], bool]) -> list[str]:
        return [first for first, names in self.names.items() if any(map(contains, names))]

    def _test(self, segment: str) -> Callable[[Path], bool] | None:
        """Return the test of a word or of a range of layers; None if the segment is neither."""
        if segment in self._stacks:
            patterns = self._stacks[segment]
            return lambda path: any(fnmatch.fnmatchcase(path[0], pattern) for pattern in patterns)
        if layers := _RANGE.fullmatch(segment):
            first, last = int(layers[1]), int(layers[2] or layers[1])
            return lambda path: any(name.isdecimal() and first <= int(name) <= last for name in path)
        return WORDS.get(segment)


def _refuse_missing_layers(part: str, found: list[str]) -> None:
    """Check that the last layer of a range exists among the weights in a part.

    Raises:
        ValueError: it does not.
    """
    numbers = {int(piece) for name in found for piece in name.split(".") if piece.isdecimal()}
    for segment in part.split("."):
        layers = _RANGE.fullmatch(segment)
        if layers and int(layers[2] or layers[1]) not in numbers:
            raise ValueError(f"{part!r} counts layers from 0, and the last one here is {max(numbers)}")


def factors_of(model: EncoderDecoder, factors: Mapping[str, float]) -> dict[str, float]:
    """Return a factor for each trained weight of a model, given the factors of parts; 1 for all other weights.

    A part within another part takes precedence over it, whatever their order.

    Args:
        model: the model.
        factors: factors by part.

    Raises:
        ValueError: a part contains no weight, or none that is trained, or two parts overlap and neither is within the
            other.
    """
    parts = Parts(model)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    weights = {part: set(parts[part]) & trained for part in factors}
    if empty := [part for part, names in weights.items() if not names]:
        raise ValueError(f"{empty[0]!r} contains no weight that is trained")
    return {name: _factor(name, weights, factors) for name in parts.names if name in trained}


def _factor(name: str, weights: Mapping[str, set[str]], factors: Mapping[str, float]) -> float:
    containing = [part for part in weights if name in weights[part]]
    if not containing:
        return 1.0
    narrowest = min(containing, key=lambda part: len(weights[part]))
    for part in containing:
        if part != narrowest and not weights[narrowest] < weights[part]:
            raise ValueError(
                f"{narrowest!r} and {part!r} both contain {name}, and neither is within the other: "
                "name the weights that they share as a part of its own, or leave one out"
            )
    return factors[narrowest]
