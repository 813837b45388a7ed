"""A checkpoint, of this or an earlier release, is loaded exactly as it was written, or rejected."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from flips import GOLDEN, OLD_GOLDEN, flips
from hostile import TINY, run
from lightning.pytorch.callbacks import EarlyStopping
from safetensors import safe_open

from diglot.checkpoint import file as checkpoint
from diglot.config import CONF
from diglot.errors import UserError
from diglot.inference.translator import Translator

pytestmark = pytest.mark.reliability

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
GRU = ("model=gru_attention", "model.d_model=8", "model.d_hidden=8", "model.d_attention=8")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose runs share a cache."""
    return tmp_path_factory.mktemp("work")


@pytest.mark.promise("A checkpoint in which a bit was flipped is rejected, unless the bit does not affect its content")
@pytest.mark.parametrize(("file", "most_harmless"), [(GOLDEN, 0), (OLD_GOLDEN, 90)])
def test_a_flipped_bit_is_seen(file: Path, most_harmless: int) -> None:
    found = flips(300, seed=1, file=file)
    print(found)
    assert sum(found.values()) == 300
    assert found.get("harmless", 0) <= most_harmless


@pytest.mark.promise("A checkpoint in which a bit was flipped is rejected, unless the bit does not affect its content")
def test_any_flipped_bit_of_a_header_is_seen() -> None:
    """Test a part of the header, because it has tens of thousands of bytes."""
    places = [*range(200), *range(200, 8 + int.from_bytes(GOLDEN.read_bytes()[:8], "little"), 97)]
    found = flips(0, 0, at=[(place, bit) for place in places for bit in range(8)])
    print(found)
    assert sum(found.values()) == 8 * len(places)
    assert "harmless" not in found


@pytest.mark.promise("A checkpoint in which a bit was flipped is rejected, unless the bit does not affect its content")
@pytest.mark.parametrize("which", ["in the directory", "before a record", "the end"])
def test_any_flipped_bit_of_what_says_where_things_are_is_seen(which: str) -> None:
    good = OLD_GOLDEN.read_bytes()
    record = good.index(b"archive/data/9")
    entry = good.index(b"archive/data/9", good.index(b"PK\1\2"))
    places = {
        "in the directory": range(entry - 46, entry + 14),
        "before a record": range(record - 30, record + 20),
        "the end": range(len(good) - 98, len(good)),
    }[which]
    found = flips(0, 0, OLD_GOLDEN, [(place, bit) for place in places for bit in range(8)])
    print(found)
    assert sum(found.values()) == 8 * len(places)


@pytest.mark.promise(
    "A checkpoint that is empty, incomplete, or preceded or followed by other bytes is rejected, and the message names"
    " the file"
)
@pytest.mark.parametrize("file", [GOLDEN, OLD_GOLDEN])
def test_a_file_that_is_not_all_there_or_more_is_refused(tmp_path: Path, file: Path) -> None:
    good, bad = file.read_bytes(), tmp_path / "bad.ckpt"
    cuts = [good[: len(good) * n // 20] for n in range(20)] + [good[:-1], good[1:]]
    more = [good + b"\0", b"\0" + good, good + good, b"PK\3\4" + good, good[:1000] + b"\0" + good[1000:]]
    for content in cuts + more:
        bad.write_bytes(content)
        with pytest.raises(UserError, match=r"checkpoint \S*bad\.ckpt: (damaged|refused)") as error:
            checkpoint.load(bad)
        assert "\n" not in str(error.value)


@pytest.mark.promise(
    "If a run's folder contains a checkpoint of another run, the checkpoint is rejected, and the message names the key"
    " that differs"
)
def test_swapped_checkpoints_are_seen(work: Path, tmp_path: Path) -> None:
    one = run(work / "one")
    other = run(work / "other", "model.d_model=16")
    mixed, again = tmp_path / "mixed", tmp_path / "again"
    for copy in (mixed, again):
        shutil.copytree(one, copy)
        (copy / "results.json").unlink()
    shutil.copy(other / "last.ckpt", mixed / "last.ckpt")
    with pytest.raises(
        UserError, match=r"last\.ckpt: this checkpoint belongs to another run: model\.d_model was 16 and is 8"
    ):
        run(mixed, f"data.cache_dir='{work / 'cache'}'", f"resume='{mixed}'")
    # An older checkpoint of the same run is accepted, and the run resumes from it.
    shutil.copy(one / "previous.ckpt", again / "last.ckpt")
    run(again, f"data.cache_dir='{work / 'cache'}'", f"resume='{again}'")
    assert checkpoint.read(again / "last.ckpt")["global_step"] == 2


@pytest.mark.promise("Every written checkpoint can be opened with safetensors alone and contains no pickle")
@pytest.mark.parametrize(
    "words",
    [
        *[f"model={name}" for name in MODELS],
        "callbacks=[early_stopping,ema]",
        "optimizer=adam scheduler=paper",
        "optimizer.fused=false tokenizer.joint=false model.tying=target",
        "model/position=relative_bias model/norm=rms_norm model/feed_forward=swiglu model/residual=deep_norm",
        "watch=default logger=tensorboard",
        "trainer.precision=bf16-mixed",
        "trainer.precision=64-true",
        "data.batches_per_update=2 data.shapes=buckets",
    ],
)
def test_every_checkpoint_is_plain(work: Path, tmp_path: Path, words: str) -> None:
    is_gru = words == "model=gru_attention"
    tiny = [word for word in TINY if not (is_gru and word.startswith("model."))]
    given = GRU if is_gru else words.split()
    folder = run(tmp_path / "run", f"data.cache_dir='{work / 'cache'}'", *given, tiny=tiny)
    for name in ("best.ckpt", "last.ckpt", "previous.ckpt"):
        found = checkpoint.read(folder / name)
        with safe_open(folder / name, framework="pt") as file:
            there = set(file.keys())
            weights = {weight.removeprefix("model."): value for weight, value in found["state_dict"].items()}
            same = [torch.equal(file.get_tensor(weight), weights[weight]) for weight in weights.keys() & there]
        assert all(same)
        assert len(same) >= len({value.data_ptr() for value in weights.values()})  # tied weights are stored once
    assert checkpoint.load(folder).record["update"]


@pytest.mark.promise("Every written checkpoint can be opened with safetensors alone and contains no pickle")
def test_one_that_would_come_back_otherwise_is_not_written(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlyStopping, "state_dict", lambda self: {"seen": [Path("a")]})
    with pytest.raises(UserError, match=r"last\.ckpt: the checkpoint cannot be written: .*seen\[0\] is .*Path"):
        run(work / "with_a_path", "callbacks=[early_stopping]")
    assert not (work / "with_a_path" / "last.ckpt").exists()


@pytest.mark.promise("Checkpoints of earlier releases can be loaded, and translate as before")
@pytest.mark.parametrize("file", [GOLDEN, OLD_GOLDEN])
def test_the_golden_checkpoint_translates_as_it_did(file: Path) -> None:
    known = json.loads((GOLDEN.parent / "golden.json").read_text(encoding="utf-8"))
    assert file.stat().st_size < 150_000
    translator = Translator.load(file, device="cpu")
    for n in (1, 4):
        found = translator.translate_all(known["lines"], beam=n)
        assert [t.text for t in found] == [text for text, _, _ in known[f"beam {n}"]]
        assert [t.score for t in found] == pytest.approx([score for _, score, _ in known[f"beam {n}"]], rel=1e-4)
