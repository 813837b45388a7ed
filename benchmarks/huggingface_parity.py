"""Agreement with the library transformers, for a small random model of each family that diglot reads and writes.

    python benchmarks/huggingface_parity.py [--sentences 100] [--families nllb bart ...]

"in" compares transformers' model and tokenizer of a folder with diglot's. "out" compares diglot's with the folder that
`make export format=huggingface` writes of it, and "again" with the folder that it writes of that folder. The table
gives the greatest difference of the log-probabilities of greedy outputs in float32 and in float64, the number of
sources and targets with the same ids, and the number of greedy outputs with the same tokens. Several languages take
turns in the sentences, if there are some. The text is the test text of the sample corpus.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

# isort: split
from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.data.corpus import Sample
from diglot.data.text import ParallelText
from diglot.data.tokenizer import EOS
from diglot.decoding import BeamSearch
from diglot.export import transformers_worker
from diglot.export.huggingface_parity import checked
from diglot.export.parity import Sentences, language_pairs
from diglot.export.writing import export
from diglot.huggingface.stock_tokenizer import StockTokenizer, stock_tokenizer
from diglot.huggingface.tokenizers import read_tokenizer
from support.huggingface import VARIANTS, huggingface_folder

# isort: split
import torch
from transformers import logging

LENGTH = 20  # tokens of a greedy output
POSITIONS = 80  # of the random models


def sentences_of(loaded: Checkpoint, text: ParallelText) -> Sentences:
    """Return the sentences of a text, whose languages take turns."""
    pairs = language_pairs(loaded.tokenizer, loaded.record)
    languages = [pairs[i % len(pairs)] for i in range(len(text.src))]
    sources = [
        loaded.tokenizer.encode([line], tgt_lang, src_lang)[0]
        for line, (src_lang, tgt_lang) in zip(text.src, languages, strict=True)
    ]
    return Sentences(sources, languages, text.src, text, "sample")


def rows(variant: str, text: ParallelText, folder: Path) -> Iterator[str]:
    """Yield the rows of the table for a variant."""
    original = huggingface_folder(variant, folder / "in")
    loaded = checkpoints.load(original)
    config = json.loads((original / "config.json").read_text())
    imported = read_tokenizer(original, config)
    stock = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
    of_folder = stock._replace(src_ids=imported.src_rows, tgt_ids=imported.tgt_rows)
    yield row(variant, "in", loaded, original, of_folder, text)
    for way, written in (("out", folder / "out"), ("again", folder / "again")):
        export(loaded, "huggingface", written, "format", 0)
        yield row(variant, way, loaded, written, stock, text)
        loaded = checkpoints.load(written)
        stock = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")


def row(variant: str, way: str, loaded: Checkpoint, folder: Path, stock: StockTokenizer, text: ParallelText) -> str:
    """Compare a folder with a checkpoint, and return a row of the table."""
    tokenizer, sentences = loaded.tokenizer, sentences_of(loaded, text)
    search = BeamSearch(beam_size=1, length_penalty=0.0, max_len_a=0.0, max_len_b=LENGTH)
    suppressed = [stock.tgt_ids[i] for i in {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id} - {EOS}]
    found = []
    for dtype in (torch.float32, torch.float64):
        compared = loaded._replace(model=loaded.model.to(dtype), search=search)
        ask = transformers_worker.answer
        found.append(checked(compared, folder, stock, sentences, POSITIONS, suppressed, ask)[0])
    loaded.model.float()
    single, double = found
    figures = [f"{each['log_probs']:.0e}" for each in found]
    ids = f"{single['lines_with_same_tokens']} of {single['lines']}"
    greedy = f"{single['identical']} and {double['identical']} of {single['sentences']}"
    return f"| {variant} | {way} | {stock.name if way != 'in' else ''} | {' | '.join(figures)} | {ids} | {greedy} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--families", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    test = Sample().read(Path())["test"].load()
    text = ParallelText(test.src[: options.sentences], test.tgt[: options.sentences])
    print("| model | way | tokenizer | float32 | float64 | same ids | same greedy outputs (float32, float64) |")
    print("|---|---|---|---:|---:|---:|---:|")
    for variant in options.families:
        with tempfile.TemporaryDirectory() as folder:
            for line in rows(variant, text, Path(folder)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
