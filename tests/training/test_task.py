"""An update does not depend on how it is split up, and perplexity is that of the text alone."""

import json
import logging
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from diglot.data.batch import Batch
from diglot.data.batching import StreamPosition
from diglot.data.held_out import DevSet
from diglot.data.text import ParallelText
from diglot.data.tokenizer import BOS, EOS, PAD, Encoded, Tokenizer
from diglot.decoding import BeamSearch, Hypothesis, SamplingSearch
from diglot.decoding.layout import PackedLinear
from diglot.evaluation.scorer import Scorer
from diglot.model import Transformer
from diglot.training import gradients
from diglot.training.dev_scores import DevScores
from diglot.training.flight_recorder import FlightRecorder
from diglot.training.gradients import NonFiniteError
from diglot.training.schedule import Constant
from diglot.training.state import RunState
from diglot.training.task import TranslationTask
from diglot.training.throughput import Throughput

V = 400
SMOOTHING = 0.1
# Sources of 4 and 7 tokens, targets of 9 and 3, including </s>.
PAIRS = [([5, 6, 7], [11, 12, 13, 14, 15, 16, 17, 18]), ([8, 9, 10, 11, 12, 13], [21, 22])]


def padded(rows: Sequence[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def batch_of(numbers: Sequence[int], update_target_tokens: int = 12, position: int = 0) -> Batch:
    src, labels = (padded([[*PAIRS[i][side], EOS] for i in numbers]) for side in (0, 1))
    return Batch(
        src=src,
        src_mask=src != PAD,
        tgt_in=padded([[BOS, *PAIRS[i][1]] for i in numbers]),
        labels=labels,
        tgt_mask=labels != PAD,
        pairs=torch.tensor(numbers),
        update_target_tokens=update_target_tokens,
        position=position,
        passes=0.5,
    )


@pytest.fixture
def task(build_model: Callable[..., Transformer], tokenizer: Tokenizer) -> TranslationTask:
    return TranslationTask(
        model=build_model(src_vocab_size=V, tgt_vocab_size=V),
        tokenizer=tokenizer,
        search=BeamSearch(beam_size=2, max_len_a=0, max_len_b=4),
        optimizer=torch.optim.SGD,
        scheduler=partial(Constant, lr=0.25),
        total_updates=100,
        label_smoothing=SMOOTHING,
        seed=1,
        record={},
    )


class KeepGradients(L.Callback):
    """Callback that remembers each update's gradients and logged values."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Tensor]] = []
        self.rates: list[float] = []
        self.logged: list[dict[str, float]] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        self.gradients.append({name: p.grad.clone() for name, p in pl_module.named_parameters() if p.grad is not None})
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def fit(task: TranslationTask, batches: list[Batch], accumulation: int, *callbacks: L.Callback, **options: Any) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    batches = [batch._replace(ends_update=not i % accumulation) for i, batch in enumerate(batches, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=accumulation,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            callbacks=list(callbacks),
        )
        trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None), **options)  # type: ignore[arg-type]


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the difference of two gradients, relative to the norm of the whole gradient."""
    assert set(found) == set(expected)
    length = math.sqrt(sum(float(g.double().pow(2).sum()) for g in expected.values()))
    assert length > 0.01
    return math.sqrt(sum(float((found[n] - expected[n]).double().pow(2).sum()) for n in expected)) / length


def gradients_by_hand(task: TranslationTask) -> dict[str, Tensor]:
    """Return the gradients of the mean label-smoothed loss of all target tokens, with each pair computed alone."""
    total = torch.zeros(())
    for src, tgt in PAIRS:
        logits = task.model(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]]))[0]
        total = total + F.cross_entropy(logits, torch.tensor([*tgt, EOS]), label_smoothing=SMOOTHING, reduction="sum")
    named = dict(task.named_parameters())
    return dict(zip(named, torch.autograd.grad(total / 12, list(named.values())), strict=True))


def test_an_update_is_the_same_in_one_batch_and_in_two(task: TranslationTask) -> None:
    expected = gradients_by_hand(task)
    weights = {name: value.clone() for name, value in task.state_dict().items()}
    for batches in ([batch_of([0, 1])], [batch_of([0]), batch_of([1], position=1)]):
        task.load_state_dict(weights)
        kept = KeepGradients()
        fit(task, batches, len(batches), kept)
        assert len(kept.gradients) == 1
        assert difference(kept.gradients[0], expected) < 1e-6


def test_an_update_is_the_same_on_two_processes(task: TranslationTask) -> None:
    """Average two processes' gradients, as DDP does."""
    expected = gradients_by_hand(task)
    losses = []
    for rank in (0, 1):
        task._trainer = SimpleNamespace(  # type: ignore[assignment]
            world_size=2, accumulate_grad_batches=1
        )
        losses.append(task.training_step(batch_of([rank])._replace(ends_update=False), 0))
    ((losses[0] + losses[1]) / 2).backward()
    found = {name: p.grad for name, p in task.named_parameters() if p.grad is not None}
    assert difference(found, expected) < 1e-6


