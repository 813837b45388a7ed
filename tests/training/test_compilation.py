"""A run's graphs are compiled before its first update, and training computes with them what it would without."""

import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import lightning as L
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from diglot.data.batch import Batch
from diglot.data.batching import Shape
from diglot.data.tokenizer import BOS, PAD, Tokenizer
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.model import Transformer
from diglot.training.compilation import Compilation
from diglot.training.schedule import Constant
from diglot.training.task import TranslationTask

SHAPES = [Shape(4, 8), Shape(3, 12)]
V = 60


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    limit = torch._dynamo.config.recompile_limit
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = limit
    torch.compiler.set_stance("default")


def batch_of(shape: Shape, number: int) -> Batch:
    """Return a batch of random tokens with padding, as `Pairs` pads it to a shape."""
    generator = torch.Generator().manual_seed(number)
    src, labels = (torch.randint(4, V, tuple(shape), generator=generator) for _ in range(2))
    for side in (src, labels):
        for row in range(shape.rows):
            side[row, 3 + (row + number) % (shape.length - 3) :] = PAD
    tgt_in = torch.cat((torch.full((shape.rows, 1), BOS), labels[:, :-1]), 1)
    tokens = int((labels != PAD).sum())
    return Batch(src, src != PAD, tgt_in, labels, labels != PAD, torch.arange(shape.rows), tokens, number, 0.0)


def train(
    build_model: Callable[..., Transformer], tokenizer: Tokenizer, position: str, compilation: list[Compilation]
) -> dict[str, Tensor]:
    """Train a small model for eight updates of both shapes in turn, and one of another shape; return its weights."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(3)
    task = TranslationTask(
        model=build_model(
            f"model/position={position}",
            "model.n_decoder_layers=3",
            "model.dropout=0.0",
            src_vocab_size=V,
            tgt_vocab_size=V,
        ).train(),
        tokenizer=tokenizer,
        search=BeamSearch(beam_size=1, max_len_a=0, max_len_b=4),
        optimizer=torch.optim.SGD,
        scheduler=partial(Constant, lr=0.1),
        total_updates=9,
        label_smoothing=0.1,
        seed=1,
        record={},
    )
    batches = [batch_of(SHAPES[i % 2], i) for i in range(8)] + [batch_of(Shape(2, 9), 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator="cpu",
            max_steps=9,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=list(compilation),
        )
        trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    return task.model.state_dict()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("position", ["rotary", "relative_bias", "alibi", "sinusoidal"])
def test_training_compiles_one_graph_per_kind_of_layer_and_shape_before_the_first_update(
    build_model: Callable[..., Transformer], tokenizer: Tokenizer, position: str
) -> None:
    expected = train(build_model, tokenizer, position, [])
    counter = CompileCounterWithBackend("aot_eager")
    compilation = Compilation(SHAPES, counter)
    weights = train(build_model, tokenizer, position, [compilation])
    # Six layers share the graphs; neither later updates nor the ninth, of another shape, add one.
    assert counter.frame_count == compilation.n_graphs == 2 * len(SHAPES)
    for name, value in weights.items():
        assert torch.allclose(value, expected[name], rtol=1e-4, atol=1e-6), name


def test_a_compiled_model_is_evaluated_without_graphs(build_model: Callable[..., Transformer]) -> None:
    model = build_model(src_vocab_size=V, tgt_vocab_size=V)
    counter = CompileCounterWithBackend("eager")
    model.compile_layers(counter)
    batch = batch_of(SHAPES[0], 0)
    model.eval()(batch.src, batch.tgt_in, batch.src_mask)
    model.train().attention_weights(batch.src, batch.tgt_in, batch.src_mask)
    assert counter.frame_count == 0
    model(batch.src, batch.tgt_in, batch.src_mask)
    assert counter.frame_count == 2


def test_a_backend_that_fails_ends_the_run_with_one_line(
    build_model: Callable[..., Transformer], tokenizer: Tokenizer
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no compiler found\nin several lines")

    with pytest.raises(UserError, match=r"^run\.compile=true: torch\.compile fails here: .*no compiler found"):
        train(build_model, tokenizer, "rotary", [Compilation(SHAPES, fail)])
