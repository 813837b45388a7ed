"""Tests that noise changes what each kind says and nothing else, as often as its probability, the same everywhere."""

import hashlib
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diglot.data import preparation
from diglot.data.corpus import Files, Sample
from diglot.data.mixed import Mixed
from diglot.data.module import TranslationData
from diglot.data.noise import KINDS, Noise, NoisyText, add_typos, copy_span, join_texts, sentence_ends, split_pair
from diglot.data.options import DataOptions
from diglot.data.preparation import Cleaning, noise_notes, prepare
from diglot.data.sampling import Sampling
from diglot.data.shards import Shards
from diglot.data.text import ParallelText, write_lines
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer

ALL = Noise(upper=0.1, title=0.1, typos=0.1, no_punctuation=0.1, merge=0.1, split=0.1, copy=0.1)
SOURCE_ONLY = ("upper", "title", "typos", "no_punctuation")


def placeholders(line: str) -> list[str]:
    return re.findall(r"\{[^{}\s]+\}", line)


def noisy(kind: str, src: str, tgt: str = "x", lang: str | None = None, block: str = "0 0") -> tuple[str, str] | None:
    """Return a pair with a kind of noise; None if the kind does not apply."""
    changed = Noise(**{kind: 1.0}).apply(ParallelText([src], [tgt]), [0], block, lang, placeholders)  # type: ignore[arg-type]
    assert all(pair.kind == kind and pair.number == 0 for pair in changed)
    return (changed[0].src, changed[0].tgt) if changed else None


# --------------------------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("src", "lang", "wanted"),
    [
        ("Turn on {name}, please.", "en", "TURN ON {name}, PLEASE."),
        ("Straße ﬁnden", "de", "STRASSE FINDEN"),
        ("Привет, мир!", "ru", "ПРИВЕТ, МИР!"),
        ("ışık iyi değil", "tr", "IŞIK İYİ DEĞİL"),
        ("ışık iyi değil", "tur_Latn", "IŞIK İYİ DEĞİL"),
        ("bir iki", "az", "BİR İKİ"),
        ("iyi", "en", "IYI"),
        ("iyi", None, "IYI"),
        ("Οδός Μαΐου, σοφός", "el", "ΟΔΟΣ ΜΑΪΟΥ, ΣΟΦΟΣ"),
        ("Μαι\u0308\u0301ου", "ell", "ΜΑΪΟΥ"),
        ("Οδός", "en", "ΟΔΌΣ"),
        ("e\u0301te\u0301 👩\u200d👧", "fr", "E\u0301TE\u0301 👩\u200d👧"),
        ("OK 中文", "zh", None),
        ("你好，世界。", "zh", None),
        ("שלום 42!", "he", None),
        ("{name} {n}", "en", None),
        ("{name}{{n} i", "en", "{name}{{n} I"),
    ],
)
def test_upper_case_follows_unicode_and_the_language(src: str, lang: str | None, wanted: str | None) -> None:
    assert noisy("upper", src, lang=lang) == (None if wanted is None else (wanted, "x"))


@pytest.mark.parametrize(
    ("src", "lang", "wanted"),
    [
        (
            "turn on the iPhone's 3rd well-known {name}s light",
            "en",
            "Turn On The IPhone's 3rd Well-known {name}s Light",
        ),
        ("(«привет» мир)", "ru", "(«Привет» Мир)"),
        ("ill iyi", "tr", "İll İyi"),
        ("ǆep ﬁn ßa", "hr", "ǅep Fin Ssa"),
        ("😀ok e\u0301te\u0301", "fr", "😀Ok E\u0301te\u0301"),
        ("σας", "el", "Σας"),
        ("Two Words", "en", None),
        ("你好 世界", "zh", None),
    ],
)
def test_title_case_changes_the_first_letter_of_each_word(src: str, lang: str, wanted: str | None) -> None:
    assert noisy("title", src, lang=lang) == (None if wanted is None else (wanted, "x"))


@pytest.mark.parametrize(
    ("src", "last", "every"),
    [
        ("Well, it's 3.5 km!?", "Well, it's 3.5 km", "Well it's 3.5 km"),
        ("¿Qué? «Sí»: 10% (a/b)", None, "Qué Sí 10% a/b"),
        ("你好，世界。", "你好，世界", "你好 世界"),
        ("क्या? ठीक है।", "क्या? ठीक है", "क्या ठीक है"),
        ("word—word; {a}-{b}.", "word—word; {a}-{b}", "word word {a}-{b}"),
        ("no marks  here ", None, None),
        ("...", None, None),
    ],
)
def test_punctuation_is_removed_everywhere_or_at_the_end(src: str, last: str | None, every: str | None) -> None:
    found = {noisy("no_punctuation", src, block=str(i)) for i in range(20)}
    assert found == {None if line is None else (line, "x") for line in (last, every)}


