"""Further dev sets are read like dev, and a validation's batches keep the sets apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diglot.data.corpus import Sample
from diglot.data.held_out import DevSet, FurtherDev, Validation, metric_of, score_of, split_of
from diglot.data.module import TranslationData
from diglot.data.options import DataOptions
from diglot.data.text import ParallelText, write_lines
from diglot.data.tokenizer import Tokenizer
from diglot.errors import UserError

OLD = ["Ler nin gaser.", "Lo", "Foz su femim une paze in le duze."], ["Sog sa por.", "Sog", "Pep sa kagum ketar nok."]


def files(folder: Path) -> dict[str, str]:
    write_lines(folder / "old.avi", OLD[0])
    write_lines(folder / "old.bol", OLD[1])
    return {"src": str(folder / "old.avi"), "tgt": str(folder / "old.bol")}


def data(folder: Path, tokenizer: Tokenizer, further: Mapping[str, Any] | None) -> TranslationData:
    options = DataOptions(cache_dir=str(folder / "cache"), tokens_per_batch=600, further_dev=further)
    made = TranslationData(corpus=Sample(), tokenizer=tokenizer, seed=1, options=options)
    made.prepare_data()
    made.setup()
    return made


def test_a_validation_reads_dev_and_then_each_further_set(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "two.tsv").write_text("Lo\tSog\tSag\nKa gun\tHul\t\n")
    two = {"tsv": str(tmp_path / "two.tsv"), "reference_columns": 2, "tgt_lang": "cel"}
    made = data(tmp_path, tokenizer, {"old": files(tmp_path), "two": two})
    plain = data(tmp_path, tokenizer, None)
    n = len(plain.dev_pairs)
    assert plain.validation.pairs is plain.dev_pairs
    assert made.sizes == {**plain.sizes, "dev_old": 3, "dev_two": 2}
    assert np.array_equal(made.dev_pairs.src.ids, plain.dev_pairs.src.ids)
    assert made.dev_sets == [
        DevSet("dev", "avi", "bol"),
        DevSet("dev_old", "avi", "bol"),
        DevSet("dev_two", "avi", "cel"),
    ]
    validation = made.validation
    assert [validation.numbers(each) for each in made.dev_sets] == [range(n), range(n, n + 3), range(n + 3, n + 5)]
    names = [validation.set_of(i).name for i in (0, n - 1, n, n + 2, n + 3)]
    assert names == ["dev", "dev", "dev_old", "dev_old", "dev_two"]
    assert made.decode_dev(n + 1, tokenizer.encode(["Sog"])[0].ids) == "Sog"
    assert made.held_out["dev_two"].more == (["Sag", None],)
    assert set(made.digests) == {"train", "dev", "test", "dev_old", "dev_two"}

    seen = []
    for batch in made.val_dataloader():
        pairs = batch.pairs.tolist()
        assert len({validation.set_of(pair) for pair in pairs}) == 1
        seen += pairs
        for row, pair in enumerate(pairs):
            ids = batch.src[row][batch.src_mask[row]].tolist()
            assert ids[:-1] == validation.sources[pair].ids
    assert sorted(seen) == list(range(n + 5))
    assert sorted(seen[-5:-2]) == [n, n + 1, n + 2]  # set by set


def test_processes_share_the_rows_of_each_batch(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = ParallelText(*OLD)
    sets = [DevSet("dev", "avi", "bol"), DevSet("dev_old", "avi", "bol")]
    validation = Validation(sets, {"dev": text, "dev_old": text.select([0, 1])}, tokenizer)
    shares = [validation.batches(40, rank, 2) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1])
    real = [pair for share in shares for batch in share if not batch.is_dummy for pair in batch.pairs.tolist()]
    assert sorted(real) == [0, 1, 2, 3, 4]
    for first, second in zip(*shares, strict=True):
        assert validation.set_of(int(first.pairs[0])) == validation.set_of(int(second.pairs[0]))
        assert first.position == second.position


def test_the_overlap_with_train_and_likely_faults_are_reported_as_for_dev(tmp_path: Path, tokenizer: Tokenizer) -> None:
    train = Sample().read(tmp_path)["train"].load()
    write_lines(tmp_path / "old.avi", [*train.src[:5], ""])
    write_lines(tmp_path / "old.bol", [*train.tgt[:5], "Sog"])
    paths = {"src": str(tmp_path / "old.avi"), "tgt": str(tmp_path / "old.bol")}
    made = data(tmp_path, tokenizer, {"old": paths})
    assert made.diagnose().overlap["dev_old"].pairs == 5
    assert "dev_old: 1 of 6 sources are blank; they are kept, which affects the scores" in made.notes


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"a-b": {}}, "data.further_dev.a-b: the name must consist of letters, digits and _, such as news or old"),
        ({"test": {}}, "data.further_dev.test: the name must"),
        ({"dev_old": {}}, "data.further_dev.dev_old: the name must"),
        ({"old": "old.de"}, "data.further_dev.old=old.de: must be a mapping with paths"),
        ({"old": {"src": None}}, "data.further_dev.old={'src': None}: must be a mapping with paths"),
        ({"old": {"src": "old.avi"}}, "data.further_dev.old.tgt is missing"),
        ({"old": {"sorce": "old.avi"}}, "data.further_dev.old.sorce is not known; the keys are src, tgt"),
        ({"old": {"src": "a.avi", "tgt": "a.bol", "tgt_lang": False}}, "data.further_dev.old.tgt_lang=False: must be"),
    ],
)
def test_a_malformed_set_is_refused_by_its_key(node: dict[str, Any], message: str) -> None:
    ((name, each),) = node.items()
    with pytest.raises(UserError) as error:
        FurtherDev(name, each, Sample())
    assert str(error.value).startswith(message)


def test_files_that_cannot_be_read_are_refused_by_their_key(tmp_path: Path) -> None:
    paths = files(tmp_path)
    with pytest.raises(UserError, match=r"none\.avi: no such file$"):
        FurtherDev("old", {**paths, "src": str(tmp_path / "none.avi")}, Sample()).read(tmp_path)
    write_lines(tmp_path / "more.bol", ["a"])
    with pytest.raises(UserError, match=r"^data\.further_dev\.old\.references=.*more\.bol has 1 lines"):
        FurtherDev("old", {**paths, "references": str(tmp_path / "more.bol")}, Sample()).read(tmp_path)
    with pytest.raises(UserError, match=r"^data\.further_dev\.old\.src=.* have the same content"):
        FurtherDev("old", {"src": paths["src"], "tgt": paths["src"]}, Sample()).read(tmp_path)


def test_names_of_scores() -> None:
    assert [split_of(name) for name in ("dev", "test", "news", "dev_news")] == ["dev", "test", "dev_news", "dev_news"]
    assert [score_of(name) for name in ("bleu", "dev_old/bleu")] == ["dev/bleu", "dev_old/bleu"]
    assert [metric_of(name) for name in ("bleu", "dev/bleu", "dev_old/bleu")] == ["bleu"] * 3