def test_logged_values_describe_one_complete_update(task: TranslationTask) -> None:
    task.make_scheduler = partial(Constant, lr=1e-9, warmup=10)
    nll, smoothed = [], []
    for src, tgt in PAIRS:
        with torch.no_grad():
            logits = task.model(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]]))[0]
        labels = torch.tensor([*tgt, EOS])
        nll.append(float(F.cross_entropy(logits, labels, reduction="sum")))
        smoothed.append(float(F.cross_entropy(logits, labels, label_smoothing=SMOOTHING, reduction="sum")))
    kept = KeepGradients()
    updates = [(0, 1), (0, 0), (1, 1)]
    fit(task, [batch_of([i]) for update in updates for i in update], 2, kept)
    assert kept.rates == pytest.approx([1e-10, 2e-10, 3e-10])
    for number, (update, logged) in enumerate(zip(updates, kept.logged[1::2], strict=True), start=1):
        tokens = sum((9, 3)[i] for i in update)
        assert logged["train/perplexity"] == pytest.approx(math.exp(sum(nll[i] for i in update) / tokens), rel=1e-4)
        assert logged["train/loss"] == pytest.approx(sum(smoothed[i] for i in update) / tokens, rel=1e-4)
        assert logged["train/learning_rate"] == pytest.approx(number * 1e-10)
        assert logged["step"] == number
    assert nll != pytest.approx(smoothed, rel=1e-3)


