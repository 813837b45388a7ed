"""A tour of the Transformer: each part at work, with numbers and pictures, made with the modules that train.

    .venv/bin/python docs/tour.py [FOLDER] [--updates 600]

It trains a small model on the sample corpus and writes the pictures into FOLDER (build/tour). Except for times, its
output is the same in each run on a machine. docs/transformer.md has the terms, classes and keys.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diglot  # before torch: see diglot.system.threads

# isort: split
import numpy as np
import torch
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from diglot.config import CONF, build
from diglot.data.batch import Batch, Pairs
from diglot.data.batching import MicroBatch
from diglot.data.corpus import Sample
from diglot.data.flat import FlatIds
from diglot.errors import UserError
from diglot.inference.translator import Translator
from diglot.model import EncoderDecoder
from diglot.model.attention import AttentionMask, compute_attention_weights, merge_masks
from diglot.model.position import Alibi, Learned, PositionEncoding, RelativeBias, Rotary, Sinusoidal
from diglot.training.figures import Panel, draw, pixels
from diglot.training.heads import HeadSums
from diglot.training.loss import batch_loss, token_loss
from diglot.training.schedule import Cosine, InverseSqrt, Linear, Paper
from diglot.training.watch import position_panels

WIDTH = 800  # of a picture, in pixels
# What the tour trains: sinusoids in the encoder, learned positions in the decoder, and four heads of 16 dimensions.
SMALL = [
    *("data=sample", "model.d_model=64", "model.n_heads=4", "model.d_ff=256", "model/position=sinusoidal"),
    *("model/position@model.decoder_position=learned", "scheduler.lr=4e-3", "scheduler.warmup=60", "trainer=cpu"),
    *("search=greedy", "watch=none", "logger=none"),
]


class Tour:
    """A trained model, the dev sentences of the sample corpus, and the pictures so far.

    Args:
        folder: where the pictures go.
        translator: the trained model with its tokenizer and search.
    """

    def __init__(self, folder: Path, translator: Translator) -> None:
        self.folder, self.translator = folder, translator
        self.model, self.tokenizer = translator.model, translator.tokenizer
        dev = Sample().load(folder)["dev"]
        sources = self.tokenizer.encode(dev.src)
        targets = self.tokenizer.encode_targets(dev.tgt, sources)
        plain = [i for i, source in enumerate(sources) if not source.placeholders]
        sides = ([sources[i].ids for i in plain], [targets[i] for i in plain])
        self.pairs = Pairs(*(FlatIds.from_sequences(side, self.tokenizer.src_vocab_size) for side in sides))
        self.pictures: list[str] = []

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return dev pairs as a batch."""
        return self.pairs[MicroBatch(np.array(numbers), 0, 0.0, 0, 0)]

    def near(self, n: int, length: int) -> list[int]:
        """Return the n dev pairs whose sides are nearest to a length in tokens."""
        every = np.arange(len(self.pairs))
        distance = sum(abs(side.lengths[every] - length) for side in (self.pairs.src, self.pairs.tgt))
        return np.argsort(distance, kind="stable")[:n].tolist()

    def pieces(self, ids: Tensor, side: Any = "src") -> list[str]:
        """Return token ids as text."""
        return self.tokenizer.pieces(ids.tolist(), side)

    def save(self, figure: Figure, name: str) -> None:
        """Write a figure as a picture, with few colours so that the file is small."""
        figure.set_dpi(min(WIDTH / figure.get_figwidth(), 160))
        Image.fromarray(pixels(figure)).quantize(256).save(self.folder / name, optimize=True)
        self.pictures.append(name)
        print(f"  -> {name}")


