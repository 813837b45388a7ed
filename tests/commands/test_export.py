"""diglot-export: the exported files work without diglot, and a failed export writes none."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ctranslate2.specs import TransformerSpec

from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.commands import export as exporting
from diglot.config import build, exportable, resolved
from diglot.data.pieces import adopt, tag
from diglot.data.text import read_lines, write_lines
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.decoding import BeamSearch
from diglot.errors import UserError
from diglot.export import ctranslate2 as converter
from diglot.export.parity import Output, Parity, compare
from diglot.inference.translator import Translator
from support.commands import ROOT, SMALL, type_command
from support.huggingface import huggingface_folder
from support.made import KINDS, of_kind

PLACEHOLDER = r"\{[^{}\s]+\}"
# The code of a user who has ctranslate2, sentencepiece and the exported folder, but not diglot.
WITHOUT_DIGLOT = """
import json, re, sys
from pathlib import Path
import ctranslate2, sentencepiece
folder, tgt_lang, *lines = sys.argv[1:]
about = json.loads((Path(folder) / "diglot.json").read_text())
src, tgt = (sentencepiece.SentencePieceProcessor(f"{folder}/{about['tokenizer'][side]}") for side in ("src", "tgt"))
engine = ctranslate2.Translator(folder, compute_type="float32", intra_threads=1)
for line in lines:
    names = []
    def hide(match):
        if match.group() not in names:
            names.append(match.group())
        return about["slots"][names.index(match.group())]
    hidden = re.sub(about["placeholder"], hide, line) if about["placeholder"] else line
    tokens = src.encode(hidden, out_type=str)
    if about["tags"]:
        tokens.insert(0, about["tags"][tgt_lang])
    most = int(about["search"]["max_len_a"] * len(tokens) + about["search"]["max_len_b"])
    found = engine.translate_batch([tokens], max_decoding_length=most, **about["translate_batch"])
    text = tgt.decode(found[0].hypotheses[0])
    for slot, name in zip(about["slots"], names):
        text = text.replace(slot, name)
    print(json.dumps(re.sub("[" + "".join(about["slots"]) + "]", "", text) if about["slots"] else text))
assert "diglot" not in sys.modules and "torch" not in sys.modules
"""


def translate_without_diglot(folder: Path, tgt_lang: str, lines: list[str]) -> list[str]:
    command = [sys.executable, "-I", "-c", WITHOUT_DIGLOT, str(folder), tgt_lang, *lines]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def untrained(compose_train, tmp_path) -> Callable[..., Checkpoint]:
    """Return a function that makes a checkpoint of random weights: `untrained(tokenizer, "model/position=learned")`."""

    def made(tokenizer: Tokenizer, *words: str, tgt_lang: str = "bol") -> Checkpoint:
        config = compose_train(
            *("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "search=greedy", *words)
        )
        sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
        torch.manual_seed(1)
        model = build(config.model, "model", **sizes).eval()
        search = build(config.search, "search")
        record = {"model": resolved(config.model), "search": resolved(config.search)}
        record |= {"corpus": "sample", "src_lang": "avi", "tgt_lang": tgt_lang}
        return Checkpoint(model, tokenizer, search, record, tmp_path / "best.ckpt")

    return made


@pytest.fixture(scope="module")
def own_tokenizers(tmp_path_factory) -> Tokenizer:
    """Return a tokenizer with one vocabulary per side, of different sizes, for a model with two target languages."""
    from diglot.data.corpus import Sample

    text, cache = Sample().read(Path())["train"].load(), tmp_path_factory.mktemp("tokenizers")
    src, tgt = (
        TokenizerTrainer(model_type="unigram", vocab_size=size, placeholder=PLACEHOLDER).train(text, cache, [side])[0]
        for side, size in (("src", 350), ("tgt", 330))
    )
    languages = ("bol", "cor")
    return Tokenizer(adopt(src.model, [tag(each) for each in languages]), PLACEHOLDER, tgt.model, languages)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder and the output of a run with export=ctranslate2."""
    cwd = tmp_path_factory.mktemp("work")
    words = ("run.updates=60", "run.validate_every=60", "scheduler.lr=3e-3", "scheduler.warmup=10", "run.folder=run")
    done = type_command("diglot-train", *SMALL, *words, "export=ctranslate2", cwd=cwd)
    return cwd / "run", done.stdout.decode()


