"""Watchers show what they should, when they should, with the right values, and change nothing."""

import html
import io
import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from omegaconf import DictConfig
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from torch import Tensor

from diglot.config import CONF, build
from diglot.data.corpus import Files
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.text import write_lines
from diglot.data.tokenizer import Tokenizer
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.evaluation.scorer import Scorer
from diglot.model import Transformer
from diglot.training import figures, watch
from diglot.training.dev_scores import DevScores
from diglot.training.figures import Panel, draw, pixels
from diglot.training.heads import HeadSums
from diglot.training.loggers import Loggers
from diglot.training.schedule import Constant
from diglot.training.task import TranslationTask
from diglot.training.watch import (
    AttentionMaps,
    HeadStatistics,
    PositionMaps,
    SampleTranslations,
    Watcher,
    literal,
    nearest,
    position_panels,
    spread,
)

V = 400
DEV = [
    *("Ler nin gaser.", "Kin ta pere fol pe {name}?", "", "Foz su femim une paze in le duze, ler nin gaser tezer ne."),
    *("Ka *gun* | <b>{$a$_b}</b> & `ne`?", "Lo", "Ler nin $gaser$ {name} tezer.", "Su femim in le duze."),
]


@pytest.fixture
def data(tmp_path: Path, tokenizer: Tokenizer) -> TranslationData:
    """Return data of twelve training pairs and eight dev pairs, one of them blank."""
    paths = {}
    for split, lines in {"train": ["Ler nin gaser.", "Ka gun {name} ne?", "Foz su femim."] * 4, "dev": DEV}.items():
        write_lines(tmp_path / f"{split}.avi", lines)
        write_lines(tmp_path / f"{split}.bol", [line and f"Pep {line}" for line in lines])
        paths[split] = {"src": str(tmp_path / f"{split}.avi"), "tgt": str(tmp_path / f"{split}.bol")}
    made = TranslationData(
        corpus=Files(**paths, test=paths["dev"]),  # type: ignore[arg-type]
        tokenizer=tokenizer,
        seed=1,
        options=DataOptions(cache_dir=str(tmp_path / "cache"), tokens_per_batch=100, max_len=100),
    )
    made.prepare_data()
    made.setup()
    made.set_length(5)
    return made


@pytest.fixture
def task(build_model: Callable[..., Transformer], tokenizer: Tokenizer) -> Callable[..., TranslationTask]:
    def made(*overrides: str) -> TranslationTask:
        return TranslationTask(
            model=build_model("model.dropout=0.2", *overrides, src_vocab_size=V, tgt_vocab_size=V),
            tokenizer=tokenizer,
            search=BeamSearch(beam_size=1, max_len_a=0, max_len_b=4),
            optimizer=torch.optim.Adam,
            scheduler=partial(Constant, lr=0.01),
            total_updates=5,
            label_smoothing=0.1,
            seed=1,
            record={},
        )

    return made


def fit(task: TranslationTask, data: TranslationData, folder: Path, *watchers: L.Callback, **options: Any) -> None:
    """Train for five updates, validated after the second, the fourth and the last one."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    default: dict[str, Any] = {"logger": TensorBoardLogger(folder, name="", version=""), "num_sanity_val_steps": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            max_steps=5,
            val_check_interval=2,
            check_val_every_n_epoch=None,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            callbacks=[DevScores(data, Scorer("bol")), *watchers, StopAndValidate()],
            **default | options,
        )
        trainer.fit(task, data)


class StopAndValidate(L.Callback):
    """Callback that lets a validation follow the last update, as in a run."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= trainer.max_steps


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    return found.Reload()


def picture(encoded: bytes) -> Image.Image:
    found = Image.open(io.BytesIO(encoded))
    found.load()
    return found


# ------------------------------------------------------------------------------------------------- in a run


