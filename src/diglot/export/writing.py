"""Atomic writing of an export, after checking that it translates like the model."""

from pathlib import Path
from typing import Any

from diglot import __version__
from diglot.checkpoint.file import Checkpoint
from diglot.config.exportable import check_format
from diglot.config.stock_class import class_name
from diglot.data.text import write_bytes, write_json
from diglot.decoding import BeamSearch
from diglot.export.folder import CARD, export_folder, hash_of_card, tokenizer_metadata, write_tokenizer
from diglot.export.model_card import CERTIFICATE, certificate_of, model_card
from diglot.huggingface.stock_tokenizer import stock_tokenizer, write_tokenizer_files
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
    """Export a checkpoint's model atomically; as ctranslate2 and huggingface, only if it translates like the model.

    Args:
        loaded: the checkpoint, on the CPU.
        form: ctranslate2, huggingface, peft or safetensors.
        folder: a new folder, or that of an earlier export.
        key: the config key of the format, for messages.
        n_checked: number of sentences to compare (not for safetensors and peft).
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
    if form == "peft":
        return [_export_peft(loaded, folder, key)]

    assert isinstance(model, Transformer)  # check_format rejects all other models
    if form == "huggingface":
        return _export_huggingface(loaded, model, folder, key, n_checked, file)

    from diglot.export import ctranslate2, parity

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
            "prefix_tokens": parity.prefix_tokens(tokenizer, loaded.record),
            "translate_batch": {**search, **parity.options(tokenizer)},
            "parity": figures,
        }
        write_json(temporary / "diglot.json", metadata)
    return [
        *lines,
        f"Written: {folder}/ (CTranslate2; in float32, which compute_type='int8' quantises when it is loaded)",
    ]


def _export_peft(loaded: Checkpoint, folder: Path, key: str) -> str:
    """Export the adapters. See `export`."""
    from diglot.export import peft

    with export_folder(folder) as temporary:
        peft.write(loaded, temporary, key)
        metadata = {"format": "peft", "diglot": __version__, "update": loaded.record.get("update")}
        write_json(temporary / "diglot.json", metadata)
    return f"Written: {folder}/ (adapters for peft; their base is the model of init_from, as a folder of transformers)"


def _export_huggingface(
    loaded: Checkpoint, model: Transformer, folder: Path, key: str, n_checked: int, file: str | None
) -> list[str]:
    """Export as a stock class of transformers. See `export`."""
    from diglot.export import huggingface, huggingface_parity, parity

    tokenizer, record = loaded.tokenizer, loaded.record
    stock = stock_tokenizer(tokenizer, record["model"], key)
    longest = huggingface.n_positions(model)
    pairs = parity.language_pairs(tokenizer, record)
    sentences = parity.some_sentences(loaded, n_checked, file, longest, pairs)
    with export_folder(folder) as temporary:
        huggingface.write_model(model, record, tokenizer, stock, loaded.search, temporary)
        names = write_tokenizer_files(stock, tokenizer, (record["src_lang"], record["tgt_lang"]), longest, temporary)
        figures, lines = None, ["Nothing was compared."]
        if n_checked:
            figures, lines = huggingface_parity.checked(loaded, temporary, stock, sentences, longest)
        name = class_name(record["model"])
        card = model_card(loaded, name, stock).encode()
        write_bytes(temporary / CARD, card)
        if (certificate := certificate_of(loaded)) is not None:
            write_json(temporary / CERTIFICATE, certificate)
        metadata = {
            "format": "huggingface",
            **tokenizer_metadata(tokenizer, record, names),
            "card": hash_of_card(card),
            "parity": figures,
        }
        write_json(temporary / "diglot.json", metadata)
    return [*lines, f"Written: {folder}/ ({name} and {stock.name} of transformers, with a model card: README.md)"]
