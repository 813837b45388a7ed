"""Tests of the data module, from a corpus to batches: the pairs kept, the tensors, and the notes for the user."""

import os
import pickle
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.types import EVAL_DATALOADERS

from diglot.data import module, preparation
from diglot.data.batch import Batch
from diglot.data.batching import WIDTH_STEP
from diglot.data.corpus import Corpus, Files, Sample
from diglot.data.extension import TokenizerExtension
from diglot.data.flat import FlatIds
from diglot.data.held_out import eval_batches, find_faults, references_in, unknown_tokens
from diglot.data.mixed import Mixed
from diglot.data.module import TimedLoader, TranslationData
from diglot.data.options import DataOptions
from diglot.data.preparation import prepare
from diglot.data.sampling import Sampling
from diglot.data.shards import ABOUT
from diglot.data.text import ParallelText, write_lines
from diglot.data.tokenizer import BOS, EOS, PAD, Encoded, Tokenizer, TokenizerPerSide, TokenizerSource, TokenizerTrainer
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.inference.scoring import score_pairs
from diglot.inference.translator import Translator
from diglot.model import Transformer
from diglot.training.loss import token_loss
from diglot.training.watch import spread
from support.made import KINDS, of_kind

LINES = {
    "train": (
        ["Ler nin gaser.", "Ka gun {name} ne?", "Lo", "Foz su femim une paze in le duze."] * 3,
        "Sog sa por {name}",
    ),
    "dev": (["Kin ta pere fol pe {name}?", "", "Foz su femim une paze in le duze, ler nin gaser tezer ne."], "Pep sa"),
}


def corpus(folder: Path, **lines: tuple[list[str], list[str]]) -> Files:
    """Return a corpus of files with these lines; a split that is not given has those of LINES."""
    default = {split: (src, [f"{tgt} {i}" for i in range(len(src))]) for split, (src, tgt) in LINES.items()}
    paths = {}
    for split, (src, tgt) in (default | {"test": default["dev"]} | lines).items():
        write_lines(folder / f"{split}.avi", src)
        write_lines(folder / f"{split}.bol", tgt)
        paths[split] = {"src": str(folder / f"{split}.avi"), "tgt": str(folder / f"{split}.bol")}
    return Files(**paths)


def data(
    made: Corpus,
    tokenizer: Tokenizer | TokenizerSource,
    folder: Path,
    sampling: Sampling | None = None,
    **options: object,
) -> TranslationData:
    options = {"tokens_per_batch": 120, "max_len": 100, "cache_dir": str(folder / "cache")} | options
    of_batches = DataOptions(**options)  # type: ignore[arg-type]
    found = TranslationData(corpus=made, tokenizer=tokenizer, seed=1, sampling=sampling, options=of_batches)
    found.prepare_data()
    found.setup()
    found.set_length(8)
    return found


def batches(loader: EVAL_DATALOADERS) -> list[Batch]:
    found = list(loader)
    assert found
    return found


# ----------------------------------------------------------------------------------------------------------- tensors


def test_a_line_that_normalisation_empties_is_blank_in_training_and_in_dev(
    tmp_path: Path, sample_lines: list[str]
) -> None:
    train = [*sample_lines[:40], "\u200b", "Ka", "\ufffd"], [*sample_lines[:40], "Ka", "\ufeff", "Ka"]
    dev = ["Ka gun", "\u200b", "Lo"], ["Pep", "Pep", "\u200b"]
    text = corpus(tmp_path, train=train, dev=dev)
    normalising = TokenizerTrainer(model_type="unigram", vocab_size=310, normalisation="nmt_nfkc")
    made = data(text, normalising, tmp_path)
    assert "train: 40 of 43 pairs kept, left out: 3 with a blank side" in made.notes
    assert made.decode_dev(1, [310 - 1] * 3) == ""
    assert made.decode_dev(0, [310 - 1] * 3) != ""
    assert spread(made, 9) == [0]  # only pairs with text on both sides are watched