@pytest.mark.parametrize("together", [True, False])
def test_dev_perplexity_counts_all_target_tokens(task: TranslationTask, tokenizer: Tokenizer, together: bool) -> None:
    task.make_scheduler = partial(Constant, lr=1e-12)
    nll = 0.0
    with torch.no_grad():
        for src, tgt in PAIRS:
            logits = task.model(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]]))[0]
            nll += float(F.cross_entropy(logits, torch.tensor([*tgt, EOS]), reduction="sum"))
    dev = ParallelText(["a", "b"], ["x y z", "v w"], (["0", None],))
    sources = [Encoded([], ()) for _ in dev.src]
    of_dev = DevSet("dev", "fr", "de")
    methods = {"set_of": lambda pair: of_dev, "numbers": lambda dev_set: range(2)}
    data = SimpleNamespace(
        held_out={"dev": dev},
        validation=SimpleNamespace(sets=[of_dev], sources=sources, **methods),
        decode_dev=lambda pair, tokens: f"{pair} {tokens}",
    )
    scores, kept = DevScores(data, Scorer("de")), KeepGradients()  # type: ignore[arg-type]
    batches = [batch_of([1, 0], 0)] if together else [batch_of([1], 0), batch_of([0], 0)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    fit(task, [batch_of([0, 1])] * 2, 1, scores, kept, val_dataloaders=loader)
    metrics = task.trainer.callback_metrics
    assert float(metrics["dev/perplexity"]) == pytest.approx(math.exp(nll / 12), rel=1e-5)
    assert float(metrics["dev/loss"]) == pytest.approx(nll / 12, rel=1e-5)

    found = [
        task.search(task.model, padded([[*src, EOS]]), torch.ones(1, len(src) + 1) > 0, task.special)[0][0]
        for src, _ in PAIRS
    ]
    texts = [f"{pair} {hypothesis.tokens}" for pair, hypothesis in enumerate(found)]
    assert scores.latest == Scorer("de")(texts, *dev.references, with_slow=False)
    assert "nrefs:var" in scores.latest[0].signature
    assert [metrics[name].item() for name in ("dev/bleu", "dev/chrf")] == [score.value for score in scores.latest]
    assert float(metrics["dev/cut"]) == sum(hypothesis.cut for hypothesis in found)


def test_a_validation_searches_with_a_packed_model_and_leaves_the_model_as_it_was(task: TranslationTask) -> None:
    modules, seen = dict(task.model.named_modules()), []
    search = task.search

    def spying(model: Transformer, *args: Any) -> list[list[Hypothesis]]:
        seen.append(type(model.output))
        return search(model, *args)

    task.search = type("Spy", (), {"__call__": lambda _, *args: spying(*args), "ranked": search.ranked})()
    assert task.translate(batch_of([0, 1]))
    assert seen == [PackedLinear]
    assert dict(task.model.named_modules()) == modules


def test_samples_are_compared_with_placeholders_filled_in(
    build_model: Callable[..., Transformer], tokenizer: Tokenizer
) -> None:
    sources = tokenizer.encode(["x", "{a_name_that_is_long}"])
    texts = ["{a_name_that_is_long} q", "{a_name_that_is_long} w", "kk mm", "kk mn"]
    samples = [Hypothesis(ids, 0.0, [], False) for ids in tokenizer.encode_targets(texts, [sources[1]] * 4)]
    search = SamplingSearch(n_samples=4, utility="chrf")
    made = TranslationTask(
        model=build_model(src_vocab_size=V, tgt_vocab_size=V),
        tokenizer=tokenizer,
        search=search,
        optimizer=torch.optim.SGD,
        scheduler=partial(Constant, lr=0.25),
        total_updates=100,
        label_smoothing=SMOOTHING,
        seed=1,
        record={},
        decode_pair=lambda pair, tokens: tokenizer.decode(tokens, sources[pair].placeholders),
    )
    as_translator = search.ranked(samples, lambda tokens: tokenizer.decode(tokens, sources[1].placeholders))
    assert search.ranked(samples, tokenizer.decode)[0].tokens != as_translator[0].tokens
    made.search = type("Drawn", (), {"__call__": lambda *_: [samples], "ranked": staticmethod(search.ranked)})()
    assert made.translate(batch_of([1]))[0].tokens == as_translator[0].tokens


def test_a_copy_for_weight_averaging_does_not_copy_the_data(
    build_model: Callable[..., Transformer], tokenizer: Tokenizer
) -> None:
    class Data:
        def __init__(self) -> None:
            self.own_lock = threading.Lock()  # cannot be copied, like Lightning's processes

        def decode(self, pair: int, tokens: list[int]) -> str:
            return tokenizer.decode(tokens)

    made = TranslationTask(
        model=build_model(src_vocab_size=V, tgt_vocab_size=V),
        tokenizer=tokenizer,
        search=BeamSearch(beam_size=1),
        optimizer=torch.optim.SGD,
        scheduler=partial(Constant, lr=0.25),
        total_updates=100,
        label_smoothing=SMOOTHING,
        seed=1,
        record={},
        decode_pair=Data().decode,
    )
    copied = deepcopy(made)
    assert copied.model is not made.model
    batch = batch_of([1])
    assert copied.translate(batch)[0].tokens == made.translate(batch)[0].tokens


def test_dropout_is_a_function_of_seed_and_place_in_the_run(task: TranslationTask) -> None:
    def drawn(position: int, seed: int = 1) -> list[float]:
        task.seed = seed
        task.on_train_batch_start(batch_of([0], position=position), 0)
        return torch.rand(4).tolist()

    assert drawn(5) == drawn(5)
    draws = [drawn(0), drawn(1), drawn(5), drawn(0, seed=2)]
    assert all(a != b for i, a in enumerate(draws) for b in draws[:i])


def test_a_checkpoint_has_the_record_and_the_position_of_the_run(task: TranslationTask) -> None:
    task.record = {"format": 1}
    state = task.state = RunState(7, StreamPosition(1, 2, 3), 4, 5.5, True, ("bleu", 6.0), (6.0, 7.0))
    checkpoint: dict[str, Any] = {}
    task.on_save_checkpoint(checkpoint)
    assert checkpoint["diglot"]["format"] == 1
    assert RunState.from_record(json.loads(json.dumps(checkpoint["diglot"])), update=7) == state
    assert RunState.from_record({}, update=7) == RunState(7)  # a record of an earlier version


@pytest.mark.parametrize(("scale", "is_let_pass"), [(65536.0, True), (2.0, True), (1.0, False), (None, False)])
def test_only_a_scale_excuses_a_gradient_that_is_not_finite(
    task: TranslationTask, scale: float | None, is_let_pass: bool
) -> None:
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    task._trainer = SimpleNamespace(  # type: ignore[assignment]
        precision_plugin=SimpleNamespace(scaler=scaler), global_step=4, optimizers=[optimizer]
    )
    task._pairs = [torch.tensor([0, 1])]
    for parameter in task.parameters():
        parameter.grad = torch.full_like(parameter, math.inf)
    if is_let_pass:  # the scaler has seen it and skips the update itself
        task.configure_gradient_clipping(optimizer, 1.0, "norm")
        assert all(parameter.grad is not None for parameter in task.parameters())
    else:
        with pytest.raises(NonFiniteError, match="gradient of update 5 is not finite in"):
            task.configure_gradient_clipping(optimizer, 1.0, "norm")
    assert task.state.skipped == 0


class WaitingOperations(TorchDispatchMode):
    """Mode that records the operations for which a GPU's host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(index is not None and index.dtype is torch.bool for index in args[1])
        if by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class WaitingMethods(TorchFunctionMode):
    """Mode that records the methods of tensors that wait and dispatch no operation on a CPU."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.cpu):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_no_update_waits_for_the_device_except_those_that_are_logged(
    task: TranslationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the waiting operations between the beginnings of updates, with the callbacks of a run."""
    monkeypatch.setattr(gradients, "decides_on_device", lambda *_: True)
    task.make_optimizer = partial(torch.optim.Adam, fused=True)
    mode, counts = WaitingOperations(), []

    class Count(L.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            counts.append(len(mode.names))

    batches = [batch_of([0, 1], position=i) for i in range(8)]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings(), mode, WaitingMethods(mode.names):
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator="cpu",
            max_steps=8,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            log_every_n_steps=4,
            gradient_clip_val=1.0,
            callbacks=[Count(), FlightRecorder(), Throughput("32-true")],
        )
        trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    waits = [after - before for before, after in pairwise(counts)]
    assert waits[3] > 0  # update 4 is logged: the mode sees what it should
    assert [waits[i] for i in (0, 1, 2, 4, 5, 6)] == [0] * 6, mode.names
