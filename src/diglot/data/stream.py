"""The batches of prepared text: a pure function of the text, the options and the seed."""

from collections.abc import Mapping

from diglot.data.batching import Batching, Mixture
from diglot.data.options import DataOptions
from diglot.data.shards import Shards


def mixture_of(shards: Shards, weights: Mapping[str, float]) -> Mixture:
    """Return the multiset of the pairs of a pass.

    Args:
        shards: the prepared text.
        weights: weight of each corpus by name; 1 for a corpus that is not named.
    """
    counts = {corpus: counts["kept"] for corpus, counts in shards.metadata["corpora"].items()}
    return Mixture(list(counts.values()), [weights.get(corpus, 1.0) for corpus in counts], shards.n_versions)


def batching_of(shards: Shards, options: DataOptions, seed: int, mixture: Mixture) -> Batching:
    """Return the training batches.

    Args:
        shards: the prepared text.
        options: options of the data module.
        seed: seed of all random orders.
        mixture: multiset of the pairs of a pass.
    """
    src, tgt = shards.src, shards.tgt
    return Batching(
        src.lengths,
        tgt.lengths,
        options.tokens_per_batch,
        seed,
        shards.key,
        max_rows=options.max_rows,
        shapes="free" if options.shapes == "auto" else options.shapes,
        longest=0 if options.shapes == "free" else max(src.lengths.max(), tgt.lengths.max()),
        mixture=mixture,
    )