@pytest.mark.reliability
@pytest.mark.end_to_end
def test_a_run_ends_with_its_best_checkpoint_exported(trained):
    folder, printed = trained
    about = json.loads((folder / "ctranslate2" / "diglot.json").read_bytes())
    assert about["update"] == 60
    assert "the dev text of sample: " in printed
    assert "CTranslate2, int8" in printed
    assert "best.ckpt, last.ckpt, ctranslate2/, config.yaml" in printed
    parity = about["parity"]
    assert parity["sentences"] == 100 == parity["identical"] + parity["near_ties"]
    assert list(parity["greedy"]) == ["diglot, float32", "CTranslate2, float32", "CTranslate2, int8"]
    assert parity["greedy"]["diglot, float32"]["bleu"] == pytest.approx(
        parity["greedy"]["CTranslate2, float32"]["bleu"], abs=0.5 * parity["near_ties"] + 1e-9
    )
    assert not list(folder.glob(".*")), "a temporary folder was left"


@pytest.mark.end_to_end
def test_the_folder_translates_without_diglot(trained, tmp_path):
    folder, _ = trained
    lines = [*read_lines(ROOT / "data/sample/test.avi")[:12], "Los {one} buzos {two} ta {one}.", "\u6f22\u5b57 ?"]
    moved = tmp_path / "elsewhere"
    (folder / "ctranslate2").rename(moved)
    try:
        assert translate_without_diglot(moved, "bol", lines) == Translator.load(folder, "cpu").translate(lines)
    finally:
        moved.rename(folder / "ctranslate2")


@pytest.mark.end_to_end
def test_the_command_writes_beside_the_checkpoint_or_where_it_is_told(trained, tmp_path):
    folder, _ = trained
    before = (folder / "ctranslate2" / "diglot.json").stat().st_ino
    done = type_command("diglot-export", f"checkpoint={folder}", "check=3", cwd=tmp_path)  # replaces the run's export
    assert "the dev text of sample: 3 of 3 sentences have the same tokens" in done.stdout.decode()
    assert (folder / "ctranslate2" / "diglot.json").stat().st_ino != before

    alone = tmp_path / "alone.ckpt"
    alone.write_bytes((folder / "best.ckpt").read_bytes())
    write_lines(tmp_path / "in.txt", ["Los nizos buzos.", "", "Gun talit le reze lod."])
    done = type_command("diglot-export", "checkpoint=alone.ckpt", "output=out", "input=in.txt", cwd=tmp_path)
    assert "in.txt: 2 of 2 sentences have the same tokens" in done.stdout.decode()
    assert "Written: out/" in done.stdout.decode()
    assert "BLEU" not in done.stdout.decode()
    assert {file.name for file in tmp_path.iterdir()} == {"alone.ckpt", "in.txt", "out"}


@pytest.mark.end_to_end
def test_a_variant_that_cannot_be_represented_is_refused_before_it_is_trained(tmp_path):
    words = (*SMALL, "run.updates=1", "run.folder=run", "model/position=alibi", "export=ctranslate2")
    done = type_command("diglot-train", *words, cwd=tmp_path, code=2)
    wanted = "diglot-train: export=ctranslate2: model/position=alibi: CTranslate2's encoder does not support it"
    assert done.stderr.decode().startswith(wanted)
    assert not list(tmp_path.iterdir())