@pytest.mark.parametrize(
    "src",
    [
        "Turn on the {name}.",
        "Привет",
        "Καλημέρα",
        "ışık",
        "你好，世界。",
        "हिन्दी में",
        "e\u0301te\u0301",
        "👩\u200d👧 hello",
        "a",
        "aa",
    ],
)
def test_typing_errors_use_the_letters_of_the_line(src: str) -> None:
    found = {noisy("typos", src, block=str(i)) for i in range(60)} - {None}
    units = Counter(re.findall(r"\w[\u0300-\u036f]*|\W", src))
    for pair in found:
        assert pair is not None
        assert set(pair[0]) == set(pair[0]) & set(src)
        assert placeholders(pair[0]) == placeholders(src)
        assert pair[0] != src
        assert pair[0].strip()
        assert unicodedata.combining(pair[0][0]) == 0
    lengths = {len(pair[0]) - len(src) for pair in found if pair}
    if len([unit for unit in units if unit.isalpha()]) > 2:
        assert min(lengths) < 0 < max(lengths)  # dropped, doubled
        assert any(sorted(pair[0]) == sorted(src) for pair in found if pair)  # swapped
        assert any(len(pair[0]) == len(src) and sorted(pair[0]) != sorted(src) for pair in found if pair)  # replaced
    assert noisy("typos", "42 – 7!") is None


def test_the_share_of_wrong_letters_is_the_rate() -> None:
    line = "abcdefghijklmnopqrst"
    for rate in (0.0, 0.1, 0.2):
        # Half of the errors, dropped and replaced letters, remove a letter; a replaced one seldom brings it back.
        missing = [len({*line} - {*add_typos(line, rate, Random(i))}) for i in range(2000)]
        assert np.mean(missing) == pytest.approx((len(line) * rate + 1 - rate) / 2, rel=0.1)
    lengths = [len(add_typos("abcdefghij", 0.0, Random(i))) for i in range(4000)]
    assert Counter(lengths)[9] / 4000 == pytest.approx(0.25, abs=0.03)  # dropped
    assert Counter(lengths)[11] / 4000 == pytest.approx(0.275, abs=0.03)  # doubled, also for a swap of the last letter


def test_pairs_are_merged_with_a_neighbour_on_both_sides() -> None:
    pairs = ParallelText(["a. ", "b", "c", "你好。"], ["A.", "B", "C", "再见。"])
    found = Noise(merge=1.0).apply(pairs, [0, 2, 3], "0 0", "en", placeholders)
    assert [(pair.number, pair.src, pair.tgt) for pair in found] == [
        (0, "a. c", "A. C"),
        (2, "c你好。", "C再见。"),
        (3, "你好。c", "再见。C"),
    ]
    assert not Noise(merge=1.0).apply(pairs, [2], "0 0", "en", placeholders)
    assert join_texts("नमस्ते", "दुनिया") == "नमस्ते दुनिया"
    assert join_texts("สวัสดี", "โลก") == "สวัสดีโลก"
    assert join_texts("42", "{n}") == "42 {n}"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("Hello. World! ok? Yes.", ["Hello. ", "World! ok? ", "Yes."]),
        ("Sagte er „Ja.“ Dann ging er. ", ["Sagte er „Ja.“ ", "Dann ging er. "]),
        ("z. B. Äpfel am 10. Mai von J. Smith", ["z. B. Äpfel am 10. Mai von J. Smith"]),
        ("1. Start. 3.5 km e.g. here", ["1. Start. ", "3.5 km e.g. here"]),
        ("你好。「好！」再见。", ["你好。", "「好！」", "再见。"]),
        ("क्या? ठीक है। जाओ।", ["क्या? ", "ठीक है। ", "जाओ।"]),
        ("Τι; Ναι. Όχι…", ["Τι; Ναι. ", "Όχι…"]),
        ("", [""]),
    ],
)
def test_sentence_ends_are_found(line: str, parts: list[str]) -> None:
    ends = [0, *sentence_ends(line), len(line)]
    assert [line[start:end] for start, end in pairwise(ends)] == parts