@pytest.mark.reliability
def test_everything_is_logged_under_its_tag_at_the_number_of_updates(
    task: Callable[..., TranslationTask], data: TranslationData, config: DictConfig, tmp_path: Path
) -> None:
    names = {"attention", "heads", "position", "translations"}
    watchers = [build(node, f"watch.{name}") for name, node in config.watch.items() if name in names]
    assert len(watchers) == 4
    fit(task("model.n_decoder_layers=1"), data, tmp_path / "run", *watchers)
    found = events(tmp_path / "run")

    # Every second validation, and the last.
    images = {tag: [event.step for event in found.Images(tag)] for tag in found.Tags()["images"]}
    attention = {
        f"attention/{kind}_layer{layer}_sentence{sentence}": [4, 5]
        for kind, layer in (("encoder", 2), ("decoder", 1), ("cross", 1))
        for sentence in (1, 2)
    }
    heads = {f"heads/{name}": [4, 5] for name in ("entropy", "distance", "coverage", "doubles")}
    assert images == attention | heads | {"position/encoder": [0], "position/decoder": [0]}
    for tag in images:
        for event in found.Images(tag):
            drawn = np.asarray(picture(event.encoded_image_string))
            assert drawn.shape == (event.height, event.width, 3)
            assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 50

    # TensorBoard would have a card for each value of a head; tables have a column.
    assert {tag.split("/")[0] for tag in found.Tags()["scalars"]} == {"dev", "train"}

    tables = found.Tensors("translations/dev/text_summary")
    assert [event.step for event in tables] == [2, 4, 5]


def test_tables_have_the_entropy_of_each_head_and_the_dead_heads(
    task: Callable[..., TranslationTask], data: TranslationData
) -> None:
    logger = Mock(spec=CSVLogger)
    HeadStatistics().look(SimpleNamespace(global_step=3, loggers=[logger]), task("model.n_decoder_layers=1"), data)  # type: ignore[arg-type]
    ((values, step), _) = logger.log_metrics.call_args
    assert step == 3
    layers = ["encoder_layer1", "encoder_layer2", "decoder_layer1", "cross_layer1"]
    heads = [f"{layer}_head{head}" for layer in layers for head in (1, 2, 3)]
    counts = {f"dead_heads/{kind}" for kind in ("encoder", "decoder", "cross")}
    assert set(values) == {f"{group}/{head}" for group in ("entropy", "dead") for head in heads} | counts
    assert all(0 <= value <= (6 if tag in counts else 1) for tag, value in values.items())
    assert values["dead_heads/encoder"] == sum(values[f"dead/{head}"] for head in heads if head.startswith("encoder"))


@pytest.mark.reliability
@pytest.mark.parametrize("position", ["learned", "relative_bias", "none"])
def test_trained_positions_are_drawn_again(
    task: Callable[..., TranslationTask], data: TranslationData, position: str, tmp_path: Path
) -> None:
    fit(task(f"model/position={position}"), data, tmp_path / "run", PositionMaps(every=1))
    found = events(tmp_path / "run")
    if position == "none":
        assert not found.Tags()["images"]
        return
    for stack in ("encoder", "decoder"):
        drawn = found.Images(f"position/{stack}")
        assert [event.step for event in drawn] == [2, 4, 5]
        assert drawn[0].encoded_image_string != drawn[2].encoded_image_string


def test_watching_changes_no_weight(
    task: Callable[..., TranslationTask], data: TranslationData, tmp_path: Path
) -> None:
    plain, watched = task(), task()
    fit(plain, data, tmp_path / "plain")
    watchers = (
        AttentionMaps(sentences=1, heads=[-1], every=1),
        HeadStatistics(every=1),
        PositionMaps(),
        SampleTranslations(),
    )
    fit(watched, data, tmp_path / "watched", *watchers)
    assert events(tmp_path / "watched").Tags()["images"]
    state = watched.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())
    assert not torch.equal(plain.state_dict()["model.output.weight"], task().state_dict()["model.output.weight"])
    for tag in ("train/loss", "dev/loss", "dev/bleu"):
        a, b = ([(e.step, e.value) for e in events(tmp_path / run).Scalars(tag)] for run in ("plain", "watched"))
        assert a == b


