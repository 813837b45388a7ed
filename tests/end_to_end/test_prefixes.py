"""Runs that begin with models of other origin, whose targets start with <pad>, with </s>, or with a language tag."""

import json

import pytest
import torch

import diglot
from diglot.checkpoint import file as checkpoint
from diglot.data.text import read_lines
from support.commands import ROOT, SMALL, type_command
from support.made import KINDS, checkpoint_content, of_kind, write_checkpoint

pytestmark = pytest.mark.end_to_end
SAMPLE = ROOT / "data" / "sample"


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_trains_validates_resumes_and_is_used_with_each_kind_of_start(tmp_path, compose_train, tokenizer, kind):
    made = of_kind(tokenizer, kind)
    # Post-norm and sinusoidal: CTranslate2 can hold the model.
    words = [*SMALL, "model/position=sinusoidal", "run.validate_every=2", "init_from=init.ckpt", "export=ctranslate2"]
    config = compose_train(*SMALL, "model/position=sinusoidal")
    write_checkpoint(tmp_path / "init.ckpt", checkpoint_content(config, made))
    type_command("diglot-train", *words, "run.updates=4", "run.folder=whole", cwd=tmp_path)
    type_command("diglot-train", *words, "run.updates=2", "run.folder=run", cwd=tmp_path)
    type_command("diglot-train", *words, "run.updates=4", "resume=run", cwd=tmp_path)
    whole, resumed = (checkpoint.read(tmp_path / name / "last.ckpt") for name in ("whole", "run"))
    assert all(torch.equal(value, resumed["state_dict"][name]) for name, value in whole["state_dict"].items())
    assert checkpoint.tokenizer_of(resumed["diglot"]).digest() == made.digest()

    lines = read_lines(SAMPLE / "dev.avi")[:3]
    text = "".join(f"{line}\n" for line in lines)
    done = type_command("diglot-translate", "checkpoint=run", "format=json", cwd=tmp_path, stdin=text)
    translations = [json.loads(line) for line in done.stdout.decode().splitlines()]
    translator = diglot.load(tmp_path / "run", device="cpu")
    assert [translation["hypotheses"][0]["text"] for translation in translations] == translator.translate(lines)
    for name in ("src", "tgt"):
        (tmp_path / name).write_text(text)
    type_command("diglot-score", "checkpoint=run", "src=src", "tgt=tgt", "output=scores", "pieces=true", cwd=tmp_path)
    for line, scored in zip(lines, map(json.loads, read_lines(tmp_path / "scores")), strict=True):
        assert scored["tokens"] == len(scored["pieces"]) == len(tokenizer.encode([line])[0].ids) + 1
    type_command("diglot-evaluate", "checkpoint=run", "split=dev", "output=out", cwd=tmp_path)
    assert read_lines(tmp_path / "out" / "hypotheses.bol") == translator.translate(read_lines(SAMPLE / "dev.avi"))
