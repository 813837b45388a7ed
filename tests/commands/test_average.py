"""The average of checkpoints is a checkpoint of the same kind, or it is not written at all."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import diglot
from diglot.checkpoint import averaging
from diglot.checkpoint import file as checkpoint
from diglot.errors import UserError
from support.commands import SMALL, type_command
from support.made import checkpoint_content, write_checkpoint, write_old_checkpoint

SIZES = ("model=tiny", "model.d_model=24", "model.n_heads=3", "model.d_ff=40")
SIZES += ("model.n_encoder_layers=1", "model.n_decoder_layers=1")
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, compose_train, tokenizer) -> Make:
    """Return a function that writes a checkpoint: `make("a.ckpt", seed=2)`.

    Its argument `change` is called with the weights before they are written, and `write` writes the file.
    """

    def made(
        name: str,
        seed: int = 1,
        *words: str,
        change: Callable[[dict[str, Tensor]], Any] | None = None,
        write: Callable[[Path, dict[str, Any]], Path] = write_checkpoint,
        **more: Any,
    ) -> Path:
        content = checkpoint_content(compose_train(*SIZES, *words), more.pop("tokenizer", tokenizer), seed, **more)
        if change is not None:
            changed = change(content["state_dict"])
            content["state_dict"] = content["state_dict"] if changed is None else changed
        content["optimizer_states"] = [{"state": {0: {"exp_avg": torch.ones(3)}}}]
        return write(tmp_path / name, content)

    return made


def weights(file: Path) -> dict[str, Tensor]:
    return checkpoint.read(file)["state_dict"]


def storages(state: dict[str, Tensor]) -> list[set[str]]:
    """Return the groups of names that share a storage."""
    groups: dict[int, set[str]] = {}
    for name, value in state.items():
        groups.setdefault(value.untyped_storage().data_ptr(), set()).add(name)
    return sorted(groups.values(), key=sorted)


def bits(value: Tensor) -> bytes:
    return value.contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""


def cast(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return a state in another dtype, with the same tying."""
    made: dict[int, Tensor] = {}
    return {name: made.setdefault(value.data_ptr(), value.to(dtype)) for name, value in state.items()}


def test_each_weight_is_the_mean_computed_by_hand(make, tmp_path):
    files = [make(f"{seed}.ckpt", seed) for seed in (1, 2, 3)]
    averaging.average(files, tmp_path / "mean.ckpt")
    states, found = [weights(file) for file in files], weights(tmp_path / "mean.ckpt")
    assert list(found) != []
    assert found.keys() == states[0].keys()
    for name, value in found.items():
        expected = sum(state[name].double() for state in states) / 3
        assert torch.equal(value, expected.float()), name
        assert not torch.equal(value, states[0][name]), name