def test_without_a_logger_nothing_is_looked_at(
    task: Callable[..., TranslationTask], data: TranslationData, tmp_path: Path
) -> None:
    class Looks(Watcher):
        seen: list[int] = []  # noqa: RUF012

        def look(self, trainer: L.Trainer, *_: Any) -> None:
            self.seen.append(trainer.global_step)

    watchers = (Looks(every=1), AttentionMaps(), HeadStatistics(), PositionMaps(), SampleTranslations())
    fit(task(), data, tmp_path, *watchers, fast_dev_run=2)
    assert not Looks.seen
    fit(task(), data, tmp_path, Looks(every=3))
    assert Looks.seen == [5]
    assert not list(tmp_path.rglob("*.png"))


def test_averaged_weights_are_drawn_while_they_are_active(
    task: Callable[..., TranslationTask], data: TranslationData, config: DictConfig, tmp_path: Path
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    class Looks(Watcher):
        def look(self, trainer: L.Trainer, task: TranslationTask, data: TranslationData) -> None:
            averaged = average._average_model.module.model.output.weight  # type: ignore[union-attr]
            seen.append((task.model.output.weight.clone(), averaged.clone()))

    average = L.pytorch.callbacks.EMAWeightAveraging(decay=0.5)
    validated: list[Tensor] = []

    class Validated(L.Callback):
        def on_validation_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
            validated.append(pl_module.model.output.weight.clone())

    fit(task(), data, tmp_path, Looks(every=1), Validated(), average)
    assert len(seen) == 3
    assert torch.equal(seen[-1][0], validated[-1])
    assert not torch.equal(*seen[-1])  # during a validation the two are swapped


# ------------------------------------------------------------------------------------------------- sentences


def test_sentences_are_of_the_wanted_length_and_never_blank(data: TranslationData) -> None:
    pairs = data.dev_pairs
    lengths = np.asarray(pairs.src.lengths) + np.asarray(pairs.tgt.lengths)
    assert sorted(spread(data, 99)) == [0, 1, 3, 4, 5, 6, 7]
    chosen = spread(data, 3)
    assert len(set(chosen)) == 3
    assert list(pairs.src.lengths[chosen]) == sorted(pairs.src.lengths[chosen])
    assert nearest(data, 1, 1000) == [lengths.argmax()]
    assert nearest(data, 2, 2)[0] == 5
    data.options = replace(data.options, max_len=int(lengths.max()) // 2 - 1)
    assert lengths.argmax() not in spread(data, 99) + nearest(data, 99, 12)


def test_axes_hold_the_tokens_with_placeholders_in_their_slots(
    task: Callable[..., TranslationTask], data: TranslationData, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, tuple[list[Panel], Any]] = {}

    def keep(panels: list[Panel], title: str, **labels: Any) -> None:
        drawn[title.split(":")[0]] = panels, labels

    monkeypatch.setattr(watch, "draw", keep)
    monkeypatch.setattr(watch, "pixels", Mock())
    monkeypatch.setattr(watch, "nearest", lambda *_: [1])
    trained = task()
    AttentionMaps(layers=[1], heads=[3, -3]).look(SimpleNamespace(global_step=1, loggers=[]), trained, data)  # type: ignore[arg-type]
    assert list(drawn) == list(watch.KINDS.values())
    source = [*tokens(data, DEV[1]), "</s>"]
    target = ["<s>", *tokens(data, f"Pep {DEV[1]}")]
    assert "{name}" in source
    assert "{name}" in target
    weights = watch.attention_weights(trained, watch.dev_sentence(data, 1))
    for (panels, labels), maps, rows, columns in zip(
        drawn.values(), weights, (source, target, target), (source, target, source), strict=True
    ):
        assert labels == {"rows": rows, "columns": columns}
        assert [panel.title for panel in panels] == ["layer 1 head 1", "layer 1 head 3"]
        assert np.array_equal(panels[1].values, maps[0][0, 2])


def tokens(data: TranslationData, text: str) -> list[str]:
    pieces = data.tokenizer.pieces(data.tokenizer.encode([text])[0].ids, "src")
    return ["{name}" if "\ue000" in piece else piece for piece in pieces]


# ------------------------------------------------------------------------------------------------- texts


def test_markdown_shows_the_text_itself() -> None:
    texts = [
        "*a* _b_ __c__ `d` [e](f) ![g](h) <b>i</b> <script>j</script> | k \\| &amp; &lt; $l$ ~~m~~ # 1. - n",
        "ü 漢",
    ]
    table = "| a | b |\n|---|---|\n" + f"| {literal(texts[0])} | {literal(texts[1])} |"
    cells = re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(table), re.DOTALL)
    assert [html.unescape(cell) for cell in cells] == texts
    assert literal(" a\n\tb\r ") == "a b"


def test_the_table_holds_source_references_and_translation(
    data: TranslationData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = DevScores(data, Scorer("bol"))
    scores.translations = {pair: f"<{pair}> | *" for pair in range(len(DEV)) if pair != 5}
    logger = CSVLogger(tmp_path, name="", version="")
    trainer: Any = SimpleNamespace(callbacks=[scores], loggers=[logger], global_step=7)
    SampleTranslations(sentences=99).look(trainer, None, data)  # type: ignore[arg-type]
    table = (tmp_path / "figures/translations/dev/7.md").read_text(encoding="utf-8")
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(table), re.DOTALL)]
    rows = {cells[i]: cells[i + 1 : i + 4] for i in range(0, len(cells), 4)}
    expected = {str(i + 1): [DEV[i], f"Pep {DEV[i]}", f"<{i}> | *"] for i in (0, 1, 3, 4, 6, 7)}
    assert rows == expected
    dev = data.held_out["dev"]
    monkeypatch.setitem(data.held_out, "dev", replace(dev, more=([f"<b> {i}" for i in range(len(dev))],)))
    SampleTranslations(sentences=99).look(trainer, None, data)  # type: ignore[arg-type]
    table = (tmp_path / "figures/translations/dev/7.md").read_text(encoding="utf-8")
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(table), re.DOTALL)]
    assert f"Pep {DEV[1]}<br><b> 1" in cells


