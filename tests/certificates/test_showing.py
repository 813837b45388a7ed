"""The page of a certificate is complete, loads nothing, and shows any text as text."""

import re
from html.parser import HTMLParser

import pytest

from diglot.certificates.showing import page, scores_as_text
from support.certificates import certificate


class Parser(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert not {name for name, _ in attributes} & {"src", "href", "onload", "onerror"}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Parser:
    parser = Parser()
    parser.feed(text)
    assert not parser.open
    return parser


def test_the_page_has_the_scores_the_hashes_the_losses_and_the_commands() -> None:
    content = certificate(30.0, 31.0, 35.0)
    shown = parsed(page(content))
    assert "32.00 ± 2.65" in shown.text
    for run in content["runs"]:
        assert run["command"] in shown.text
        assert all(digest in shown.text for digest in [*run["files"].values(), *run["text"].values()])
    for value in ("8.5", "3.2500", "AVX2", "Abacus 9", "diglot-train 1", "0123456789ab", "nrefs:1|tok:13a"):
        assert value in shown.text
    for value in ("40,000", "encoder x 0.5", "LoRA of rank 8 (alpha 16) on query, value", "norms", "4" * 64):
        assert value in shown.text
    assert "frozen" not in shown.text
    assert "script" not in shown.elements
    assert not re.search(r"https?:|url\(", page(content))
    assert page(content) == page(certificate(30.0, 31.0, 35.0))


def test_hostile_text_is_shown_as_text() -> None:
    content = certificate()
    content["runs"][0]["command"] = "</code><script>alert(1)</script>\x1b&"
    content["runs"][0]["name"] = "<img onerror=x>"
    shown = parsed(page(content))
    assert not {"script", "img"} & shown.elements
    assert "</code><script>alert(1)</script>\u241b&" in shown.text


def test_missing_parts_are_left_out() -> None:
    content = certificate()
    run = content["runs"][0]
    del run["training"]
    run["test"], run["validations"], content["test"] = None, [], []
    run["first_updates"]["losses"], run["first_updates"]["missing"] = [], "the text is gone"
    run["environment"]["machine"] = run["environment"]["sources"] = run["environment"]["commit"] = None
    shown = parsed(page(content))
    assert "No losses of the first updates: the text is gone" in shown.text
    assert "not recorded" in shown.text
    assert "dev loss" not in shown.text
    assert "trained" not in shown.text


@pytest.mark.parametrize(("bleu", "expected"), [((30.0,), "30.00"), ((30.0, 31.0, 35.0), "32.00 ± 2.65")])
def test_the_terminal_shows_the_mean_and_the_deviation(bleu: tuple[float, ...], expected: str) -> None:
    lines = scores_as_text(certificate(*bleu))
    assert sum(expected in line for line in lines) == 2  # dev and test
    assert ("standard deviation" in lines[-1]) == (len(bleu) < 3)
