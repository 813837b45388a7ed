"""Atomic writing of an export, after checking that it translates like the model."""

from pathlib import Path
from typing import Any

from diglot.checkpoint.file import Checkpoint
from diglot.config.exportable import check_format
from diglot.data.text import write_json
from diglot.decoding import BeamSearch
from diglot.export.folder import export_folder, write_tokenizer
from diglot.model import Transformer

CHECKED = 100  # number of sentences compared by default


def export(
    loaded: Checkpoint,
    form: str,
    folder: Path,
    key: str,
    n_checked: int = CHECKED,
    file: str | None = None,
) -> list[str]:
    """Export a checkpoint's model atomically; in CTranslate2's format, only if it translates like the model.

    Args:
        loaded: the checkpoint, on the CPU.
        form: ctranslate2 or safetensors.
        folder: a new folder, or that of an earlier export.
        key: the config key of the format, for messages.
        n_checked: number of sentences to compare (ctranslate2 only).
        file: a file of source lines to compare; None: the run's dev text, or else random tokens.

    Returns:
        A report, as lines to print.

    Raises:
        UserError: the format cannot represent the model, the export translates differently, or the folder cannot be
            written.
    """
    check_format(form, loaded.record["model"], key)
    model, tokenizer = loaded.model, loaded.tokenizer
    if form == "safetensors":
        from diglot.export import safetensors

        with export_folder(folder) as temporary:
            safetensors.write(loaded, temporary)
        return [f"Written: {folder}/ (safetensors)"]

    from diglot.export import ctranslate2, parity

    assert isinstance(model, Transformer)  # check_format rejects all other models
    longest = ctranslate2.longest(model)
    sentences = parity.some_sentences(loaded, n_checked, file, longest["source"])
    with export_folder(folder) as temporary:
        ctranslate2.write(model, tokenizer, temporary)
        figures, lines = None, ["Nothing was compared."]
        if n_checked:
            figures, lines = parity.checked(loaded, temporary, sentences, longest["target"])
        search: dict[str, Any] = {"beam_size": 1}
        if isinstance(loaded.search, BeamSearch):
            penalty = loaded.search.length_penalty
            search = {"beam_size": loaded.search.beam_size, "length_penalty": 1.0 if penalty == "mean" else penalty}
        metadata = {
            "format": "ctranslate2",
            **write_tokenizer(temporary, tokenizer, loaded.record),
            "longest": longest,
            "translate_batch": {**search, **parity.options(tokenizer)},
            "parity": figures,
        }
        write_json(temporary / "diglot.json", metadata)
    return [
        *lines,
        f"Written: {folder}/ (CTranslate2; in float32, which compute_type='int8' quantises when it is loaded)",
    ]