def test_a_variant_that_ctranslate2_cannot_hold_is_refused_and_safetensors_holds_it(untrained, tokenizer, tmp_path):
    loaded = untrained(tokenizer, "model/position=alibi")
    with pytest.raises(UserError, match=r"^format=ctranslate2: model/position=alibi: "):
        exporting.export(loaded, "ctranslate2", tmp_path / "out", "format")
    assert not list(tmp_path.iterdir())
    exporting.export(loaded, "safetensors", tmp_path / "out", "format")
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tgt_lang", ["bol", "cor"])
def test_own_vocabularies_tags_and_placeholders_go_along(untrained, own_tokenizers, tmp_path, tgt_lang):
    loaded = untrained(own_tokenizers, "model.tying=target", "model/residual=deep_norm", "search.max_len_b=5")
    lines = [*read_lines(ROOT / "data/sample/test.avi")[:5], "Los {one} buzos {two}."]
    exporting.export(loaded, "ctranslate2", tmp_path / "out", "format", 20)
    translator = Translator(loaded.model, loaded.tokenizer, loaded.search, loaded.record, tgt_lang)
    assert translate_without_diglot(tmp_path / "out", tgt_lang, lines) == translator.translate(lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_text", [True, False])
def test_other_starts_and_prefixes_are_compared_and_stated(untrained, tokenizer, tmp_path, kind, has_text):
    made = of_kind(tokenizer, kind)
    loaded = untrained(made, "model/position=sinusoidal", "search.max_len_a=1", "search.max_len_b=5")
    file = str(ROOT / "data/sample/test.avi") if has_text else None
    told = exporting.export(loaded, "ctranslate2", tmp_path / "out", "format", 20, file)
    assert re.search(r": (20|1\d) of 20 sentences have the same tokens", told[0])
    about = json.loads((tmp_path / "out" / "diglot.json").read_text())
    assert about["special_ids"]["bos"] == made.bos_id
    assert about["prefixes"] == {side: list(prefix) for side, prefix in made.prefixes._asdict().items()}
    assert ["</s>"] not in about["translate_batch"]["suppress_sequences"]


def test_a_prefix_that_no_tokenizer_of_transformers_writes_is_refused(untrained, tokenizer, tmp_path):
    loaded = untrained(of_kind(tokenizer, "eos"), "model/position=sinusoidal")
    wanted = (
        r"^format=huggingface: a tokenizer that writes <s> before a source needs tokenizer\.json, which cannot hold a "
    )
    with pytest.raises(UserError, match=wanted + r"piece that matches wherever it occurs, such as '\\ue000'; type "):
        exporting.export(loaded, "huggingface", tmp_path / "out", "format", 20)
    assert not list(tmp_path.iterdir())


def test_tags_of_both_languages_go_out_with_any_tokenizer(untrained, tokenizer, tmp_path):
    loaded = untrained(of_kind(tokenizer, "tags"), "model/position=sinusoidal", "search.max_len_b=5")
    write_lines(tmp_path / "in.txt", read_lines(ROOT / "data/sample/test.avi")[:6])
    told = exporting.export(loaded, "huggingface", tmp_path / "out", "format", 6, str(tmp_path / "in.txt"))
    assert " of 6 sentences have the same tokens" in told[0]
    assert told[1] == "tokenizer: 5 of 5 lines without placeholders have the same tokens"
    assert "MarianTokenizer" in told[2]


def test_an_export_that_translates_differently_is_not_left_behind(monkeypatch, untrained, tokenizer, tmp_path):
    write = converter.write

    def write_another(model, *arguments):
        other = untrained(tokenizer).model
        torch.nn.init.normal_(other.output.weight)
        write(other, *arguments)

    monkeypatch.setattr(converter, "write", write_another)
    with pytest.raises(UserError, match=r"CTranslate2 translates \d+ of 9 sentences differently from the model"):
        exporting.export(untrained(tokenizer), "ctranslate2", tmp_path / "out", "format", 9)
    assert not list(tmp_path.iterdir())


def test_differences_within_rounding_are_counted_and_larger_ones_reported(build_model, tokenizer):
    model = build_model(src_vocab_size=tokenizer.src_vocab_size, tgt_vocab_size=tokenizer.tgt_vocab_size)
    with torch.no_grad():
        model.output.weight[11] = model.output.weight[12]  # equally probable after any prefix
        model.output.weight[13] = -model.output.weight[12]
    sources = [[20, 21, 22], [23, 24]]
    ours = [Output([30, 11], False), Output([12, 31, 32], True)]
    assert compare(model, tokenizer, sources, ours, ours, "CTranslate2") == Parity(2, 2, 0)
    longer = [ours[0], Output([12, 31, 32, 33], False)]  # longer than the length limit of `ours`
    assert compare(model, tokenizer, sources, ours, longer, "CTranslate2") == Parity(2, 2, 0)
    tied = [Output([30, 12, 9], False), ours[1]]
    assert compare(model, tokenizer, sources, ours, tied, "CTranslate2") == Parity(2, 1, 1)
    other = [ours[0], Output([13, 31, 32], True)]
    with pytest.raises(UserError, match=r"1 of 2 sentences differently from the model \(sentence 2, token 1: "):
        compare(model, tokenizer, sources, ours, other, "CTranslate2")
    with pytest.raises(UserError, match="sentence 1, token 3"):  # one output continues, the other has ended
        compare(model, tokenizer, sources, ours, [Output([30, 11, 13], False), ours[1]], "CTranslate2")


def test_a_model_of_few_positions_is_compared_on_what_it_reaches(untrained, tokenizer, tmp_path):
    loaded = untrained(tokenizer, "model/position=learned", "model.position.max_positions=16")
    write_lines(tmp_path / "in.txt", ["Los nizos buzos lo sovo dado ke vamo foz lo sovo dado ke vamo foz.", "Los."])
    (line, _) = exporting.export(loaded, "ctranslate2", tmp_path / "out", "format", 9, str(tmp_path / "in.txt"))
    assert "in.txt: 1 of 1 sentences" in line
    assert json.loads((tmp_path / "out" / "diglot.json").read_bytes())["longest"] == {"source": 16, "target": 16}


def test_no_folder_but_an_earlier_export_is_replaced(untrained, tokenizer, tmp_path):
    loaded = untrained(tokenizer)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text('{"of": "another program"}')
    (tmp_path / "link").symlink_to(mine)
    for name in ("mine", "link", "mine/config.json"):
        with pytest.raises(UserError, match=f"output=.*{name} already exists and is not an export"):
            exporting.export(loaded, "ctranslate2", tmp_path / name, "format", 0)
    assert [file.name for file in mine.iterdir()] == ["config.json"]

    (tmp_path / "out").mkdir()  # an empty folder may be replaced
    for form in ("safetensors", "ctranslate2", "safetensors"):
        exporting.export(loaded, form, tmp_path / "out", "format", 0)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("model.safetensors", "config.json", "tokenizer.model")
    }
    assert {file.name for file in tmp_path.iterdir()} == {"mine", "link", "out"}
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"output=.*out: notes\.txt in it is not from an export and would be lost"):
        exporting.export(loaded, "ctranslate2", tmp_path / "out", "format", 0)
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("form", ["ctranslate2", "safetensors"])
def test_a_full_disk_leaves_what_there_was(monkeypatch, untrained, tokenizer, tmp_path, form):
    loaded = untrained(tokenizer)
    exporting.export(loaded, form, tmp_path / "out", "format", 0)
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}

    def fill(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TransformerSpec, "save", fill)
    monkeypatch.setattr("diglot.data.text.atomic_file", fill)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        exporting.export(loaded, form, tmp_path / "out", "format", 0)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_file_that_cannot_be_written_is_named_where_it_would_be(monkeypatch, untrained, tokenizer, tmp_path):
    def fill(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("diglot.data.text.atomic_file", fill)
    with pytest.raises(UserError) as refused:
        exporting.export(untrained(tokenizer), "safetensors", tmp_path / "out", "format", 0)
    assert re.fullmatch(rf"{tmp_path}/out/[\w.]+: cannot be written: No space left on device", str(refused.value))


@pytest.mark.parametrize("form", ["safetensors", "peft"])
def test_a_check_that_a_format_does_not_make_is_refused(form, tmp_path):
    (tmp_path / "a.ckpt").touch()
    for words, named in ((("check=50",), "check=50"), (("check=0", "input=in.txt"), "input=in.txt")):
        done = type_command("diglot-export", "checkpoint=a.ckpt", f"format={form}", *words, cwd=tmp_path, code=2)
        assert done.stderr.decode() == (
            f"diglot-export: {named}: not used with format={form}, which compares no translations\n"
        )


@pytest.mark.reliability
def test_a_kill_leaves_nothing_under_the_name_and_the_next_export_nothing_else(untrained, tokenizer, tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from diglot.export.folder import export_folder\n"
        "with export_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'model.bin').write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], timeout=300)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.")
    exporting.export(untrained(tokenizer), "safetensors", tmp_path / "out", "format", 0)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [
        ("ctranslate2", "ctranslate2", "export"),
        ("safetensors", "safetensors", "export"),
        ("huggingface", "transformers", "huggingface"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    monkeypatch, compose_train, form, package, extra
):
    monkeypatch.setattr(exportable, "find_spec", lambda name: None)
    words = f"export={form}: {package} is not installed: pip install 'diglot[{extra}]'"
    with pytest.raises(UserError, match=re.escape(words)):
        exportable.check_format(form, resolved(compose_train("model/position=sinusoidal").model), "export")


@pytest.mark.reliability
def test_translating_needs_no_lightning():
    """Its import takes as long as all others together."""
    commands = "translate, diglot.commands.score, diglot.commands.export, diglot.commands.average"
    code = f"import sys, diglot.commands.{commands}\nprint({{'lightning', 'torch._dynamo'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"


@pytest.mark.reliability
def test_training_and_refusals_do_not_need_ctranslate2():
    code = "import sys, diglot.commands.train, diglot.commands.export\n"
    code += "print({'ctranslate2'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"


def test_the_search_that_is_compared_is_never_longer_than_the_checkpoints(untrained, tokenizer, tmp_path):
    loaded = untrained(tokenizer, "search.max_len_a=0.0", "search.max_len_b=3")
    assert isinstance(loaded.search, BeamSearch)
    (line, _) = exporting.export(loaded, "ctranslate2", tmp_path / "out", "format", 5)
    assert line == "random tokens: 5 of 5 sentences have the same tokens"


@pytest.mark.parametrize("family", ["nllb", "marian"])
def test_the_example_of_the_page_translates_with_and_without_tags(family: str, tmp_path: Path) -> None:
    loaded = checkpoints.load(huggingface_folder(family, tmp_path / "model"))
    exporting.export(loaded, "ctranslate2", tmp_path / "FOLDER", "format", 0)
    text = read_lines(ROOT / "data/sample/test.avi")[0]
    page = (ROOT / "docs/export.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ctranslate2" in code)
    code = code.replace("Turn on the light.", text).replace('compute_type="int8"', 'compute_type="float32"')
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (expected,) = Translator(loaded.model, loaded.tokenizer, loaded.search, loaded.record).translate([text])
    assert expected
    assert done.stdout.strip().startswith(expected)  # the limits of the length differ