# ------------------------------------------------------------------------------------------------- heads


def statistics(*sentences: Tensor, causal: bool = False) -> HeadSums:
    found = HeadSums(causal)
    for weights in sentences:
        found.add(weights)
    return found


def one_hot(keys: list[int], n_keys: int) -> Tensor:
    """Return the weights of a head whose queries attend to these keys (1, Q, M)."""
    return torch.nn.functional.one_hot(torch.tensor(keys), n_keys)[None].float()


@pytest.mark.parametrize("causal", [False, True])
def test_entropy_is_one_for_uniform_weights_and_zero_for_a_single_key(causal: bool) -> None:
    def uniform(n: int) -> Tensor:
        weights = torch.ones(1, n, n)
        weights = weights.tril() if causal else weights
        return weights / weights.sum(-1, keepdim=True)

    sentences = [torch.cat((uniform(n), one_hot(list(range(n)), n))) for n in (5, 3, 1)]
    found = statistics(*sentences, causal=causal)
    assert found.entropy.tolist() == pytest.approx([1, 0], abs=1e-6)
    assert found.dead.tolist() == [True, False]
    assert not statistics(torch.ones(2, 1, 1), causal=causal)


def test_entropy_is_a_mean_over_queries_relative_to_each_query_s_maximum() -> None:
    weights = torch.tensor([[[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]]])
    assert float(statistics(weights).entropy) == pytest.approx(0.5)
    # Queries see 1, 2 and 3 keys; the first one is ignored.
    weights = torch.tensor([[[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]])
    assert float(statistics(weights, causal=True).entropy) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("keys", "dead"),
    [
        ([lambda q, m: 0], True),  # always the first token
        ([lambda q, m: m - 1], True),  # always </s>
        ([lambda q, m: m - 2], True),  # always the token before </s>
        ([lambda q, m: q], False),  # the token itself
        ([lambda q, m: max(q - 1, 0)], False),  # the token before
        ([lambda q, m: 0, lambda q, m: m - 1], False),  # sometimes the first token, sometimes the last
    ],
)
def test_a_head_is_dead_if_it_attends_to_one_position_for_all_queries(
    keys: list[Callable[[int, int], int]], dead: bool
) -> None:
    sentences = [one_hot([keys[m % len(keys)](q, m) for q in range(m)], m) for m in (4, 5, 7, 9)]
    found = statistics(*sentences)
    assert found.dead.tolist() == [dead]
    assert float(found.entropy) == pytest.approx(0, abs=1e-6)