@pytest.mark.parametrize(
    ("dtype", "n"),
    [(torch.float32, 1), (torch.float32, 3), (torch.bfloat16, 3), (torch.float16, 3), (torch.float64, 10)],
)
def test_the_mean_of_copies_is_the_original_bit_for_bit(make, tmp_path, dtype, n):
    def change(state):
        drawn = torch.Generator().manual_seed(n)
        for value in {
            value.data_ptr(): value for value in state.values()
        }.values():  # many magnitudes, zeros of both signs, and subnormal numbers
            value *= torch.pow(10.0, torch.randint(-5, 4, value.shape, generator=drawn))
            value.view(-1)[:4] = torch.tensor([0.0, -0.0, 1e-7, 0.1])
        made: dict[int, Tensor] = {}
        return {
            name: made.setdefault(value.data_ptr(), (value.double() / 3).to(dtype)) for name, value in state.items()
        }

    original = make("a.ckpt", change=change)
    if (dtype, n) == (torch.float64, 10):  # a plain sum would not be exact
        assert not all(torch.equal(sum([value] * n) / n, value) for value in weights(original).values())
    averaging.average([original] * n, tmp_path / "mean.ckpt")
    before, after = weights(original), weights(tmp_path / "mean.ckpt")
    assert {value.dtype for value in after.values()} == {dtype}
    assert {name: bits(value) for name, value in after.items()} == {name: bits(v) for name, v in before.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_types_are_summed_up_in_a_large_one(make, tmp_path, dtype):
    """Check sums that a small dtype cannot hold: in bfloat16, 256 + 1 is 256; in float16, 2,048 + 1 is 2,048."""
    values = [2 / torch.finfo(dtype).eps, 1.0, 1.0]

    def change(value):
        return lambda state: {name: torch.full_like(weight, value, dtype=dtype) for name, weight in state.items()}

    words = ("model.tying=none",)
    files = [make(f"{i}.ckpt", 1, *words, change=change(value)) for i, value in enumerate(values)]
    averaging.average(files, tmp_path / "mean.ckpt")
    wanted = torch.tensor(sum(values) / 3).to(dtype)
    assert wanted != torch.tensor(values[0], dtype=dtype) / 3
    assert all((value == wanted).all() for value in weights(tmp_path / "mean.ckpt").values())


@pytest.mark.parametrize("tying", ["none", "target", "all"])
def test_tied_weights_are_averaged_once_and_stay_tied_in_the_file(make, tmp_path, tying):
    files = [make(f"{seed}.ckpt", seed, f"model.tying={tying}") for seed in (1, 2)]
    averaging.average(files, tmp_path / "mean.ckpt")
    groups = storages(weights(tmp_path / "mean.ckpt"))
    assert groups == storages(weights(files[0]))
    assert max(map(len, groups)) == {"none": 1, "target": 2, "all": 3}[tying]
    expected = sum(weights(file)["model.output.weight"].double() for file in files) / 2
    assert torch.equal(weights(tmp_path / "mean.ckpt")["model.output.weight"], expected.float())


def test_weights_that_lie_in_one_storage_without_being_tied_stay_apart(make, tmp_path):
    """Check views of one storage, as an old checkpoint has for the weights of a GRU that was on a GPU."""

    def change(state):
        both = torch.stack((state["model.src_embedding.weight"], state["model.tgt_embedding.weight"]))
        return state | {"model.src_embedding.weight": both[0], "model.tgt_embedding.weight": both[1]}

    file, other = (
        make(f"{seed}.ckpt", seed, "model.tying=none", change=change, write=write)
        for seed, write in ((1, write_old_checkpoint), (2, write_checkpoint))
    )
    assert [max(map(len, storages(weights(each)))) for each in (file, other)] == [2, 1]
    averaging.average([file, other], tmp_path / "mean.ckpt")
    found = weights(tmp_path / "mean.ckpt")
    for name, value in found.items():
        assert torch.equal(value, ((weights(file)[name].double() + weights(other)[name]) / 2).float()), name
    assert len(storages(found)) == len(found)


def test_whole_numbers_have_no_mean_and_must_be_equal():
    total = averaging._Sum(torch.tensor([1, 2]))
    total.add(torch.tensor([1, 2]), "steps")
    assert total.mean(2).tolist() == [1, 2]
    assert total.mean(2).dtype == torch.int64
    with pytest.raises(UserError, match="steps holds integers that differ"):
        total.add(torch.tensor([1, 3]), "steps")


def test_it_says_what_it_is_the_mean_of_and_has_no_score(make, tmp_path):
    files = [make(f"{seed}.ckpt", seed, dev_bleu=30.0 + seed, place=[1, 2], skipped=0) for seed in (2, 1)]
    averaging.average(files, tmp_path / "mean.ckpt")
    content = checkpoint.read(tmp_path / "mean.ckpt")
    assert content.keys() == {"diglot", "state_dict"}
    assert content["diglot"]["mean_of"] == [
        {"file": files[0].name, "update": 200},
        {"file": files[1].name, "update": 100},
    ]
    assert not content["diglot"].keys() & {"dev_bleu", "update", "place", "skipped"}
    first = checkpoint.read(files[0])["diglot"]
    for key in ("model", "search", "config", "src_lang", "tgt_lang", "placeholder"):
        assert content["diglot"][key] == first[key]
    assert torch.equal(content["diglot"]["tokenizer"], first["tokenizer"])


def test_it_loads_and_translates(make, tmp_path):
    files = [make(f"{seed}.ckpt", seed) for seed in (1, 2)]
    averaging.average(files, tmp_path / "mean.ckpt")
    loaded = checkpoint.load(tmp_path / "mean.ckpt")
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, weights(tmp_path / "mean.ckpt")[f"model.{name}"])
    translator = diglot.load(tmp_path / "mean.ckpt", device="cpu")
    assert len(translator.translate(["Sa hur rek.", ""], beam=1)) == 2


