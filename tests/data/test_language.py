"""Tests of what is inferred about a language from codes, from names of files and columns, and from text."""

import pytest

from diglot.data.language import (
    CHINESE,
    JAPANESE,
    KOREAN,
    SPACED,
    Writing,
    find_language,
    iso_639,
    language_of_column,
    language_of_file,
    writing_of,
    writing_of_code,
    writing_of_text,
)


@pytest.mark.parametrize(
    "code", ["xx", "tgt", "trg", "text", "jp", "cn", "und", "mul", "qaa", "C", "", "-", "_", "中文"]
)
def test_an_unknown_code_has_no_writing_system(code: str) -> None:
    assert writing_of_code(code) is None


WITH_REGION = "ko-kr sv-se et-ee hi-in ta-in sl-si ms-my lo-la hy-am bs-ba nb-no"
PAIRS = "es-co ca-es eu-es gl-es br-fr oc-fr tt-ru jv-id se-no uk-ru sv-fi"


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("t.zho_Hans", "zho_Hans"),
        ("t.zh.txt", "zh"),
        ("news.en-zh.zh", "zh"),
        ("t.zh.gz", "zh"),
        ("data.v2/t.zh.txt.zst", "zh"),
        ("zh.txt", "zh"),
        ("zh", "zh"),
        ("train.tok.zh", "zh"),
        ("train.zh.tok", "zh"),
        ("flores200/zho_Hans.devtest", "zho_Hans"),
        ("jpn.txt", "jpn"),
        ("t.ZH", "ZH"),
        ("zh_TW.txt", "zh_TW"),
        ("train.pt-br", "pt-br"),
        ("train.cat", "cat"),
        ("t.xx", "xx"),
        ("news.en-zh", None),
        ("news.en-zh.txt", None),
        ("news.pt-es", None),
        ("news.en-id.txt", None),
        ("fr-ca.txt", None),  # French and Catalan, or French in Canada
        *((f"t.{code}", code) for code in WITH_REGION.split()),
        *((f"t.{code}", None) for code in PAIRS.split()),
        ("ca-es.txt", None),
        ("de-en.txt", None),
        ("zh-tw.txt", "zh-tw"),
        ("news.zh-tw", "zh-tw"),
        ("zh_tw.txt.gz", "zh_tw"),
        ("pt-br.txt", "pt-br"),
        ("t.es-ar.txt", None),  # Spanish and Arabic, or Spanish in Argentina
        ("train.en-vi", None),
        ("de-ch.txt", "de-ch"),
        ("de-de.txt", "de-de"),
        ("en-gb.txt", "en-gb"),
        ("en-us.txt", "en-us"),
        ("sr-me.txt", "sr-me"),
        ("sr-latn.txt", "sr-latn"),
        ("zh-hans.txt", "zh-hans"),
        ("zh_CN.UTF-8.txt", "zh_CN"),
        ("dev.txt", None),
        ("raw.txt", None),
        ("my.txt", None),
        ("a.txt", None),
        ("train.src", None),
        ("zho_Hans.dev", "zho_Hans"),
        ("train.new", None),
        ("train.tgt.gz", None),
        ("", None),
        (None, None),
    ],
)
def test_the_language_in_a_file_s_name_is_found(name: str | None, language: str | None) -> None:
    assert language_of_file(name) == language


def test_a_column_s_name_may_be_a_language() -> None:
    names = ["en", "zh", "zho_Hans", "zh-tw", "cmn", "jpn_Jpan", "ZH"]
    assert [language_of_column(name) for name in names] == names
    for name in ("source", "src", "tgt", "text", "xx", 1, "en-zh", "pt-es", "ref", "out", ""):
        assert language_of_column(name) is None, name


@pytest.mark.parametrize("code", [" zh", "ZH ", "zh_CN.UTF-8", "zho-Hant", "cmn", "yue", "nan"])
def test_case_blanks_and_the_suffix_of_a_locale_have_no_effect(code: str) -> None:
    assert writing_of_code(code) == CHINESE


