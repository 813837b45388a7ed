"""For each choice with a stock class of transformers, the class computes the same as the model; others are rejected."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
import yaml

from diglot.certificates.content import CERTIFICATE, as_bytes, read_certificate
from diglot.checkpoint import file as checkpoints
from diglot.checkpoint.file import Checkpoint
from diglot.config import build, resolved
from diglot.config.stock_class import BART, M2M100, MARIAN, MBART, PEGASUS, T5, without_stock_class
from diglot.data.text import ParallelText, file_hash
from diglot.data.tokenizer import Tokenizer, TokenizerTrainer
from diglot.errors import UserError
from diglot.export import huggingface
from diglot.export.model_card import model_card
from diglot.export.parity import compare, of_export, of_model
from diglot.export.writing import export
from diglot.huggingface.stock_tokenizer import stock_tokenizer
from export.test_ctranslate2 import SRC, TGT, Pieces, padded, shaken
from support.certificates import certificate

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

CLOSE = 5e-5  # tolerance of log-probabilities
SINUSOIDAL = "model/position=sinusoidal"
M2M100_POSITIONS = f"{SINUSOIDAL} model.position.offset=2 model.position.base={10_000 ** (24 / 22)}"
T5_LIKE = "model/position=relative_bias model/norm=rms_norm model.bias=false model.scale_embeddings=false"


@pytest.fixture
def parity(build_model: Callable[..., Any], compose_train: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """Return a function that compares a model with its export and returns the name of the class."""

    def check(*words: str) -> str:
        tying = () if any(word.startswith("model.tying") for word in words) else ("model.tying=all",)
        n_src, n_tgt = (37, 41) if {"model.tying=none", "model.tying=target"} & {*words} else (37, 37)
        model = shaken(build_model(*words, *tying, src_vocab_size=n_src, tgt_vocab_size=n_tgt))
        config = resolved(
            compose_train("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", *words, *tying).model
        )
        assert not without_stock_class(config)
        pieces: Any = Pieces(n_src, n_tgt)
        search = build(compose_train("search=greedy").search, "search")
        stock = stock_tokenizer(pieces, config, "format")
        huggingface.write_model(model, {"model": config}, pieces, stock, search, tmp_path)
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, local_files_only=True).eval()
        random = torch.Generator().manual_seed(1)
        src = padded([[*torch.randint(4, n_src, (length,), generator=random).tolist(), 3] for length in SRC])
        tgt_in = padded([[2, *torch.randint(4, n_tgt, (length,), generator=random).tolist()] for length in TGT])
        with torch.no_grad():
            wanted = model(src, tgt_in, src != 0).log_softmax(-1)
            name = type(theirs).__name__
            ids, order = torch.tensor(stock.src_ids), torch.tensor(stock.tgt_ids)
            assert ids.tolist() == (
                [1, 3, 0, 2, *range(4, n_src)] if name in (M2M100, MBART, BART) else [*range(n_src)]
            )
            begun = order[tgt_in]
            if name != M2M100:  # a target begins with <pad>, and <pad> and <s> have exchanged their scores
                begun = order[tgt_in.masked_fill(tgt_in == 2, 0)]
                order[[0, 2]] = order[[2, 0]]
            found = theirs(input_ids=ids[src], attention_mask=(src != 0).long(), decoder_input_ids=begun)
            got = found.logits.log_softmax(-1)[..., order]
        got, wanted = got[tgt_in != 0], wanted[tgt_in != 0]
        assert torch.allclose(got, wanted, rtol=0, atol=CLOSE), (got - wanted).abs().max()
        return name

    return check


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (SINUSOIDAL, PEGASUS),
        ("model/position=learned model/feed_forward=gelu", PEGASUS),
        (f"{SINUSOIDAL} model.n_heads={{encoder:4,decoder:2,cross:2}} model.n_decoder_layers=1", PEGASUS),
        (f"{SINUSOIDAL} +model.norm.bias=false", PEGASUS),
        (
            f"{SINUSOIDAL} model/residual=post_norm model/feed_forward=gelu "
            "+model.feed_forward.activation.approximate=tanh",
            MARIAN,
        ),
        ("model/position=learned model/residual=post_norm model.position.max_positions=20", MARIAN),
        (f"{SINUSOIDAL} model/residual=post_norm model.feed_forward.activation._target_=torch.nn.SiLU", MARIAN),
        (f"{SINUSOIDAL} model/residual=post_norm model.feed_forward.activation._target_=torch.nn.Sigmoid", MARIAN),
        (f"{SINUSOIDAL} model/residual=post_norm model.tying=target", MARIAN),
        (f"{SINUSOIDAL} model/residual=post_norm model.tying=none", MARIAN),
        (f"{SINUSOIDAL} model.output_bias=true model.scale_embeddings=false", PEGASUS),
        (f"{SINUSOIDAL} model.position.offset=5", PEGASUS),
        (f"{M2M100_POSITIONS} model/residual=post_norm", MARIAN),
        (M2M100_POSITIONS, M2M100),
        ("model/position=learned model.embedding_norm=true model/feed_forward=gelu", MBART),
        ("model/position=learned model.embedding_norm=true model/residual=post_norm model.output_bias=true", BART),
        (T5_LIKE, T5),
        (f"{T5_LIKE} model.tying=inputs model.d_head=10 model.n_decoder_layers=3 model/feed_forward=swiglu", T5),
        (f"{T5_LIKE} model.norm.eps=1e-3 model/feed_forward=geglu", T5),
        (f"{T5_LIKE} model/feed_forward=geglu +model.feed_forward.activation.approximate=tanh", T5),
        (f"{T5_LIKE} model/feed_forward=gelu", T5),
    ],
)
def test_a_stock_class_computes_the_same(parity: Callable[..., str], words: str, name: str) -> None:
    assert parity(*words.split()) == name


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", "model.position=rotary: no stock class has it; nearest: model/position=sinusoidal"),
        (
            f"{SINUSOIDAL} model/residual=sandwich_norm",
            "model.residual=sandwich_norm: no stock class has it; nearest: model/residual=pre_norm",
        ),
        (
            f"{SINUSOIDAL} model/norm@model.decoder_norm=rms_norm",
            "model.decoder_norm: a stock class has the same in both stacks; nearest: model.decoder_norm=null",
        ),
        (
            f"{SINUSOIDAL} model.norm.eps=1e-3",
            "model.norm.eps=0.001: the stock classes have 1e-05; nearest: model.norm.eps=1e-05",
        ),
        (
            f"{SINUSOIDAL} model.feed_forward.activation._target_=torch.nn.Mish",
            "model.feed_forward.activation=torch.nn.Mish: no stock class has it; nearest: model/feed_forward=relu",
        ),
        (
            f"{SINUSOIDAL} model/position@model.decoder_position=learned",
            "model.decoder_position: a stock class has the same in both stacks; nearest: model.decoder_position=null",
        ),
        (
            f"{SINUSOIDAL} model.n_heads={{encoder:4,decoder:4,cross:2}}",
            "model.n_heads.cross=2: a stock class has as many in the decoder's self-attention; "
            "nearest: model.n_heads.cross=4",
        ),
        (
            f"{SINUSOIDAL} model.n_kv_heads=1",
            "model.n_kv_heads=1: a stock class derives it from n_heads; nearest: model.n_kv_heads=null",
        ),
        (
            f"{SINUSOIDAL} model.d_head=10",
            "model.d_head=10: a stock class derives it from n_heads; nearest: model.d_head=null",
        ),
        (f"{SINUSOIDAL} model.qk_norm=true", "model.qk_norm=true: no stock class has it; nearest: model.qk_norm=false"),
        (
            f"{SINUSOIDAL} model.tying=target",
            f"model.tying=target: {PEGASUS} does not have it; nearest: model.tying=all",
        ),
        (
            "model/position=relative_bias model/norm=rms_norm model.scale_embeddings=false",
            f"model.bias=true: {T5} does not have it; nearest: model.bias=false",
        ),
        (
            f"{T5_LIKE} model.position.n_buckets=16",
            "model.position.n_buckets=16: T5 has 32; nearest: model.position.n_buckets=32",
        ),
        (
            f"{T5_LIKE} model.n_heads={{encoder:4,decoder:2,cross:2}} model.d_head=10",
            "model.n_heads.decoder=2: T5 has as many in the encoder; nearest: model.n_heads=4",
        ),
        (
            f"{T5_LIKE} model.d_head={{encoder:8,decoder:6,cross:6}}",
            "model.d_head={'encoder': 8, 'decoder': 6, 'cross': 6}: T5 has one width; nearest: model.d_head=8",
        ),
        (f"{T5_LIKE} model.norm.eps=null", "model.norm.eps=null: T5 has a number; nearest: model.norm.eps=1e-6"),
        (
            "model/position=learned model.embedding_norm=true model.bias=false",
            "model.bias=false: MBartForConditionalGeneration does not have it; nearest: model.bias=true",
        ),
    ],
)
def test_other_values_are_rejected_with_key_and_nearest_value(
    compose_train: Callable[..., Any], words: str, wanted: str
) -> None:
    reasons = without_stock_class(resolved(compose_train("model=tiny", *words.split()).model))
    assert wanted in reasons


def test_the_recurrent_model_is_rejected(compose_train: Callable[..., Any]) -> None:
    (reason,) = without_stock_class(resolved(compose_train("model=gru_attention").model))
    assert reason.startswith("model._target_=diglot.model.GruAttention: there is no stock class")


SOURCES = [
    f"turn the {color} light {state} in room {i}"
    for i in range(20)
    for color in ("red", "blue")
    for state in ("on", "off")
]
TARGETS = [line[::-1] for line in SOURCES]


def checkpoint(
    compose_train: Callable[..., Any], folder: Path, *words: str, languages: tuple[str, ...] = ()
) -> Checkpoint:
    """Return a checkpoint of random weights whose dev text is in its run's folder."""
    trainer = TokenizerTrainer(model_type="unigram", vocab_size=400, must_fit=False, capitals="mark")
    tokenizer: Tokenizer = trainer.get(ParallelText(SOURCES, TARGETS), folder, languages)[0]
    config = compose_train(
        "model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40", "search=greedy", *words
    )
    torch.manual_seed(1)
    model = shaken(build(config.model, "model", **tokenizer.vocab_sizes)).eval()
    record = {"model": resolved(config.model), "search": resolved(config.search), "corpus": "lights"}
    record |= {"src_lang": "en", "tgt_lang": languages[0] if languages else "ne", "update": 7}
    return Checkpoint(model, tokenizer, build(config.search, "search"), record, folder / "best.ckpt")


