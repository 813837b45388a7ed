"""diglot-prepare: download a corpus and train its tokenizer, so that training can start at once and offline."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("prepare")


import math
from typing import Annotated

from omegaconf import DictConfig

from diglot.commands.frame import command
from diglot.config import build, build_corpus, build_data
from diglot.data.options import DataOptions
from diglot.data.tokenizer import TokenizerSource
from diglot.system.quoting import printable


@command("prepare")
def main(*, data: Annotated[DictConfig, DataOptions], tokenizer: DictConfig) -> None:
    corpus = build_corpus(data)
    source: TokenizerSource = build(tokenizer, "tokenizer")
    module = build_data(data, corpus, source, source.sampling, seed=1)
    module.prepare_data(max_diagnosed_pairs=math.inf)  # the slow step
    print(corpus.describe())
    for note in module.notes:
        print(f"  {note}")
    for split, n in module.sizes.items():
        print(f"  {split}: {n:,} pairs")
    print(f"Ready in {printable(module.cache_dir)}/")
