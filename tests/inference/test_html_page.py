"""The page of translations is complete and safe for any text, and a browser draws the right values."""

import base64
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diglot.inference.html_page import page

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

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")


class Browser:
    """A headless Chromium, controlled by the DevTools protocol over two pipes."""

    def __init__(self, folder: Path) -> None:
        self.page = folder / "page.html"
        # The browser reads commands from descriptor 3 and answers on 4, so our own descriptors must be above these.
        (read_end, to), (answers, write_end) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read_end, write_end)]
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}"]
        self.process = subprocess.Popen(
            [str(CHROMIUM), *options, "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=lambda: [os.dup2(end, number) for number, end in enumerate(ends, start=3)] and None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.limit = threading.Timer(300, self.process.kill)  # so that a hanging browser fails the tests
        self.limit.daemon = True
        self.limit.start()
        for end in (read_end, write_end, *ends):
            os.close(end)
        self.to, self.answers = os.fdopen(to, "wb", buffering=0), os.fdopen(answers, "rb")
        self.sent, self.session = 0, None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def open(self, text: str, width: int = 1000) -> None:
        """Show a page from a file, and wait until its first line is open."""
        self.page.write_text(text, encoding="utf-8", newline="")
        self.ask("Page.navigate", url="about:blank")
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=self.page.as_uri())
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")
        self.wait("document.querySelector('.body') !== null || document.querySelector('.line') === null")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        while True:
            heard = bytearray()
            while (byte := self.answers.read(1)) not in (b"\0", b""):
                heard += byte
            answer = json.loads(heard)
            if answer.get("id") == self.sent:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def do(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        end = time.monotonic() + 30
        while not self.do(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def point_at(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Move the mouse over an element, to the fractions x and y of its width and height."""
        box = self.do(
            f"(() => {{const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const {left, top, width, height} = e.getBoundingClientRect(); return [left, top, width, height]})()"
        )
        at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", **at)

    def map(self, selector: str = "[open] .cells canvas") -> np.ndarray:
        """Return the alpha channel of a canvas, from 0 to 255."""
        self.wait(f"document.querySelector({selector!r}) !== null")
        width, height, pixels = self.do(
            f"(() => {{const {{width, height}} = document.querySelector({selector!r});"
            "const copy = new OffscreenCanvas(width, height).getContext('2d');"
            f"copy.drawImage(document.querySelector({selector!r}), 0, 0);"
            "return [width, height, [...copy.getImageData(0, 0, width, height).data]]})()"
        )
        return np.array(pixels).reshape(height, width, 4)[..., 3]

    def choose(self, selector: str, value: int) -> None:
        self.do(
            f"(() => {{const e = document.querySelector({selector!r}); e.value = {value};"
            "e.dispatchEvent(new Event('change'))})()"
        )

    def shares(self, selector: str) -> list[float]:
        return self.do(f"[...document.querySelectorAll({selector!r})].map((e) => +e.style.getPropertyValue('--share'))")

    def text(self, selector: str) -> str:
        return self.do(f"document.querySelector({selector!r}).textContent")

    def close(self) -> None:
        self.limit.cancel()
        self.process.kill()
        self.process.wait()
        self.to.close()
        self.answers.close()

    def check(self) -> None:
        """Check that the page requested only itself, and that no script failed or logged anything."""
        self.do("0")  # earlier exceptions have been reported once this is answered
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        assert [event for event in self.events if event["method"] in bad] == []
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        assert set(urls) == {self.page.as_uri()}


KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(Path(folder))
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Browser]]:
    def open_page(text: str, **options: Any) -> Browser:
        chromium.open(text, **options)
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