# The code of a user who has transformers and the exported folder, but not diglot.
USE = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
batch = tokenizer(sys.argv[2:], return_tensors="pt", padding=True)
found = model.generate(**batch)
print(json.dumps([batch.input_ids.tolist(), tokenizer.batch_decode(found, skip_special_tokens=True)]))
assert "diglot" not in sys.modules
"""


@pytest.mark.parametrize(
    ("words", "languages"),
    [(SINUSOIDAL, ("ne", "xx")), (T5_LIKE, ()), (M2M100_POSITIONS, ())],
)
def test_the_folder_translates_text_without_diglot(
    compose_train: Callable[..., Any], tmp_path: Path, words: str, languages: tuple[str, ...]
) -> None:
    loaded = checkpoint(compose_train, tmp_path, *words.split(), languages=languages)
    (tmp_path / "in.txt").write_text("\n".join(SOURCES[:6]) + "\n")
    report = export(loaded, "huggingface", tmp_path / "out", "format", 6, str(tmp_path / "in.txt"))
    assert "6 of 6 sentences have the same tokens" in report[0]
    lines = [f">>{languages[0]}<<{line}" if languages else line for line in SOURCES[:3]]
    command = [sys.executable, "-I", "-c", USE, str(tmp_path / "out"), *lines]
    done = subprocess.run(command, capture_output=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr.decode()
    ids, texts = json.loads(done.stdout)
    encoded = loaded.tokenizer.encode(SOURCES[:3], loaded.record["tgt_lang"])
    rows = stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format").src_ids
    pad, expected = rows[0], [[rows[i] for i in [*source.ids, 3]] for source in encoded]
    assert [[token for token in row if token != pad] for row in ids] == expected
    assert len(texts) == 3
    again = checkpoints.load(tmp_path / "out").tokenizer
    assert (again.prefixes, again.languages) == (loaded.tokenizer.prefixes, languages)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "None was recorded for this checkpoint." in card


def test_the_converter_of_ctranslate2_reads_a_pre_norm_model(compose_train: Callable[..., Any], tmp_path: Path) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    export(loaded, "huggingface", tmp_path / "out", "format", 0)
    ctranslate2.converters.TransformersConverter(str(tmp_path / "out")).convert(str(tmp_path / "converted"))
    sources = loaded.tokenizer.encode(SOURCES[:8])
    with_eos = [source._replace(ids=[*source.ids, loaded.tokenizer.eos_id]) for source in sources]
    theirs = of_export(tmp_path / "converted", "float32", loaded.tokenizer, loaded.search, None)(with_eos)
    ours = of_model(loaded.model, loaded.tokenizer, loaded.search)(sources)
    ids = [source.ids for source in sources]
    compare(loaded.model, loaded.tokenizer, ids, ours, theirs, "the converted model")


def test_an_export_that_computes_otherwise_is_not_written(
    compose_train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    weights = huggingface.state_dict

    def wrong(*arguments: Any) -> dict[str, torch.Tensor]:
        changed = weights(*arguments)
        changed["model.encoder.layers.0.fc1.bias"] += 0.01
        return changed

    monkeypatch.setattr(huggingface, "state_dict", wrong)
    with pytest.raises(UserError, match="the export was not written"):
        export(loaded, "huggingface", tmp_path / "out", "format", 4)
    assert not (tmp_path / "out").exists()


def test_the_mark_of_capitals_is_a_token_of_the_exported_tokenizer(
    compose_train: Callable[..., Any], tmp_path: Path
) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    export(loaded, "huggingface", tmp_path / "out", "format", 0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    (source,) = loaded.tokenizer.encode(["TURN ON"])
    assert tokenizer("<capitals>turn on").input_ids == [*source.ids, 3]


def test_the_card_has_the_scores_of_this_checkpoint_and_no_paths(
    compose_train: Callable[..., Any], tmp_path: Path
) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    scores = [{"name": "BLEU", "value": 12.346, "signature": "nrefs:1|case:mixed"}]
    for split, update in (("dev", 7), ("test", 6)):  # the one of test is of another checkpoint
        folder = tmp_path / "evaluation" / split
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps({"update": update, "scores": scores}))
    command = ["data.train.src=/home/me/t.de", "run.folder=mine", "model/residual=pre_norm", "seed=3"]
    environment = {"command": command, "diglot": "0", "commit": "abc", "packages": {"torch": "2"}}
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    card = model_card(loaded, PEGASUS, stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format"))
    assert "| dev | BLEU | 12.35 | `nrefs:1\\|case:mixed` |" in card
    assert "| test |" not in card
    assert "/home" not in card
    assert "mine" not in card
    assert "`make train model/residual=pre_norm seed=3`" in card


@pytest.mark.parametrize(
    ("init_from", "words", "base"),
    [
        (None, "trained with diglot", None),
        ("runs/general", "fine-tuned with diglot", None),
        (f"me/mt@{'0a' * 20}", "fine-tuned from me/mt (commit 0a0a0a0a0a0a) with diglot", "me/mt"),
    ],
)
def test_the_card_names_the_model_of_the_hub_that_training_started_with(
    compose_train: Callable[..., Any], tmp_path: Path, init_from: str | None, words: str, base: str | None
) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    loaded.record["config"] = {"init_from": init_from}
    card = model_card(loaded, PEGASUS, stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format"))
    assert words in card
    assert "runs/" not in card
    assert metadata(card).get("base_model") == base
    assert ("that of the original model" in card) == (init_from is not None)


@pytest.mark.parametrize(
    ("src_lang", "targets", "codes", "words"),
    [
        ("de_DE", ("eng_Latn", "nds"), ["de", "en", "nds"], "from de_DE to eng_Latn, nds,"),
        ("src", ("en",), ["en"], "from src to en,"),
        ("src", (), None, "from src to tgt,"),
        ("de", tuple(f"qa{letter}" for letter in "abcdefghijk"), ["de"], "from de to 11 languages,"),
    ],
)
def test_the_card_names_languages_as_the_hub_spells_them(
    compose_train: Callable[..., Any],
    tmp_path: Path,
    src_lang: str,
    targets: tuple[str, ...],
    codes: list[str] | None,
    words: str,
) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL, languages=targets)
    loaded.record.update(src_lang=src_lang, tgt_lang=targets[0] if targets else "tgt")
    card = model_card(loaded, PEGASUS, stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format"))
    assert metadata(card).get("language") == codes
    assert words in card


def metadata(card: str) -> dict[str, Any]:
    """Return the YAML block at the start of a card."""
    content: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return content


def test_the_card_and_the_folder_have_the_certificate_of_this_checkpoint_only(
    compose_train: Callable[..., Any], tmp_path: Path
) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    loaded.path.write_bytes(b"weights")
    content = certificate(30.0, 32.0)
    (tmp_path / CERTIFICATE).write_bytes(as_bytes(content))
    assert "certificate" not in model_card(
        loaded, PEGASUS, stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
    )  # it is about other weights
    content["runs"][1]["files"][loaded.path.name] = file_hash(loaded.path)
    (tmp_path / CERTIFICATE).write_bytes(as_bytes(content))
    for _ in range(2):  # the second export replaces the first
        export(loaded, "huggingface", tmp_path / "out", "format", 0)
    assert "| dev | BLEU | 31.00 | 1.41 |" in (tmp_path / "out" / "README.md").read_text()
    assert read_certificate(tmp_path / "out") == content
    (tmp_path / CERTIFICATE).write_text("{}")
    assert "certificate" not in model_card(
        loaded, PEGASUS, stock_tokenizer(loaded.tokenizer, loaded.record["model"], "format")
    )


def test_an_edited_card_is_not_overwritten(compose_train: Callable[..., Any], tmp_path: Path) -> None:
    loaded = checkpoint(compose_train, tmp_path, SINUSOIDAL)
    for _ in range(2):  # an unchanged one is replaced
        export(loaded, "huggingface", tmp_path / "out", "format", 0)
    card = tmp_path / "out" / "README.md"
    card.write_text(card.read_text() + "Licence: MIT\n")
    with pytest.raises(UserError, match=r"README\.md was edited after the export and would be lost"):
        export(loaded, "huggingface", tmp_path / "out", "format", 0)
    assert card.read_text().endswith("Licence: MIT\n")
