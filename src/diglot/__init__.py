"""Train encoder-decoder Transformers for translation and other sequence-to-sequence work."""

from typing import TYPE_CHECKING

from diglot.system.threads import spin_shortly

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from diglot.inference.translator import Translator

__version__ = "0.1.0"

spin_shortly()  # here, for every command and script comes by before it imports torch


def load(path: "str | Path", device: str | None = None, trust: "Collection[str]" = ()) -> "Translator":
    """The translator that a checkpoint file, or a run's folder, holds.

    Args:
        path: the checkpoint.
        device: cpu, cuda, ...; None: a GPU if there is one.
        trust: modules whose classes the checkpoint may name, beside those of your own program that are imported. No
            module is imported because a checkpoint names it.

    Example:
        `diglot.load("runs/NAME/best.ckpt").translate(["Turn on the light."], beam=4)`
    """
    from diglot.inference.translator import Translator  # only now: importing diglot stays quick

    return Translator.load(path, device, trust=trust)
