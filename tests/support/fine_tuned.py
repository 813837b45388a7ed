"""Fine-tuning of small models of each family of Hugging Face on the sample corpus, for a test and a benchmark."""

import math
from collections import Counter
from pathlib import Path

from diglot.data.corpus import Sample
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer
from diglot.inference.scoring import score_pairs
from diglot.inference.translator import Translator
from support.commands import ROOT
from support.huggingface import FAMILIES

__all__ = ["FAMILIES", "KINDS", "dev_loss", "dev_text", "languages_of", "training_words", "unigram_loss"]
KINDS = ("all weights", "LoRA")
# The families whose tokenizers have tags of languages. The sample corpus has none of these languages, so that its text
# is read from its files, with the codes of two of them.
_CODES = {"m2m100": ("de", "en"), "nllb": ("deu_Latn", "eng_Latn"), "mbart50": ("de_DE", "en_XX")}
# T5 1.1 and mT5 have an output of its own, which is no linear layer of an attention or a feed-forward network.
_OWN_OUTPUT = ("mt5",)


def languages_of(family: str) -> tuple[str, str]:
    """Return the codes of the source and the target language of a family's runs."""
    return _CODES.get(family, ("avi", "bol"))


def training_words(family: str, kind: str, updates: int) -> list[str]:
    """Return the arguments of diglot-train that fine-tune a model of a family, except for its folders.

    The weights of the models are random. Adapters alone cannot make up for random embeddings, whose rows are also the
    output of most families, so that embeddings, norms and outputs are trained beside them.
    """
    words = ["trainer=cpu", "trainer.precision=32-true", "watch=none", "search=greedy", "search.max_len_b=10"]
    words += [f"run.updates={updates}", f"run.validate_every={updates}", "run.test=false", "label_smoothing=0"]
    words += ["scheduler=constant", "scheduler.lr=5e-3", "scheduler.warmup=30", "model.dropout=0"]
    if kind == "LoRA":
        beside = "embeddings,norms,output" if family in _OWN_OUTPUT else "embeddings,norms"
        words.append(f"lora={{rank:16,alpha:32,on:[attention,feed_forward],train:[{beside}]}}")
    if family not in _CODES:
        return ["data=sample", *words]
    text = [
        f"data.{split}.{side}={ROOT}/data/sample/{split}.{ending}"
        for split in ("train", "dev")
        for side, ending in (("src", "avi"), ("tgt", "bol"))
    ]
    codes = [f"data.{key}={code}" for key, code in zip(("src_lang", "tgt_lang"), languages_of(family), strict=True)]
    return ["data=files", *text, *codes, "data.tokens_per_batch=600", *words]


def dev_text() -> ParallelText:
    """Return the dev text of the sample corpus."""
    return Sample().read(Path())["dev"].load()


def dev_loss(path: Path, family: str) -> float:
    """Return the mean loss of a dev token under a checkpoint, in nats. Tags of languages do not count."""
    src_lang, tgt_lang = (code if family in _CODES else None for code in languages_of(family))
    translator = Translator.load(path, "cpu", src_lang=src_lang, tgt_lang=tgt_lang)
    losses = [-value for score in score_pairs(translator, dev_text()) if score for value in score.token_log_probs]
    return sum(losses) / len(losses)


def unigram_loss(tokenizer: Tokenizer) -> float:
    """Return the mean loss of a dev token if its probability is its frequency in the training text, in nats.

    A model that learns the frequencies of tokens and nothing else reaches this loss.
    """
    train = Sample().read(Path())["train"].load().tgt
    counts = Counter(piece for line in train for piece in _pieces(tokenizer, line))
    total = sum(counts.values()) + tokenizer.tgt_vocab_size
    dev = [piece for line in dev_text().tgt for piece in _pieces(tokenizer, line)]
    return -sum(math.log((counts[piece] + 1) / total) for piece in dev) / len(dev)


def _pieces(tokenizer: Tokenizer, line: str) -> list[int]:
    """Return the ids of a line of target text, with that of its end."""
    (source,) = tokenizer.encode([""])
    return [*tokenizer.encode_targets([line], [source._replace(tgt_prefix=[])])[0], tokenizer.special.eos]