def test_both_sides_are_cut_at_the_same_sentence() -> None:
    found = {split_pair("Eins. Zwei. Drei.", "一。二。三。", Random(i)) for i in range(40)}
    assert found == {
        ("Eins.", "一。"),
        ("Zwei. Drei.", "二。三。"),
        ("Eins. Zwei.", "一。二。"),
        ("Drei.", "三。"),
    }
    assert split_pair("Eins. Zwei.", "One and two.", Random(1)) is None
    assert split_pair("Eins", "One", Random(1)) is None
    assert noisy("split", "Eins. Zwei.", "One, two.") is None


def test_a_part_of_a_long_word_is_copied_to_the_same_end_of_both_sides() -> None:
    src, tgt = "Die Hauptstraße {longname} ist zu.", "主街关闭。"
    found = [copy_span(src, tgt, Random(i), ["{longname}"]) for i in range(60)]
    spans = set()
    for pair in found:
        assert pair is not None
        span = pair[0].replace(src, "").strip()
        assert pair in ((f"{span} {src}", f"{span}{tgt}"), (f"{src} {span}", f"{tgt}{span}"))
        assert span in "Hauptstraße"
        spans.add(span)
    assert {3, 10} <= set(map(len, spans)) <= set(range(3, 11))
    assert noisy("copy", "Tür zu {longname}!", "Door") is None


# ---------------------------------------------------------------------------------------------------------- properties

PARTS = st.sampled_from(
    [
        "{name}",
        "{n}",
        "Turn",
        " on",
        ". ",
        "。",
        "!",
        "? A",
        "ß",
        "İi",
        "Σς",
        "ﬁ",
        "你好",
        "हिन्दी",
        "e\u0301",
        "😀",
        "\u0345",
        "  ",
    ]
)
LINE = st.lists(
    PARTS | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\u2028"), max_size=12), max_size=6
).map("".join)


@settings(deadline=None, max_examples=80)
@given(
    pairs=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    lang=st.sampled_from(["en", "tr", "el", "??"]),
    seed=st.integers(0, 3),
)
def test_noise_changes_only_what_its_kind_may_change(
    pairs: list[tuple[str, str]], kind: str, lang: str, seed: int
) -> None:
    text = ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])
    noise = Noise(**{kind: 1.0}, seed=seed)  # type: ignore[arg-type]
    kept = list(range(len(pairs)))
    changed = noise.apply(text, kept, "0 0", lang, placeholders)
    assert changed == noise.apply(text, kept, "0 0", lang, placeholders)
    assert len({pair.number for pair in changed}) == len(changed)
    for pair in changed:
        src, tgt = pairs[pair.number]
        assert (pair.src, pair.tgt) != (src, tgt)
        assert pair.src.strip()
        assert pair.tgt.strip()
        assert "\n" not in pair.src + pair.tgt
        if kind in SOURCE_ONLY:
            assert pair.tgt == tgt
            assert placeholders(pair.src)[: len(placeholders(src))] == placeholders(src)
        if kind == "copy":
            assert src.strip() in pair.src
            assert tgt.strip() in pair.tgt


def sentences(n: int) -> ParallelText:
    random = Random(5)
    words = ["licht", "fenster", "Öffnen", "bitte", "jetzt", "Wohnzimmer"]
    lines = [f"{' '.join(random.choices(words, k=4))}. Die {' '.join(random.choices(words, k=3))}!" for _ in range(n)]
    return ParallelText(lines, [line.replace("e", "o") for line in lines])


def test_each_kind_is_as_frequent_as_its_probability() -> None:
    n = 20_000
    noise = Noise(upper=0.1, title=0.05, typos=0.08, no_punctuation=0.02, merge=0.03, split=0.04, copy=0.06)
    counts = Counter(pair.kind for pair in noise.apply(sentences(n), range(n), "0 0", "de", placeholders))
    for kind, share in zip(KINDS, noise.probabilities):
        assert counts[kind] / n == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / n)), kind