def test_a_decoder_head_that_always_looks_at_its_start_is_dead() -> None:
    first, itself, before = (
        [one_hot([key(q) for q in range(n)], n) for n in (2, 5, 8)]
        for key in (lambda q: 0, lambda q: q, lambda q: max(0, q - 1))
    )
    sentences = [torch.cat(heads) for heads in zip(first, itself, before, strict=True)]
    assert statistics(*sentences, causal=True).dead.tolist() == [True, False, False]


@pytest.mark.parametrize(("share", "dead"), [(0.985, True), (0.975, False)])
def test_the_weights_of_a_dead_head_may_vary_by_two_hundredths(share: float, dead: bool) -> None:
    weights = torch.full((1, 6, 6), (1 - share) / 5)
    weights[..., 0] = share
    assert statistics(weights).dead.tolist() == [dead]


# ------------------------------------------------------------------------------------------------- positions


def test_positions_are_read_through_the_hooks(build_model: Callable[..., Transformer]) -> None:
    def panels(position: str, n: int = 10, **options: Any) -> tuple[list[Panel], list[Panel]]:
        model = build_model(f"model/position={position}", *(f"model.position.{k}={v}" for k, v in options.items()))
        stacks = (model.encoder_position, model.decoder_position)
        return tuple(position_panels(stack, n, torch.device("cpu")) for stack in stacks)  # type: ignore[return-value]

    assert panels("none") == ([], [])
    (table,), _ = panels("sinusoidal")
    assert table.values.shape == (10, 24)
    assert table.values[:, 0] == pytest.approx(np.sin(np.arange(10)), abs=1e-6)
    (table,), _ = panels("learned", n=99, max_positions=7)
    assert table.values.shape == (7, 24)
    (similarity,), _ = panels("rotary")
    assert similarity.values.shape == (10, 10)
    angles = 1e4 ** -(np.arange(4) / 4)
    assert similarity.values[2, 5] == pytest.approx(np.cos(3 * angles).mean(), abs=1e-5)
    encoder, decoder = panels("alibi")
    assert len(encoder) == len(decoder) == 3
    assert encoder[0].values[4, 2] == decoder[0].values[4, 2] == pytest.approx(-2 * 2**-4)
    assert not np.isnan(encoder[0].values).any()
    assert np.isnan(decoder[0].values[2, 4])


# ------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layers": [3]},
            r"watch\.attention\.layers=\[3\]: encoder attention has layers 1 to 2 or, counted from the last, -1",
        ),
        ({"layers": [-3]}, r"watch\.attention\.layers=\[-3\]"),
        ({"heads": [1, 4]}, r"watch\.attention\.heads=\[1, 4\]: encoder attention has heads 1 to 3"),
        ({"layers": [2], "kinds": ["cross"]}, r"watch\.attention\.layers=\[2\]: cross attention has layers 1 to 1"),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_refused(
    build_model: Callable[..., Transformer], options: Any, message: str
) -> None:
    model = build_model("model.n_decoder_layers=1")
    for trial in (model, model.to("meta")):  # before data are read, a model has no values
        with pytest.raises(UserError, match=message):
            AttentionMaps(**options).check(trial)