@pytest.mark.parametrize(
    ("code", "lines", "writing"),
    [
        ("kr", ["카페에 갑니다."], KOREAN),  # Kanuri's code, or Korea's
        ("tw", ["我們今天去公園。"], CHINESE),  # Twi's code, or Taiwan's
        ("cn", ["我们今天去公园。"], CHINESE),  # no language's code
        ("jp", ["東京です"], JAPANESE),
        ("ua", ["Добрий день"], SPACED),
        ("cdo", ["我們今天去公園。"], CHINESE),  # CLDR does not list its script
        ("en", ["我们今天去公园。"], CHINESE),  # swapped sides
        ("en", ["A text 一二三 of a few 四五六 words"], SPACED),  # a third of the letters are Chinese
        ("en", ["Words 一二三四五"], SPACED),  # half of them
        ("en", ["Words 一二三四五六"], CHINESE),
        ("de", ["Wörter 카페에 갑니다"], SPACED),
        ("xx", ["A text 一二三 of a few 四五六 words"], CHINESE),  # unknown code
        ("sr", ["Ово је српски. Ovo je srpski."], SPACED),
        ("zh", ["print(x)", "运行 git status"], CHINESE),  # mostly code
        ("ja", ["東京都"], JAPANESE),
        ("ko", ["大韓民國"], KOREAN),
        ("en", ["123"], SPACED),
        ("xx", [], SPACED),
    ],
)
def test_a_text_in_another_script_overrides_an_alphabetic_code(code: str, lines: list[str], writing: Writing) -> None:
    assert writing_of(code, lines) == writing


@pytest.mark.parametrize(
    ("lines", "writing"),
    [
        (["我们今天去公园。", "他喜欢 Home Assistant"], CHINESE),
        (["東京の人口", "です"], JAPANESE),
        (["카페", "漢字를 쓴다"], KOREAN),
        (["Kaffee", "Привет"], SPACED),
        (["नमस्ते दुनिया"], SPACED),
        (["123 ...", ""], None),
        ([], None),
    ],
)
def test_the_main_script_of_a_text_determines_its_writing_system(lines: list[str], writing: Writing | None) -> None:
    assert writing_of_text(lines) == writing


@pytest.mark.parametrize("text", ["วันนี้", "ນີ້ແມ່ນ", "នេះគឺ", "ကျွန်တော်", "ཁྱེད་རང"])
def test_scripts_without_blanks_are_scored_by_characters(text: str) -> None:
    writing = writing_of_text([text, "OK"])
    assert writing is not None
    assert (writing.tokenizer, writing.has_blanks) == ("char", False)


NLLB = ("eng_Latn", "deu_Latn", "zho_Hans", "zho_Hant", "arb_Arab", "nob_Latn", "srp_Cyrl", "pes_Arab")
MBART = ("en_XX", "de_DE", "zh_CN", "ar_AR", "pt_XX")


@pytest.mark.parametrize(
    ("code", "among", "found"),
    [
        ("de", ("de", "deu_Latn"), "de"),
        ("xx-any", ("xx-any",), "xx-any"),
        *((code, NLLB, "deu_Latn") for code in ("de", "deu", "de-DE", "de_AT", "DE")),
        *(("de", among, found) for among, found in ((MBART, "de_DE"), (("fr",), None), ((), None))),
        ("en", MBART, "en_XX"),
        ("zh", NLLB, "zho_Hans"),
        ("zh_TW", NLLB, "zho_Hant"),
        ("zh-Hant", MBART, None),
        ("ar", NLLB, "arb_Arab"),
        ("fa", NLLB, "pes_Arab"),
        ("no", NLLB, "nob_Latn"),
        ("nb", ("no",), "no"),
        ("sr", NLLB, "srp_Cyrl"),
        ("sr-Latn", NLLB, None),
        ("pt-BR", ("pt_PT", "pt_BR"), "pt_BR"),
        ("pt-AO", ("pt_PT", "pt_BR"), "pt_PT"),
        ("not a code", NLLB, None),
    ],
)
def test_a_language_is_found_by_its_language_script_and_region(code: str, among: tuple, found: str | None) -> None:
    assert find_language(code, among) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [("deu_Latn", "de"), ("en_XX", "en"), ("zh-CN", "zh"), ("nds", "nds"), ("src", None), ("qaa", None), ("xx", None)],
)
def test_iso_639_spells_a_code_as_the_hub_requires(code: str, found: str | None) -> None:
    assert iso_639(code) == found
