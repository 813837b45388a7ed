"""A model with new pieces starts with the logits and the translations of its checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.initial import initial_weights
from diglot.checkpoint.weights import load_weights
from diglot.config import build
from diglot.data.corpus import Sample
from diglot.data.extension import TokenizerExtension, added_ids
from diglot.data.text import ParallelText
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError
from diglot.inference.translator import Translator
from support.made import checkpoint_content, write_checkpoint

SIZE = ("model.d_model=24", "model.n_heads=3", "model.d_ff=40")


def extended(base: Tokenizer, folder: Path, languages: tuple[str, ...] = ()) -> Tokenizer:
    source = TokenizerExtension(pieces=["mRNA", "gasertezer"])
    source.start_from(base, "bol")
    return source.get(ParallelText(["a"], ["b"]), folder, languages)[0]


@pytest.mark.parametrize(
    "words",
    [
        ("model.tying=all",),
        ("model.tying=target",),
        ("model.tying=none",),
        ("model=gru_attention", "model.d_hidden=16"),
    ],
)
def test_old_logits_stay_and_new_rows_are_means(
    compose_train: Callable[..., DictConfig], tokenizer: Tokenizer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    config = compose_train(*(words[:1] + SIZE[:1] + words[1:] if "gru" in words[0] else (*SIZE, *words)))
    path = write_checkpoint(tmp_path / "old.ckpt", checkpoint_content(config, tokenizer))
    initial = checkpoints.load(path)
    new = extended(tokenizer, tmp_path)
    model = build(config.model, "model", **new.vocab_sizes).eval()
    load_weights(model, initial_weights(initial, new))
    dev = Sample().read(tmp_path)["dev"].load().src[:4]
    n_old = tokenizer.src_vocab_size
    for line in dev:
        src = torch.tensor([tokenizer.encode([line])[0].ids])
        tgt, mask = src[:, :5], torch.ones_like(src, dtype=torch.bool)
        with torch.no_grad():
            before, after = initial.model(src, tgt, mask), model(src, tgt, mask)
        torch.testing.assert_close(after[..., :n_old], before, atol=1e-5, rtol=1e-5)
        for i, ids in enumerate(added_ids(tokenizer, new, "tgt")):
            mean = (before[..., ids] if ids else before).mean(-1)
            torch.testing.assert_close(after[..., n_old + i], mean, atol=1e-4, rtol=1e-4)


def test_translations_stay_the_same(
    compose_train: Callable[..., DictConfig], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = compose_train(*SIZE, "search=greedy", "search.max_len_b=8", "search.max_len_a=0.0")
    content = checkpoint_content(config, tokenizer)
    initial = checkpoints.load(write_checkpoint(tmp_path / "old.ckpt", content))
    new = extended(tokenizer, tmp_path)
    state = {f"model.{name}": weight for name, weight in initial_weights(initial, new).items()}
    record = {**content["diglot"], **checkpoints.record(config, new, "sample", "avi", "bol")}
    write_checkpoint(tmp_path / "new.ckpt", {"diglot": record, "state_dict": state})
    dev = Sample().read(tmp_path)["dev"].load().src[:30]
    before, after = (Translator.load(tmp_path / f"{name}.ckpt", device="cpu").translate(dev) for name in ("old", "new"))
    assert after == before
    assert len(set(before)) > 2


def test_a_tag_starts_as_the_mean_of_the_tags_or_of_all_pieces(
    compose_train: Callable[..., DictConfig], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = compose_train(*SIZE)
    two = extended(tokenizer, tmp_path, ("avi", "bol"))
    initial = checkpoints.load(write_checkpoint(tmp_path / "a.ckpt", checkpoint_content(config, tokenizer)))
    rows = initial_weights(initial, two)["src_embedding.weight"]
    torch.testing.assert_close(rows[-1], rows[: tokenizer.src_vocab_size].mean(0))
    source = TokenizerExtension()
    source.start_from(two, "cel")
    three = source.get(ParallelText(["a"], ["b"]), tmp_path)[0]
    initial = checkpoints.load(write_checkpoint(tmp_path / "b.ckpt", checkpoint_content(config, two)))
    rows = initial_weights(initial, three)["src_embedding.weight"]
    torch.testing.assert_close(rows[-1], rows[-3:-1].mean(0))


def test_another_tokenizer_is_refused_by_its_size(
    compose_train: Callable[..., DictConfig], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = compose_train(*SIZE)
    new = extended(tokenizer, tmp_path)
    initial = checkpoints.load(write_checkpoint(tmp_path / "a.ckpt", checkpoint_content(config, new)))
    model = build(config.model, "model", **tokenizer.vocab_sizes)
    with pytest.raises(UserError, match="its weights do not fit this model"):
        load_weights(model, initial_weights(initial, tokenizer))
