"""Callbacks that show what a model does while it learns: images, texts and numbers of fixed dev sentences.

They run in the first process only and do not change the run: the weights are the same with and without them.
"""

from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn

from diglot.data.batch import Batch
from diglot.data.batching import MicroBatch
from diglot.data.module import TranslationData
from diglot.data.tokenizer import SLOTS, Side
from diglot.errors import UserError
from diglot.model import AttentionWeights, EncoderDecoder
from diglot.model.position import PositionEncoding
from diglot.training.dev_scores import DevScores
from diglot.training.figures import Panel, draw, pixels, say_once
from diglot.training.head_maps import draw_heads
from diglot.training.heads import HeadSums
from diglot.training.loggers import Loggers
from diglot.training.task import TranslationTask

KINDS = {  # kinds of attention, with the sides of queries and keys
    "encoder": "self-attention of the encoder, source on source",
    "decoder": "self-attention of the decoder, target on target",
    "cross": "cross-attention, target on source",
}


class Watcher(L.Callback):
    """Callback that inspects the model at every `every`-th validation and at the one after the last update.

    It does so before the validation epoch ends, while the model holds the weights that were validated. A weight average
    is swapped out afterwards.

    Args:
        every: number of validations from one inspection to the next.
    """

    def __init__(self, every: int) -> None:
        at_least(1, every=every)
        self.every = every

    def check(self, model: EncoderDecoder) -> None:
        """Check that the model has what the callback shows; called before the run reads any data.

        Args:
            model: a model like the run's; its values do not matter, so it may be on the meta device.

        Raises:
            UserError: it does not; the message names what the model has.
        """

    def look(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData) -> None:
        """Log what the callback shows. It runs in the first process only, so it must not wait for the others."""
        raise NotImplementedError

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if shows(trainer) and self._is_due(trainer):
            self.look(trainer, *parts(trainer, pl_module))

    def _is_due(self, trainer: L.Trainer) -> bool:
        if 0 < trainer.max_steps <= trainer.global_step:
            return True
        # The update gives the number of validations so far, also in a resumed run.
        micro_batches = trainer.global_step * trainer.accumulate_grad_batches
        return micro_batches // (trainer.val_check_batch or 1) % self.every == 0


class AttentionMaps(Watcher):
    """Callback that draws each head's attention to a dev sentence, with the reference as the target.

    There is one figure for each sentence, layer and kind of attention, with one panel per head.

    Args:
        sentences: number of sentences; the ones nearest to `length`, the same in every run on the same data.
        length: number of tokens on each side.
        layers: numbers of the layers, from 1, or from -1 backwards from the last; or "all".
        heads: numbers of the heads, counted in the same way; None for all.
        kinds: some of encoder, decoder and cross; None for all.
        every: see Watcher.
    """

    def __init__(
        self,
        *,
        sentences: int = 2,
        length: int = 12,
        layers: list[int] | Literal["all"] = [-1],  # noqa: B006  # nothing changes it
        heads: list[int] | None = None,
        kinds: list[Literal["encoder", "decoder", "cross"]] | None = None,
        every: int = 2,
    ) -> None:
        super().__init__(every)
        at_least(1, sentences=sentences, length=length)
        self.layers, self.heads = None if layers == "all" else layers, heads
        for name, numbers in (("layers", self.layers), ("heads", heads)):
            if isinstance(numbers, str) or (numbers is not None and (not numbers or 0 in numbers)):
                raise ValueError(f"{name} ({numbers}) must be numbers from 1 or, counted from the last, from -1")
        if kinds is not None and (not kinds or not set(kinds) <= set(KINDS)):
            raise ValueError(f"kinds ({kinds}) must be one or more of {', '.join(KINDS)}")
        self.sentences, self.length = sentences, length
        self.kinds: list[str] = list(KINDS if kinds is None else kinds)

    def check(self, model: EncoderDecoder) -> None:
        tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
        weights = model.attention_weights(tokens, tokens)
        for kind in self.kinds:
            maps = getattr(weights, kind)
            for i in _chosen("layers", self.layers, len(maps), kind):
                _chosen("heads", self.heads, maps[i].size(1), kind)

    def look(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData) -> None:
        pairs = nearest(data, self.sentences, self.length)
        if not pairs:
            say_once("attention: nothing to draw, every dev pair has a blank side or is longer than data.max_len")
        for number, pair in enumerate(pairs, start=1):
            batch = dev_sentence(data, pair)
            weights = attention_weights(task, batch)
            source = self._labels(data, pair, batch.src[0].tolist(), "src")
            target = self._labels(data, pair, batch.tgt_in[0].tolist(), "tgt")
            for kind in self.kinds:
                maps = getattr(weights, kind)
                for i in _chosen("layers", self.layers, len(maps), kind):
                    heads = _chosen("heads", self.heads, maps[i].size(1), kind)
                    sides = ("source" if kind == "encoder" else "target", "target" if kind == "decoder" else "source")
                    figure = draw(
                        [Panel(f"layer {i + 1} head {h + 1}", maps[i][0, h].cpu().numpy(), *sides) for h in heads],
                        f"{KINDS[kind]}:\nlayer {i + 1}, sentence {number}, update {trainer.global_step:,}",
                        rows=source if kind == "encoder" else target,
                        columns=target if kind == "decoder" else source,
                    )
                    tag = f"attention/{kind}_layer{i + 1}_sentence{number}"
                    Loggers(trainer.loggers).figure(tag, pixels(figure), trainer.global_step)

    def _labels(self, data: TranslationData, pair: int, ids: list[int], side: Side) -> list[str]:
        """Return tokens as text, with the pair's placeholders in place of their slots."""
        names = str.maketrans(dict(zip(SLOTS, data.dev_sources[pair].placeholders)))
        return [piece.translate(names) for piece in data.tokenizer.pieces(ids, side)]


