"""Hugging Face folders of small random models, for tests. Their tokenizers are trained on the sample corpus."""

import io
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentencepiece
import torch

from diglot.data.corpus import Sample
from diglot.huggingface.languages import MBART50

_SIZES = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 80}
_SIZES |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
_T5_SIZES = {"d_model": 32, "d_kv": 8, "num_heads": 3, "d_ff": 48, "num_layers": 2}
_TRAINABLE = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 80, "init_std": 0.1}
_TRAINABLE |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4}
_TRAINABLE |= {"decoder_attention_heads": 4}
_T5_TRAINABLE = {"d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 128, "num_layers": 1}
_T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_CODES = ["eng_Latn", "deu_Latn", "zho_Hans"]
FAMILIES = ("marian", "pegasus", "m2m100", "nllb", "bart", "byte_level", "mbart50", "t5", "mt5")
# Further variants: the family, and options of its config.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "marian, GELU": ("marian", {"activation_function": "gelu", "scale_embedding": False}),
    "pegasus, GELU": ("pegasus", {"activation_function": "gelu_new"}),
    "m2m100, unscaled": ("m2m100", {"scale_embedding": False, "encoder_layers": 3}),
    "bart, ReLU, scaled": ("bart", {"activation_function": "relu", "scale_embedding": True}),
    "t5, gated, untied": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5, other depth": ("t5", {"num_decoder_layers": 1, "layer_norm_epsilon": 1e-3}),
}

# Text with contractions, digits, runs of spaces and signs, and characters of several bytes.
BYTE_LEVEL_TEXT = 2 * (
    *("It's 2,500  or   3½ -- they're ===fine===", "Ünï's  ＂中文＂ 🎉🎉 don't -----"),
    *("\t a\u0301  don’t  ²²", "aaaa''''''  "),
)


@cache
def _model(**options: Any) -> bytes:
    train = Sample().read(Path())["train"].load()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(train.src[:400] + train.tgt[:400]),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 300, "normalization_rule_name": "nmt_nfkc", **options},
    )
    return model.getvalue()


def _pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def _tokens(texts: list[str], first: int) -> dict[str, Any]:
    return {
        str(i): {"content": text, "special": True, "lstrip": False, "rstrip": False, "normalized": False}
        for i, text in enumerate(texts, first)
    }


