"""Translations of lines do not depend on batches; also long lines, prefixes, ensembles and JSON."""

import inspect
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir

import diglot
from diglot.checkpoint import file as checkpoint
from diglot.commands.translate import check_options, chosen_alignment, load_translator, windows
from diglot.commands.translate import main as translate_main
from diglot.config import CONF
from diglot.config.check import check
from diglot.data.text import ParallelText, write_lines
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.decoding import BeamSearch, SamplingSearch
from diglot.decoding.layout import PackedLinear
from diglot.errors import UserError
from diglot.evaluation.evaluate import EvaluationSet, evaluate
from diglot.evaluation.scorer import Scorer
from diglot.export.parity import some_sentences
from diglot.inference.scoring import PairScore, score_pairs, search_errors
from diglot.inference.translator import Translation, Translator, as_ensemble, split_text
from support.commands import type_command
from support.made import KINDS, checkpoint_content, of_kind, write_checkpoint

SIZES = ("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "model/position=sinusoidal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, compose_train, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    for name, seed in (("a", 1), ("b", 2)):
        write_checkpoint(folder / f"{name}.ckpt", checkpoint_content(compose_train(*SIZES), tokenizer, seed))
    learned = compose_train(*SIZES, "model/position=learned", "model.position.max_positions=24")
    write_checkpoint(folder / "short.ckpt", checkpoint_content(learned, tokenizer))
    even = checkpoint_content(compose_train(*SIZES, "model.tying=none"), tokenizer)  # all tokens are equally probable
    even["state_dict"] |= {
        name: torch.zeros_like(value) for name, value in even["state_dict"].items() if "output" in name
    }
    write_checkpoint(folder / "even.ckpt", even)
    return folder


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    made = Translator.load(folder / "a.ckpt", "cpu", BeamSearch(beam_size=4, max_len_a=1.0, max_len_b=4))
    sharpen(made)
    return made


def sharpen(translator: Translator) -> None:
    """Make the probabilities of an untrained model less uniform, so that outputs end at different lengths."""
    output = translator.model.output
    with torch.no_grad():
        output.weight.mul_(6)
    translator.model.output = PackedLinear(output, "plain")  # because a packed layer does not see the change


def same(found: list[Translation], expected: list[Translation]) -> int:
    """Check that two outputs are equal except for near ties, and count the lines that differ by one."""
    assert len(found) == len(expected)
    ties = 0
    for a, b in zip(found, expected, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-4)
        if a.text != b.text:
            assert a.near_tie or b.near_tie
            ties += 1
    return ties


def lines_of(sample_lines: list[str], n: int) -> list[str]:
    """Return random lines of very different lengths."""
    random = np.random.default_rng(3)
    return [" ".join(random.choice(sample_lines, random.integers(1, 5))) for _ in range(n)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("beam", "n"), [(1, 6), (4, 4), *(pytest.param(beam, 24, marks=pytest.mark.reliability) for beam in (1, 4))]
)
def test_a_line_s_translation_depends_on_nothing_but_the_line(translator, sample_lines, beam, n):
    lines = lines_of(sample_lines, n)
    alone = translator.translate_all(lines, beam, tokens_per_batch=1)  # each line is searched alone
    assert len({translation.text for translation in alone}) > n // 2
    ties = 0
    for tokens_per_batch in (300, 1_000_000):
        ties += same(translator.translate_all(lines, beam, tokens_per_batch), alone)
    ties += same(translator.translate_all(lines[::-1], beam)[::-1], alone)
    ties += same(translator.translate_all(lines[:3] * 5, beam)[6:9], alone[:3])
    assert ties <= 3


@pytest.fixture(scope="module")
def normalising(compose_train, sample_lines, tmp_path_factory) -> tuple[Path, Tokenizer]:
    """Return a checkpoint for two target languages, and its tokenizer, which removes zero-width characters."""
    folder = tmp_path_factory.mktemp("normalising")
    source = TokenizerTrainer(model_type="unigram", vocab_size=400, normalisation="nmt_nfkc")
    made, _ = source.get(ParallelText(sample_lines, sample_lines), folder, ["bol", "cav"])
    learned = compose_train(*SIZES, "model/position=learned", "model.position.max_positions=24")
    write_checkpoint(folder / "a.ckpt", checkpoint_content(learned, made))
    return folder / "a.ckpt", made


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizer_s_own_prefix_is_forced_and_not_shown(compose_train, tokenizer, tmp_path, kind):
    made = of_kind(tokenizer, kind)
    path = write_checkpoint(tmp_path / "a.ckpt", checkpoint_content(compose_train(*SIZES), made))
    translator = Translator.load(path, "cpu", BeamSearch(beam_size=4, max_len_a=1.0, max_len_b=4))
    sharpen(translator)
    seen = []
    search = BeamSearch.__call__

    def watched(self, model, src, src_mask, special, prefixes):
        found = search(self, model, src, src_mask, special, prefixes)
        seen.extend(zip(src.tolist(), prefixes, found, strict=True))
        return found

    lines, prefixes = ["Ler nin gaser.", "", "Ka gun ne?"], ["", "Sa", "Sa hur"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BeamSearch, "__call__", watched)
        found = translator.n_best(lines, prefixes=prefixes, attention=True)
    (own,) = made.encode([""], "bol", "avi")
    n = len(own.tgt_prefix)
    assert len(seen) == 2
    for src, prefix, (best, *_) in seen:
        assert src[: len(own.ids)] == own.ids
        assert prefix[:n] == best.tokens[:n] == list(own.tgt_prefix)
    typed = made.encode_targets(["Sa hur"], [own])[0][n:]
    assert sorted(prefix[n:] for _, prefix, _ in seen) == sorted([[], typed])
    for (best, *_), line, prefix in zip(found, lines, prefixes, strict=True):
        if not line:
            continue
        assert best.text.startswith(prefix)
        assert len(best.tokens) == len(best.log_probs)
        assert [layer.shape for layer in best.attention] == [(3, len(best.tokens), len(best.source_tokens))] * 2
        (hypothesis,) = (h for src, _, (h, *_) in seen if made.decode(src[:-1], (), "src").rstrip() == line)
        assert best.tokens == (*made.pieces(hypothesis.tokens[n:], "tgt"), "</s>")
        assert best.log_probs == tuple(hypothesis.log_probs[n:])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_leave_out_the_tokenizer_s_own_prefix_and_search_errors_count_it(
    compose_train, tokenizer, tmp_path, kind
):
    made = of_kind(tokenizer, kind)
    path = write_checkpoint(tmp_path / "a.ckpt", checkpoint_content(compose_train(*SIZES), made))
    translator = Translator.load(path, "cpu", BeamSearch(beam_size=2, max_len_a=1.0, max_len_b=4))
    sharpen(translator)
    lines = ["Ler nin gaser.", "Ka gun ne?", ""]
    found = translator.translate_all(lines)
    scores = score_pairs(translator, ParallelText(lines, [translation.text for translation in found]))
    n = made.n_tgt_prefix
    for translation, score in zip(found[:2], scores):
        assert len(score.prefix_log_probs) == n
        assert len(score.token_log_probs) == len(score.pieces)
        assert score.log_prob == pytest.approx(sum(score.token_log_probs))
        if translation.tokens == (*score.pieces[:-1], "</s>"):  # the output is the best segmentation of its text
            assert score.token_log_probs == pytest.approx(translation.log_probs, abs=1e-4)
            total = score.log_prob + sum(score.prefix_log_probs)
            assert translation.score == pytest.approx(translator.search.score(total, len(score.pieces) + n), abs=1e-4)
    assert scores[2] == PairScore(0.0, [], [], 0)
    # The search has missed no reference that is worse by the score that it compares.
    assert search_errors(translator, lines, [["Sa hur rek Sa hur rek."] * 3], found)["n_search_errors"] == 0


def test_a_source_language_that_the_model_has_no_tag_for_is_refused(compose_train, tokenizer, tmp_path):
    advice = "its languages are avi, bol: type one of them, such as "
    tagged = write_checkpoint(
        tmp_path / "tags.ckpt", checkpoint_content(compose_train(*SIZES), of_kind(tokenizer, "tags"))
    )
    assert Translator.load(tagged, "cpu").src_lang == "avi"
    assert Translator.load(tagged, "cpu", src_lang="bol", tgt_lang="avi").src_lang == "bol"
    with pytest.raises(UserError, match=rf"^src_lang=bo: this model does not translate from bo; {advice}src_lang=bol$"):
        Translator.load(tagged, "cpu", src_lang="bo")
    content = checkpoint_content(compose_train(*SIZES), of_kind(tokenizer, "tags"), languages=("avi", "tgt"))
    unknown = write_checkpoint(tmp_path / "unknown.ckpt", content)
    with pytest.raises(
        UserError, match=rf"^tgt_lang: .* not say into which language to translate; {advice}tgt_lang=avi$"
    ):
        Translator.load(unknown, "cpu")
    content["diglot"]["src_lang"] = "src"
    neither = write_checkpoint(tmp_path / "neither.ckpt", content)
    with pytest.raises(UserError, match=r"^tgt_lang: .* type one of them, .*; src_lang: .* type one of them, such as"):
        Translator.load(neither, "cpu")
    translator = diglot.load(unknown, "cpu", src_lang="bol", tgt_lang="avi")  # what the message says to type
    assert (translator.src_lang, translator.tgt_lang) == ("bol", "avi")
    plain = write_checkpoint(tmp_path / "plain.ckpt", checkpoint_content(compose_train(*SIZES), tokenizer))
    with pytest.raises(
        UserError, match=r"^src_lang=fr: this model has only one source language, avi: leave src_lang out$"
    ):
        Translator.load(plain, "cpu", src_lang="fr")
    content = checkpoint_content(compose_train(*SIZES), tokenizer)
    content["diglot"] |= {"src_lang": "de", "tgt_lang": "tgt"}
    other = write_checkpoint(tmp_path / "other.ckpt", content)
    assert Translator.load(other, "cpu", src_lang="deu_Latn").src_lang == "de"
    with pytest.raises(UserError, match="only one target language, which its checkpoint does not name: leave tgt_lang"):
        Translator.load(other, "cpu", tgt_lang="en")


def test_a_line_that_is_empty_after_normalisation_stays_blank(normalising):
    translator = Translator.load(normalising[0], "cpu", BeamSearch(beam_size=2, max_len_a=1.0, max_len_b=4))
    sharpen(translator)
    lines = ["Ler nin gaser.", "\u200b", "\ufffd\ufffd", "\ufeff \u200e", "Ka gun ne?"]
    found = translator.translate_all(lines)
    assert [bool(t.text) for t in found] == [True, False, False, False, True]
    assert found[1:4] == [Translation("", 0.0, False)] * 3
    assert translator.translate(lines[::4]) == [found[0].text, found[4].text]
    (prefixed,) = translator.n_best(["\u200b"], prefixes=["Ka"])
    assert prefixed == [Translation("", 0.0, False)]


def test_a_piece_of_a_long_line_that_is_empty_after_normalisation_is_not_translated(normalising):
    translator = Translator.load(normalising[0], "cpu", BeamSearch(beam_size=1, max_len_a=1.0, max_len_b=4))
    sharpen(translator)
    line = "\u200b" * 60 + " " + "Lergasergunfemimpazeduzetezer" * 2
    pieces = split_text(line, lambda part: len(translator.tokenizer.encode([part], "bol")[0].ids) < 24)
    assert translator.tokenizer.encode([pieces[0][1]])[0].is_blank
    (found,) = translator.translate_all([line])
    read = [t.source_tokens for t in translator.translate_all([part for _, part in pieces])]
    assert found.source_tokens == tuple(token for tokens in read for token in tokens)


def test_a_pair_that_is_empty_after_normalisation_scores_zero(normalising):
    translator = Translator.load(normalising[0], "cpu")
    pairs = ParallelText(["\u200b", "\ufffd", "Ka", ""], ["\ufeff", "Ka", "\u200b", "\u200b"])
    scores = score_pairs(translator, pairs)
    assert scores[0] == scores[3] == PairScore(0.0, [], [], 0)
    assert [len(scores[i].pieces) > 1 for i in (1, 2)] == [True, False]
    assert all(scores[i].log_prob < 0 for i in (1, 2))
    found = search_errors(translator, pairs.src, [pairs.tgt], translator.translate_all(pairs.src))
    assert (found["of"], found["left_out"]) == (1, 3)


def test_an_export_is_compared_on_lines_with_text_alone(normalising, tmp_path):
    write_lines(tmp_path / "lines", ["\u200b", "Ka", "\ufffd", "Lo"])
    sentences = some_sentences(checkpoint.load(normalising[0]), 9, str(tmp_path / "lines"), None)
    assert sentences.sources == normalising[1].encode(["Ka", "Lo"], "bol")


def test_an_evaluation_counts_no_output_as_missing_for_a_line_without_text(normalising, tmp_path):
    translator = Translator.load(normalising[0], "cpu", BeamSearch(beam_size=1, max_len_a=1.0, max_len_b=4))
    sharpen(translator)
    evaluated = EvaluationSet("few", "test", ParallelText(["\u200b", "Ler nin gaser."], ["x", "Ka"]))
    results = evaluate(translator, evaluated, Scorer("bol"), tmp_path / "scored")
    assert results["outputs"]["empty"] == 0


def test_blank_lines_stay_blank_and_disturb_no_neighbour(translator):
    lines = ["Ler nin gaser.", "", "Ka gun ne?", "   ", "Foz su femim."]
    for tokens_per_batch in (1, 10_000):
        found = translator.translate_all(lines, tokens_per_batch=tokens_per_batch)
        assert [found[1].text, found[3].text] == ["", ""]
        for i in (0, 2, 4):
            same([found[i]], translator.translate_all([lines[i]]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9])
def test_as_many_lines_come_out_as_go_in_around_a_batch_s_size(translator, n):
    k = 3  # lines per batch
    lines = [f"w{i} " * (1 + i % 3) for i in range(n)]
    cost = 4 + 4 * (2 * 8 + 5)
    found = translator.translate_all(lines, tokens_per_batch=k * cost)
    same(found, [translator.translate_all([line])[0] for line in lines])


def test_n_best_are_distinct_best_first_and_complete(translator):
    (found,) = translator.n_best(["Ler nin gaser."], BeamSearch(beam_size=4, n_best=4), attention=True)
    assert 1 < len(found) == len({t.text for t in found}) <= 4
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    for t in found:
        assert "".join(t.source_tokens) == "▁Ler▁nin▁gaser.</s>"
        assert t.tokens[-1] == "</s>"
        assert len(t.log_probs) == len(t.tokens)
        assert translator.search.score(sum(t.log_probs), len(t.tokens)) == pytest.approx(t.score, abs=1e-4)
        assert [layer.shape for layer in t.attention] == [(3, len(t.tokens), len(t.source_tokens))] * 2
        assert np.allclose(np.stack(t.attention).sum(-1), 1, atol=1e-5)


def test_a_translation_begins_with_its_prefix(translator):
    lines, prefixes = ["Ler nin gaser.", "", "Ka gun ne?"], ["Sa hur", "is not read", ""]
    found = translator.n_best(lines, prefixes=prefixes)
    assert found[0][0].text.startswith("Sa hur")
    assert found[1][0].text == ""
    same(found[2], translator.n_best([lines[2]])[0])
    with pytest.raises(UserError, match=r"line 12: its prefix has \d+ tokens, but its translation is limited to \d+ "):
        translator.n_best(["Ka gun ne?", "Ka"], prefixes=["", "Sa hur rek " * 20], first_line=11)


@pytest.mark.reliability
def test_memory_is_bounded_by_the_maximum_length_of_all_hypotheses(translator, sample_lines, monkeypatch):
    """Check that the maximum number of positions of each batch is within the budget, even for very short sources."""
    held = []
    original = BeamSearch.__call__

    def call(self, model, src, src_mask, special, prefixes=None):
        held.append(len(src) * (src.size(1) + int(self.n_positions(src_mask.sum(1)).max())))
        return original(self, model, src, src_mask, special, prefixes)

    monkeypatch.setattr(BeamSearch, "__call__", call)
    translator.translate_all(["a"] * 200 + lines_of(sample_lines, 50), tokens_per_batch=1000)
    assert max(held) <= 1000
    assert len(held) < 100


# ---------------------------------------------------------------------------------------------------------- long lines


@pytest.fixture(scope="module")
def short(folder: Path) -> Translator:
    made = Translator.load(folder / "short.ckpt", "cpu", BeamSearch(beam_size=2, max_len_a=1.0, max_len_b=4))
    sharpen(made)
    return made


def n_tokens(translator: Translator, text: str) -> int:
    """Return the number of tokens of a text, including </s>."""
    return len(translator.tokenizer.encode([text])[0].ids) + 1


def test_a_line_that_is_too_long_is_translated_in_pieces_or_cut_and_named(short, caplog):
    long = "Ler nin gaser. Ka gun ne? Foz su femim, los pez sanos ta puros. Ler ka foz."
    lines = ["Ler nin.", long, "Ka gun ne?"]
    n = n_tokens(short, long)
    assert n > 24
    pieces = [text for _, text in split_text(long, lambda text: n_tokens(short, text) <= 24)]
    with caplog.at_level("WARNING"):
        found = short.n_best(lines, first_line=100)
    assert f"line 101 has {n} tokens; this model's maximum is 24: translated in {len(pieces)} pieces" in caplog.text
    assert len(found) == 3
    (whole,) = found[1]
    parts = short.translate_all(pieces)
    assert whole.text == " ".join(part.text for part in parts)
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-4)
    same([found[0][0], found[2][0]], short.translate_all([lines[0], lines[2]]))

    caplog.clear()
    with caplog.at_level("WARNING"):
        cut = short.n_best(lines, too_long="cut")[1][0]
    assert f"line 2 has {n} tokens; this model's maximum is 24: its end is cut off" in caplog.text
    assert cut.text != whole.text
    assert len(cut.source_tokens) == 24