def test_one_checkpoint_is_in_memory_at_a_time(make, tmp_path, monkeypatch):
    files = [make(f"{seed}.ckpt", seed) for seed in (1, 2, 3, 4)]
    read, alive = checkpoint.read, []

    class Content(dict):
        """A dict that supports weak references."""

    def watched(path):
        assert [content() for content in alive] == [None] * len(alive), "an earlier checkpoint is still held"
        content = Content(read(path))
        alive.append(weakref.ref(content))
        return content

    monkeypatch.setattr(checkpoint, "read", watched)
    averaging.average(files, tmp_path / "mean.ckpt")
    assert len(alive) == 4


# Checkpoints that cannot be averaged


def refused(files: list[Path], output: Path) -> str:
    with pytest.raises(UserError) as error:
        averaging.average(files, output)
    assert not output.exists()
    assert not list(output.parent.glob(f".{output.name}*"))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_another_model_is_refused_by_key(make, tmp_path):
    a = make("a.ckpt")
    for words, key in (
        (("model.d_ff=44",), "model.d_ff"),
        (("model/position=alibi",), "model.position"),
        (("model.tying=none",), "model.tying"),
        (("model.n_encoder_layers=2",), "model.n_encoder_layers"),
    ):
        said = refused([a, make("b.ckpt", 2, *words)], tmp_path / "mean.ckpt")
        assert f"{tmp_path}/b.ckpt" in said
        assert f"{tmp_path}/a.ckpt" in said
        assert key in said
    averaging.average([a, make("b.ckpt", 2, "model.dropout=0.3")], tmp_path / "mean.ckpt")


def test_another_tokenizer_or_language_is_refused_by_file(make, tmp_path, sample_lines, tmp_path_factory):
    from diglot.data.text import ParallelText
    from diglot.data.tokenizer import TokenizerTrainer

    trainer = TokenizerTrainer(model_type="bpe", vocab_size=400, placeholder=r"\{[^{}\s]+\}")
    text = ParallelText(sample_lines, sample_lines)
    other = trainer.train(text, tmp_path_factory.mktemp("other"), ["src"])[0]
    a = make("a.ckpt")
    said = refused([a, make("b.ckpt", 2, tokenizer=other)], tmp_path / "mean.ckpt")
    assert f"{tmp_path}/b.ckpt" in said
    assert "tokenizer" in said
    said = refused([a, make("b.ckpt", 2, languages=("avi", "fr"))], tmp_path / "mean.ckpt")
    assert "its tgt_lang is fr" in said
    assert "bol" in said


def test_other_types_ties_and_values_that_are_not_finite_are_refused_by_weight(make, tmp_path):
    a = make("a.ckpt")
    half = make("b.ckpt", 2, change=lambda state: cast(state, torch.float16))
    assert "torch.float16" in refused([a, half], tmp_path / "mean.ckpt")
    name = "model.output.weight"
    untied = make("c.ckpt", 2, change=lambda state: state | {name: state[name].clone()})
    assert "ties other weights" in refused([a, untied], tmp_path / "mean.ckpt")

    def spoil(state):
        state[name][0, 0] = float("nan")

    assert "is not finite" in refused([a, make("d.ckpt", 2, change=spoil)], tmp_path / "mean.ckpt")


def test_a_damaged_file_is_named(make, tmp_path):
    a, b = make("a.ckpt"), make("b.ckpt", 2)
    whole = b.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b""):
        b.write_bytes(content)
        said = refused([a, b], tmp_path / "mean.ckpt")
        assert f"{tmp_path}/b.ckpt" in said
        assert "damaged" in said