def test_dev_loss_is_that_of_scoring_which_leaves_out_pairs_without_text(
    tmp_path: Path, tokenizer: Tokenizer, build_model: Callable[..., Transformer]
) -> None:
    dev = ["Ka gun", "", "Lo", "", "  "], ["Pep", "", "", "Pep ne", " "]
    made = data(corpus(tmp_path, dev=dev), tokenizer, tmp_path)
    model = build_model(src_vocab_size=tokenizer.src_vocab_size, tgt_vocab_size=tokenizer.tgt_vocab_size)
    with torch.no_grad():
        sums = [
            token_loss(model(batch.src, batch.tgt_in, batch.src_mask), batch.labels, batch.tgt_mask, 0.0)
            for batch in batches(made.val_dataloader())
        ]
    translator = Translator(model, tokenizer, BeamSearch(beam_size=1))
    scores = [score for score in score_pairs(translator, ParallelText(*dev)) if score]
    assert sum(int(each.tokens) for each in sums) == sum(len(score.token_log_probs) for score in scores)
    total = sum(float(each.nll) for each in sums)
    assert total == pytest.approx(-sum(score.log_prob for score in scores), rel=1e-5)


def test_pairs_without_ids_that_an_earlier_version_kept_are_left_out_now(
    tmp_path: Path, sample_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = corpus(tmp_path, train=([*sample_lines[:40], "\u200b"], [*sample_lines[:40], "Ka"]))
    normalising = TokenizerTrainer(model_type="unigram", vocab_size=310, normalisation="nmt_nfkc")
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "_is_complete", lambda folder: (folder / ABOUT).exists())
        patched.setattr(Encoded, "is_blank", False)
        assert data(text, normalising, tmp_path).sizes["train"] == 41
    assert data(text, normalising, tmp_path).sizes["train"] == 40


def test_a_batch_contains_the_ids_of_its_pairs(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path)
    sources = tokenizer.encode(made.train_text.load().src)
    targets = tokenizer.encode_targets(made.train_text.load().tgt, sources)
    for batch in batches(made.train_dataloader()):
        for row, pair in enumerate(batch.pairs.tolist()):
            src, tgt = sources[pair].ids, targets[pair]
            assert batch.src[row, : len(src) + 1].tolist() == [*src, EOS]
            assert batch.tgt_in[row, : len(tgt) + 1].tolist() == [BOS, *tgt]
            assert batch.labels[row, : len(tgt) + 1].tolist() == [*tgt, EOS]
            assert (batch.src_mask[row].sum(), batch.tgt_mask[row].sum()) == (len(src) + 1, len(tgt) + 1)


def test_masks_are_true_on_tokens_and_false_on_padding(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path)
    padded = 0
    for batch in batches(made.train_dataloader()) + batches(made.val_dataloader()):
        assert batch.src_mask.dtype == batch.tgt_mask.dtype == torch.bool
        for tensor, mask in (
            (batch.src, batch.src_mask),
            (batch.tgt_in, batch.tgt_mask),
            (batch.labels, batch.tgt_mask),
        ):
            assert tensor.shape == mask.shape
            assert (tensor[~mask] == PAD).all()
            assert (tensor[mask] != PAD).all()
            assert mask[:, 0].all()
            assert (mask[:, 1:] <= mask[:, :-1]).all()  # tokens first, then padding
            padded += int((~mask).sum())
        # The longer side has no column of padding alone; the shorter one has fewer than WIDTH_STEP.
        for mask, other in ((batch.src_mask, batch.tgt_mask), (batch.tgt_mask, batch.src_mask)):
            empty = int((~mask.any(0)).sum())
            assert not empty or (empty < WIDTH_STEP and mask.size(1) <= other.size(1))
    assert padded


def test_the_decoder_input_is_the_target_shifted_by_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for batch in batches(data(corpus(tmp_path), tokenizer, tmp_path).train_dataloader()):
        assert (batch.tgt_in[:, 0] == BOS).all()
        for given, said, mask in zip(batch.tgt_in, batch.labels, batch.tgt_mask):
            n = int(mask.sum())
            assert given[1:n].tolist() == said[: n - 1].tolist()
            assert said[n - 1] == EOS
            assert EOS not in given.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_start_and_prefix_reaches_the_batches(tmp_path: Path, tokenizer: Tokenizer, kind: str) -> None:
    made, plain = of_kind(tokenizer, kind), data(Sample(), tokenizer, tmp_path)
    found = data(Sample(), made, tmp_path)
    (source,) = made.encode([""], "bol", "avi")
    pairs = np.arange(len(found.dev_pairs))
    assert {*(found.dev_pairs.src.lengths[pairs] - plain.dev_pairs.src.lengths[pairs]).tolist()} == {len(source.ids)}
    for batch in [*found.largest_batches(), *batches(found.val_dataloader())]:
        assert (batch.tgt_in[:, 0] == made.bos_id).all()
        n = len(source.tgt_prefix)
        assert (batch.labels[:, :n] == torch.tensor(source.tgt_prefix, dtype=torch.long)).all()
        assert (batch.src[:, : len(source.ids)] == torch.tensor(source.ids, dtype=torch.long)).all()
        assert (batch.tgt_in[:, 1:][batch.tgt_mask[:, 1:]] == batch.labels[:, :-1][batch.tgt_mask[:, 1:]]).all()
    pair = 3
    assert found.decode_dev(pair, found.dev_pairs.tgt[pair].tolist()) == found.held_out["dev"].tgt[pair]