@pytest.mark.parametrize("position", sorted(path.stem for path in (CONF / "model" / "position").glob("*.yaml")))
def test_every_model_can_be_checked_before_it_has_values(
    build_model: Callable[..., Transformer], position: str
) -> None:
    AttentionMaps(layers="all").check(build_model(f"model/position={position}").to("meta"))


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (AttentionMaps, {"layers": [0]}, "layers"),
        (AttentionMaps, {"layers": []}, "layers"),
        (AttentionMaps, {"layers": "last"}, "layers"),
        (AttentionMaps, {"heads": [0]}, "heads"),
        (AttentionMaps, {"heads": "all"}, "heads"),
        (AttentionMaps, {"kinds": ["self"]}, "encoder, decoder, cross"),
        (AttentionMaps, {"kinds": []}, "kinds"),
        (AttentionMaps, {"every": 0}, "every"),
        (HeadStatistics, {"sentences": 0}, "sentences"),
        (PositionMaps, {"positions": 1}, "positions"),
        (SampleTranslations, {"sentences": 0}, "sentences"),
    ],
)
def test_impossible_options_are_refused_when_a_watcher_is_created(made: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**options)


# ------------------------------------------------------------------------------------------------- figures


def test_each_head_is_a_panel_with_its_tokens_at_the_edge() -> None:
    values = np.random.default_rng(1).random((6, 3, 4))
    rows, columns = ["<s>", "▁a", "$x$_{2}$"], ["{name}", "漢字", "a_very_long_piece_of_text", "</s>"]
    figure = draw([Panel(f"layer 2 head {h}", values[h], "target", "source") for h in range(6)], "title", rows, columns)
    heads, (bar,) = maps_and_bars(figure)
    assert [axes.get_title() for axes in heads] == [f"layer 2 head {h}" for h in range(6)]
    assert bar.get_ylim() == (0, 1)
    for h, axes in enumerate(heads):
        assert np.array_equal(axes.images[0].get_array(), values[h])
        assert axes.images[0].get_clim() == (0, 1)
        at_left, at_bottom = h % 2 == 0, h >= 4
        assert [t.get_text() for t in axes.get_yticklabels()] == (rows if at_left else [])
        shown = [*columns[:2], "a_very_long…", "</s>"]
        assert [t.get_text() for t in axes.get_xticklabels()] == (shown if at_bottom else [])
        assert axes.get_ylabel() == ("target" if at_left else "")
        assert axes.get_xlabel() == ("source" if at_bottom else "")
    assert figure.texts[0].get_text() == "title"


def maps_and_bars(figure: Figure) -> tuple[list[Axes], list[Axes]]:
    """Return the heat maps of a figure, and its colour bars."""
    maps = [axes for axes in figure.axes if axes.images]
    return maps, [axes for axes in figure.axes if axes not in maps]


def test_labels_stay_apart_and_inside_and_are_legible_on_a_card_of_400_pixels() -> None:
    labels = ["▁Wetterinformationen", "▁Strommessung", *(f"▁wort{i}" for i in range(9)), "</s>"]
    panels = [Panel(f"layer 2 head {h}", np.eye(12), "target", "source") for h in range(4)]
    figure = draw(panels, "cross-attention, target on source:\nlayer 2, sentence 2, update 3,000", labels, labels)
    image = pixels(figure)
    assert 8 * 100 / 72 * 400 / image.shape[1] > 7, "pixels of a letter"
    renderer = FigureCanvasAgg(figure).get_renderer()
    heads, bars = maps_and_bars(figure)
    for axes in heads:
        for texts in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [text.get_window_extent(renderer) for text in texts]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    frame = figure.bbox
    texts = [text for axes in (*heads, *bars) for text in (axes.xaxis.label, axes.yaxis.label, axes.title)]
    texts += [text for axes in (*heads, *bars) for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    for box in (text.get_window_extent(renderer) for text in texts if text.get_text()):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= frame.x1
        assert box.y1 <= frame.y1


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "relative_bias"])
def test_the_map_of_every_encoding_has_named_axes_and_colour_bars(
    build_model: Callable[..., Transformer], position: str
) -> None:
    model = build_model(f"model/position={position}")
    panels = position_panels(model.decoder_position, 10, torch.device("cpu"))
    maps, bars = maps_and_bars(draw(panels, "title"))
    assert len(maps) == len(bars) == len(panels) > 0
    for axes, bar in zip(maps, bars):
        least, most = axes.images[0].get_clim()
        assert bar.get_ylim() == (least, most)
        assert least == -most < 0
    assert "position" in maps[0].get_ylabel()
    assert maps[-1].get_xlabel() in ("dimension", "position", "position of the key")