def _files(family: str) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return the tokenizer's files of a family, the name of its config's class in transformers, and its options."""
    both = _model()
    fairseq = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    if family == "marian":
        ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *_pieces(both), "<pad>"])}
        settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "avi", "target_lang": "bol"}
        pad = {"pad_token_id": ids["<pad>"], "decoder_start_token_id": ids["<pad>"], "eos_token_id": 0}
        files = {"source.spm": both, "target.spm": both, "vocab.json": ids, "tokenizer_config.json": settings}
        return files, "Marian", {"vocab_size": len(ids), "scale_embedding": True, "activation_function": "swish", **pad}
    if family in ("pegasus", "t5", "mt5"):
        name = {"pegasus": "Pegasus", "t5": "T5", "mt5": "MT5"}[family]
        settings = {"tokenizer_class": f"{name.removeprefix('M')}Tokenizer"}
        files = {"spiece.model": _model(**_T5_IDS), "tokenizer_config.json": settings}
        return files, name, {"vocab_size": 403 if family == "pegasus" else 428, "decoder_start_token_id": 0}
    if family == "m2m100":
        model = _model(model_type="bpe")
        ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *_pieces(model)])}
        settings = {"tokenizer_class": "M2M100Tokenizer"}
        files = {"sentencepiece.bpe.model": model, "vocab.json": ids, "tokenizer_config.json": settings}
        return files, "M2M100", {"vocab_size": len(ids) + 108, **fairseq}
    if family == "nllb":
        settings = {"tokenizer_class": "NllbTokenizer", "src_lang": "deu_Latn", "tgt_lang": "eng_Latn"}
        settings |= {"additional_special_tokens": _CODES, "added_tokens_decoder": _tokens([*_CODES, "<mask>"], 301)}
        files = {"sentencepiece.bpe.model": _model(model_type="bpe"), "tokenizer_config.json": settings}
        return files, "M2M100", {"vocab_size": 301 + len(_CODES) + 1, **fairseq}
    if family == "mbart50":
        settings = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE", "tgt_lang": "en_XX"}
        files = {"sentencepiece.bpe.model": both, "tokenizer_config.json": settings}
        return files, "MBart", {"vocab_size": 301 + len(MBART50) + 1, "scale_embedding": True, **fairseq}
    if family == "byte_level":
        files = {**byte_level_files(), "tokenizer_config.json": {"tokenizer_class": "BartTokenizer"}}
        return files, "Bart", {"vocab_size": 700, **fairseq}
    return _bart(both), "Bart", {"vocab_size": 304, **fairseq}


@cache
def _byte_level_merges() -> tuple[str, str]:
    import tokenizers

    train = Sample().read(Path())["train"].load()
    trained = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    text = [*train.src[:400], *train.tgt[:400], *BYTE_LEVEL_TEXT]
    trained.train_from_iterator(text, vocab_size=700, min_frequency=2, special_tokens=special)
    with TemporaryDirectory() as folder:
        trained.save_model(folder)
        return tuple((Path(folder) / name).read_text(encoding="utf-8") for name in ("vocab.json", "merges.txt"))


def byte_level_files() -> dict[str, Any]:
    """Return the vocab.json and merges.txt of a byte-level BPE, as in the folders of BART."""
    vocabulary, merges = _byte_level_merges()
    return {"vocab.json": json.loads(vocabulary), "merges.txt": merges.encode()}


def _part(name: str) -> dict[str, Any]:
    return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": 0}}


def _bart(model: bytes) -> dict[str, Any]:
    """Return the tokenizer.json of BARThez, which transformers 5 writes."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [[name, 0.0] for name in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab += [[processor.id_to_piece(i), processor.get_score(i)] for i in range(3, 300)]
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **special} for i, (text, _) in enumerate(vocab[:4])],
        "normalizer": None,
        "pre_tokenizer": space,
        "post_processor": {
            "type": "TemplateProcessing",
            **{key: [_part("<s>"), _part("A"), _part("</s>")] for key in ("single", "pair")},
            "special_tokens": {
                text: {"id": text, "ids": [i], "tokens": [text]} for i, text in ((0, "<s>"), (2, "</s>"))
            },
        },
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    }
    return {"tokenizer.json": content, "tokenizer_config.json": {"tokenizer_class": "BarthezTokenizer"}}


def _model_of(variant: str, folder: Path, sizes: Mapping[str, Any], t5_sizes: Mapping[str, Any]) -> Any:
    """Write the tokenizer of a family into a new folder, and return a model for it, as transformers initialises it."""
    import transformers

    family, more = VARIANTS[variant]
    files, name, config = _files(family)
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    options = {**(t5_sizes if name in ("T5", "MT5") else sizes), **config, **more}
    return transformers.AutoModelForSeq2SeqLM.from_config(getattr(transformers, f"{name}Config")(**options))


def trainable_folder(family: str, folder: Path) -> Path:
    """Write a folder with a small model of a family that can learn: with the initial weights of training. Return it."""
    torch.manual_seed(3)
    # As in the published models. Otherwise, Pegasus' positions would outweigh its embeddings.
    scaled = {"scale_embedding": True} if family == "pegasus" else {}
    _model_of(family, folder, {**_TRAINABLE, **scaled}, _T5_TRAINABLE).save_pretrained(folder)
    return folder


def huggingface_folder(variant: str, folder: Path, **options: Any) -> Path:
    """Write a folder with a random model of a family, as transformers saves it, and return it.

    Its weights are so large that no part of the model can be left out without a visible difference.

    Args:
        variant: one of VARIANTS, or of FAMILIES.
        folder: a new folder.
        options: arguments of `save_pretrained`.
    """
    model = _model_of(variant, folder, _SIZES, _T5_SIZES)
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        if model.config.model_type == "mt5" or not model.config.tie_word_embeddings:  # an output of its own
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        for key, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            is_cross = "encoder_attn." in key or "EncDecAttention." in key
            parameter.normal_(std=1.0 if is_cross else 0.1 if key.endswith(".bias") else 0.3, generator=random)
            if "norm" in key and key.endswith(".weight"):
                parameter += 1.0
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.5, generator=random)
    model.save_pretrained(folder, **options)
    return folder