def say(text: str) -> None:
    """Print a text in lines of at most 100 characters."""
    print(
        textwrap.fill(" ".join(text.split()), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    )


def plots(columns: int = 2, height: float = 3.6) -> tuple[Figure, Any]:
    """Return a figure and its plots side by side."""
    figure = Figure(figsize=(8, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def label(axes: Any, title: str, x: str, y: str) -> None:
    """Add a title, the names of the axes, a grid and a legend to a plot."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.lines or axes.patches:
        axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=9)


def model_of(*overrides: str, vocabulary: int) -> EncoderDecoder:
    """Return a model with new weights, as the train command builds it."""
    torch.manual_seed(1)
    config = compose("train", list(overrides))
    return build(config.model, "model", src_vocab_size=vocabulary, tgt_vocab_size=vocabulary).eval()


# ------------------------------------------------------------------------------------------------- attention


def scaling(tour: Tour) -> None:
    """Scaled dot products: why divide by sqrt(d_k)."""
    torch.manual_seed(1)
    widths = [4, 8, 16, 32, 64, 128, 256, 512]
    variances, plain, scaled = [], [], []
    for d_k in widths:
        q, k = torch.randn(1, 1, 256, d_k), torch.randn(1, 1, 32, d_k)
        variances.append(float((q @ k.mT).var()))
        undivided = compute_attention_weights(q * d_k**0.5, k, AttentionMask())
        plain.append(float(undivided.amax(-1).mean()))
        scaled.append(float(compute_attention_weights(q, k, AttentionMask()).amax(-1).mean()))
    say(
        f"""Queries and keys of variance 1 have dot products of variance {variances[0]:.1f} at d_k 4 and
        {variances[-1]:.0f} at d_k 512; divided by sqrt(d_k), {variances[0] / 4:.2f} and {variances[-1] / 512:.2f}.
        Without the division the largest of 32 softmax weights grows from {plain[0]:.2f} to {plain[-1]:.2f}, and
        the gradient vanishes; with it, it stays between {min(scaled):.2f} and {max(scaled):.2f}."""
    )
    figure, (left, right) = plots()
    left.loglog(widths, variances, "o-", label="q · k", base=2)
    left.loglog(widths, [v / d for v, d in zip(variances, widths)], "s-", label="q · k / sqrt(d_k)", base=2)
    right.semilogx(widths, plain, "o-", label="softmax(q · k)", base=2)
    right.semilogx(widths, scaled, "s-", label="softmax(q · k / sqrt(d_k))", base=2)
    right.set_ylim(0, 1)
    label(left, "variance of the scores", "width of a head, d_k", "variance")
    label(right, "largest weight of 32 keys", "width of a head, d_k", "weight (mean over queries)")
    tour.save(figure, "scaling.png")


def heads(tour: Tour) -> None:
    """Heads: what each head of the trained model attends to."""
    sums = HeadSums(causal=False)
    for pair in range(32):
        batch = tour.batch([pair])
        sums.add(tour.model.attention_weights(batch.src, batch.tgt_in, batch.src_mask).cross[-1][0])
    entropies = ", ".join(f"{entropy:.2f}" for entropy in sums.entropy)
    batch = tour.batch(tour.near(1, 10))
    weights = tour.model.attention_weights(batch.src, batch.tgt_in, batch.src_mask)
    source, target = tour.pieces(batch.src[0]), tour.pieces(batch.tgt_in[0], "tgt")
    say(
        f"""A head has its own projections, so each attends differently. Entropy of the cross-attention of the last
        layer over 32 sentences, by head, from 0 (one token) to 1 (all tokens equally): {entropies}."""
    )
    for kind, rows, columns in (("cross", target, source), ("encoder", source, source)):
        maps = getattr(weights, kind)[-1][0]
        names = ("target", "source") if kind == "cross" else ("source", "source")
        panels = [Panel(f"head {i}", one.numpy(), *names) for i, one in enumerate(maps, start=1)]
        title = "cross-attention" if kind == "cross" else "self-attention of the encoder"
        tour.save(draw(panels, f"{title}, last layer, trained model", rows, columns), f"heads_{kind}.png")


def masks(tour: Tour) -> None:
    """Masks: a target token does not see later ones, and no token sees padding."""
    short, long = tour.near(1, 7)[0], tour.near(1, 11)[0]
    batch = tour.batch([short, long])
    n, m = batch.tgt_in.size(1), batch.src.size(1)
    at, of = torch.arange(n), torch.arange(m)
    everything = torch.ones(2, n, dtype=torch.bool)
    causal = merge_masks(everything, None, at, at, causal=True, dtype=torch.float32).values
    padding = merge_masks(batch.src_mask, None, of, of, causal=False, dtype=torch.float32).values
    assert causal is not None
    assert padding is not None
    padding = padding.expand(2, 1, m, m)
    say(
        f"""The causal mask leaves {int(causal[1].sum())} of {n * n} pairs of target tokens. The shorter source has
        {int(batch.src_mask[0].sum())} tokens and {m - int(batch.src_mask[0].sum())} of padding, whose columns the
        padding mask closes for all queries. The loss leaves out padded targets by `tgt_mask`."""
    )
    figure, axes = plots(height=4.6)
    for plot, mask, texts, title in (
        (axes[0], causal[1, 0], tour.pieces(batch.tgt_in[1], "tgt"), "causal mask of the decoder"),
        (axes[1], padding[0, 0], tour.pieces(batch.src[0]), "padding mask of the shorter source"),
    ):
        image = plot.imshow(mask.float(), cmap="Blues", vmin=0, vmax=1)
        plot.set_xticks(range(len(texts)), texts, rotation=90, fontsize=8)
        plot.set_yticks(range(len(texts)), texts, fontsize=8)
        label(plot, title, "key", "query")
    figure.colorbar(image, ax=axes, ticks=[0, 1], label="0 hidden, 1 visible", shrink=0.6)
    tour.save(figure, "masks.png")


# ------------------------------------------------------------------------------------------------- positions


def sinusoids(tour: Tour) -> None:
    """Sinusoids: the position encoding of the paper, 100 positions of 512 dimensions."""
    table = Sinusoidal(512, 8, 64, causal=False).embed(torch.zeros(1, 100, 512), torch.arange(100))[0]
    products = table @ table.T
    say(
        f"""Each pair of dimensions turns with its own frequency. Every vector has the length
        {float(table[0].norm()):.0f} = sqrt(512 / 2), and the product of two depends on their distance only:
        {float(products[0, 10]):.1f} for positions 0 and 10, {float(products[80, 90]):.1f} for 80 and 90."""
    )
    figure = Figure(figsize=(8, 4))
    plot = figure.add_axes((0.08, 0.15, 512 / WIDTH, 0.75))  # a pixel for each dimension, three for each position
    image = plot.imshow(table, cmap="RdBu_r", aspect="auto", vmin=-1, vmax=1, interpolation="nearest")
    figure.colorbar(image, cax=figure.add_axes((0.75, 0.15, 0.03, 0.75)), label="added to the embedding")
    label(plot, "sinusoidal positions", "dimension", "position")
    tour.save(figure, "sinusoids.png")


def encodings(tour: Tour) -> None:
    """Other positions: learned, rotary, ALiBi and the buckets of T5."""
    learned = tour.model.decoder_position
    assert isinstance(learned, Learned)
    longest = int(tour.pairs.tgt.lengths[np.arange(len(tour.pairs))].max())
    norms = learned.table.weight.detach().norm(dim=1)
    trained, untouched = float(norms[:8].mean()), float(norms[-64:].mean())
    alibi, bias = Alibi(64, 4, 16, causal=True), RelativeBias(64, 4, 16, causal=False)
    slopes = ", ".join(f"{slope:g}" for slope in alibi.slopes())
    say(
        f"""Learned: the first 8 vectors of the trained decoder have grown to a mean norm of {trained:.2f}; the last 64,
        beyond the longest dev target of {longest} tokens, still have that of their initial values,
        {untouched:.2f}. Rotary: nothing is added, queries and keys are turned, and scores depend on the distance.
        ALiBi: a penalty that grows with the distance, with the slopes {slopes} by head. T5: one learned bias for each
        of {bias.table.num_embeddings} buckets of distances."""
    )
    shown: dict[str, PositionEncoding] = {"learned": learned, "rotary": Rotary(64, 1, 64, causal=False), "alibi": alibi}
    for name, encoding in shown.items():
        panels = position_panels(encoding, 64, torch.device("cpu"))
        tour.save(draw(panels, f"{type(encoding).__name__} positions"), f"{name}.png")
    figure, axes = plots(height=3.8)
    at = torch.arange(160)
    for plot, causal in zip(axes, (False, True)):
        buckets = RelativeBias(64, 4, 16, causal=causal).bucket(at[None, :] - at[:, None])
        seen = buckets.float().masked_fill((at[None, :] > at[:, None]) & causal, torch.nan)
        image = plot.imshow(seen, cmap="nipy_spectral", vmin=0, vmax=31, interpolation="nearest")
        stack = "decoder" if causal else "encoder"
        label(plot, f"T5 buckets of the {stack}", "position of the key", "position of the query")
    figure.colorbar(image, ax=axes, label="bucket", shrink=0.8)
    tour.save(figure, "t5_buckets.png")


# ------------------------------------------------------------------------------------------------- training


def teacher_forcing(tour: Tour) -> None:
    """Teacher forcing: the decoder reads the reference while it is trained, and its own output afterwards."""
    one = tour.batch(tour.near(1, 9))
    print(f"  decoder input  {' '.join(tour.pieces(one.tgt_in[0], 'tgt'))}")
    print(f"  labels         {' '.join(tour.pieces(one.labels[0], 'tgt'))}")
    batch = tour.batch(range(0, len(tour.pairs), 2))
    with torch.no_grad():
        loss = batch_loss(tour.model, batch, label_smoothing=0.0)
        forced = tour.model(batch.src, batch.tgt_in, batch.src_mask).argmax(-1)
    free = torch.zeros_like(batch.labels)
    found = tour.translator.search(tour.model, batch.src, batch.src_mask, tour.tokenizer.special)
    for row, (best, *_) in zip(free, found):
        tokens = [*best.tokens, tour.tokenizer.special.eos][: len(row)]
        row[: len(tokens)] = torch.tensor(tokens)
    mask, n = batch.tgt_mask, 12
    shares = [((made == batch.labels) & mask).sum(0)[:n] / mask.sum(0)[:n] for made in (forced, free)]
    totals = [float(((made == batch.labels) & mask).sum() / mask.sum()) for made in (forced, free)]
    say(
        f"""The labels are the input, one token ahead. Given the reference so far, {totals[0]:.0%} of the next tokens
        are right (perplexity {float((loss.nll / loss.tokens).exp()):.2f}). In free decoding, where an error changes all
        that follows, {totals[1]:.0%} of the tokens are those of the reference at their position."""
    )
    figure, (plot,) = plots(1)
    for share, name, mark in zip(shares, ("teacher forcing", "free decoding (greedy)"), "os"):
        plot.plot(range(1, n + 1), share, f"{mark}-", label=name)
    plot.set_ylim(0, 1)
    label(plot, f"tokens of {len(batch.src)} dev sentences that equal the reference", "position", "share")
    tour.save(figure, "teacher_forcing.png")


def smoothed_target(n: int, smoothing: float) -> Tensor:
    """Return the target distribution over n tokens for label 3, from the gradient of the loss, softmax - target."""
    logits = torch.zeros(1, 1, n, requires_grad=True)
    token_loss(logits, torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.bool), smoothing).smoothed.backward()
    assert logits.grad is not None
    return (logits.detach().softmax(-1) - logits.grad)[0, 0]


def label_smoothing(tour: Tour) -> None:
    """Label smoothing: the distribution that the model is trained towards."""
    n = tour.tokenizer.tgt_vocab_size
    target = smoothed_target(n, 0.1)
    least = token_loss(target.log()[None, None], torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.bool), 0.1).smoothed
    say(
        f"""With 0.1 and a vocabulary of {n}, the label has {float(target[3]):.4f} and every other token
        {float(target[0]):.6f}. So the loss cannot fall below {float(least):.2f}; without smoothing, not below 0."""
    )
    figure, (plot,) = plots(1, 3.2)
    for i, smoothing in enumerate((0.0, 0.1, 0.3)):
        plot.bar(
            np.arange(10) + 0.27 * (i - 1), smoothed_target(10, smoothing), 0.25, label=f"label_smoothing={smoothing}"
        )
    plot.set_xticks(range(10))
    label(plot, "target distribution for label 3 of a vocabulary of 10", "token", "probability")
    tour.save(figure, "label_smoothing.png")


def warm_up(tour: Tour) -> None:
    """Warm-up: the learning rate by update."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    total = 20_000
    paper = Paper(optimizer, total, d_model=512)
    say(
        f"""The paper's schedule rises for 4,000 updates to {paper.rate(4000):.2e}, then falls with the inverse square
        root: {paper.rate(16_000):.2e} at update 16,000. A quarter of d_model doubles the rate:
        {Paper(optimizer, total, d_model=128).rate(4000):.2e} for 128."""
    )
    updates = range(1, total + 1, 50)
    figure, (left, right) = plots()
    for d_model, warmup in ((512, 4000), (512, 8000), (256, 4000)):
        schedule: Any = Paper(optimizer, total, d_model=d_model, warmup=warmup)
        left.plot(updates, [schedule.rate(u) for u in updates], label=f"d_model {d_model}, warm-up {warmup}")
    for kind in (Linear, Cosine, InverseSqrt):
        schedule = kind(optimizer, total, lr=1e-3, warmup=2000)
        right.plot(updates, [schedule.rate(u) for u in updates], label=kind.__name__)
    label(left, "scheduler=paper", "update", "learning rate")
    label(right, "other schedulers, lr 1e-3, warm-up 2000", "update", "learning rate")
    for plot in (left, right):
        plot.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    tour.save(figure, "warm_up.png")


# ------------------------------------------------------------------------------------------------- layers


def norm_placement(tour: Tour) -> None:
    """Residuals and norms: gradients by layer before the first update."""
    batch, n_layers, vocabulary = tour.batch(range(24)), 8, tour.tokenizer.src_vocab_size
    sizes = [f"model.n_{stack}_layers={n_layers}" for stack in ("encoder", "decoder")]
    sizes += ["model.d_model=128", "model.d_ff=512", "model.n_heads=4"]
    found: dict[str, list[float]] = {}
    for residual in ("post_norm", "pre_norm", "sandwich_norm", "deep_norm"):
        model: Any = model_of("model=base", f"model/residual={residual}", *sizes, vocabulary=vocabulary)
        loss = batch_loss(model, batch, label_smoothing=0.1)
        (loss.smoothed / loss.tokens).backward()
        found[residual] = [
            sum(float(p.grad.norm()) ** 2 for p in layer.feed_forward.parameters()) ** 0.5 for layer in model.decoder
        ]
    post, pre = found["post_norm"], found["pre_norm"]
    say(
        f"""{n_layers} + {n_layers} layers, the feed-forward networks of the decoder. With post-norm, the gradient of
        the last layer is {post[-1] / post[0]:.1f} times that of the first, and a warm-up is needed (Xiong et al.,
        2020); with pre-norm, {pre[-1] / pre[0]:.1f} times."""
    )
    figure, (plot,) = plots(1)
    for (residual, norms), mark in zip(found.items(), "os^v"):
        plot.semilogy(range(1, n_layers + 1), norms, f"{mark}-", label=f"model/residual={residual}")
    label(plot, "gradient of each decoder layer at initialisation", "layer", "norm of the gradient")
    tour.save(figure, "norm_placement.png")


def tying(tour: Tour) -> None:
    """Tying: what shared embeddings save."""
    vocabulary, kinds = 32_000, ("none", "target", "all")
    embeddings, rest = [], []
    for kind in kinds:
        with torch.device("meta"):
            model = model_of("model=base", f"model.tying={kind}", vocabulary=vocabulary)
        matrices = {model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight}
        embeddings.append(sum(matrix.numel() for matrix in matrices) / 1e6)
        rest.append(sum(p.numel() for p in model.parameters()) / 1e6 - embeddings[-1])
    said = ", ".join(f"{kind} {e + r:.1f} M" for kind, e, r in zip(kinds, embeddings, rest))
    say(f"The paper's base model with a vocabulary of 32,000 has, by model.tying: {said} parameters.")
    figure, (plot,) = plots(1, 3)
    plot.barh(kinds, rest, label="layers")
    plot.barh(kinds, embeddings, left=rest, label="embeddings and output")
    label(plot, "model=base, vocabulary of 32,000", "parameters, millions", "model.tying")
    tour.save(figure, "tying.png")


def recurrence(tour: Tour) -> None:
    """Recurrence: the model that the Transformer replaced."""
    vocabulary, lengths = tour.tokenizer.src_vocab_size, [10, 20, 40, 80]
    figure, (left, right) = plots()
    for name, mark in (("tiny", "o"), ("gru_attention", "s")):
        model = model_of(f"model={name}", vocabulary=vocabulary)
        seconds, steps = [], []
        for length in lengths:
            tokens = torch.randint(4, vocabulary, (8, length), generator=torch.Generator().manual_seed(1))
            batch = tour.batch([0])._replace(
                src=tokens, src_mask=tokens > 0, tgt_in=tokens, labels=tokens, tgt_mask=tokens > 0
            )
            times = []
            for _ in range(3):
                start = time.perf_counter()
                loss = batch_loss(model, batch, label_smoothing=0.1).smoothed
                loss.backward()
                times.append(time.perf_counter() - start)
            seconds.append(min(times))
            steps.append(chain_length(loss))
        say(
            f"""{name}: {sum(p.numel() for p in model.parameters()):,} parameters. A training step on 8 sentences takes
            {seconds[0]:.3f} seconds for 10 tokens and {seconds[-1]:.3f} for 80; the longest chain of operations that
            must wait for each other has {steps[0]:,} and {steps[-1]:,}."""
        )
        left.plot(lengths, seconds, f"{mark}-", label=f"model={name}")
        right.plot(lengths, steps, f"{mark}-", label=f"model={name}")
    label(left, "training step, 8 sentences", "tokens of a side", "seconds")
    label(right, "longest chain of operations", "tokens of a side", "operations")
    tour.save(figure, "recurrence.png")


def chain_length(loss: Tensor) -> int:
    """Return the number of operations on the longest path back from a loss, in the graph that autograd recorded."""
    longest: dict[Any, int] = {}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [each for each, _ in node.next_functions if each is not None]
        unknown = [each for each in before if each not in longest]
        if unknown:
            waiting += unknown
        else:
            longest[waiting.pop()] = 1 + max((longest[each] for each in before), default=0)
    return longest[loss.grad_fn]


# ------------------------------------------------------------------------------------------------- decoding


@torch.inference_mode()
def key_value_cache(tour: Tour) -> None:
    """KV cache: decoding reads only the newest token."""
    sizes = ["model.d_model=128", "model.n_heads=4", "model.d_ff=512", "model/position=sinusoidal"]
    model = model_of(*sizes, vocabulary=tour.tokenizer.src_vocab_size).double()  # no ties by rounding
    batch, n = tour.batch(range(4)), 96
    memory = model.encode(batch.src, batch.src_mask)
    made, seconds = [], []
    for cache in (model.new_cache(), None):
        tokens, times, start = batch.tgt_in[:, :1], [], time.perf_counter()
        for _ in range(n):
            logits = model.decode(tokens if cache is None else tokens[:, -1:], memory, batch.src_mask, cache)
            tokens = torch.cat((tokens, logits[:, -1:].argmax(-1)), 1)
            times.append(time.perf_counter() - start)
        made.append(tokens)
        seconds.append(times)
    same = int((made[0] == made[1]).sum()) - len(tokens)
    say(
        f"""{n} tokens of {len(tokens)} sentences take {seconds[0][-1]:.2f} seconds with the cache and
        {seconds[1][-1]:.2f} without it, which computes all keys and values again for every token. {same} of
        {n * len(tokens)} tokens are the same."""
    )
    figure, (plot,) = plots(1)
    for times, name in zip(seconds, ("with the cache", "without")):
        plot.plot(range(1, n + 1), times, label=name)
    label(plot, f"decoding {len(tokens)} sentences", "tokens so far", "seconds")
    tour.save(figure, "kv_cache.png")


STEPS: tuple[Callable[[Tour], None], ...] = (
    *(scaling, heads, masks, sinusoids, encodings, teacher_forcing, label_smoothing, warm_up),
    *(norm_placement, tying, key_value_cache, recurrence),
)


@contextmanager
def configs() -> Iterator[None]:
    """Let Hydra find the configs of diglot."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def trained(updates: int, folder: Path) -> Translator:
    """Train the small model with the train command and return its translator."""
    words = [*SMALL, f"run.updates={updates}", f"run.validate_every={updates}"]
    words += [f"run.folder={folder / 'run'}", f"data.cache_dir={folder / 'cache'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "diglot", "train", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"training has failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("Trained "))
    say(said)
    return diglot.load(folder / "run", "cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the model and show all steps.

    Raises:
        UserError: the number of updates is not positive, or the training fails.
        OSError: the folder cannot be written.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/tour"))
    parser.add_argument("--updates", type=int, default=600, help="length of the training")
    options = parser.parse_args(arguments)
    if options.updates < 1:
        raise UserError(f"--updates ({options.updates}) must be positive")
    start = time.perf_counter()
    torch.set_num_threads(1)  # small models gain nothing from more, and their sums depend on the number
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"A small model trains for {options.updates} updates on the sample corpus")
    with tempfile.TemporaryDirectory() as folder:
        tour = Tour(options.folder, trained(options.updates, Path(folder)))
    with configs():
        for step in STEPS:
            print(f"\n{step.__doc__}")
            step(tour)
    print(f"\n{len(tour.pictures)} pictures in {time.perf_counter() - start:.0f} seconds, in {options.folder}/:")
    print(textwrap.fill(" ".join(tour.pictures), 100, initial_indent="  ", subsequent_indent="  "))


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"tour: {error}")
