"""Scores equal those of the sacrebleu command for the same files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from sacrebleu.metrics import BLEU, TER

from diglot.data.language import CHINESE as CHINESE_WRITING
from diglot.data.language import SPACED, TOKENIZERS
from diglot.data.text import write_lines
from diglot.errors import UserError
from diglot.evaluation.scorer import Score, Scorer, recorded_tokenizer

THREE = (
    ["The cat sat on the mat today.", "A dog ran in the park", "It's raining;  we stay inside"],
    ["The cat sat on the mat today.", "The dog was running through a park.", "We stay at home, because it rains!"],
)
CHINESE = (["我们今天去公园。", "他喜欢红色的苹果"], ["我们今天去了公园。", "她喜欢吃红苹果。"])


def command_line(folder: Path, hypotheses: list[str], references: list[str], *options: str) -> dict[str, dict]:
    """Return the results of the sacrebleu command by metric."""
    write_lines(folder / "hypotheses", hypotheses)
    write_lines(folder / "references", references)
    metrics = ["-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "-w", "6", "-f", "json"]
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", *metrics, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return {result["name"].lower().replace("chrf2++", "chrf++"): result for result in json.loads(done.stdout)}


def assert_equal(scores: list[Score], expected: dict[str, dict]) -> None:
    assert {score.name.lower() for score in scores} == set(expected) == {"bleu", "chrf++", "ter"}
    for score in scores:
        assert score.value == pytest.approx(expected[score.name.lower()]["score"], abs=1e-5)
        signature = expected[score.name.lower()]["signature"]
        assert sorted(score.signature.split("|")) == sorted(signature.split("|"))


def test_scores_equal_the_command_line(tmp_path: Path) -> None:
    scores = Scorer("en")(*THREE)
    assert_equal(scores, command_line(tmp_path, *THREE))
    assert 0 < scores[0].value < 100  # although the first of the three outputs is a perfect match


def test_chinese_is_scored_by_its_characters(tmp_path: Path) -> None:
    scores = Scorer("zh-Hans")(*CHINESE)
    assert_equal(
        scores, command_line(tmp_path, *CHINESE, "--tokenize", "zh", "--ter-normalized", "--ter-asian-support")
    )
    assert "tok:zh" in scores[0].signature
    assert scores[0].value > 10 > Scorer("en")(*CHINESE)[0].value


SPELLINGS = {
    "zh": "zh zho cmn zh-CN zh_TW zho_Hans zho_Hant zh-Hant-TW yue lzh wuu ZH chi zh_CN.UTF-8",
    "ja-mecab": "ja jpn jpn_Jpan ja-JP ja_JP JA jpn-JP ja-Jpan JPN jpn_JP",
    "ko-mecab": "ko kor kor_Hang ko_KR ko-KR KO ko-Kore kor-KR KOR ko_Hang",
    "char": "th tha th-TH th_TH tha_Thai TH THA lo lao km khm my mya bur bo bod dz shn jav_Java",
    "13a": "de deu ger_DE bol en_US zh-Latn ja-Latn ru sr_Cyrl hi vi",
}
TEXTS = {
    "zh": CHINESE,
    "ja-mecab": (
        ["今日は公園に行きます。", "彼は赤いりんごが好き"],
        ["今日は公園に行きました。", "彼女は赤いりんごが好きです。"],
    ),
    "ko-mecab": (
        ["우리는 오늘 공원에 간다.", "그는 빨간 사과를 좋아해"],
        ["우리는 오늘 공원에 갔다.", "그녀는 사과를 좋아한다."],
    ),
    "char": (["วันนี้เราไปสวน", "เขาชอบแอปเปิล"], ["วันนี้เราไปที่สวน", "เธอชอบแอปเปิล"]),
    "13a": THREE,
}
needs_dictionary = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}


@pytest.mark.parametrize("tokenizer", SPELLINGS)
def test_every_spelling_of_a_language_is_scored_by_its_tokenizer(tokenizer: str) -> None:
    if tokenizer in needs_dictionary:
        pytest.importorskip(needs_dictionary[tokenizer])
    hypotheses, references = TEXTS[tokenizer]
    expected = BLEU(tokenize=tokenizer).corpus_score(hypotheses, [references]).score
    assert expected > 10
    for code in SPELLINGS[tokenizer].split():
        scorer = Scorer(code, references)
        assert scorer(hypotheses, references)[0].value == expected, code
        assert f"tok:{tokenizer}" in scorer(hypotheses, references)[0].signature
        assert not [note for note in scorer.notes if "tokenizer" in note] or code in ("zh-Latn", "ja-Latn")


@pytest.mark.parametrize("code", ["tgt", "trg", "text", "xx", "chinese", "und", ""])
@pytest.mark.parametrize("tokenizer", ["zh", "ja-mecab", "ko-mecab", "char", "13a"])
def test_for_an_unknown_code_the_references_script_decides_with_a_note(code: str, tokenizer: str) -> None:
    if tokenizer in needs_dictionary:
        pytest.importorskip(needs_dictionary[tokenizer])
    scorer = Scorer(code, TEXTS[tokenizer][1])
    assert scorer.tokenizer == tokenizer
    assert f"the target language {code} is not known" in scorer.notes[0]
    assert tokenizer in scorer.notes[0]


@pytest.mark.parametrize(
    ("code", "text"),
    [("en", "zh"), ("tw", "zh"), ("de", "char"), ("la", "char"), ("en", "ja-mecab"), ("kr", "ko-mecab")],
)
def test_references_that_contradict_the_code_decide_with_a_note(code: str, text: str) -> None:
    if text in needs_dictionary:
        pytest.importorskip(needs_dictionary[text])
    scorer = Scorer(code, TEXTS[text][1])
    assert scorer.tokenizer == text
    assert scorer.metrics.keys() == Scorer("und", TEXTS[text][1]).metrics.keys()
    assert f"the target language {code} is not written like the references" in scorer.notes[0]


@pytest.mark.parametrize(
    ("code", "tokenizer", "text", "suits"),
    [
        ("en", "13a", "zh", "zh"),
        ("de", "intl", "char", "char"),
        ("zh", None, "char", "char"),
        ("en", "13a", "ja-mecab", "ja-mecab"),
    ],
)
def test_a_tokenizer_that_finds_no_words_gives_a_note_with_what_to_type(
    code: str, tokenizer: str | None, text: str, suits: str
) -> None:
    (note, *_) = Scorer(code, TEXTS[text][1], tokenizer).notes
    assert "treats a complete sentence as one word" in note
    assert f"bleu_tokenizer={suits}" in note


def test_alphabetic_text_with_some_chinese_is_scored_by_its_code_without_a_note() -> None:
    references = ["The word 你好 means hello", "In Chinese 谢谢你们 is thanks"]
    scorer = Scorer("en", references)
    assert (scorer.tokenizer, scorer.writing, scorer.notes) == ("13a", SPACED, [])
    assert Scorer("en", references, "13a").notes == []


@pytest.mark.parametrize("tokenizer", ["13a", "intl"])
def test_a_requested_word_tokenizer_confirms_the_language_code(tokenizer: str) -> None:
    references = ["我们今天去公园。 OK", "他喜欢红色的苹果"]
    decided, asked = Scorer("en", references), Scorer("en", references, tokenizer)
    assert decided.writing == CHINESE_WRITING
    assert "bleu_tokenizer=13a scores words separated by spaces" in decided.notes[0]
    assert "CODE" not in decided.notes[0]
    assert asked.writing == SPACED
    assert "asian:no" in asked(references, references)[-1].signature
    assert Scorer("en", references, "char").writing == CHINESE_WRITING  # char does not imply spaces between words


def test_references_in_another_language_than_the_code_give_a_note() -> None:
    assert "use bleu_tokenizer=13a" in Scorer("zh", THREE[1]).notes[0]
    assert "use bleu_tokenizer=13a" in Scorer("th", THREE[1]).notes[0]
    assert Scorer("de", ["Привет, мир"]).notes == []


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "char", "none", "zh"])
def test_a_requested_tokenizer_is_used(tokenizer: str) -> None:
    scorer = Scorer("zh", CHINESE[1], tokenizer)
    expected = BLEU(tokenize=tokenizer).corpus_score(CHINESE[0], [CHINESE[1]]).score
    assert scorer(*CHINESE)[0].value == expected
    lacks_segmentation = tokenizer in ("13a", "intl", "none")
    assert ("use bleu_tokenizer=zh" in " ".join(scorer.notes)) == lacks_segmentation


def test_the_tokenizers_are_sacrebleu_s() -> None:
    assert set(TOKENIZERS) == set(BLEU.TOKENIZERS)
    with pytest.raises(UserError, match="bleu_tokenizer=best: must be one of none, zh, 13a"):
        Scorer("en", tokenizer="best")


@pytest.mark.parametrize("tokenizer", ["flores200", "flores101", "spm", "spBLEU-1K"])
def test_a_tokenizer_whose_model_is_missing_is_refused_without_a_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: str
) -> None:
    monkeypatch.setattr("diglot.evaluation.metrics.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", lambda *_: pytest.fail("fetched"))
    with pytest.raises(UserError, match=rf"{tokenizer} needs .*\.model|{tokenizer} needs .*spm, which is missing"):
        Scorer("en", tokenizer=tokenizer)


def test_a_tokenizer_whose_model_is_in_the_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sentences = [f"a small text of words {i} and {i + 1}" for i in range(200)]
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "flores200sacrebleuspm"
    with model.open("wb") as file:
        train = sentencepiece.SentencePieceTrainer.train
        train(sentence_iterator=iter(sentences), model_writer=file, vocab_size=30, minloglevel=2)
    for module in ("diglot.evaluation.metrics", "sacrebleu.tokenizers.tokenizer_spm"):
        monkeypatch.setattr(f"{module}.SACREBLEU_DIR", str(tmp_path))
    score = Scorer("en", tokenizer="flores200")(sentences, sentences)[0]
    assert (score.value, "tok:flores200" in score.signature) == (pytest.approx(100), True)


def test_the_recorded_tokenizer_applies_only_to_its_own_target_language() -> None:
    record = {"tgt_lang": "tgt", "bleu_tokenizer": "zh"}
    assert recorded_tokenizer(record, "tgt") == "zh"
    assert recorded_tokenizer(record, "de") is None
    assert recorded_tokenizer({"tgt_lang": "tgt"}, "tgt") is None
    assert recorded_tokenizer({"tgt_lang": "tgt", "bleu_tokenizer": ["zh"]}, "tgt") is None


def test_perfect_output_has_perfect_scores() -> None:
    scores = Scorer("de")(THREE[1], THREE[1])
    assert [score.value for score in scores] == pytest.approx([100, 100, 0])
    assert [str(score) for score in scores] == ["BLEU 100.00", "chrF++ 100.00", "TER 0.00"]


def test_empty_output_has_scores() -> None:
    assert [score.value for score in Scorer("de")(["", "", ""], THREE[1])] == pytest.approx([0, 0, 100])


def test_the_slow_metric_can_be_left_out() -> None:
    assert [score.name for score in Scorer("de")(*THREE, with_slow=False)] == ["BLEU", "chrF++"]


@pytest.mark.parametrize(("hypotheses", "references"), [(3, 1), (1, 3), (0, 0), (3, 0)])
def test_unequal_counts_are_refused(hypotheses: int, references: int) -> None:
    with pytest.raises(ValueError, match=f"{hypotheses} hypotheses for {references} references"):
        Scorer("de")(["a"] * hypotheses, ["a"] * references)


@pytest.mark.parametrize(("language", "module", "extra"), [("ja", "MeCab", "ja"), ("ko-KR", "mecab_ko", "ko")])
def test_a_tokenizer_that_is_not_installed_is_reported_at_once_in_one_line(
    monkeypatch: pytest.MonkeyPatch, language: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("sacrebleu.tokenizers.tokenizer_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # missing, even if it is installed here
    with pytest.raises(UserError) as refused:
        Scorer(language)
    assert f"pip install 'sacrebleu[{extra}]'" in str(refused.value)
    assert language in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("language", ["zho_Hans", "ja"])
def test_ter_counts_characters_where_sacrebleu_can_split_them(language: str) -> None:
    if language == "ja":
        pytest.importorskip("MeCab")
    references = ["我们今天去了城里的公园。", "他们喜欢吃红色的苹果。"]
    hypotheses = [references[0], "他们喜欢吃红的苹果。"]
    ter = Scorer(language, references)(hypotheses, references)[-1]
    expected = TER(normalized=True, asian_support=True).corpus_score(hypotheses, [references])
    assert (ter.name, ter.value) == ("TER", expected.score)
    assert ter.value < 10 < TER().corpus_score(hypotheses, [references]).score
    assert "norm:yes|punct:yes|asian:yes" in ter.signature


def test_ter_is_left_out_with_a_note_if_it_finds_no_words() -> None:
    scorer = Scorer("th", TEXTS["char"][1])
    assert [score.name for score in scorer(*TEXTS["char"])] == ["BLEU", "chrF++"]
    assert "TER is left out: it finds no words in Thai script" in scorer.notes
    assert any("chrF++" in note for note in scorer.notes)
    assert Scorer("de", THREE[1]).notes == []