@pytest.mark.parametrize("too_long", ["pieces", "cut"])
def test_the_details_of_a_long_line_describe_the_tokens_that_were_read(short, too_long):
    long = "Ler nin gaser. Ka gun ne? Foz su femim, los pez sanos ta puros. Ler ka foz."
    search = BeamSearch(beam_size=3, n_best=3, max_len_a=1.0, max_len_b=4)
    (found,) = short.n_best([long], search, too_long=too_long, attention=True)
    assert len({t.tokens for t in found}) == 3
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    for t in found:
        assert len(t.tokens) == len(t.log_probs)
        assert [layer.shape for layer in t.attention] == [(3, len(t.tokens), len(t.source_tokens))] * 2
        assert np.allclose(np.stack(t.attention).sum(-1), 1, atol=1e-5)
    ends = found[0].source_tokens.count("</s>")
    assert ends == (1 if too_long == "cut" else found[0].tokens.count("</s>"))
    best = found[0]
    if too_long == "pieces":  # no attention between pieces
        first = best.source_tokens.index("</s>") + 1
        rows = best.tokens.index("</s>") + 1
        assert np.stack(best.attention)[:, :, :rows, first:].max() == 0
        assert np.stack(best.attention)[:, :, rows:, :first].max() == 0
    # Of all combinations of the pieces' three best translations, the three with the greatest sums of scores.
    pieces = [text for _, text in split_text(long, lambda text: n_tokens(short, text) <= 24)]
    if too_long == "pieces":
        each = [[t.score for t in of_piece] for of_piece in short.n_best(pieces, search)]
        sums = sorted((sum(scores) for scores in itertools.product(*each)), reverse=True)
        assert [t.score for t in found] == pytest.approx(sums[:3], abs=1e-4)
    samples = short.n_best([long], SamplingSearch(n_samples=4, max_len_a=1.0, max_len_b=4), too_long=too_long)[0]
    assert len(samples) == 4


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ("a b", 9, [("", "a b")]),
        ("One two. Three four? Five.", 12, [("", "One two."), (" ", "Three four?"), (" ", "Five.")]),
        ("aa bb, cc dd", 6, [("", "aa bb,"), (" ", "cc dd")]),
        ("aaaa bbbb", 5, [("", "aaaa"), (" ", "bbbb")]),
        ("aaaaaaaa", 4, [("", "aaaa"), ("", "aaaa")]),
        ("一二三。四五六。", 4, [("", "一二三。"), ("", "四五六。")]),
        ("Ende. x", 5, [("", "Ende."), (" ", "x")]),
    ],
)
def test_a_text_is_split_at_the_best_position(text, longest, expected):
    assert split_text(text, lambda part: len(part) <= longest) == expected


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("one {first name} two", ["one", "{first name}", "two"]),
        ("aaaaa{first. name}b", ["aaaaa", "{first. name}", "b"]),
        ("{first name}", ["{first name}"]),
        ("{first name}{last, name}", ["{first name}", "{last, name}"]),
    ],
)
def test_a_placeholder_is_never_split(text, pieces):
    whole = ["{first name}", "{last, name}", "{first. name}"]
    assert [piece for _, piece in split_text(text, lambda part: len(part) <= 6, unsplittable=whole)] == pieces


