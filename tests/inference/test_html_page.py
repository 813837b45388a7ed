"""The page of translations is complete and safe for any text, and a browser draws the right values."""

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from diglot.inference.html_page import page
from support.browser import Browser, needs_chromium

HOSTILE = [
    "</script><script>document.title = 'gone'</script>",
    "<!-- <script>",
    "<img src=x onerror=\"document.title = 'gone'\">",
    "\" ' ` & &amp; &lt;b&gt; ${1} \\u003c \\",
    "a\u2028b\u2029c\u0085d",
    "\ufeff",
    "\ufeffin front",
    "\x00 \x01 \x0b \r \x1b \x7f",
    "\U0001f469\u200d\U0001f4bb flag \U0001f1e9\U0001f1ea",
    "شغّل الضوء في غرفة الجلوس",
    "\u202eturned",
    "\ud800 half a character",
    "<!-- lines --><!-- title -->",
]


def record(
    line: int = 1, n_best: int = 2, layers: int = 2, heads: int = 3, source: str = "Ein Licht"
) -> dict[str, Any]:
    """Return a record with one source token per word plus </s>, and hypotheses of three tokens."""
    rng = np.random.default_rng(line)
    source_tokens = [*(f"▁{word}" for word in source.split(" ")), "</s>"]
    hypotheses = []
    for n in range(n_best):
        weights = rng.dirichlet([0.3] * len(source_tokens), size=(layers, heads, 3)) if layers else []
        hypotheses.append(
            {
                "text": f"A light{n}",
                "score": -0.5 - n,
                "log_prob": -2.0,
                "tokens": ["▁A", f"▁light{n}", "</s>"],
                "log_probs": [-0.1, -1.5, -0.4],
                "cut": n == 1,
                "attention": np.asarray(weights).tolist(),
            }
        )
    return {"line": line, "source": source, "source_tokens": source_tokens, "hypotheses": hypotheses}


def blank(line: int = 2) -> dict[str, Any]:
    empty = {"text": "", "score": 0.0, "log_prob": 0.0, "tokens": [], "log_probs": [], "cut": False, "attention": []}
    return {"line": line, "source": "", "source_tokens": [], "hypotheses": [empty]}


def whole(*records: dict[str, Any], title: str = "Translations") -> str:
    return "".join(page(title, records))


