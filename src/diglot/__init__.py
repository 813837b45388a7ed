"""Train encoder-decoder Transformers for translation and other sequence-to-sequence work."""

from typing import TYPE_CHECKING

from diglot.system.threads import spin_shortly

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from diglot.decoding.layout import Precision
    from diglot.inference.translator import Translator

__version__ = "0.1.0"

spin_shortly()  # here, since every command and script runs this line before it imports torch


def load(
    path: "str | Path",
    device: str | None = None,
    trust: "Collection[str]" = (),
    precision: "Precision" = "float32",
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> "Translator":
    """Return the translator in a checkpoint file or in a run's folder.

    Args:
        path: the checkpoint.
        device: cpu, cuda, ...; None: a GPU if there is one.
        trust: modules whose classes the checkpoint may name, in addition to modules of your own program that are
            already imported. A module is never imported only because a checkpoint names it.
        precision: float32; or bfloat16 or int8, which are faster and may change some outputs.
        src_lang: code of the language of the lines, for a model with tags for it; None: that of the checkpoint.
        tgt_lang: code of the language to translate into, for a model with tags for it; None: that of the checkpoint.

    Example:
        `diglot.load("runs/NAME/best.ckpt").translate(["Turn on the light."], beam=4)`
    """
    from diglot.inference.translator import Translator  # imported here to keep `import diglot` fast

    return Translator.load(path, device, trust=trust, precision=precision, src_lang=src_lang, tgt_lang=tgt_lang)