def test_nothing_of_a_split_text_is_lost():
    random = np.random.default_rng(1)
    for _ in range(200):
        text = "".join(random.choice(list("abc ,.?。、 "), random.integers(1, 80))).strip() or "x"
        pieces = split_text(text, lambda part: len(part) <= 7)
        assert "".join("".join(piece.split()) for _, piece in pieces) == "".join(text.split())
        assert all(len(piece) <= 7 for _, piece in pieces)


# ---------------------------------------------------------------------------------------------------------- the command


def translate(*words: str, cwd: Path, stdin: str | bytes = "Ler nin gaser.\n\nKa gun ne?\n", code: int = 0):
    done = type_command("diglot-translate", *words, cwd=cwd, stdin=stdin, code=code)
    return done.stdout.decode(), done.stderr.decode()


@pytest.mark.end_to_end
def test_json_has_all_details_and_text_only_the_best_translation(folder):
    words = ("checkpoint=a.ckpt", "search=beam", "format=json")
    told, _ = translate(*words, "search.n_best=3", "alignments=all", cwd=folder)
    records = [json.loads(line) for line in told.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert all(isinstance(record["near_tie"], bool) for record in records)
    assert [record["source"] for record in records] == ["Ler nin gaser.", "", "Ka gun ne?"]
    assert [len(record["hypotheses"]) for record in records] == [3, 1, 3]
    for record in (records[0], records[2]):
        for hypothesis in record["hypotheses"]:
            shape = (2, 3, len(hypothesis["tokens"]), len(record["source_tokens"]))
            assert np.array(hypothesis["attention"]).shape == shape
            assert hypothesis["log_prob"] == pytest.approx(sum(hypothesis["log_probs"]))
    assert records[1]["hypotheses"][0]["text"] == ""
    plain, _ = translate("checkpoint=a.ckpt", "search=beam", cwd=folder)
    assert plain.split("\n")[:-1] == [record["hypotheses"][0]["text"] for record in records]
    one, _ = translate(*words, "alignments=mean", cwd=folder)
    (hypothesis,) = json.loads(one.splitlines()[0])["hypotheses"]
    expected = np.array(records[0]["hypotheses"][0]["attention"]).mean((0, 1))
    assert np.allclose(hypothesis["alignment"], expected, atol=1e-5)


@pytest.mark.end_to_end
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_near_ties_are_marked_and_counted(folder, search):
    told, said = translate("checkpoint=even.ckpt", f"search={search}", "format=json", "search.max_len_b=2", cwd=folder)
    assert [json.loads(line)["near_tie"] for line in told.splitlines()] == [True, False, True]
    assert "2 of 3 searches had a near tie" in said
    told, said = translate("checkpoint=a.ckpt", f"search={search}", "format=json", cwd=folder)
    assert "near tie" not in said


@pytest.mark.end_to_end
def test_several_checkpoints_translate_as_one(folder, tmp_path, compose_train, tokenizer):
    one, _ = translate("checkpoint=a.ckpt", "search=beam", cwd=folder)
    twice, _ = translate("checkpoint=[a.ckpt,a.ckpt]", "search=beam", cwd=folder)
    both, _ = translate("checkpoint=[a.ckpt,b.ckpt]", "search=beam", cwd=folder)
    assert one == twice != both
    content = checkpoint_content(compose_train(*SIZES), tokenizer)
    content["diglot"]["placeholder"] = None
    content["diglot"]["languages"] = ["avi", "bol"]
    other = write_checkpoint(tmp_path / "other.ckpt", content)
    _, said = translate("search=beam", f"checkpoint=[a.ckpt,{other}]", cwd=folder, code=2)
    assert "other.ckpt" in said
    assert said.count("\n") == 1
    content = checkpoint_content(compose_train(*SIZES), tokenizer, languages=("bol", "avi"))
    back = write_checkpoint(tmp_path / "back.ckpt", content)
    _, said = translate("search=beam", f"checkpoint=[a.ckpt,{back}]", cwd=folder, code=2)
    assert said == f"diglot-translate: {back} translates bol-avi, but a.ckpt avi-bol\n"


def test_checkpoints_with_different_placeholders_are_refused_as_an_ensemble(tmp_path, compose_train, tokenizer):
    files = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    for file, placeholder in zip(files, (tokenizer.placeholder, None), strict=True):
        content = checkpoint_content(compose_train(*SIZES), tokenizer)
        content["diglot"]["placeholder"] = placeholder
        write_checkpoint(file, content)
    one, other = map(checkpoint.load, files)
    with pytest.raises(UserError, match=r"b\.ckpt and .*a\.ckpt differ in their tokenizers: an ensemble needs"):
        as_ensemble([one, other])
    assert as_ensemble([one, one]).path == one.path


@pytest.mark.end_to_end
def test_models_of_other_heads_translate_as_one_but_no_page_shows_them(folder, compose_train, tokenizer, tmp_path):
    gru = compose_train("model=gru_attention", "model.d_model=24")
    other = write_checkpoint(tmp_path / "gru.ckpt", checkpoint_content(gru, tokenizer))
    words = (f"checkpoint=[a.ckpt,{other}]", "search=beam")
    told, _ = translate(*words, "format=json", "alignments=3-1", cwd=folder)
    assert len(json.loads(told.splitlines()[0])["hypotheses"][0]["alignment"]) > 0
    _, said = translate(*words, "format=json", "alignments=3-2", cwd=folder, code=2)
    assert said == "diglot-translate: alignments=3-2: its layer 3 has 1 heads\n"
    _, said = translate(*words, f"html={tmp_path / 'page.html'}", cwd=folder, code=2)
    assert "html: the page needs the same number of heads in all cross-attention; here its layers have 3, 3, 1" in said
    assert not (tmp_path / "page.html").exists()


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_the_reader_of_the_output_may_close_it(folder):
    lines = "Ler nin gaser.\n" * 3
    command = [sys.executable, "-m", "diglot", "translate", "checkpoint=a.ckpt", "interactive=true"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, **pipes) as process:
        process.stdout.close()
        process.stdin.write(lines.encode())
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.end_to_end
def test_output_files_are_complete_and_errors_name_the_cause(folder, tmp_path, monkeypatch):
    source, prefix, bad = tmp_path / "in.txt", tmp_path / "prefix.txt", tmp_path / "bad.txt"
    source.write_text("Ler nin gaser.\nKa gun ne?\n")
    prefix.write_text("Sa hur\n\n")
    words = ("checkpoint=a.ckpt", "search=beam", f"input={source}")
    page, out = tmp_path / "page.html", tmp_path / "out.txt"
    _, said = translate(*words, f"prefix={prefix}", f"output={out}", f"html={page}", "search.n_best=2", cwd=folder)
    assert out.read_text().startswith("Sa hur")
    assert out.read_text().count("\n") == 2
    assert "<html" in page.read_text()
    assert f"2 lines: {page}" in said
    monkeypatch.setenv("MODELS", str(folder.resolve()))
    translate("checkpoint=${oc.env:MODELS}/a.ckpt", f"input={source}", f"html={page}", cwd=tmp_path)
    assert str(folder.resolve()) not in page.read_text()
    assert "${oc.env:MODELS}/a.ckpt" in page.read_text()
    prefix.write_text("Sa hur\n")
    _, said = translate(*words, f"prefix={prefix}", f"output={tmp_path / 'no.txt'}", cwd=folder, code=2)
    assert f"{prefix} has 1 lines, and {source} has more" in said
    bad.write_bytes(b"fine\nb\xff\n")
    _, said = translate("checkpoint=a.ckpt", f"input={bad}", f"output={tmp_path / 'no.txt'}", cwd=folder, code=2)
    assert f"{bad}, line 2: not UTF-8" in said
    assert not (tmp_path / "no.txt").exists()
    before = (folder / "a.ckpt").read_bytes()
    _, said = translate("checkpoint=a.ckpt", "output=a.ckpt", cwd=folder, code=2)
    assert said == "diglot-translate: output=a.ckpt: is also the checkpoint a.ckpt; name another file\n"
    assert (folder / "a.ckpt").read_bytes() == before
    _, said = translate("checkpoint=[]", cwd=folder, code=2)
    assert said == "diglot-translate: checkpoint=[]: names no checkpoint\n"
    _, said = translate("checkpoint=a.ckpt", "input=Jos\u00e9.txt", cwd=folder, code=2)
    assert "put a value with special characters in quotes" in said


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("search=beam", "search.n_best=2"), "search.n_best=2: format=text has one translation per line"),
        (("alignments=mean",), "alignments=mean: format=text has no alignments; type format=json"),
        (("format=json", "alignments=first"), "alignments=first: must be mean, all, or a layer and a head like 1-3"),
        (("prefix=x.txt",), "prefix: needs input=FILE"),
        (("search.length_penalty=median",), "search.length_penalty='median': must be a number or mean"),
        (("search=sample", "search.top_p=2"), r"top_p \(2"),
        (("tokens_per_batch=0",), "tokens_per_batch=0: must be positive"),
        (("search=sample", "search.n_samples=3"), "search.n_samples=3: format=text has one translation per line"),
        (("format=json", "alignments=9-1"), "alignments=9-1: this model has 2 layers of cross-attention"),
        (("format=json", "alignments=2-4"), "alignments=2-4: its layer 2 has 3 heads"),
        (("search.max_len_a=1e30",), r"max_len_a \(1e\+30\) must be at most 1000"),
    ],
)
def test_impossible_options_are_refused_by_key(folder, words, reason):
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("translate", [f"checkpoint={folder / 'a.ckpt'}", *words])
    keys = {key: config[key] for key in inspect.getfullargspec(check_options).kwonlyargs}
    loaded = checkpoint.load(folder / "a.ckpt")
    with pytest.raises(UserError, match=reason):
        check_options(load_translator(loaded, config.search, None, None, config.precision), **keys)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("format=xml", "format='xml'"),
        ("too_long=drop", "too_long='drop'"),
        ("precision=float16", "precision='float16'"),
        ("output=", "^output= is empty: leave it out$"),
        ("html=", "^html= is empty"),
    ],
)
def test_an_unknown_choice_is_refused_by_key(words, named):
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("translate", ["checkpoint=x", words])
    with pytest.raises(UserError, match=named):
        check(config, translate_main)