def test_the_source_s_language_belongs_to_the_prepared_text_only_if_it_has_a_tag(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    made = of_kind(tokenizer, "tags")
    text = ParallelText(["Ler nin gaser."], ["Ka gun ne."])
    for with_tag, n_folders in ((made, 2), (tokenizer, 1)):
        folders = {
            prepare(text, with_tag, tmp_path, max_len=99, src_langs={"sample": lang, "": lang}, tgt_lang="bol").folder
            for lang in ("avi", "bol")
        }
        assert len(folders) == n_folders


def test_blank_targets_after_a_prefix_are_left_out_of_train_and_do_not_count_in_dev(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    pairs = ["Ler nin gaser.", "", "Ka"], ["Ka gun ne.", "", " "]
    made = data(corpus(tmp_path, train=pairs, dev=pairs), of_kind(tokenizer, "eos"), tmp_path)
    assert made.sizes["train"] == 1
    assert made.dev_pairs.counts is not None
    assert made.dev_pairs.counts.tolist() == [True, False, True]


def test_a_language_without_a_tag_is_refused_with_the_keys_that_name_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = of_kind(tokenizer, "tags")
    write_lines(tmp_path / "some.tsv", ["a\tb"])
    files = {"tsv": str(tmp_path / "some.tsv")}
    with pytest.raises(UserError, match=r"has no tag for fr, src; it has avi, bol: type data\.src_lang=CODE data\.tgt"):
        data(Files(train=files, dev=files, test=files, tgt_lang="fr"), made, tmp_path)


def test_a_batch_is_padded_to_its_bucket_and_padding_rows_do_not_count(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path, shapes="buckets", tokens_per_batch=300)
    found = batches(made.train_dataloader())
    sizes = {(batch.src.shape, batch.labels.shape) for batch in found}
    assert len(sizes) <= 4
    for batch in found:
        assert batch.src.shape == batch.labels.shape == batch.tgt_in.shape
        n = len(batch.pairs)
        for tensor, mask in (
            (batch.src, batch.src_mask),
            (batch.labels, batch.tgt_mask),
            (batch.tgt_in, batch.tgt_mask),
        ):
            assert (tensor[~mask] == PAD).all()
            assert mask[:n, 0].all()
            assert not mask[n:].any()
        assert batch.tgt_mask.sum() == batch.update_target_tokens
    assert any(len(batch.pairs) < len(batch.src) for batch in found)


def test_a_batch_has_its_position_in_the_stream(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path, batches_per_update=2)
    found = batches(made.train_dataloader())
    assert len(found) == 2 * made.n_updates
    assert [batch.position for batch in found] == list(range(len(found)))
    for first, second in zip(found[::2], found[1::2]):
        tokens = int(first.tgt_mask.sum() + second.tgt_mask.sum())
        assert first.update_target_tokens == second.update_target_tokens == tokens
    passes = [batch.passes for batch in found]
    assert passes == sorted(passes)
    n = made.batching.count(0)
    assert passes[n - 1] == 1.0
    assert sorted(i for batch in found[:n] for i in batch.pairs.tolist()) == list(range(12))
    for batch in found:
        assert len(batch.pairs) * max(batch.src.size(1), batch.labels.size(1)) <= 120


def test_flat_ids_return_each_sequence() -> None:
    sequences = [[5, 6], [], [65_535], [7, 8, 9]]
    for vocab_size, dtype in ((2**16, np.uint16), (2**16 + 1, np.uint32)):
        flat = FlatIds.from_sequences(sequences, vocab_size)
        assert [row.tolist() for row in map(flat.__getitem__, range(len(flat)))] == sequences
        assert np.asarray(flat.lengths).tolist() == [3, 1, 2, 4]
        assert flat.lengths[np.array([3, 0])].tolist() == [4, 3]
        assert flat.lengths.max() == 4
        assert flat.padded(np.array([1, 0])).tolist() == [[EOS, PAD, PAD], [5, 6, EOS]]
        assert flat.ids.dtype == dtype


# ------------------------------------------------------------------------------------------------- pairs that are kept


def lengths(tokenizer: Tokenizer, pairs: ParallelText) -> list[int]:
    """Return the number of tokens of each pair's longer side, including </s>."""
    sources = tokenizer.encode(pairs.src)
    targets = tokenizer.encode_targets(pairs.tgt, sources)
    return [max(len(source.ids), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]


@pytest.mark.parametrize("long_side", ["src", "tgt"])
def test_a_pair_of_exactly_max_len_is_kept_and_one_token_more_is_not(
    tmp_path: Path, tokenizer: Tokenizer, long_side: str
) -> None:
    long, short = [" ".join(["lan"] * n) for n in range(12, 0, -1)], ["lan"] * 12
    text = ParallelText(*((long, short) if long_side == "src" else (short, long)))
    sizes = lengths(tokenizer, text)
    assert sizes == list(range(sizes[0], sizes[0] - 12, -1))  # each pair is one token shorter
    made = data(
        corpus(tmp_path, train=(text.src, text.tgt)), tokenizer, tmp_path, max_len=sizes[4], tokens_per_batch=40
    )
    assert f"train: 8 of 12 pairs kept, left out: 4 over data.max_len={sizes[4]} tokens" in made.notes
    assert made.sizes == {"train": 8, "dev": 3, "test": 3}
    kept = [max(len(src), len(tgt)) + 1 for src, tgt in zip(made.shards.src, made.shards.tgt)]
    assert kept == sizes[4:]


def test_tokens_of_dev_that_the_tokenizer_does_not_know_are_counted(tmp_path: Path) -> None:
    text = {"train": (["ab"] * 9, ["x y"] * 9), "dev": (["aq", "bb"], ["x z", "x x"]), "test": (["q"], ["z"])}
    options: Any = {"vocab_size": None, "character_coverage": 1.0}
    sides = [TokenizerTrainer(model_type=kind, **options) for kind in ("char", "word")]
    made = data(corpus(tmp_path, **text), TokenizerPerSide(src=sides[0], tgt=sides[1]), tmp_path)
    assert "dev: 1 source token (25.00%) is unknown to the tokenizer" in made.notes
    assert "dev: 1 target token (25.00%) is unknown to the tokenizer" in made.notes
    assert unknown_tokens({"source": [[5, 6]], "target": []}) == []


def test_no_pair_short_enough_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"no train pair left: .* left out: 12 over data.max_len=2"):
        data(corpus(tmp_path), tokenizer, tmp_path, max_len=2)


def test_dev_keeps_long_and_blank_lines(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path, max_len=12, tokens_per_batch=12, eval_tokens_per_batch=5)
    assert max(lengths(tokenizer, made.held_out["dev"])) > 12
    found = batches(made.val_dataloader())
    assert sorted(i for batch in found for i in batch.pairs.tolist()) == [0, 1, 2]
    assert found[0].src.size(1) == max(
        batch.src.size(1) for batch in found
    )  # the longest first, so that memory runs out early or never
    blank = next(batch for batch in found if 1 in batch.pairs.tolist())
    assert blank.src[blank.pairs.tolist().index(1)].tolist()[0] == EOS
    assert made.decode_dev(1, [9, 9]) == ""
    (source,) = tokenizer.encode([made.held_out["dev"].src[0]])
    assert made.decode_dev(0, source.ids) == made.held_out["dev"].src[0]


def test_dev_batches_are_within_their_budget() -> None:
    random = np.random.default_rng(1)
    src, tgt = random.integers(1, 30, (2, 100))
    found = eval_batches(src, tgt, 64)
    assert sorted(i for batch in found for i in batch.pairs.tolist()) == list(range(100))
    assert all(len(b.pairs) * max(src[b.pairs].max(), tgt[b.pairs].max()) <= 64 for b in found)


# ----------------------------------------------------------------------------------------------------------- processes


def test_processes_share_the_updates(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path, batches_per_update=4)
    whole = [batch.pairs.tolist() for batch in made.updates()]
    halves = [[batch.pairs.tolist() for batch in made.updates(rank, 2)] for rank in (0, 1)]
    assert sorted(halves[0] + halves[1]) == sorted(whole)
    assert len(halves[0]) == len(halves[1]) == 16


@pytest.mark.parametrize(("per_update", "world_size", "fitting"), [(3, 2, 4), (1, 4, 4), (9, 4, 12), (5, 3, 6)])
def test_a_number_of_batches_not_divisible_by_the_processes_is_refused_with_the_next_one(
    tmp_path: Path, tokenizer: Tokenizer, per_update: int, world_size: int, fitting: int
) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path, batches_per_update=per_update)
    with pytest.raises(UserError) as refused:
        made.updates(0, world_size)
    assert f"data.batches_per_update={per_update} is not divisible by {world_size} processes" in str(refused.value)
    assert f"type data.batches_per_update={fitting}" in str(refused.value)
    assert fitting % world_size == 0


def test_other_text_has_another_order(tmp_path: Path, tokenizer: Tokenizer) -> None:
    src = [f"lan {'a' * (i % 7)}" for i in range(40)]
    orders = []
    one = [f"{line} x" for line in src]
    for i, tgt in enumerate((one, one, one[::-1])):
        made = data(corpus(tmp_path / str(i), train=(src, tgt)), tokenizer, tmp_path, tokens_per_batch=100)
        orders.append([batch.pairs.tolist() for batch in made.updates()])
    assert orders[0] == orders[1] != orders[2]


def test_passes_are_counted_in_updates(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(corpus(tmp_path), tokenizer, tmp_path, batches_per_update=2, tokens_per_batch=100)
    n_batches = sum(made.batching.count(i) for i in range(3))
    assert made.updates_in(3) == -(-n_batches // 2)


# -------------------------------------------------------------------------------------------------------------- notes


def test_notes_count_references_and_pairs_of_any_reference() -> None:
    dev = ParallelText(["a", "b"], ["x", "y"], (["1", None], ["I", "II"]))
    test = ParallelText(["a", "b", "c"], ["z", "y2", "w"], (["I", None, None],))
    assert references_in({"dev": dev, "test": ParallelText(["a"], ["b"])}) == [
        "dev: up to 3 references per source; 1 of 2 sources have fewer"
    ]
    assert references_in({"test": dev.select([0])}) == ["test: 3 references per source"]
    told = "test: 1 of 3 pairs are also in dev, which selects the best checkpoint"
    assert find_faults({"dev": dev, "test": test}) == [told]


def test_notes_report_how_the_text_was_prepared(tmp_path: Path) -> None:
    train = Sample().read(tmp_path)["train"].load()
    src, tgt = [*train.src[:300], "", "lan"], [*train.tgt[:300], "x", " "]
    trainer = TokenizerTrainer(model_type="bpe", vocab_size=350)
    made = data(corpus(tmp_path, train=(src, tgt)), trainer, tmp_path)
    made.setup()  # the second call does nothing
    assert made.notes == [
        "dev: 1 of 3 sources are blank; they are kept, which affects the scores",
        "test: 1 of 3 sources are blank; they are kept, which affects the scores",
        made.notes[2],
        "tokenizer: 604 lines read, 602 used, 2 skipped; 350 pieces",
        "train: 300 of 302 pairs kept, left out: 2 with a blank side",
        made.notes[5],
    ]
    assert made.notes[2] == "test: 3 of 3 pairs are also in dev, which selects the best checkpoint"
    assert made.notes[5].startswith("doctor: 300 pairs, 0 repeated")
    assert made.tokenizer.src_vocab_size == made.tokenizer.tgt_vocab_size == 350


def test_the_sample_corpus_makes_batches(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(Sample(), tokenizer, tmp_path, tokens_per_batch=2000)
    batch = next(iter(made.train_dataloader()))
    assert len(batch.pairs) * max(batch.src.size(1), batch.labels.size(1)) <= 2000
    line = made.train_text.load().tgt[int(batch.pairs[0])]
    (source,) = tokenizer.encode([made.train_text.load().src[int(batch.pairs[0])]])
    ids = batch.labels[0][batch.tgt_mask[0]].tolist()
    assert tokenizer.decode(ids[:-1], source.placeholders) == line


# ------------------------------------------------------------------------------------------- samples, tags, two models


def test_passes_cycle_through_the_versions_of_sampled_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(Sample(), tokenizer, tmp_path, tokens_per_batch=600, sampling=Sampling(2, 0.2, 1))
    n = made.sizes["train"]
    assert len(made.shards.src) == 2 * n
    made.set_length(made.updates_in(3))
    seen: dict[int, list[int]] = {}
    for micro_batch in made.updates():
        batch = made.train_pairs[micro_batch]
        assert batch.src.numel() <= 600
        assert batch.labels.numel() <= 600
        seen.setdefault(micro_batch.pass_number, []).extend(micro_batch.pairs.tolist())
    assert {e: sorted(pairs) for e, pairs in seen.items()} == {
        0: list(range(n)),
        1: list(range(n, 2 * n)),
        2: list(range(n)),
    }
    # Dev is not sampled.
    plain = data(Sample(), tokenizer, tmp_path, tokens_per_batch=600)
    assert np.array_equal(made.dev_pairs.src.ids, plain.dev_pairs.src.ids)


def test_each_corpus_of_several_languages_has_its_tag(tmp_path: Path) -> None:
    splits = Sample().read(tmp_path)
    train, dev = splits["train"].load(), splits["dev"].load()
    write_lines(tmp_path / "train.avi", train.src)
    write_lines(tmp_path / "train.bol", train.tgt)
    paths = {"avi": str(tmp_path / "train.avi"), "bol": str(tmp_path / "train.bol")}
    write_lines(tmp_path / "dev.tsv", [f"{src}\t{tgt}" for src, tgt in zip(dev.src, dev.tgt)])
    corpus = Mixed(
        corpora={
            "there": {"src": paths["avi"], "tgt": paths["bol"]},
            "back": {"src": paths["bol"], "tgt": paths["avi"], "src_lang": "bol", "tgt_lang": "avi"},
        },
        dev={"tsv": str(tmp_path / "dev.tsv")},
        src_lang="avi",
        tgt_lang="bol",
    )
    trainer = TokenizerTrainer(model_type="unigram", vocab_size=500)
    made = data(corpus, trainer, tmp_path, tokens_per_batch=600)  # type: ignore[arg-type]
    assert made.tokenizer.languages == ("avi", "bol")
    tags = {language: made.tokenizer.encode([""], language)[0].ids for language in ("avi", "bol")}
    n = len(train)
    assert [made.shards.src[i][:1].tolist() for i in (0, n - 1, n, 2 * n - 1)] == [tags["bol"]] * 2 + [tags["avi"]] * 2
    assert all(made.dev_pairs.src[i][:1].tolist() == tags["bol"] for i in range(len(dev)))
    assert not set(made.shards.tgt.ids.tolist()) & {tags["avi"][0], tags["bol"][0]}
    assert made.decode_dev(0, made.dev_pairs.tgt[0].tolist()) == dev.tgt[0]


def test_a_ready_tokenizer_without_the_tags_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Refuse it: the model would learn to write several languages without knowing which one is wanted."""
    write_lines(tmp_path / "some.tsv", ["a\tb"])
    files = {"tsv": str(tmp_path / "some.tsv"), "src_lang": "de"}
    corpora = {"one": {**files, "tgt_lang": "en"}, "two": {**files, "tgt_lang": "fr"}}
    dev = {"tsv": str(tmp_path / "some.tsv")}
    with pytest.raises(
        UserError, match=r"^mixed: the existing tokenizer has no tag for en, fr; type tokenizer=extend$"
    ):
        data(Mixed(corpora=corpora, dev=dev, src_lang="de", tgt_lang="en"), tokenizer, tmp_path)
    extension = TokenizerExtension()
    extension.start_from(tokenizer, "en")
    made = data(Mixed(corpora=corpora, dev=dev, src_lang="de", tgt_lang="en"), extension, tmp_path)
    assert made.tokenizer.languages == ("en", "fr")
    assert [made.shards.src[i][0] - tokenizer.src_vocab_size for i in (0, 1)] == [0, 1]


def test_separate_vocabularies_decode_to_the_text(tmp_path: Path) -> None:
    trainer = TokenizerTrainer(model_type="bpe", vocab_size=400, joint=False, tgt_vocab_size=430)
    made = data(Sample(), trainer, tmp_path, tokens_per_batch=600)
    train = made.train_text.load()
    for i in range(0, len(train), 50):
        assert made.tokenizer.decode(made.shards.src[i].tolist(), (), "src") == train.src[i]
        assert made.tokenizer.decode(made.shards.tgt[i].tolist()) == train.tgt[i]


def test_the_doctor_does_not_run_on_large_text_in_every_run(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DIAGNOSED_PAIRS", 3_999)  # the sample has 4,000
    told = "doctor: not run on more than 3,999 pairs; run `make prepare` or `make doctor`"
    assert data(Sample(), tokenizer, tmp_path, tokens_per_batch=600).notes[-1] == told
    report = data(Sample(), tokenizer, tmp_path, tokens_per_batch=600).diagnose()
    # The report is now in the cache.
    assert data(Sample(), tokenizer, tmp_path, tokens_per_batch=600).notes[-1] == f"doctor: {report.summary()}"


def test_a_loader_process_maps_the_files_itself(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = data(Sample(), tokenizer, tmp_path, tokens_per_batch=600)
    sent = pickle.dumps(made.train_pairs)
    assert len(sent) < 2_000
    again = pickle.loads(sent)
    for micro_batch in list(made.updates())[:3]:
        for mine, theirs in zip(made.train_pairs[micro_batch], again[micro_batch], strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_the_number_of_pairs_in_a_pass_is_reported_for_weighted_corpora(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name, n in (("many", 40), ("few", 3)):
        write_lines(tmp_path / f"{name}.tsv", [f"ler {i}\tsog {i}" for i in range(n)])
    files = {name: {"tsv": str(tmp_path / f"{name}.tsv")} for name in ("many", "few")}

    def mixed(weight: float) -> TranslationData:
        corpora = {"many": files["many"], "few": {**files["few"], "weight": weight}}
        return data(Mixed(corpora=corpora, dev=files["few"]), tokenizer, tmp_path)

    made = mixed(2.5)
    assert "few: 8 pairs in a pass (weight 2.5)" in made.notes
    assert len(made.batching) == 48
    for weight, many in ((0.1, "no"), (1e17, "too many")):
        with pytest.raises(
            UserError, match=re.escape(f"few.weight={weight:g}: {many} pairs in a pass (the corpus has 3)")
        ):
            mixed(weight)


# ------------------------------------------------------------------------------------------------------ loader workers


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
        RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"),
        RuntimeError("Pin memory thread exited unexpectedly"),
        ConnectionResetError(104, "Connection reset by peer"),
        FileNotFoundError(2, "No such file or directory"),
    ],
)
@pytest.mark.parametrize(
    ("statuses", "said"),
    [([-9], "was killed by SIGKILL"), ([0, -11], "was killed by SIGSEGV"), ([3], "failed with exit status 3")],
)
def test_how_a_worker_ended_is_reported_whatever_error_comes_first(error, statuses, said):
    assert module.worker_failure(error, statuses) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DataLoader worker (pid(s) 7) exited unexpectedly", "ended too early"),
        ("DataLoader timed out", "does not answer"),
        ("Caught KeyError in DataLoader worker process 0.\nTraceback ...\nKeyError: 5", "failed with KeyError: 5"),
        ("size mismatch", None),
    ],
)
def test_other_errors_are_distinguished_from_a_dead_worker(text, said):
    assert module.worker_failure(RuntimeError(text), [0]) == said


class Deadly(torch.utils.data.Dataset):
    """Dataset that kills the process that asks for item 7; no worker gets it before the loader has started."""

    def __getitem__(self, item):
        return item if item != 7 else os.kill(os.getpid(), signal.SIGKILL)

    def __len__(self):
        return 8


def test_the_loader_records_exit_statuses_of_its_workers():
    handler = signal.getsignal(signal.SIGCHLD)
    loader = TimedLoader(Deadly(), batch_size=None, num_workers=2, persistent_workers=True)
    try:
        with pytest.raises(RuntimeError) as raised:
            list(loader)
        loader.end_workers(raised.value)
    finally:
        signal.signal(signal.SIGCHLD, handler)
    assert loader.exit_statuses == [-signal.SIGKILL]
