"""What codes, names of files and columns, and text say of a language."""

import pytest

from diglot.language import (
    CHINESE,
    JAPANESE,
    KOREAN,
    SPACED,
    Writing,
    language_of_column,
    language_of_file,
    writing_of_code,
    writing_of_text,
)


@pytest.mark.parametrize(
    "code", ["xx", "tgt", "trg", "text", "jp", "cn", "und", "mul", "qaa", "C", "", "-", "_", "中文"]
)
def test_a_code_that_is_none_says_nothing(code: str) -> None:
    assert writing_of_code(code) is None


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
    names = ["en", "zh", "zho_Hans", "source", "src", "tgt", "text", "xx", 1]
    assert [language_of_column(name) for name in names] == ["en", "zh", "zho_Hans", None, None, None, None, None, None]


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
def test_the_script_of_most_of_a_text_says_how_it_is_written(lines: list[str], writing: Writing | None) -> None:
    assert writing_of_text(lines) == writing


@pytest.mark.parametrize("text", ["วันนี้", "ນີ້ແມ່ນ", "នេះគឺ", "ကျွန်တော်", "ཁྱེད་རང"])
def test_scripts_without_blanks_are_scored_by_characters(text: str) -> None:
    writing = writing_of_text([text, "OK"])
    assert writing is not None
    assert (writing.tokenizer, writing.has_blanks) == ("char", False)
