"""Evaluation reports the scores of sacreBLEU's command for the files that it writes, and further results."""

import json
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

import diglot.commands.evaluate
from diglot.commands.evaluate import named_text
from diglot.data.corpus import Files, Sample
from diglot.data.language import CHINESE, SPACED, writing_of
from diglot.data.pieces import adopt, tag
from diglot.data.text import ParallelText, ending_of, read_lines, write_lines
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.evaluation.breakdown import by_length, has_loop, output_counts
from diglot.evaluation.evaluate import (
    Baseline,
    EvaluationSet,
    Hypotheses,
    MemoryMatch,
    evaluate,
    read_evaluation_set,
    read_lines_for,
    table,
    write_evaluation_set,
)
from diglot.evaluation.scorer import Scorer
from diglot.inference.translator import Translator
from support.commands import ROOT, type_command
from support.made import checkpoint_content, write_checkpoint

GOLDEN = Path(__file__).parents[1] / "reliability" / "golden" / "golden.ckpt"  # from avi to bol
METRICS = ("-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "-w", "6", "-f", "json")


def sacrebleu(folder: Path, *words: str) -> Any:
    """Return the results of sacreBLEU's command for files in a folder."""
    command = [sys.executable, "-m", "sacrebleu", *words, *METRICS]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def assert_equal(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Check that scores agree in digits and signatures."""
    assert [f"{score['value']:.6f}" for score in ours] == [f"{float(score['score']):.6f}" for score in theirs]
    assert [score["signature"] for score in ours] == [score["signature"] for score in theirs]


SOURCES = ["one", "two words", "now there are as many as nine of them", "", "four words are here"]
OUTPUTS = ["The cat sat on the mat today.", "A dog ran  in the park ", "It's raining;  we stay", "", "Not one word"]
FIRST = [
    "The cat sat on the mat today.",
    "The dog was running through a park.",
    "We stay, it rains!",
    "",
    "None at all",
]
SECOND = ["A cat was on a mat today.", "A dog ran through the park.", "It's raining, so we stay in.", "", "No word"]
THIRD = ["Today the cat sat there.", "Dogs run in parks.", "It rains; we stay", "x", "Not a word"]


def scored(
    folder: Path, *more: list[str], tgt_lang: str = "en", times: int = 1, **options: Any
) -> tuple[Path, dict[str, Any]]:
    """Evaluate OUTPUTS, repeated `times` times, and return the folder and the results."""
    pairs = ParallelText(SOURCES * times, FIRST * times, tuple(lines * times for lines in more))
    evaluated = EvaluationSet("few", "test", pairs)
    system = Hypotheses(OUTPUTS * times, "de", tgt_lang)
    results = evaluate(system, evaluated, Scorer(tgt_lang), folder / "scored", **options)
    return folder / "scored", results


# Several references


def test_scores_with_several_references_equal_those_of_sacrebleu_on_the_written_files(tmp_path):
    folder, results = scored(tmp_path, SECOND, THIRD)
    files = ("references.en", "references.2.en", "references.3.en")
    assert_equal(results["scores"], sacrebleu(folder, *files, "-i", "hypotheses.en"))
    assert results["references"] == 3
    assert all("nrefs:3" in score["signature"] for score in results["scores"])
    assert json.loads((folder / "results.json").read_text()) == results
    alone = scored(tmp_path / "alone")[1]["scores"]
    assert results["scores"][0]["value"] > alone[0]["value"] + 1
    assert "nrefs:1" in alone[0]["signature"]


def test_three_pairs_with_one_exact_match_do_not_score_100(tmp_path):
    """Check the layout of the references: passed as three lists of one, they would be a perfect match."""
    evaluated = EvaluationSet("few", "test", ParallelText(SOURCES[:3], FIRST[:3]))
    results = evaluate(Hypotheses(OUTPUTS[:3], "de", "en"), evaluated, Scorer("en"), tmp_path / "scored")
    theirs = sacrebleu(tmp_path / "scored", "references.en", "-i", "hypotheses.en")
    assert_equal(results["scores"], theirs)
    assert 1 < results["scores"][0]["value"] < 99


def test_chinese_with_two_references_is_cut_into_characters(tmp_path):
    zh = (
        ["我们今天去公园。", "他喜欢红色的苹果"],
        ["我们今天去了公园。", "她喜欢吃红苹果。"],
        ["今天我们去公园。", "他爱苹果。"],
    )
    evaluated = EvaluationSet("few", "test", ParallelText(["a b", "c"], zh[1], (zh[2],)))
    results = evaluate(Hypotheses(zh[0], "en", "zh"), evaluated, Scorer("zh-Hans"), tmp_path / "scored")
    words = ("references.zh", "references.2.zh", "-i", "hypotheses.zh", "--tokenize", "zh")
    words += ("--ter-normalized", "--ter-asian-support")
    assert_equal(results["scores"], sacrebleu(tmp_path / "scored", *words))
    assert "nrefs:2|case:mixed|eff:no|tok:zh" in results["scores"][0]["signature"]


@pytest.mark.parametrize("key", ["references", "hypotheses", "baseline"])
def test_a_file_with_another_number_of_lines_is_named_with_both_counts(tmp_path, key):
    write_lines(tmp_path / "short.en", FIRST[:2])
    evaluated = EvaluationSet("few", "test", ParallelText(SOURCES, FIRST), where="test.en")
    with pytest.raises(UserError, match=rf"^{key}=.*short\.en has 2 lines, test\.en has 5;"):
        read_lines_for(key, str(tmp_path / "short.en"), evaluated)


@pytest.mark.parametrize("n_lines", [2, 4])
def test_references_that_do_not_match_are_refused_one_by_one(n_lines):
    with pytest.raises(ValueError, match=f"3 hypotheses for {n_lines} references"):
        Scorer("en")(OUTPUTS[:3], FIRST[:3], ["a"] * n_lines)


# Breakdown


def test_buckets_count_source_words_and_score_their_own_sentences(tmp_path):
    folder, results = scored(tmp_path, SECOND)
    found = results["by_length"]
    assert found["unit"] == "source words"
    told = [(bucket["from"], bucket["to"], bucket["sentences"]) for bucket in found["buckets"]]
    assert told == [(0, 5, 4), (6, 10, 1)]
    for name in ("references.en", "references.2.en", "hypotheses.en"):
        write_lines(folder / f"long.{name}", [read_lines(folder / name)[2]])
    theirs = sacrebleu(folder, "long.references.en", "long.references.2.en", "-i", "long.hypotheses.en")
    assert_equal(found["buckets"][1]["scores"], theirs[:2])
    assert [score["name"] for score in found["buckets"][1]["scores"]] == ["BLEU", "chrF++"]


@pytest.mark.parametrize("n", [1, 5, 6, 10, 11, 50, 51, 500])
def test_each_sentence_is_in_one_bucket(n):
    found = by_length(Scorer("en"), ["w " * n, "w"], ["a", "b"], [["a", "c"]], "en")["buckets"]
    assert sum(bucket["sentences"] for bucket in found) == 2
    last = found[-1]
    assert last["from"] <= n <= (last["to"] or n)


def test_languages_without_blanks_are_counted_in_characters():
    found = by_length(Scorer("en"), ["我们 今天去公园。", "他"], ["a", "b"], [["a", "c"]], "zh_CN")
    assert found["unit"] == "source characters"
    assert [(bucket["from"], bucket["to"]) for bucket in found["buckets"]] == [(0, 5), (6, 10)]


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("no no no", True),
        ("no no", False),
        ("a b a b a b", True),
        ("a b a b a", False),
        ("x a b c d e f g h a b c d e f g h a b c d e f g h y", True),
        ("a b c d e f g h i " * 3, False),  # nine words
        ("a b c a b d a b e", False),
        ("", False),
        *(("no 5 5 5 5 5 5", True), ("1 2 3 1 2 3 1 2 3", True), ("1995 1995 1995", True), ("_ _ _", True)),
        *(("Wait...", False), ("-----", False), ("in 12 000 000 000", False)),
        ("1 000 000 000 people", False),
        ("7\u202f000\u202f000\u202f000", False),
        ("10000", False),
    ],
)
def test_a_loop_is_one_to_eight_words_three_times_in_a_row(text, loops):
    assert has_loop(text, SPACED) is loops


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        *(("哈哈哈", True), ("他 他 他", True), ("我去我去我去", True), ("OK OK OK", True)),
        *(("去去", False), ("a", False), ("", False), ("www", False), ("见 www.bbb.cn", False)),
        *(
            ("等等...", False),
            ("___", False),
            ("-----", False),
            ("？？？", False),
            ("！！！", False),
            ("😀😀😀", False),
        ),
        *(("5 5 5", True), ("？！？！？！", True), ("第1 2 3 1 2 3 1 2 3", True), ("...。...。...。", True)),
        *(("10000人", False), ("一千１０００", False), ("1,000,000", False), ("1 000 000 000", False)),
    ],
)
def test_without_spaces_a_loop_is_of_characters_and_a_number_counts_as_one(text, loops):
    assert has_loop(text, CHINESE) is loops


@pytest.mark.parametrize(
    ("source", "output", "n"),
    [
        ("他说了哈哈哈", "he he he said", 0),  # a loop in the source, measured in characters
        ("the 1000000 book", "这本书书书书", 1),
        ("now now now", "书书书", 0),
        ("bookkeeper xxx", "书书书", 1),  # repeated characters are no loop in a source measured in words
        ("一万", "10000", 0),
        ("Wait...", "等等...", 0),
        ("等等...", "wait wait wait", 1),  # an ellipsis in the source is no loop
        ("ten thousand", "10000", 0),
    ],
)
def test_loops_are_counted_in_the_words_of_each_side_s_language(source, output, n):
    src, tgt = (writing_of("und", [text]) for text in (source, output))
    assert output_counts([source], [output], None, src, tgt)["repeated"] == n


def test_obviously_wrong_outputs_are_counted():
    pairs = [
        ("source one", "output one"),
        ("source two", "  "),  # empty
        ("", ""),  # correct
        ("to be is to be", "so so so it goes"),  # repeated
        ("ha ha ha", "ho ho ho"),  # repeated in the source as well
        ("Berlin", " Berlin "),  # copied
        ("a b", "c d"),  # truncated
    ]
    sources, outputs = zip(*pairs, strict=True)
    found = output_counts(sources, outputs, [False] * 6 + [True], SPACED, SPACED)
    assert {name: found[name] for name in found if name != "definitions"} == {
        "empty": 1,
        "truncated": 1,
        "repeated": 1,
        "copied": 1,
    }
    assert found["definitions"].keys() == found.keys() - {"definitions"}
    assert "3 times in a row" in found["definitions"]["repeated"]
    assert output_counts(sources, outputs, None, SPACED, SPACED)["truncated"] is None
    assert output_counts(["x y"], ["哈哈哈"], None, SPACED, CHINESE)["repeated"] == 1


def test_the_tables_show_all_results(tmp_path):
    _, results = scored(tmp_path, SECOND, times=6, baseline=Baseline("b [1]", Hypotheses(THIRD * 6, "de", "en")))
    said = "\n".join(table(results))
    for wanted in ("source words", "0-5", "6-10", "empty", "truncated", "not known", "repeated", "copied", "b [1]"):
        assert wanted in said
    assert "1,000 resamples; 10,000 trials" in said
    for name in ("paired_bootstrap", "paired_approximate_randomisation"):
        p_values = [f"{metric['p_value']:.4f}" for metric in results["baseline"][name]["metrics"]]
        (row,) = [line for line in said.splitlines() if f"p, {name.rpartition('_')[2]}" in line]
        assert row.split("│")[2:-1] == [
            f"{value:>{len(cell) - 1}} " for value, cell in zip(p_values, row.split("│")[2:])
        ]


# Significance


def test_the_comparison_equals_that_of_sacrebleu_on_the_written_files(tmp_path, monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    monkeypatch.setattr("diglot.evaluation.significance.MIN_SENTENCES", 1)  # the command tests any number of sentences
    baseline = Baseline("other", Hypotheses(THIRD, "de", "en"))
    folder, results = scored(tmp_path, SECOND, baseline=baseline)
    files = ("references.en", "references.2.en", "-i", "baseline.en", "hypotheses.en")
    for kind, name, n in (("bs", "paired_bootstrap", 1000), ("ar", "paired_approximate_randomisation", 10000)):
        theirs = sacrebleu(folder, *files, f"--paired-{kind}")
        ours = results["baseline"][name]
        assert ours["n"] == n
        for metric, key in zip(ours["metrics"], ("BLEU", "chrF2++", "TER"), strict=True):
            first, second = (side[key] for side in theirs)
            for side, of_side in ((metric["baseline"], first), (metric["system"], second)):
                for figure in ("score", "mean", "ci"):
                    wanted = of_side[figure]  # sacreBLEU computes the values of resamples in float32
                    assert side[figure] == (wanted if wanted is None else pytest.approx(wanted, rel=1e-6))
            assert metric["p_value"] == second["p_value"]
            assert f"seed:12345|{kind}:{n}" in metric["signature"] or f"{kind}:{n}|seed:12345" in metric["signature"]
            assert (metric["system"]["ci"] is not None) == (kind == "bs")
    assert results["baseline"]["name"] == "other"


def test_a_system_compared_with_itself_is_no_better(tmp_path):
    _, results = scored(tmp_path, times=6, baseline=Baseline("itself", Hypotheses(OUTPUTS * 6, "de", "en")))
    for name in ("paired_bootstrap", "paired_approximate_randomisation"):
        for metric in results["baseline"][name]["metrics"]:
            assert metric["baseline"] == metric["system"]
            assert metric["p_value"] > 0.05 or metric["p_value"] == pytest.approx(1 / 1001, abs=1e-3)


@pytest.mark.parametrize("n", [1, 29])
def test_few_sentences_give_no_p_value_and_a_note(tmp_path, n):
    pairs = ParallelText(["a b c d"] * n, ["w x y z"] * n)
    baseline = Baseline("bad", Hypotheses(["nothing of it"] * n, "de", "en"))
    system = Hypotheses(["w x y z"] * n, "de", "en")
    results = evaluate(
        system, EvaluationSet("few", "test", pairs), Scorer("en"), tmp_path / "scored", baseline=baseline
    )
    for name in ("paired_bootstrap", "paired_approximate_randomisation"):
        for metric, score in zip(results["baseline"][name]["metrics"], results["scores"], strict=True):
            assert metric["p_value"] is None
            assert metric["system"] == {"score": score["value"], "mean": None, "ci": None}
            assert (metric["name"], metric["signature"]) == (score["name"], score["signature"])
    assert json.loads((tmp_path / "scored" / "results.json").read_text()) == results
    said = table(results)
    assert [line.split()[-2] for line in said if "p, bootstrap" in line] == ["-"]
    assert f"{n} sentences are too few to resample; at least 30 are needed" in said[-1]
    assert "±" not in "\n".join(said)


def test_a_much_better_system_is_significantly_better(tmp_path):
    good = [f"sentence number {i} says {i * i} things" for i in range(60)]
    evaluated = EvaluationSet("many", "test", ParallelText(good, good))
    near = [line.replace("says", "said") for line in good]
    bad = Baseline("bad", Hypotheses(["nothing of it"] * 60, "de", "en"))
    results = evaluate(Hypotheses(near, "de", "en"), evaluated, Scorer("en"), tmp_path / "scored", baseline=bad)
    for name in ("paired_bootstrap", "paired_approximate_randomisation"):
        assert all(metric["p_value"] < 0.01 for metric in results["baseline"][name]["metrics"])


# The command


@pytest.mark.end_to_end
def test_a_checkpoint_is_scored_on_references_of_its_own_and_compared(tmp_path):
    for side in ("avi", "bol"):
        write_lines(tmp_path / f"few.{side}", read_lines(ROOT / f"data/sample/test.{side}")[:9])
    references = read_lines(tmp_path / "few.bol")
    write_lines(tmp_path / "second.bol", [f"{line} sok" for line in references])
    write_lines(tmp_path / "third.bol", references[1:] + references[:1])
    write_lines(tmp_path / "other.bol", [*references[:6], "", "sa sa sa", "Sa hur rek."])
    data = ("data=files", "data.test.src=few.avi", "data.test.tgt=few.bol", "split=test", "device=cpu")
    words = ("diglot-evaluate", f"checkpoint={GOLDEN}", *data)
    done = type_command(
        *words,
        "references=[second.bol,third.bol]",
        "baseline=other.bol",
        "search.beam_size=4",
        "output=s",
        cwd=tmp_path,
    )
    results = json.loads((tmp_path / "s" / "results.json").read_text())
    files = ("references.bol", "references.2.bol", "references.3.bol")
    assert_equal(results["scores"], sacrebleu(tmp_path / "s", *files, "-i", "hypotheses.bol"))
    # A wildcard does not count the references of data.test twice.
    of_test, wildcard = "data.test.references=second.bol", "references=[third.bol,'second.*']"
    type_command(*words, of_test, wildcard, "search.beam_size=4", "output=u", cwd=tmp_path)
    assert json.loads((tmp_path / "u" / "results.json").read_text())["scores"] == results["scores"]
    assert "nrefs:3" in done.stdout.decode()
    assert read_lines(tmp_path / "s" / "baseline.bol") == read_lines(tmp_path / "other.bol")
    errors = results["search_errors"]
    assert errors["of"] == 9
    assert errors["share"] == errors["n_search_errors"] / 9
    assert "the search has missed it" in errors["search_error"]
    assert results["near_ties"] == 0
    assert "Search errors: " in done.stdout.decode()

    # The same output from a file, so without results of a model, and the checkpoint as the baseline.
    words = ("diglot-evaluate", "hypotheses=s/hypotheses.bol", *data, "references=[second.bol,third.bol]")
    type_command(*words, f"baseline={GOLDEN}", "search.beam_size=4", "output=t", cwd=tmp_path)
    again = json.loads((tmp_path / "t" / "results.json").read_text())
    assert again["scores"] == results["scores"]
    assert again["by_length"] == results["by_length"]
    assert again["outputs"]["truncated"] is None
    assert "search_errors" not in again
    assert read_lines(tmp_path / "t" / "baseline.bol") == read_lines(tmp_path / "s" / "hypotheses.bol")
    for metric in again["baseline"]["paired_bootstrap"]["metrics"]:
        assert metric["baseline"] == metric["system"]


@pytest.fixture
def say(tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    """Return a function that runs an evaluation, checks that it is rejected early, and returns the message."""

    def typed(*words: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["diglot-evaluate", "device=cpu", "output=s", *words])
        monkeypatch.setattr(Translator, "translate_all", None)
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as stopped:
            diglot.commands.evaluate.main()
        out, err = capsys.readouterr()
        assert stopped.value.code == 2
        assert err.count("\n") == 1, err
        assert out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return typed


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("checkpoint", "data", "references=[few.bol,two.bol]"), "references=two.bol has 2 lines, few.bol has 3"),
        (("checkpoint", "data", "references=two.bol"), "references=two.bol has 2 lines, few.bol has 3"),
        (("checkpoint", "data", "references=bad.bol"), "bad.bol, line 2: not UTF-8"),
        (("checkpoint", "data", "baseline=two.bol"), "baseline=two.bol has 2 lines, few.bol has 3"),
        (("hypotheses=two.bol", "data"), "hypotheses=two.bol has 2 lines, few.bol has 3"),
        (("hypotheses=few.bol",), "hypotheses=few.bol: name the text to score on, data=files data.dev.src=FILE"),
        (("checkpoint", "hypotheses=few.bol", "data"), "not both"),
        (("checkpoint", "data", "baseline=none.ckpt"), "none.ckpt: no such file"),
        (("checkpoint", "data", "baseline=none.txt"), "none.txt: no such file"),
        (("checkpoint", "data", "references=3"), "references=3: must be text or a list"),
        (("checkpoint", "data", "baseline=[a,b]"), "must be text or null"),
        (("hypotheses=two.bol", "data", "search.beam_size=2"), "search.beam_size: has no effect"),
        (("checkpoint", "data", "output=few.avi/x"), "few.avi/x cannot be created: few.avi is not a folder"),
    ],
)
def test_files_that_do_not_match_are_refused_before_translation(tmp_path, say, words, wanted):
    for side in ("avi", "bol"):
        write_lines(tmp_path / f"few.{side}", read_lines(ROOT / f"data/sample/test.{side}")[:3])
    write_lines(tmp_path / "two.bol", ["a", "b"])
    (tmp_path / "bad.bol").write_bytes(b"a\n\xff\nb\n")
    spelt = {
        "checkpoint": [f"checkpoint={GOLDEN}"],
        "data": ["data=files", "data.dev.src=few.avi", "data.dev.tgt=few.bol"],
    }
    assert wanted in say(*[each for word in words for each in spelt.get(word, [word])])


def test_the_text_in_a_run_s_folder_takes_references_and_a_baseline_of_its_languages(
    tmp_path, say, compose_train, tokenizer
):
    shutil.copy(GOLDEN, tmp_path / "best.ckpt")
    write_evaluation_set(tmp_path / "text", EvaluationSet("few", "dev", ParallelText(SOURCES, FIRST)), "avi", "bol")
    write_lines(tmp_path / "two.bol", ["a", "b"])
    said = say("checkpoint=best.ckpt", "references=two.bol")
    assert "references=two.bol has 2 lines, text/dev.bol has 5; the numbers must be equal" in said
    config = compose_train("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40")
    write_checkpoint(tmp_path / "other.ckpt", checkpoint_content(config, tokenizer, languages=("avi", "fr")))
    said = say("checkpoint=best.ckpt", "baseline=other.ckpt")
    assert "baseline=other.ckpt translates avi-fr, but the checkpoint avi-bol" in said


def test_a_multilingual_model_is_scored_on_text_in_its_target_language(tmp_path, say, compose_train, tokenizer):
    languages = ("de", "fr")
    tagged = Tokenizer(adopt(tokenizer.model, list(map(tag, languages))), tokenizer.placeholder, languages=languages)
    config = compose_train("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40")
    write_checkpoint(tmp_path / "best.ckpt", checkpoint_content(config, tagged, languages=("en", "de")))
    write_evaluation_set(tmp_path / "text", EvaluationSet("few", "dev", ParallelText(SOURCES, FIRST)), "en", "de")
    said = say("checkpoint=best.ckpt", "tgt_lang=fr")
    assert "tgt_lang=fr: the dev text beside best.ckpt is in de; name the text to score on, data=files" in said
    advice = "its languages are de, fr: type one of them, such as tgt_lang=de"
    said = say("checkpoint=best.ckpt", "tgt_lang=it")
    assert f"tgt_lang=it: this model does not translate into it; {advice}" in said
    for name in ("x.en", "x.de", "x.fra", "x.ita", "x.txt"):
        write_lines(tmp_path / name, SOURCES if name == "x.en" else FIRST)

    def of_files(tgt: str, *words: str) -> str:
        return say("checkpoint=best.ckpt", "data=files", "data.dev.src=x.en", f"data.dev.tgt={tgt}", *words)

    for tgt, code in (("x.ita", "ita"), ("x.txt", "tgt")):
        said = of_files(tgt)
        assert f"the target language of the text is {code}: this model does not translate into {code}; {advice}" in said
    assert "tgt_lang=fr: the text is in de; if that is wrong, type data.tgt_lang=fr" in of_files("x.de", "tgt_lang=fr")
    write_lines(tmp_path / "two.bol", ["a", "b"])  # if the languages are accepted, this file is rejected next
    for words in (
        ("x.fra",),
        ("x.fra", "tgt_lang=fr"),
        ("x.ita", "tgt_lang=fr"),
        ("x.de",),
        ("x.de", "tgt_lang=fr", "data.tgt_lang=fr"),
    ):
        assert "references=two.bol has 2 lines" in of_files(*words, "references=two.bol")


def test_bleu_of_outputs_without_four_tokens_is_null_for_a_part_and_noted_for_the_total(tmp_path):
    short, long = "Fine, thanks", "the cat sat on the mat"
    memory = (MemoryMatch(long, 99.0), MemoryMatch(short, 10.0))
    for lines, is_known in (([short, short], False), ([long, short], True)):
        evaluated = EvaluationSet("few", "dev", ParallelText(["w " * 6, "w"], lines), memory)
        results = evaluate(Hypotheses(lines, "de", "en"), evaluated, Scorer("en"), tmp_path / "scored")
        one, six = (bucket["scores"] for bucket in results["by_length"]["buckets"])
        far = results["far_from_training"]
        assert [scores[0]["value"] for scores in (one, far["scores"], far["translation_memory"])] == [None] * 3
        assert one[1]["value"] == pytest.approx(100)
        assert six[0]["value"] == (pytest.approx(100) if is_known else None)
        assert results["scores"][0]["value"] == (pytest.approx(100) if is_known else 0)
        said = table(results)
        (row,) = [line for line in said if "0-5" in line]
        assert row.split("│")[3].strip() == "-"
        assert any("it needs 4-grams, and no output has four tokens" in line for line in said) is not is_known


def test_results_use_the_text_s_language_and_the_model_s_normalisation(tmp_path, build_model):
    lines = [f"a small text of words {i} and {i + 1}" for i in range(200)]
    trainer = TokenizerTrainer(model_type="bpe", vocab_size=290, normalisation="nfkc")
    tokenizer, _ = trainer.train(ParallelText(lines, lines), tmp_path)
    model = build_model(src_vocab_size=290, tgt_vocab_size=290)
    of_run = {"src_lang": "zh", "tgt_lang": "en", "config": {"tokenizer": {"normalisation": "identity"}}}
    system = Translator(model, tokenizer, BeamSearch(beam_size=1, max_len_a=0, max_len_b=3), of_run)
    for tgt, src_lang in (("x.zh", "en"), ("x.txt", "en"), ("y.en", None)):  # equal extensions are ignored
        write_lines(tmp_path / "x.en", lines[:3])
        write_lines(tmp_path / tgt, lines[3:6])
        paths = {"src": str(tmp_path / "x.en"), "tgt": str(tmp_path / tgt)}
        evaluated = named_text("test", Files(train={}, test=paths), tmp_path, None)
        assert evaluated.src_lang == src_lang
        results = evaluate(system, evaluated, Scorer("zh"), tmp_path / "scored")
        assert results["normalisation"] == "nfkc"
        assert results["by_length"]["unit"] == ("source words" if src_lang else "source characters")


def test_a_further_dev_set_can_be_named_with_any_corpus(tmp_path):
    (tmp_path / "old.tsv").write_text("Ler nin.\tSog sa.\n")
    further = {"old": {"tsv": str(tmp_path / "old.tsv")}}
    for name in ("old", "dev_old"):
        evaluated = named_text(name, Sample(), tmp_path, None, further)
        assert (evaluated.split, evaluated.pairs.src, evaluated.src_lang) == ("dev_old", ["Ler nin."], "avi")
    with pytest.raises(UserError, match=r"^split=new: there is no such text; there are train, dev, test, dev_old$"):
        named_text("new", Sample(), tmp_path, None, further)


def test_outputs_in_a_different_unicode_form_than_the_references_are_reported(tmp_path):
    references = ["Où êtes-vous né ?", "C'est là", "plain"]
    outputs = [unicodedata.normalize("NFD", line) for line in references]
    evaluated = EvaluationSet("few", "test", ParallelText(["a", "b", "c"], references))
    results = evaluate(Hypotheses(outputs, "en", "fr"), evaluated, Scorer("fr"), tmp_path / "scored")
    told = "lines not in NFC, out of those with accents or similar marks: outputs 2 of 2, references 0 of 2"
    assert f"{told}; to sacreBLEU the two forms are different words" in table(results)
    same = evaluate(Hypotheses(references, "en", "fr"), evaluated, Scorer("fr"), tmp_path / "same")
    assert "NFC" not in "\n".join(table(same))


def test_a_stored_set_keeps_its_references_and_damaged_ones_are_refused(tmp_path):
    pairs = ParallelText(SOURCES, FIRST, (SECOND, [None, *THIRD[1:]]))
    files = write_evaluation_set(tmp_path, EvaluationSet("few", "dev", pairs), "de", "en")
    assert [file.name for file in files] == ["dev.de", "dev.en", "dev.json"]
    assert read_evaluation_set(tmp_path, "dev", "de", "en").pairs == pairs
    content = json.loads(files[-1].read_text())
    for damaged in ([SECOND[:2]], [[3] * 5], 3, [3], ["abcde"[:4]]):
        files[-1].write_text(json.dumps({**content, "references": damaged}))
        with pytest.raises(UserError, match=r"dev\.json: damaged") as refused:
            read_evaluation_set(tmp_path, "dev", "de", "en")
        assert "\n" not in str(refused.value)


def test_a_missing_reference_is_written_as_a_blank_line(tmp_path):
    folder, results = scored(tmp_path, [None, *SECOND[1:]])
    assert all(score["signature"].startswith("nrefs:var|") for score in results["scores"])
    assert results["references"] == 2
    assert read_lines(folder / "references.2.en") == ["", *SECOND[1:]]


LANGUAGES = ["de", "en", "EN", "json", "JSON", "src", "tgt", "gz", "gz.txt", "x.zst", "zip", "2.en", "best.en"]
LANGUAGES += ["translated.en", "translated.de", "source.en", "target.en", "txt", "source"]
LANGUAGES += ["caf\N{LATIN SMALL LETTER E WITH ACUTE}"]
LANGUAGES += ["cafe\N{COMBINING ACUTE ACCENT}", "en.txt", "dev", "translated.json", "straße", "STRASSE"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("src_lang", LANGUAGES)
def test_a_stored_set_is_restored_for_any_language_codes(src_lang, tmp_path):
    for number, tgt_lang in enumerate(LANGUAGES):
        folder = tmp_path / str(number)
        memory = tuple(MemoryMatch(line, 50.0) for line in FIRST)
        for split in ("dev", "test"):
            kept = EvaluationSet("few", split, ParallelText([f"{split} {s}" for s in SOURCES], FIRST), memory)
            write_evaluation_set(folder, kept, src_lang, tgt_lang)
        for kind in ("translated", "best"):
            write_lines(folder / f"dev.{kind}.{ending_of(tgt_lang)}", OUTPUTS)  # as validations do
        names = [unicodedata.normalize("NFD", path.name).casefold() for path in folder.iterdir()]
        assert len(set(names)) == 8, (src_lang, tgt_lang)  # distinct even on a file system that ignores case
        for split in ("dev", "test"):
            back = read_evaluation_set(folder, split, src_lang, tgt_lang)
            assert back is not None
            assert back.pairs == ParallelText([f"{split} {s}" for s in SOURCES], FIRST)
            assert back.memory == memory


def test_a_stored_set_of_json_objects_is_restored(tmp_path):
    pairs = ParallelText(["light on", "light off"], ['{"on": 1}', '{"on": 0}'])
    write_evaluation_set(tmp_path, EvaluationSet("few", "dev", pairs), "en", "de")
    assert read_evaluation_set(tmp_path, "dev", "en", "de").pairs == pairs


def test_files_of_a_stored_set_are_named_after_its_languages_if_these_are_distinct(tmp_path):
    write_evaluation_set(tmp_path, EvaluationSet("few", "test", ParallelText(SOURCES, FIRST)), "de", "en")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.de", "test.en", "test.json"]


def test_text_of_an_earlier_version_is_read_unless_one_file_overwrote_another(tmp_path):
    """Read files of earlier versions, which named them after the languages alone."""
    for split, languages in (("dev", ("EN", "en")), ("test", ("en", "en"))):
        for language, lines in zip(languages, (SOURCES, FIRST)):
            write_lines(tmp_path / f"{split}.{language}", lines)
        (tmp_path / f"{split}.json").write_text('{"name": "old", "memory": []}')
    if len(list(tmp_path.iterdir())) == 5:  # a case-sensitive file system
        assert read_evaluation_set(tmp_path, "dev", "EN", "en").pairs == ParallelText(SOURCES, FIRST)
    assert read_evaluation_set(tmp_path, "test", "en", "en") is None  # the references have overwritten the sources
    assert read_evaluation_set(tmp_path, "test", "en", "json") is None


@pytest.mark.parametrize(("src_lang", "tgt_lang"), [("en", "en"), ("EN", "en"), ("json", "2.en"), ("gz", "zst")])
def test_the_files_of_an_evaluation_are_distinct_for_any_language_codes(src_lang, tgt_lang, tmp_path):
    evaluated = EvaluationSet("few", "test", ParallelText(SOURCES, FIRST, (SECOND, THIRD)))
    baseline = Baseline("other", Hypotheses(THIRD, src_lang, tgt_lang))
    evaluate(Hypotheses(OUTPUTS, src_lang, tgt_lang), evaluated, Scorer("en"), tmp_path / "scored", baseline=baseline)
    files = [path for path in (tmp_path / "scored").iterdir() if path.name != "results.json"]
    assert len({path.name.casefold() for path in files}) == 6
    assert sorted(map(read_lines, files)) == sorted([SOURCES, FIRST, SECOND, THIRD, OUTPUTS, THIRD])


def test_an_evaluation_does_not_follow_links_out_of_the_run_s_folder(tmp_path, say):
    (tmp_path / "mine").mkdir()
    (tmp_path / "run" / "text").mkdir(parents=True)
    shutil.copy(GOLDEN, tmp_path / "run" / "best.ckpt")
    pairs = ParallelText(SOURCES, FIRST)
    write_evaluation_set(tmp_path / "run" / "text", EvaluationSet("few", "dev", pairs), "avi", "bol")
    (tmp_path / "run" / "evaluation").symlink_to(tmp_path / "mine")
    assert "a link on this path leads out of run" in say("checkpoint=run", "output=null")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_missing_tokenizer_is_reported_before_the_text_is_read(tmp_path):
    """Check that scoring Japanese without MeCab fails before the corpus, which does not exist, is read."""
    (tmp_path / "MeCab.py").write_text("raise ImportError('no MeCab here')\n")
    code = "import sys; sys.path.insert(0, '.'); from diglot.commands.evaluate import main; main()"
    words = ("data=files", "data.dev.src=none.en", "data.dev.tgt=none.ja", "tgt_lang=ja", f"checkpoint={GOLDEN}")
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "BLEU for ja needs sacreBLEU's tokenizer ja-mecab: pip install 'sacrebleu[ja]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("languages", "is_refused"), [(("avi", "bol"), False), (("src", "tgt"), False), (("src", "de"), True)]
)
def test_a_checkpoint_that_knows_no_languages_scores_any_corpus(tmp_path, languages, is_refused):
    record = dict(zip(("src_lang", "tgt_lang"), languages))
    translator: Any = SimpleNamespace(record=record, tokenizer=SimpleNamespace(languages=()))
    if is_refused:
        with pytest.raises(UserError, match="data=sample is avi-bol, but the checkpoint translates src-de"):
            named_text("dev", Sample(), tmp_path, translator)
    else:
        assert len(named_text("dev", Sample(), tmp_path, translator).pairs) == 200