def test_a_head_that_does_not_exist_is_refused():
    layers = [np.ones((3, 4, 5)) / 5] * 2
    assert chosen_alignment(layers, "2-3").shape == (4, 5)
    with pytest.raises(UserError, match="alignments=3-1: this model has 2 layers of cross-attention"):
        chosen_alignment(layers, "3-1")
    with pytest.raises(UserError, match="alignments=1-4: its layer 1 has 3 heads"):
        chosen_alignment(layers, "1-4")


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_line_that_is_typed_is_answered_before_the_next(folder):
    command = [sys.executable, "-m", "diglot", "translate", "checkpoint=a.ckpt", "interactive=true"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("Ler nin gaser.", "", "Ka gun ne?"):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.wait() == 0


def coarse(ids: list[int], placeholders: object = (), side: str = "tgt") -> str:
    """Decode many token sequences to the same text; replaces a tokenizer's decode."""
    return f"{'ab'[len(ids) % 2]}\r"


def test_a_text_occurs_once_in_an_n_best_list_with_its_best_score(translator, monkeypatch):
    search = BeamSearch(beam_size=6, n_best=6, max_len_a=1.0, max_len_b=4)
    monkeypatch.setattr(translator.tokenizer, "decode", lambda ids, placeholders: repr(ids))
    (every,) = translator.n_best(["Ler nin gaser."], search)
    monkeypatch.setattr(translator.tokenizer, "decode", coarse)
    (found,) = translator.n_best(["Ler nin gaser."], search)
    expected: dict[str, Translation] = {}
    for t in every:
        expected.setdefault(coarse(t.tokens[:-1]).rstrip("\r"), t)
    assert 1 <= len(found) < len(every) == 6
    assert [(t.text, t.tokens, t.score) for t in found] == [(x, t.tokens, t.score) for x, t in expected.items()]
    samples = translator.n_best(["Ler nin gaser."], SamplingSearch(n_samples=6, max_len_a=1.0, max_len_b=4))[0]
    assert len(samples) == 6  # samples are not deduplicated


def test_a_line_in_pieces_has_no_text_twice_either(short, monkeypatch):
    long = "Ler nin gaser. Ka gun ne? Foz su femim, los pez sanos ta puros. Ler ka foz."
    search = BeamSearch(beam_size=4, n_best=4, max_len_a=1.0, max_len_b=4)
    monkeypatch.setattr(short.tokenizer, "decode", lambda ids, placeholders: "a" * (1 + len(ids) % 2))
    monkeypatch.setattr(
        "diglot.inference.translator.split_text", lambda text, fits, unsplittable: [("", text[:14]), ("", text[15:34])]
    )
    (found,) = short.n_best([long], search)  # "aa" + "a" equals "a" + "aa"
    assert len({t.text for t in found}) == len(found)
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)


