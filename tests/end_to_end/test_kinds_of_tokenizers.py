"""Kinds of tokenizers and language pairs, through the commands that a user types."""

import json

import pytest

import diglot
from diglot.data.text import read_lines
from support.commands import ROOT, SMALL, type_command

pytestmark = pytest.mark.end_to_end
SAMPLE = ROOT / "data" / "sample"
SHORT = ("run.updates=4", "run.validate_every=2", "search.max_len_a=0.0", "search.max_len_b=4", "data.vocab_size=600")


@pytest.mark.reliability
def test_each_side_may_have_its_own_tokenizer_and_sampled_text(tmp_path):
    own = ("tokenizer.joint=false", "tokenizer.tgt_vocab_size=610", "tokenizer.samples=2")
    refused = type_command("diglot-train", *SMALL, *SHORT, *own, cwd=tmp_path, code=2)
    assert "model.tying=all needs one vocabulary for both sides" in refused.stderr.decode()
    done = type_command("diglot-train", *SMALL, *SHORT, *own, "model.tying=target", "run.folder=run", cwd=tmp_path)
    assert "600 pieces of the source, 610 of the target" in done.stdout.decode()
    assert "segmented at random in 2 versions" in " ".join(done.stdout.decode().split())
    made = diglot.load(tmp_path / "run")
    assert (made.tokenizer.src_vocab_size, made.tokenizer.tgt_vocab_size) == (600, 610)
    # Another run can use the tokenizer files of the run.
    files = ("tokenizer=files", "tokenizer.model=run/tokenizer.model", "tokenizer.tgt_model=run/tokenizer.tgt.model")
    type_command("diglot-train", *SMALL, *SHORT, *files, "model.tying=none", "run.folder=again", cwd=tmp_path)
    lines = read_lines(SAMPLE / "dev.avi")[:3]
    translated = type_command(
        "diglot-translate", "checkpoint=again", cwd=tmp_path, stdin="".join(f"{line}\n" for line in lines)
    )
    assert translated.stdout.decode().split("\n")[:-1] == diglot.load(tmp_path / "again").translate(lines)


@pytest.mark.reliability
def test_a_model_of_several_language_pairs_is_told_which_it_is_to_write(tmp_path):
    there, back = (
        {"src": SAMPLE / f"train.{a}", "tgt": SAMPLE / f"train.{b}"} for a, b in (("avi", "bol"), ("bol", "avi"))
    )
    words = [
        "data=mixed",
        *(
            f"+data.corpora.{name}={{src: {side['src']}, tgt: {side['tgt']}}}"
            for name, side in (("there", there), ("back", back))
        ),
        f"data.dev.src={SAMPLE / 'dev.avi'}",
        f"data.dev.tgt={SAMPLE / 'dev.bol'}",
    ]
    done = type_command("diglot-train", *SMALL[1:], *words, *SHORT, "run.folder=run", cwd=tmp_path)
    assert "tags for avi, bol" in done.stdout.decode()
    made = diglot.load(tmp_path / "run")
    assert (made.tgt_lang, made.tokenizer.languages) == ("bol", ("avi", "bol"))
    refused = type_command("diglot-translate", "checkpoint=run", "tgt_lang=fr", cwd=tmp_path, stdin="a\n", code=2)
    assert "tgt_lang=fr: this model does not translate into fr; its languages are avi, bol" in refused.stderr.decode()
    # The target language is taken from the extension of the reference file.
    other = ["data=files", f"data.test.src={SAMPLE / 'dev.bol'}", f"data.test.tgt={SAMPLE / 'dev.avi'}", "split=test"]
    type_command("diglot-evaluate", "checkpoint=run", *other, "output=out", cwd=tmp_path)
    hypotheses = read_lines(tmp_path / "out" / "hypotheses.avi")
    lines = read_lines(SAMPLE / "dev.bol")
    into_avi = diglot.inference.translator.Translator.load(tmp_path / "run", tgt_lang="avi").translate(lines)
    assert hypotheses == into_avi != made.translate(lines)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["sentences"] == len(lines)