class HeadStatistics(Watcher):
    """Callback that draws a value for each head of each layer: see `HeadSums` and `HEAD_MAPS`.

    Tables also get the entropy of each head, whether it is dead, and the number of dead heads.

    Args:
        sentences: number of dev sentences to sum over, of all lengths, the same in every run on the same data.
        every: see Watcher.
    """

    def __init__(self, *, sentences: int = 32, every: int = 2) -> None:
        super().__init__(every)
        at_least(1, sentences=sentences)
        self.sentences = sentences

    def look(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData) -> None:
        sums: dict[tuple[str, int], HeadSums] = {}  # by kind and layer
        for pair in spread(data, self.sentences):  # one at a time, without padding and with little memory
            for kind, maps in attention_weights(task, dev_sentence(data, pair))._asdict().items():
                for layer, weights in enumerate(maps, start=1):
                    of_layer = sums.setdefault((kind, layer), HeadSums(kind == "decoder", kind == "cross"))
                    of_layer.add(weights[0])
        sums = {place: of_layer for place, of_layer in sums.items() if of_layer}
        loggers = Loggers(trainer.loggers)
        loggers.table(_head_values(sums), trainer.global_step)
        for name, (kinds, title, maximum) in HEAD_MAPS.items():
            maps = {kind: _by_layer(sums, kind, name) for kind in kinds if any(of == kind for of, _ in sums)}
            if maps:
                dead = {kind: _by_layer(sums, kind, "dead") > 0 for kind in maps} if name == "entropy" else None
                figure = draw_heads(maps, f"{title}\nupdate {trainer.global_step:,}", maximum, dead)
                loggers.figure(f"heads/{name}", pixels(figure), trainer.global_step)


# The figures of HeadStatistics: by name of a property of HeadSums, the kinds of attention, the title, and the value at
# the end of the colour scale, or None for the greatest.
HEAD_MAPS: dict[str, tuple[list[str], str, float | None]] = {
    "entropy": (list(KINDS), "entropy: 0 attends to one token, 1 to all\nequally; red frame: dead", 1.0),
    "distance": (list(KINDS), "distance of the attended tokens, in tokens", None),
    "coverage": (["cross"], "source coverage: share of source tokens\nthat get the attention of a target token", 1.0),
    "doubles": (list(KINDS), "doubles: attention shared with the most\nsimilar head of the layer", 1.0),
}


def _by_layer(sums: dict[tuple[str, int], HeadSums], kind: str, name: str) -> np.ndarray:
    """Return a statistic of all heads of a kind of attention (layers, heads), with NaN where there is no head."""
    rows = [getattr(of_layer, name).float().cpu().numpy() for (of, _), of_layer in sums.items() if of == kind]
    values = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, found in zip(values, rows, strict=True):
        row[: len(found)] = found
    return values


