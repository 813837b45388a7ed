"""Given translations are scored line by line, by the command and by the count of search errors in evaluation."""

import json
import math
from pathlib import Path

import pytest
import torch

from diglot.data.text import ParallelText, write_lines
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.inference import scoring as scoring
from diglot.inference.scoring import TIE, PairScore, score_pairs, search_errors
from diglot.inference.translator import Translation, Translator
from support.commands import type_command
from support.made import checkpoint_content, write_checkpoint

SIZES = ("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40")
SOURCES = ["Ler nin gaser.", "Ka gun {name} ne?", "", "Los pez sanos ta puros {name}.", "   ", "Foz su femim."]
TARGETS = ["Sa hur rek.", "Sek {name} hek {other}.", "", "", "Rek sor.", "Ωmega \U0001f600"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, compose_train, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("score")
    return write_checkpoint(folder / "a.ckpt", checkpoint_content(compose_train(*SIZES), tokenizer))


@pytest.fixture(scope="module")
def translator(file) -> Translator:
    return Translator.load(file, "cpu", BeamSearch(beam_size=2, length_penalty=0.6, max_len_a=0.5, max_len_b=6))


def by_hand(translator: Translator, src: str, tgt: str) -> list[float]:
    """Return the log-probabilities of a target's tokens, from the logits of this pair alone."""
    model, tokenizer = translator.model, translator.tokenizer
    (source,) = tokenizer.encode([src])
    (target,) = tokenizer.encode_targets([tgt], [source])
    with torch.no_grad():
        logits = model(torch.tensor([[*source.ids, tokenizer.eos_id]]), torch.tensor([[tokenizer.bos_id, *target]]))
    probabilities = torch.softmax(logits[0].double(), -1)
    return [math.log(probabilities[i, token]) for i, token in enumerate([*target, tokenizer.eos_id])]


@pytest.mark.parametrize("tokens_per_batch", [1, 30, 4096])
def test_each_line_is_scored_as_if_it_were_alone(translator, tokens_per_batch):
    scores = score_pairs(translator, ParallelText(SOURCES, TARGETS), tokens_per_batch)
    for i in (0, 1, 3, 4, 5):
        expected = by_hand(translator, SOURCES[i], TARGETS[i])
        assert scores[i].token_log_probs == pytest.approx(expected, abs=1e-4)
        assert scores[i].log_prob == pytest.approx(sum(expected), abs=1e-4)
        assert scores[i].pieces[-1] == "</s>"
        assert len(scores[i].pieces) == len(expected)
    assert scores[2] == PairScore(0.0, [], [], 0)  # blank lines stay blank, as in translation
    assert scores[3].pieces == ["</s>"]  # an empty translation
    assert len(scores[4].pieces) > 2


GOLDEN = Path(__file__).parents[1] / "reliability" / "golden" / "golden.ckpt"  # a model that has learned a little


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_a_search_s_own_output_scores_what_the_search_said(beam_size, length_penalty):
    search = BeamSearch(beam_size=beam_size, length_penalty=length_penalty, max_len_a=1.0, max_len_b=10)
    learnt = Translator.load(GOLDEN, "cpu", search)
    found = learnt.translate_all(SOURCES)
    scores = score_pairs(learnt, ParallelText(SOURCES, [output.text for output in found]))
    for score, output in zip(scores, found, strict=True):
        assert score.log_prob / ((5 + len(score.token_log_probs)) / 6) ** length_penalty == pytest.approx(
            output.score, abs=1e-4
        )
    assert len({output.text for output in found}) > 3


def test_characters_that_the_tokenizer_does_not_know_are_spelt_in_bytes(translator):
    (score,) = score_pairs(translator, ParallelText(SOURCES[:1], ["\U0001f600"]))
    assert score.n_unknown == 0
    assert "<0xF0>" in score.pieces


def test_a_pair_beyond_the_positions_is_named_by_its_line(tmp_path, compose_train, tokenizer):
    words = ("model/position=learned", "model.position.max_positions=12")
    content = checkpoint_content(compose_train(*SIZES, *words), tokenizer)
    short = Translator.load(write_checkpoint(tmp_path / "a.ckpt", content), "cpu")
    pairs = ParallelText(["Sa.", "", "Sa."], ["Sa.", "", "Sa hur rek. " * 9])
    with pytest.raises(UserError, match=r"line 3: the target has \d+ tokens; this model's maximum is 12"):
        score_pairs(short, pairs)
    scores = score_pairs(short, pairs, strict=False)
    assert [score is None for score in scores] == [False, False, True]
    with pytest.raises(UserError, match=r"line 1: the source has"):
        score_pairs(short, ParallelText(["Sa hur rek. " * 9], ["Sa."]))


def test_too_little_memory_for_a_batch_is_no_error_and_for_a_line_one_that_names_it(translator, monkeypatch):
    pairs = ParallelText(SOURCES, TARGETS)
    expected = score_pairs(translator, pairs)
    real, largest = scoring.pair_scores, 2

    def scarce(model, src, labels, special):
        if len(src) > largest:
            raise torch.OutOfMemoryError("no more")
        return real(model, src, labels, special)

    monkeypatch.setattr(scoring, "pair_scores", scarce)
    for one, other in zip(score_pairs(translator, pairs), expected, strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
    largest = 0
    with pytest.raises(UserError, match=r"line \d has \d+ tokens: out of memory"):
        score_pairs(translator, pairs)


def test_a_log_probability_that_is_not_finite_is_reported_by_line(tmp_path, compose_train, tokenizer):
    content = checkpoint_content(compose_train(*SIZES), tokenizer)
    content["state_dict"]["model.output.weight"][7] = 3e38  # finite, but products with it overflow
    broken = Translator.load(write_checkpoint(tmp_path / "a.ckpt", content), "cpu")
    with pytest.raises(UserError, match="line 1: the model gives it a log-probability of nan"):
        score_pairs(broken, ParallelText(["Sa."], ["Sa."]))


# Search errors


def outputs(translator: Translator, references: list[str], higher: float) -> list[Translation]:
    """Return outputs whose scores, as the search compares them, are lower than the reference's by `higher`."""
    found = []
    for src, tgt in zip(SOURCES, references, strict=True):
        log_probs = by_hand(translator, src, tgt)
        norm = ((5 + len(log_probs)) / 6) ** 0.6
        log_probs = [log_probs[0] - higher * norm, *log_probs[1:]]
        found.append(Translation("something else", sum(log_probs) / norm, False, log_probs=tuple(log_probs)))
    return found


@pytest.mark.parametrize(("higher", "n_errors"), [(0.01, 4), (-0.01, 0), (0.0, 0), (TIE / 2, 0)])
def test_a_reference_that_the_model_prefers_is_a_search_error_and_a_tie_is_none(translator, higher, n_errors):
    """Check scores with the search's length penalty. By log-probability alone, the search errors would be others."""
    translator.search = BeamSearch(beam_size=2, length_penalty=0.6)
    found = search_errors(translator, SOURCES, [TARGETS], outputs(translator, TARGETS, higher))
    assert (found["n_search_errors"], found["of"], found["left_out"]) == (n_errors, 4, 2)  # two sources are blank
    assert found["share"] == n_errors / 4
    assert found["n_model_errors"] == 4 - n_errors


def test_of_several_references_the_one_that_the_model_likes_best_counts(translator):
    translator.search = BeamSearch(beam_size=2, length_penalty=0.6)
    others = ["Sor. " * 20] * len(TARGETS)
    found = outputs(translator, TARGETS, 0.01)
    assert search_errors(translator, SOURCES, [others], found)["n_search_errors"] == 0
    for references in ([others, TARGETS], [TARGETS, others]):
        assert search_errors(translator, SOURCES, references, found)["n_search_errors"] == 4


def test_output_that_is_a_reference_is_no_error_of_the_model(translator):
    translator.search = BeamSearch(beam_size=2, length_penalty=0.6)
    found = [
        output._replace(text=text) for output, text in zip(outputs(translator, TARGETS, 0.0), TARGETS, strict=True)
    ]
    assert search_errors(translator, SOURCES, [TARGETS], found)["n_model_errors"] == 0


def test_a_wider_beam_leaves_fewer_search_errors():
    """Check a beam of 1, and a beam of 8, with the outputs of the beam of 8 as references."""
    learnt = Translator.load(GOLDEN, "cpu", BeamSearch(beam_size=1, length_penalty=0.0))
    narrow, wide = learnt.translate_all(SOURCES), learnt.translate_all(SOURCES, beam=8)
    references = [output.text for output in wide]
    better = sum(b.score > a.score + TIE for a, b in zip(narrow, wide, strict=True))
    assert better >= 3
    found = search_errors(learnt, SOURCES, [references], narrow)
    assert (found["n_search_errors"], found["of"]) == (better, 4)
    found = search_errors(learnt, SOURCES, [references], wide)
    assert (found["n_search_errors"], found["n_model_errors"], found["of"]) == (0, 0, 4)


# The typed command


@pytest.mark.end_to_end
def test_the_command_writes_a_line_for_each_pair_and_says_what_all_come_to(file, translator, tmp_path):
    write_lines(tmp_path / "in.avi", SOURCES)
    write_lines(tmp_path / "in.bol", TARGETS)
    words = ("diglot-score", f"checkpoint={file}", "src=in.avi", "device=cpu")
    done = type_command(*words, "tgt=in.bol", "output=out/scores.jsonl", "pieces=true", cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    expected = score_pairs(translator, ParallelText(SOURCES, TARGETS))
    assert len(lines) == len(SOURCES)
    for line, score in zip(lines, expected, strict=True):
        assert line["log_prob"] == pytest.approx(score.log_prob, abs=1e-4)
        assert line["tokens"] == len(line["token_log_probs"]) == len(line["pieces"])
        assert sum(line["token_log_probs"]) == pytest.approx(line["log_prob"], abs=1e-6)
    total, n_tokens = sum(line["log_prob"] for line in lines), sum(line["tokens"] for line in lines)
    said = done.stdout.decode()
    assert f"total log-probability: {total:.4f} (6 lines, {n_tokens} tokens, </s> counted)" in said
    assert f"perplexity per token: {math.exp(-total / n_tokens):.4f}" in said
    assert f"log-probability per line: {total / 6:.4f}" in said

    done = type_command(*words, "tgt=in.bol", cwd=tmp_path)
    assert [json.loads(line)["log_prob"] for line in done.stdout.splitlines()] == [line["log_prob"] for line in lines]
    assert b"pieces" not in done.stdout
    assert f"total log-probability: {total:.4f}" in done.stderr.decode()

    write_lines(tmp_path / "short.bol", TARGETS[:4])
    done = type_command(*words, "tgt=short.bol", "output=none.jsonl", cwd=tmp_path, code=2)
    assert "in.avi has 6 lines, short.bol has 4" in done.stderr.decode()
    (tmp_path / "bad.bol").write_bytes("\n".join(TARGETS[:3]).encode() + b"\n\xff\n\n\n")
    done = type_command(*words, "tgt=bad.bol", "output=none.jsonl", cwd=tmp_path, code=2)
    assert "bad.bol, line 4: not UTF-8" in done.stderr.decode()
    done = type_command(*words, "tgt=https://a.org/b.bol", "output=none.jsonl", cwd=tmp_path, code=2)
    assert "tgt=https://a.org/b.bol: this is a URL, but a local file is needed" in done.stderr.decode()
    done = type_command(*words, "tgt=in.bol", "tokens_per_batch=0", cwd=tmp_path, code=2)
    assert "tokens_per_batch=0: must be positive" in done.stderr.decode()
    assert not (tmp_path / "none.jsonl").exists()