def test_any_text_can_be_drawn_without_a_warning(tmp_path: Path) -> None:
    texts = ["$a", "$x$", "\\frac{", "漢字", "\ue000", "😀", "a\x07b", "", "नमस्ते"]
    logged = Loggers([CSVLogger(tmp_path, name="", version="")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # caused by other tests
        logged.figure("a/b", pixels(draw([Panel("p", np.eye(len(texts)))], "t", texts, texts)), 3)
    assert picture((tmp_path / "figures/a/b/3.png").read_bytes()).size[0] > 100


def test_characters_without_a_font_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("diglot"), "info", said.append)
    monkeypatch.setattr(figures, "_fonts", lambda: ["DejaVu Sans"])
    figures.say_once.cache_clear()
    for texts in (["a", "ü"], ["漢", "b"], ["字", "c"]):
        pixels(draw([Panel("p", np.eye(2))], "t", texts, texts))
    assert len(said) == 1
    assert "no installed font" in said[0]
    figures.say_once.cache_clear()


def test_the_figure_of_a_long_sentence_has_a_limited_size() -> None:
    labels = [f"▁{i}" for i in range(300)]
    figure = draw([Panel("p", np.eye(300))] * 4, "t", labels, labels)
    assert max(figure.get_size_inches()) < 25
    assert 20 < len(figure.axes[0].get_yticklabels()) < 60


def test_each_logger_is_called_through_its_own_interface() -> None:
    wandb, mlflow = Mock(spec=WandbLogger), Mock(spec=MLFlowLogger)
    mine = Mock(spec=Logger)
    logged = Loggers([wandb, mlflow, mine])
    logged.figure("a/b", pixels(draw([Panel("p", np.eye(2))], "t")), 3)
    logged.text("c", "| d |", 3)
    logged.scalars({"e": 0.5}, 3)
    logged.hyper_parameters({"f": 1}, ["best/bleu"])
    logged.best({"best/bleu": 2.0}, 3)
    logged.flush()
    for each in (wandb, mlflow, mine):
        each.log_metrics.assert_called_once_with({"e": 0.5}, 3)
        each.log_hyperparams.assert_called_once_with({"f": 1})
    (tag, (picture,)), options = wandb.log_image.call_args
    assert (tag, options, picture.dtype) == ("a/b", {"step": 3}, np.uint8)
    wandb.log_text.assert_called_once_with("c", columns=["markdown"], data=[["| d |"]], step=3)
    (run, picture), options = mlflow.experiment.log_image.call_args
    assert (run, options, picture.shape[2]) == (mlflow.run_id, {"artifact_file": "figures/a/b/3.png"}, 3)
    mlflow.experiment.log_text.assert_called_once_with(mlflow.run_id, "| d |", "figures/c/3.md")


def test_the_default_is_what_the_config_says(config: DictConfig) -> None:
    for name, kind in (
        ("attention", AttentionMaps),
        ("heads", HeadStatistics),
        ("position", PositionMaps),
        ("translations", SampleTranslations),
    ):
        assert vars(build(config.watch[name], name)) == vars(kind())