def _head_values(sums: dict[tuple[str, int], HeadSums]) -> dict[str, float]:
    """Return the entropy of each head, whether it is dead, and the number of dead heads of each kind."""
    values: dict[str, float] = {}
    for (kind, layer), of_heads in sums.items():
        dead = of_heads.dead.tolist()
        for head, entropy in enumerate(of_heads.entropy.tolist()):
            values[f"entropy/{kind}_layer{layer}_head{head + 1}"] = entropy
            values[f"dead/{kind}_layer{layer}_head{head + 1}"] = float(dead[head])
        total = f"dead_heads/{kind}"
        values[total] = values.get(total, 0.0) + sum(dead)
    return values


class PositionMaps(Watcher):
    """Callback that draws position encodings: once if they have no trained parameters, otherwise at every inspection.

    Args:
        positions: number of positions, from the first.
        every: see Watcher.
    """

    def __init__(self, *, positions: int = 64, every: int = 2) -> None:
        super().__init__(every)
        at_least(2, positions=positions)
        if positions > 2048:  # a bias has a value for each pair of positions
            raise ValueError(f"positions ({positions}) must be at most 2048")
        self.positions = positions

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step == 0 and shows(trainer):
            self._draw(trainer, *parts(trainer, pl_module), trained=False)

    def look(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData) -> None:
        self._draw(trainer, task, data, trained=True)

    def _draw(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData, trained: bool) -> None:
        for name, encoding in task.model.named_children():
            if not isinstance(encoding, PositionEncoding):
                continue
            if any(parameter.requires_grad for parameter in encoding.parameters()) != trained:
                continue
            stack = name.removesuffix("_position")
            panels = position_panels(encoding, self.positions, task.device)
            if panels:
                title = f"{stack} positions: {type(encoding).__name__}, update {trainer.global_step:,}"
                picture = pixels(draw(panels, title))
                Loggers(trainer.loggers).figure(f"position/{stack}", picture, trainer.global_step)


class SampleTranslations(Watcher):
    """Callback that logs a table of dev sentences, their references and their translations.

    Args:
        sentences: number of sentences, of all lengths, the same in every run on the same data.
        every: see Watcher.
    """

    def __init__(self, *, sentences: int = 5, every: int = 1) -> None:
        super().__init__(every)
        at_least(1, sentences=sentences)
        self.sentences = sentences

    def look(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData) -> None:
        translations = next(c for c in trainer.callbacks if isinstance(c, DevScores)).translations  # type: ignore[attr-defined]
        dev = data.held_out["dev"]
        lines = ["| pair | source | reference | translation |", "|---|---|---|---|"]
        for pair in spread(data, self.sentences):
            if pair in translations:  # limit_val_batches may leave pairs out
                references = "<br>".join(map(literal, dev.select([pair]).reference_lines))
                source, translation = literal(dev.src[pair]), literal(translations[pair])
                lines.append(f"| {pair + 1} | {source} | {references} | {translation} |")
        Loggers(trainer.loggers).text("translations/dev", "\n".join(lines), trainer.global_step)


def literal(text: str) -> str:
    """Return a line that Markdown and HTML show literally."""
    special = {ord(c): f"&#{ord(c)};" for c in "\\`*_[]<>|&~$"}
    return " ".join(text.split()).translate(special)


def attention_weights(task: TranslationTask, batch: Batch) -> AttentionWeights:
    """Compute the attention weights for a batch, which is copied to the task's device."""
    src, tgt_in, src_mask = (x.to(task.device) for x in (batch.src, batch.tgt_in, batch.src_mask))
    return task.model.attention_weights(src, tgt_in, src_mask)