class Parts(HTMLParser):
    """Parser that collects the tags, the text and the lines' data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        attributes = self.tags[-1][1] if self.tags else {}
        if attributes.get("type") == "application/json" and data.strip().startswith("{"):
            self.data.append(json.loads(data))
        elif attributes.get("class") == "text":
            self.texts.append(data)


def test_the_page_names_no_address_and_forbids_all():
    text = whole(record(), blank())
    assert not re.search(r"https?:|[\"'(]//|\burl\(|@import|\bsrc=|\bhref=|\bimport\b|\bfetch\b|XMLHttp", text)
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in Parts(text).tags


def test_source_and_best_translation_stand_in_the_html_itself():
    parts = Parts(whole(record(3), blank(4), record(5, source="Zwei Lichter")))
    assert [text.strip() for text in parts.texts if text.strip()] == [
        "Ein Licht",
        "A light0",
        "Zwei Lichter",
        "A light0",
    ]
    assert [attributes["id"] for tag, attributes in parts.tags if tag == "details"] == ["line-3", "line-4", "line-5"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_never_markup(text):
    hostile = record()
    hostile["source"], hostile["source_tokens"][0] = text, text
    hostile["hypotheses"][0] |= {"text": text, "tokens": [text, text, text]}
    calm = Parts(whole(record()))
    parts = Parts(whole(hostile, title=text))
    assert [tag for tag, _ in parts.tags] == [tag for tag, _ in calm.tags]
    assert parts.data[0]["source_tokens"][0] == text
    assert parts.data[0]["hypotheses"][0]["text"] == text
    assert parts.data[0]["hypotheses"][0]["tokens"] == [text] * 3
    whole(hostile, title=text).encode()


def test_attention_is_packed_to_within_a_five_hundredth():
    given = [record(1, layers=2, heads=4), record(2, layers=1, heads=1, source="a b c d e")]
    for before, after in zip(given, Parts(whole(*given)).data, strict=True):
        for hypothesis, packed in zip(before["hypotheses"], after["hypotheses"], strict=True):
            weights = np.array(hypothesis["attention"])
            values = np.frombuffer(zlib.decompress(base64.b64decode(packed["attention"]["bytes"])), np.uint8) / 255
            assert packed["attention"]["shape"] == list(weights.shape)
            assert np.abs(values.reshape(weights.shape) - weights).max() <= 1 / 510 + 1e-6


def test_attention_and_scores_may_be_missing():
    without, empty = record(1), record(2, layers=0)
    del without["hypotheses"][0]["attention"]
    without["hypotheses"][0] |= {"score": math.nan, "log_probs": [-math.inf, -0.1, math.nan]}
    first, second = Parts(whole(without, empty)).data
    assert first["hypotheses"][0]["attention"] is None
    assert first["hypotheses"][0]["score"] is None
    assert first["hypotheses"][0]["log_probs"] == [None, -0.1, None]
    assert [hypothesis["attention"] for hypothesis in second["hypotheses"]] == [None, None]


@pytest.mark.parametrize("key", ["tokens", "log_probs", "attention"])
def test_parts_of_unequal_size_are_refused_with_their_line(key):
    wrong = record(7)
    wrong["hypotheses"][0][key] = wrong["hypotheses"][0][key][:1]
    if key == "attention":
        wrong["hypotheses"][0][key] = np.array(wrong["hypotheses"][0][key])[:, :, :2]
    with pytest.raises(ValueError, match="line 7"):
        whole(wrong)


def test_lines_come_one_after_the_other():
    def records() -> Iterator[dict[str, Any]]:
        for line in range(1, 4):
            asked.append(line)
            yield record(line)

    asked: list[int] = []
    pieces = page("Translations", records())
    next(pieces)
    assert asked == []
    assert 'id="line-1"' in next(pieces)
    assert asked == [1]


# In a browser

FIRST_LINE_IS_OPEN = "document.querySelector('.body') !== null || document.querySelector('.line') === null"


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Browser]]:
    def open_page(text: str, **options: Any) -> Browser:
        chromium.open(text, ready=FIRST_LINE_IS_OPEN, **options)
        return chromium

    yield open_page
    chromium.check()


def expected(record: dict[str, Any], hypothesis: int, layer: int | None, head: int | None) -> np.ndarray:
    weights = np.array(record["hypotheses"][hypothesis]["attention"])
    if layer is not None:
        weights = weights[layer : layer + 1]
    if head is not None:
        weights = weights[:, head : head + 1]
    return weights.mean((0, 1))


@needs_chromium
def test_the_chosen_layer_head_and_hypothesis_are_drawn(opened):
    given = record(layers=2, heads=3)
    browser = opened(whole(given))
    assert np.abs(browser.map() - 255 * expected(given, 0, None, None)).max() <= 1.01
    for layer, head in [(0, 0), (1, 2), (1, None), (None, 1)]:
        browser.choose("#layer", -1 if layer is None else layer)
        browser.choose("#head", -1 if head is None else head)
        assert np.abs(browser.map() - 255 * expected(given, 0, layer, head)).max() <= 1.01
    browser.do("document.querySelector('.heads :nth-child(6)').click()")  # layer 2, head 3
    assert [browser.do(f"+document.querySelector('#{name}').value") for name in ("layer", "head")] == [1, 2]
    assert np.abs(browser.map() - 255 * expected(given, 0, 1, 2)).max() <= 0.51
    browser.do("document.querySelectorAll('[type=radio]')[1].click()")
    browser.wait("document.querySelector('.rows').textContent.includes('light1')")
    assert np.abs(browser.map() - 255 * expected(given, 1, 1, 2)).max() <= 0.51


@needs_chromium
def test_pointing_at_a_token_shades_its_attention_and_shows_the_figures(opened):
    given = record(layers=1, heads=1)
    weights = expected(given, 0, None, None)
    browser = opened(whole(given))
    browser.map()
    assert browser.shares(".token[data-t]")[:3] == pytest.approx(1 - np.exp([-0.1, -1.5, -0.4]), abs=1e-3)
    browser.point_at(".token[data-t='1']")
    assert browser.shares(".token[data-s]") == pytest.approx(weights[1], abs=0.003)
    largest = int(weights[1].argmax())
    said = browser.text(".look")
    assert said.startswith("▁light0 (probability 0.22) looked at")
    assert f"{given['source_tokens'][largest]} {weights[1, largest]:.2f}"[:-1] in said
    browser.point_at(".token[data-s='2']")
    assert browser.shares(".token[data-t]")[:3] == pytest.approx(weights[:, 2], abs=0.003)
    browser.point_at(".cells canvas", x=1.5 / 3, y=2.5 / 3)
    said = re.fullmatch(r"</s> \(probability 0\.67\) looked at ▁Licht ([\d.]+)", browser.text(".look"))
    assert said
    assert float(said[1]) == pytest.approx(weights[2, 1], abs=0.003)
    browser.point_at("h1")
    assert browser.shares(".token[data-s]") == [0, 0, 0]


@needs_chromium
def test_all_can_be_reached_by_keyboard(opened):
    given = record(layers=1, heads=2)
    browser = opened(whole(given))
    browser.map()
    stops = []
    for _ in range(8):
        browser.press("Tab")
        stops.append(
            browser.do(
                "document.activeElement.id || document.activeElement.classList[0] ||"
                "document.activeElement.type || document.activeElement.tagName"
            )
        )
    assert stops[:7] == ["layer", "head", "SUMMARY", "token", "radio", "token", "CANVAS"]
    browser.do("document.querySelector('.token[data-t]').focus()")
    browser.press("ArrowRight")
    assert browser.text(".look").startswith("▁light0 ")
    browser.do("document.querySelector('.cells canvas').focus()")
    browser.press("ArrowUp")
    browser.press("ArrowRight")
    assert re.match(r"▁A .* looked at ▁Licht", browser.text(".look"))
    browser.do("document.querySelector('[type=radio]').focus()")
    browser.press("ArrowDown")
    browser.wait("document.querySelector('.rows').textContent.includes('light1')")


@pytest.mark.sampled(2)
@needs_chromium
@pytest.mark.parametrize("width", [400, 1600])
def test_any_text_is_shown_as_it_is_and_no_page_scrolls_sideways(opened, width):
    lines = []
    for number, text in enumerate([*HOSTILE, "w" * 3000, "wort " * 300], start=1):
        line = record(number, layers=2, heads=16)
        line["source"], line["source_tokens"][0] = text, text
        line["hypotheses"][0] |= {"text": text, "tokens": [f"▁{text}", text, "</s>"]}
        lines.append(line)
    long = record(99, layers=1, heads=1, source=" ".join(f"wort{i}" for i in range(200)))
    browser = opened(whole(*lines, blank(98), long, title="</title><b>"), width=width)
    browser.do("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    browser.wait(f"document.querySelectorAll('.cells canvas').length === {len(lines) + 1}")
    assert browser.do("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert browser.do("document.title") == "</title><b>"
    for line in lines:
        shown = browser.do(f"document.querySelector('#line-{line['line']} .token').textContent")
        given = "".join(chr(0x2400 + ord(c)) if c < " " and c != "\t" else c for c in line["source"]).replace(
            "\x7f", "␡"
        )
        assert shown == given


@pytest.mark.reliability
@needs_chromium
def test_a_page_of_a_thousand_lines_draws_what_is_opened_only(opened):
    lines = [record(line, heads=8, source="ein zwei drei vier fünf sechs") for line in range(1, 1001)]
    browser = opened(whole(*lines))
    assert browser.do("document.querySelectorAll('details').length") == 1000
    assert browser.do("document.querySelectorAll('details .body').length") == 1
    browser.do("document.querySelector('#line-700 summary').click()")
    shown = browser.map("#line-700 .cells canvas")
    assert np.abs(shown - 255 * expected(lines[699], 0, None, None)).max() <= 1.01
    assert browser.do("document.querySelectorAll('details .body').length") == 2


@needs_chromium
def test_arrow_keys_go_the_way_the_script_runs(opened):
    browser = opened(whole(record(source="شغّل الضوء")))
    browser.map()
    browser.do("document.querySelector('.token[data-s]').focus()")
    browser.press("ArrowLeft")
    assert browser.do("document.activeElement.textContent") == "الضوء"
    browser.press("ArrowRight")
    assert browser.do("document.activeElement.textContent") == "شغّل"


@needs_chromium
def test_of_hypotheses_chosen_in_quick_succession_the_last_is_shown(opened):
    given = record(n_best=3)
    browser = opened(whole(given))
    browser.map()
    browser.do("[1, 2, 1, 0, 2].forEach((i) => document.querySelectorAll('[type=radio]')[i].click())")
    browser.wait("document.querySelector('.rows').textContent.includes('light2')")
    assert np.abs(browser.map() - 255 * expected(given, 2, None, None)).max() <= 1.01
    assert browser.do("document.querySelectorAll('.map').length") == 1


@needs_chromium
def test_lines_without_attention_and_without_text_are_shown_too(opened):
    browser = opened(whole(record(1, layers=0), blank(2)))
    browser.do("document.querySelector('#line-2').open = true")
    browser.wait("document.querySelectorAll('.body').length === 2")
    browser.point_at(".token[data-t='1']")
    assert browser.text(".look") == "▁light0 (probability 0.22)"
    assert browser.text(".drawn") == "No attention was recorded."
    assert browser.text("#line-2 .drawn") == ""
    assert browser.do("document.querySelector('canvas')") is None


@needs_chromium
def test_a_page_may_have_no_lines(opened):
    assert opened(whole()).text("h1") == "Translations"