def test_what_is_there_already_is_kept(make, tmp_path):
    a = make("a.ckpt")
    before = a.read_bytes()
    with pytest.raises(UserError, match=r"a\.ckpt exists already"):
        averaging.average([a, a], a)
    assert a.read_bytes() == before
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    for name in ("best.ckpt", "last.ckpt", "previous.ckpt", "update_7.ckpt"):
        with pytest.raises(UserError, match="uses this name for its checkpoints"):
            averaging.average([a], tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ckpt", "config.yaml"]


# The checkpoints that a run's folder stands for


@pytest.fixture
def run(make, tmp_path) -> Path:
    """Return a folder as a run leaves it after eight validations, with its best three checkpoints and its last two."""
    scores = {100: 12.0, 200: 30.0, 300: 20.0, 400: 31.0, 500: 30.0, 600: 11.0, 700: 25.0, 800: 24.0}
    for update in (200, 400, 500, 700, 800):
        words = ("run.keep_best=3", "run.keep_last=2")
        make(f"update_{update}.ckpt", update // 100, *words, dev_bleu=scores[update])
    (tmp_path / "update_x.ckpt").write_text("not one of the run's")
    return tmp_path


def names(files: list[Path]) -> list[str]:
    return [file.stem.removeprefix("update_") for file in files]


def test_the_last_are_those_of_the_newest_validations_and_the_best_those_of_the_best_score(run):
    assert names(averaging.validation_files(run, "last", 2)) == ["800", "700"]
    assert names(averaging.validation_files(run, "last", 1)) == ["800"]
    # The earlier of two equal scores comes first.
    assert names(averaging.validation_files(run, "best", 3)) == ["400", "200", "500"]
    assert names(averaging.validation_files(run, "best", 1)) == ["400"]
    assert names(averaging.validation_files(run, "last")) == ["800", "700"]
    assert names(averaging.validation_files(run, "best")) == ["400", "200", "500"]


def test_of_equally_good_validations_the_better_chrf_and_then_the_smaller_loss_comes_first(make, tmp_path):
    ranks = {100: [0.0, 6.0, -5.0], 200: [0.0, 36.0, -4.0], 300: [0.0, 36.0, -3.0]}
    for update, rank in ranks.items():
        make(f"update_{update}.ckpt", update // 100, "run.keep_best=3", dev_bleu=rank[0], dev_rank=rank)
    assert names(averaging.validation_files(tmp_path, "best")) == ["300", "200", "100"]


def test_fewer_than_asked_for_are_counted_and_the_key_is_named(run):
    """Check a folder of five checkpoints with gaps between them: they are not those of the last five validations."""
    with pytest.raises(UserError, match=r"n=5: .* has only 2 checkpoints of its last validations; .* run\.keep_last=2"):
        averaging.validation_files(run, "last", 5)
    with pytest.raises(UserError, match=r"n=4: .* has only 3 checkpoints of its best validations; .* run\.keep_best=3"):
        averaging.validation_files(run, "best", 4)
    for update in (200, 400, 700):
        (run / f"update_{update}.ckpt").unlink()
    with pytest.raises(UserError, match=r"n=3: .* only 2 checkpoints .* run\.keep_best=3"):
        averaging.validation_files(run, "best", 3)


def test_a_run_that_keeps_one_has_its_last_and_its_best(make, tmp_path):
    make("last.ckpt", 2)
    with pytest.raises(UserError, match=r"no best\.ckpt"):
        averaging.validation_files(tmp_path, "best")
    make("best.ckpt")
    assert averaging.validation_files(tmp_path, "last") == [tmp_path / "last.ckpt"]
    assert averaging.validation_files(tmp_path, "best") == [tmp_path / "best.ckpt"]
    with pytest.raises(UserError, match=r"n=2: .* only 1 checkpoint .* run\.keep_last=1"):
        averaging.validation_files(tmp_path, "last", 2)


def test_a_damaged_one_among_the_best_is_named(run):
    (run / "update_500.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match=r"update_500\.ckpt"):
        averaging.validation_files(run, "best", 2)


def test_files_are_taken_as_they_are_named(make, tmp_path):
    a, b = make("a.ckpt"), make("b.ckpt")
    make("best.ckpt")
    assert averaging.members_of([str(b), str(a), str(b)], None, None) == [b, a, b]
    assert averaging.members_of([str(tmp_path)], None, None) == [tmp_path / "best.ckpt"]
    for arguments, wanted in (
        (([str(a)], "best", None), "which=best"),
        ((str(a), None, 3), "n=3"),
        ((str(tmp_path), None, 0), "n=0: must be positive"),
        (([], None, None), "at least one"),
        ((str(tmp_path / "none.ckpt"), None, None), "no such file"),
    ):
        with pytest.raises(UserError, match=wanted):
            averaging.members_of(*arguments)


# The typed command


@pytest.mark.end_to_end
@pytest.mark.reliability
def test_the_mean_of_a_runs_checkpoints_is_evaluated_translated_and_started_from(tmp_path):
    words = ("run.folder=run", "run.updates=60", "run.validate_every=20", "run.keep_last=3", "scheduler.lr=3e-3")
    train = ("diglot-train", *SMALL, "callbacks=[ema]", "data.tokens_per_batch=300", *words)
    type_command(*train, "callbacks.ema.decay=0.9", "trainer.precision=32-true", cwd=tmp_path)
    type_command("diglot-average", "checkpoint=run", "n=3", "output=run/mean.ckpt", cwd=tmp_path)
    files = [tmp_path / "run" / f"update_{update}.ckpt" for update in (60, 40, 20)]
    content = checkpoint.read(tmp_path / "run" / "mean.ckpt")
    assert content["diglot"]["mean_of"] == [
        {"file": f"update_{update}.ckpt", "update": update} for update in (60, 40, 20)
    ]
    # If the run averages its weights (EMA), a checkpoint loads as those averages, and they are what is averaged.
    loaded = [checkpoint.load(file).model.state_dict() for file in files]
    for name, value in checkpoint.load(tmp_path / "run" / "mean.ckpt").model.state_dict().items():
        assert torch.equal(value, (sum(state[name].double() for state in loaded) / 3).float()), name
    newest = checkpoint.read(files[0])
    moved = [n for n, v in newest["current_model_state"].items() if not torch.equal(v, newest["state_dict"][n])]
    assert moved, "the run's averages are its weights, so that nothing was shown"

    again = "references=run/text/dev.bol"  # repeats the reference in the text's copy
    done = type_command("diglot-evaluate", "checkpoint=run/mean.ckpt", again, cwd=tmp_path)
    results = json.loads((tmp_path / "run" / "evaluation" / "dev" / "results.json").read_text())
    assert results["update"] is None
    assert results["mean_of"] == content["diglot"]["mean_of"]
    assert b"BLEU: nrefs:2" in done.stdout
    said = type_command("diglot-translate", "checkpoint=run/mean.ckpt", cwd=tmp_path, stdin="Sa hur.\n")
    assert said.stdout.count(b"\n") == 1
    start = ("init_from=run/mean.ckpt", "run.updates=1", "run.folder=next", "scheduler.lr=1e-9")
    type_command("diglot-train", *SMALL, *start, cwd=tmp_path)
    for name, weight in checkpoint.read(tmp_path / "next" / "last.ckpt")["state_dict"].items():
        torch.testing.assert_close(weight, content["state_dict"][name], atol=1e-5, rtol=0)

    done = type_command("diglot-average", "checkpoint=run", "n=5", "output=x.ckpt", cwd=tmp_path, code=2)
    assert "has only 3 checkpoints of its last validations" in done.stderr.decode()
    same = "checkpoint=[run/best.ckpt,run/best.ckpt]"
    type_command("diglot-average", same, "output=same.ckpt", cwd=tmp_path)
    best = checkpoint.read(tmp_path / "run" / "best.ckpt")["state_dict"]
    assert all(torch.equal(v, best[n]) for n, v in checkpoint.read(tmp_path / "same.ckpt")["state_dict"].items())
    done = type_command("diglot-average", same, "output=same.ckpt", cwd=tmp_path, code=2)
    assert done.stderr.decode() == "diglot-average: output=same.ckpt exists already\n"
    done = type_command("diglot-average", "checkpoint=run", "output=y.ckpt", "which=first", cwd=tmp_path, code=2)
    assert "which='first': must be last or best or null" in done.stderr.decode()