def position_panels(encoding: PositionEncoding, n_positions: int, device: torch.device) -> list[Panel]:
    """Return panels that show what each hook of an encoding does.

    They are computed from the hooks' results, so that a new encoding needs no new code. The panels show:
    - what is added to token vectors, positions x dimensions;
    - the similarity of rotated vectors of ones, positions x positions;
    - what is added to scores, queries x keys, with one panel per head.
    """
    panels: list[Panel] = []
    positions = torch.arange(min(n_positions, encoding.max_positions or n_positions), device=device)
    with torch.no_grad():
        zeros = torch.zeros(1, len(positions), encoding.d_model, device=device)
        table = encoding.embed(zeros, positions)[0]
        if table.any():
            panels.append(_panel("added to token vectors", table, "position", "dimension"))
        ones = torch.ones(1, 1, len(positions), encoding.d_head, device=device)
        rotated = encoding.rotate(ones, positions)[0, 0]
        if not torch.equal(rotated, ones[0, 0]):
            panels.append(_panel("similarity", rotated @ rotated.T / encoding.d_head, "position", "position"))
        bias = encoding.bias(positions, positions)
        if bias is not None:
            if encoding.causal:  # later positions are never seen
                bias = bias.masked_fill(positions[None, :] > positions[:, None], torch.nan)
            panels += [
                _panel(f"bias, head {head}", values, "position of the query", "position of the key")
                for head, values in enumerate(bias, start=1)
            ]
    return panels


def _panel(title: str, values: torch.Tensor, row_name: str, column_name: str) -> Panel:
    array = values.float().cpu().numpy()
    return Panel(f"{title} ({np.nanmin(array):.2g} to {np.nanmax(array):.2g})", array, row_name, column_name)


def dev_sentence(data: TranslationData, pair: int) -> Batch:
    """Return a dev pair as a batch."""
    return data.dev_pairs[MicroBatch(np.array([pair]), 0, 0.0, 0, 0)]


def nearest(data: TranslationData, n: int, length: int) -> list[int]:
    """Return the numbers of the n dev pairs whose sides are nearest to a length in tokens, the nearest first."""
    pairs = _watchable(data)
    distance = sum(abs(side.lengths[pairs] - length) for side in (data.dev_pairs.src, data.dev_pairs.tgt))
    return pairs[np.argsort(distance, kind="stable")][:n].tolist()


def spread(data: TranslationData, n: int) -> list[int]:
    """Return the numbers of n dev pairs of all lengths, from short to long."""
    pairs = _watchable(data)
    n = min(n, len(pairs))
    order = np.argsort(data.dev_pairs.src.lengths[pairs], kind="stable")
    return pairs[order[(np.arange(n) * 2 + 1) * len(pairs) // (2 * max(n, 1))]].tolist()


def _watchable(data: TranslationData) -> np.ndarray:
    """Return the numbers of the dev pairs that have text on both sides and are not too long to be trained on."""
    lengths = np.stack((data.dev_pairs.src.lengths, data.dev_pairs.tgt.lengths))
    has_text = [not source.is_blank for source in data.dev_sources]
    return np.flatnonzero(has_text & (lengths.min(0) > 1) & (lengths.max(0) <= data.options.max_len))


def shows(trainer: L.Trainer) -> bool:
    """Return whether this process logs, and this is training rather than a sanity check or fast_dev_run."""
    is_training = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
    return trainer.is_global_zero and is_training and not trainer.fast_dev_run  # type: ignore[attr-defined]


def parts(trainer: L.Trainer, pl_module: L.LightningModule) -> tuple[TranslationTask, TranslationData]:
    """Return a run's module and its data."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    assert isinstance(pl_module, TranslationTask)
    assert isinstance(data, TranslationData)
    return pl_module, data


def _chosen(name: str, numbers: list[int] | None, count: int, kind: str) -> list[int]:
    """Return indices from 0 for numbers that count from 1, or from -1 backwards from the last.

    Raises:
        UserError: a number does not exist; the message names those that do.
    """
    if not count:
        return []  # a model without this kind of attention
    if numbers is None:
        return list(range(count))
    if any(not 1 <= abs(number) <= count for number in numbers):
        raise UserError(
            f"watch.attention.{name}={numbers}: {kind} attention has {name} 1 to {count} "
            f"or, counted from the last, -1 to -{count}"
        )
    return sorted({(number - 1) if number > 0 else count + number for number in numbers})


def at_least(minimum: int, **values: float) -> None:
    """Raise ValueError for the first value below a minimum."""
    for name, value in values.items():
        if value < minimum:
            raise ValueError(f"{name} ({value}) must be at least {minimum}")