def test_the_noise_of_a_pair_does_not_depend_on_other_pairs() -> None:
    pairs = sentences(200)
    noise = replace(ALL, merge=0.0)
    every = noise.apply(pairs, range(200), "0 0", "de", placeholders)
    assert 80 < len(every) < 160
    some = noise.apply(pairs, range(0, 200, 3), "0 0", "de", placeholders)
    assert some == [pair for pair in every if pair.number % 3 == 0]
    assert every != noise.apply(pairs, range(200), "1 0", "de", placeholders)
    assert every != replace(noise, seed=2).apply(pairs, range(200), "0 0", "de", placeholders)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"upper": 1.5}, r"noise\.upper \(1\.5\) must be from 0 to 1"),
        ({"typo_rate": -0.1}, r"noise\.typo_rate \(-0\.1\) must be from 0 to 1"),
        ({"samples": 0}, r"noise\.samples \(0\) must be at least 1"),
        ({"upper": 0.5, "merge": 0.4, "copy": 0.2}, r"noise\.upper \+ merge \+ copy \(1\.1\) must be at most 1"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Noise(**options)  # type: ignore[arg-type]
    Noise(**dict.fromkeys(KINDS, 1 / len(KINDS)))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- prepared


@pytest.fixture(scope="module")
def text() -> ParallelText:
    return Sample().load(Path())["train"].select(range(200))


def versions(shards: Shards) -> list[list[tuple[list[int], list[int]]]]:
    rows = [(src.tolist(), tgt.tolist()) for src, tgt in zip(shards.src, shards.tgt, strict=True)]
    n = shards.count("kept")
    return [rows[first : first + n] for first in range(0, len(rows), n)]


def ids(tokenizer: Tokenizer, src: list[str], tgt: list[str]) -> list[tuple[list[int], list[int]]]:
    sources = tokenizer.encode(src)
    return [(source.ids, target) for source, target in zip(sources, tokenizer.encode_targets(tgt, sources))]


def test_prepared_pairs_are_the_ids_of_the_noisy_text(text: ParallelText, tokenizer: Tokenizer, tmp_path: Path) -> None:
    noise = replace(ALL, samples=2)
    options = {"max_len": 100, "block_size": 60, "src_langs": {"train": "tr"}}
    shards = prepare(text, tokenizer, tmp_path, noise=noise, **options)  # type: ignore[arg-type]
    assert shards.n_versions == 2
    counts: Counter[str] = Counter()
    for version, rows in enumerate(versions(shards)):
        src, tgt = list(text.src), list(text.tgt)
        for number, block in enumerate(text.blocks(60)):
            find = tokenizer.find_placeholders
            for pair in noise.apply(block, range(len(block)), f"{version} {number}", "tr", find):
                src[60 * number + pair.number], tgt[60 * number + pair.number] = pair.src, pair.tgt
                counts[pair.kind] += 1
        assert rows == ids(tokenizer, src, tgt)
    about = shards.metadata["noise"]
    assert {kind: count["pairs"] for kind, count in about.items()} == counts
    assert all(len(count["examples"]) == 3 and count["examples"][0][0] in text.src for count in about.values())
    (line,) = noise_notes(shards.metadata)
    assert line.startswith(f"noise (data.noise): {counts['upper']} upper, {counts['title']} title, ")
    assert line.endswith(", of 400 train pairs, in 2 versions")
    english = prepare(text, tokenizer, tmp_path, noise=noise, **options | {"src_langs": {"train": "en"}})  # type: ignore[arg-type]
    assert english.key != shards.key


def test_without_noise_the_prepared_files_are_those_of_earlier_versions(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plain = prepare(text, tokenizer, tmp_path, max_len=100)
    off = Noise(samples=3, seed=2)
    assert not off.is_on
    again = prepare(text, tokenizer, tmp_path, max_len=100, noise=off, src_langs={"train": "tr"})
    assert again.folder == plain.folder
    assert plain.metadata.keys() == {"corpora", "tokens", "versions", "vocab_size"}
    assert noise_notes(plain.metadata) == []


def test_a_noisy_pair_that_a_rule_would_leave_out_stays_as_it_is(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plain = ids(tokenizer, text.src, text.tgt)
    longest = max(len(side) for pair in plain for side in pair) + 1
    merged = prepare(text, tokenizer, tmp_path, max_len=longest, noise=Noise(merge=1.0))
    (rows,) = versions(merged)
    as_before = [row == before for row, before in zip(rows, plain, strict=True)]
    assert 0 < sum(as_before) < 200
    assert merged.metadata["noise"]["merge"]["pairs"] == 200 - sum(as_before)
    assert max(len(side) for row in rows for side in row) < longest
    assert merged.metadata["corpora"]["train"]["kept"] == 200
    # In upper case, the sample has other and more tokens.
    uneven = prepare(text, tokenizer, tmp_path, max_len=300, noise=Noise(upper=1.0), cleaning=Cleaning(max_ratio=1.5))
    assert all(2 * max(len(a), len(b)) + 2 <= 3 * (min(len(a), len(b)) + 1) for a, b in versions(uneven)[0])
    assert 0 < uneven.metadata["noise"]["upper"]["pairs"] < uneven.count("kept")


def test_noise_and_random_segmentation_work_together(text: ParallelText, tokenizer: Tokenizer, tmp_path: Path) -> None:
    noise = Noise(upper=0.5, samples=3)
    for samples, n in ((1, 3), (2, 3), (4, 4)):
        both = prepare(text, tokenizer, tmp_path, max_len=200, noise=noise, sampling=Sampling(samples, 0.3, 1))
        plain = prepare(text, tokenizer, tmp_path, max_len=200, noise=replace(noise, samples=n))
        assert both.n_versions == plain.n_versions == n
        assert both.metadata["noise"] == plain.metadata["noise"]
        for rows, unsampled in zip(versions(both), versions(plain), strict=True):
            spelled = [[tokenizer.decode(src, ["1"] * 8) for src, _ in each] for each in (rows, unsampled)]
            assert spelled[0] == spelled[1]
            assert rows != unsampled


class Killed(ParallelText):
    """A text whose reader is killed after a number of blocks."""

    after = 0

    def blocks(self, size: int = 0) -> Iterator[ParallelText]:
        for number, block in enumerate(super().blocks(size)):
            if number == self.after:
                raise KeyboardInterrupt
            yield block


def test_a_killed_preparation_continues_with_the_same_noise(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "_PROGRESS_INTERVAL", 0.0)
    options = {"max_len": 100, "block_size": 40, "noise": replace(ALL, samples=2)}
    whole = prepare(text, tokenizer, tmp_path / "whole", **options)  # type: ignore[arg-type]
    for after in (1, 3, 4):
        monkeypatch.setattr(Killed, "after", after)
        with pytest.raises(KeyboardInterrupt):
            prepare(Killed(text.src, text.tgt), tokenizer, tmp_path / "killed", **options)  # type: ignore[arg-type]
    again = prepare(text, tokenizer, tmp_path / "killed", **options)  # type: ignore[arg-type]
    for path in sorted(whole.folder.iterdir()):
        assert (again.folder / path.name).read_bytes() == path.read_bytes()


DIGEST = """
import hashlib, sys
from pathlib import Path
from diglot.data.corpus import Sample
from diglot.data.noise import Noise
from diglot.data.preparation import prepare
from diglot.data.tokenizer import Tokenizer

if __name__ == "__main__":
    folder, processes = Path(sys.argv[1]), int(sys.argv[2])
    text = Sample().load(Path())["train"].select(range(200))
    tokenizer = Tokenizer((folder / "model").read_bytes(), None)
    noise = Noise(upper=0.1, title=0.1, typos=0.1, no_punctuation=0.1, merge=0.1, split=0.1, copy=0.1, samples=2)
    made = prepare(text, tokenizer, folder, max_len=100, noise=noise, block_size=40, n_processes=processes)
    print(hashlib.sha256(made.src.ids.tobytes() + made.tgt.ids.tobytes()).hexdigest())
"""


@pytest.mark.reliability
def test_every_process_and_number_of_processes_gives_the_same_noise(
    text: ParallelText, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    script = tmp_path / "digest.py"
    script.write_text(DIGEST)
    found = set()
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        (folder / "model").write_bytes(tokenizer.model)
        words = [sys.executable, str(script), str(folder), str(processes)]
        found.add(subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip())
    alone = Tokenizer(tokenizer.model, None)
    here = prepare(text, alone, tmp_path, max_len=100, noise=replace(ALL, samples=2), block_size=40)
    assert found == {hashlib.sha256(here.src.ids.tobytes() + here.tgt.ids.tobytes()).hexdigest()}


# --------------------------------------------------------------------------------------------------------- data module


def test_training_text_gets_noise_and_dev_does_not(tokenizer: Tokenizer, tmp_path: Path) -> None:
    modules = []
    for noise in (None, Noise(upper=0.5, samples=2)):
        options = DataOptions(tokens_per_batch=600, max_len=100, cache_dir=str(tmp_path), noise=noise)
        modules.append(TranslationData(corpus=Sample(), tokenizer=tokenizer, seed=1, options=options))
        modules[-1].prepare_data()
        modules[-1].setup()
    plain, with_noise = modules
    assert np.array_equal(plain.dev_pairs.src.ids, with_noise.dev_pairs.src.ids)
    assert plain.held_out == with_noise.held_out
    assert plain.sizes == with_noise.sizes
    n = plain.sizes["train"]
    assert [len(module.train_pairs) for module in modules] == [n, 2 * n]
    with_noise.set_length(with_noise.updates_in(2))
    seen: dict[int, set[int]] = {}
    for micro_batch in with_noise.updates():
        seen.setdefault(micro_batch.pass_number, set()).update(micro_batch.pairs.tolist())
    assert seen == {0: set(range(n)), 1: set(range(n, 2 * n))}
    (note,) = [note for note in with_noise.notes if note.startswith("noise")]
    assert re.fullmatch(rf"noise \(data\.noise\): [\d,]+ upper, of {2 * n:,} train pairs, in 2 versions", note)
    assert not [note for note in plain.notes if note.startswith("noise")]


def test_each_corpus_of_a_mixture_has_the_case_of_its_language(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("train.tr", "train.de", "dev.tr", "dev.de"):
        write_lines(tmp_path / name, [f"iki {i} birim {name[-2:]}" for i in range(20)])
    paths = {"src": str(tmp_path / "train.tr"), "tgt": str(tmp_path / "train.de")}
    turned = {"src": paths["tgt"], "tgt": paths["src"]}
    corpus = Mixed(
        corpora={"there": paths, "again": turned | {"src_lang": "de", "tgt_lang": "de"}},
        dev={"src": str(tmp_path / "dev.tr"), "tgt": str(tmp_path / "dev.de")},
    )
    options = DataOptions(max_len=100, cache_dir=str(tmp_path / "cache"), noise=Noise(upper=1.0))
    module = TranslationData(corpus=corpus, tokenizer=tokenizer, seed=1, options=options)
    module.prepare_data()
    sources = [tokenizer.decode(src.tolist(), (), "src") for src in module.shards.src]
    assert sources == [f"İKİ {i} BİRİM TR" for i in range(20)] + [f"IKI {i} BIRIM DE" for i in range(20)]


def test_a_tokenizer_is_trained_on_the_text_with_its_noise(tmp_path: Path) -> None:
    states = {"en": ("on", "off"), "de": ("an", "aus")}
    for lang, (on, off) in states.items():
        lines = [f"the lamp in room {i} is {on if i % 2 else off} and {{name}} sees it" for i in range(400)]
        write_lines(tmp_path / f"train.{lang}", lines)
        write_lines(tmp_path / f"dev.{lang}", lines[:20])
    held_out = {"src": str(tmp_path / "dev.en"), "tgt": str(tmp_path / "dev.de")}
    lengths, placeholders = [], []
    for noise in (None, Noise(upper=0.5)):
        module = TranslationData(
            corpus=Files(
                train={"src": str(tmp_path / "train.en"), "tgt": str(tmp_path / "train.de")},
                dev=held_out,
                test=held_out,
                src_lang="en",
                tgt_lang="de",
            ),
            tokenizer=TokenizerTrainer(model_type="bpe", vocab_size=380, must_fit=False, placeholder=r"\{\w+\}"),
            seed=1,
            options=DataOptions(max_len=100, cache_dir=str(tmp_path / "cache"), noise=noise),
        )
        module.prepare_data()
        encoded = module.tokenizer.encode(["THE LAMP IN ROOM 7 IS OFF AND {name} SEES IT"])[0]
        lengths.append(len(encoded.ids))
        placeholders.append(encoded.placeholders)
    assert lengths[1] < 0.7 * lengths[0]
    assert placeholders == [("{name}",)] * 2


def test_the_hash_of_a_noisy_text_depends_on_all_that_changes_it() -> None:
    text = ParallelText(["some text"], ["ein Text"])

    def digest(noise: Noise, langs: dict[str, str] | None = None, text: ParallelText = text) -> str:
        return NoisyText(text, noise, langs or {"train": "en"}, lambda line: []).digest()

    plain = digest(Noise(upper=0.5))
    assert digest(Noise(upper=0.5, samples=3)) == plain  # the tokenizer is trained on the first version alone
    others = [
        digest(Noise(upper=0.6)),
        digest(Noise(upper=0.5, seed=2)),
        digest(Noise(upper=0.5), {"train": "tr"}),
        digest(Noise(upper=0.5), text=ParallelText(["other text"], ["ein Text"])),
    ]
    assert len({plain, *others}) == 5
