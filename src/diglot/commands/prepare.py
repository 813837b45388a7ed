"""diglot-prepare: fetch a corpus and train its tokenizer, so that training can start at once and offline."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("prepare")


import math

from omegaconf import DictConfig

from diglot.commands.frame import command
from diglot.config import build, build_corpus, build_data
from diglot.data.tokenizer import TokenizerSource
from diglot.system.quoting import printable


@command("prepare")
def main(config: DictConfig) -> None:
    corpus = build_corpus(config.data)
    tokenizer: TokenizerSource = build(config.tokenizer, "tokenizer")
    data = build_data(config.data, corpus, tokenizer, tokenizer.sampling, seed=1)
    data.prepare_data(diagnosed=math.inf)  # what takes long is done here
    print(corpus.describe())
    for note in data.notes:
        print(f"  {note}")
    for split, n in data.sizes.items():
        print(f"  {split}: {n:,} pairs")
    print(f"Ready in {printable(data.cache_dir)}/")