def test_minimum_bayes_risk_selects_the_text_of_highest_expected_utility(translator):
    search = SamplingSearch(utility="chrf", n_samples=8, max_len_a=1.0, max_len_b=4, temperature=0.5)
    (found,) = translator.n_best(["Ler nin gaser."], search)
    assert len({t.text for t in found}) == len(found)
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    assert 0 <= found[-1].score <= found[0].score <= 100


@pytest.mark.parametrize("search", [BeamSearch(beam_size=2), SamplingSearch(n_samples=2)])
def test_output_that_is_not_finite_is_an_error_and_not_a_blank_line(compose_train, tokenizer, tmp_path, search):
    content = checkpoint_content(compose_train(*SIZES), tokenizer)
    huge = {name: torch.full_like(value, 3e38) for name, value in content["state_dict"].items()}
    write_checkpoint(tmp_path / "x.ckpt", content | {"state_dict": huge})
    overflowing = Translator.load(tmp_path / "x.ckpt", "cpu", search)
    with pytest.raises(UserError, match=r"line 2: the model's output is not finite"):
        overflowing.translate(["", "Sa hur."])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'<?xml version="1.0"?>\n<tmx version="1.4">\n<body/></tmx>\n',
            "an XML file .TMX., not lines of text: extract",
        ),
        (b'{"en": "one"}\n{"en": "two"}\n', "JSON, not lines of text: extract its sentences, one per line"),
        (b'msgid "one"\nmsgstr "eins"\n', "a gettext catalogue, not lines of text: extract its sentences"),
        ("one\ntwo\nthree\nfour\n".encode("utf-16-le"), "UTF-16LE without a byte order mark"),
    ],
)
def test_an_input_of_another_format_than_lines_is_refused(tmp_path, content, message):
    (tmp_path / "in").write_bytes(content)
    with pytest.raises(UserError, match=message):
        next(windows(str(tmp_path / "in"), None, 10))
    (tmp_path / "in").write_bytes(b"<b>one</b>\n{two}\n")
    assert next(windows(str(tmp_path / "in"), None, 10)) == (["<b>one</b>", "{two}"], None)


def test_an_address_as_input_is_refused():
    with pytest.raises(UserError, match=r"^input=https://a\.org/b: this is a URL, but a local file is needed"):
        next(windows("https://a.org/b", None, 10))
