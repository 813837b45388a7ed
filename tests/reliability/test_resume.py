"""A resumed run continues exactly; changes of the config are rejected, or take effect and are reported."""

import json
import re
import shutil
import signal
import time
from pathlib import Path

import lives
import pytest
from lives import SMALL, Fault

from diglot.checkpoint import container

pytestmark = pytest.mark.reliability

SHORT = ["run.passes=null", "run.updates=12", "run.validate_every=4", "scheduler=constant", "scheduler.warmup=0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return lives.write_text(tmp_path_factory.mktemp("text"))


def rates(folder: Path) -> dict[int, float]:
    """Return the learning rate of each micro-batch by position."""
    lines = [json.loads(line) for line in (folder / "recorded.jsonl.0").read_text().splitlines()]
    return {line[0]: float.fromhex(line[-1]) for line in lines if line[0] != "began"}


def train(folder: Path, *words: str, code: int = 0, fault: Fault | None = None) -> str:
    folder.mkdir(exist_ok=True)
    life = lives.run(list(words), folder, fault)
    assert life.status == code, life.said
    assert "Traceback" not in life.said
    return life.said


@pytest.mark.promise(
    "A finished run that is extended continues as if it had been planned with the new length from the start"
)
def test_a_finished_run_that_becomes_longer_is_the_longer_run(tmp_path: Path, text: list[str]) -> None:
    words = [*text, *SMALL, *SHORT]
    whole = lives.whole([*words, "run.updates=20"], tmp_path / "whole")
    folder = tmp_path / "longer"
    train(folder, *words, "run.folder=run")
    said = train(folder, *words, "resume=run", "run.updates=20", fault=None)
    assert "run.updates was 12 and is 20: the new value applies from update 13 on" in said
    found = lives.differences(whole.left, lives.left(folder))
    # The best checkpoint may be older, and then records the earlier config and length.
    assert [line for line in found if not re.match(r"files: |best.ckpt (\S+updates|diglot.has_stopped): ", line)] == []
    kept = {"results_until_12.json", "config_until_12.yaml"}
    assert kept <= {file.name for file in (folder / "run").iterdir()}
    assert json.loads((folder / "run" / "results.json").read_text())["updates"] == 20
    # The run is now finished at the new length, and the same command has nothing to do.
    assert "this run is finished" in train(folder, *words, "resume=run", "run.updates=20")


@pytest.mark.promise("A run resumes bit for bit when its corpus has moved to another folder")
def test_a_run_goes_on_with_its_corpus_in_another_folder(tmp_path: Path) -> None:
    corpus, moved = tmp_path / "corpus", tmp_path / "moved"
    corpus.mkdir()
    words = [*lives.write_text(corpus), *SMALL, *SHORT]
    whole = lives.whole(words, tmp_path / "whole")
    folder = tmp_path / "pieces"
    train(folder, *words, "run.folder=run", code=-signal.SIGKILL, fault=Fault(signal.SIGKILL, update=7))
    corpus.rename(moved)
    said = train(folder, *(word.replace(str(corpus), str(moved)) for word in words), "resume=run")
    assert "data.train.src" in said
    found = lives.differences(whole.left, lives.left(folder))
    assert [line for line in found if not line.startswith("files: ")] == []  # the earlier config is an additional file


def test_a_run_on_noisy_text_resumes_bit_for_bit(tmp_path: Path, text: list[str]) -> None:
    words = [*text, *SMALL, *SHORT, "data/noise=light", "data.noise.samples=2", "data.noise.upper=0.5"]
    whole = lives.whole(words, tmp_path / "whole")
    assert lives.whole([*words, "data.noise.seed=2"], tmp_path / "other").left != whole.left
    folder = tmp_path / "pieces"
    for update in (3, 7):
        train(folder, *words, "run.folder=run", "resume=auto", code=-signal.SIGKILL, fault=Fault(9, update=update))
    train(folder, *words, "run.folder=run", "resume=auto")
    assert lives.differences(whole.left, lives.left(folder)) == []


@pytest.mark.promise(
    "Resuming a finished run reports that it is finished, and which changed values would have no effect"
)
def test_a_finished_run_says_so(tmp_path: Path, text: list[str]) -> None:
    words = [*text, *SMALL, *SHORT]
    train(tmp_path, *words, "run.folder=run")
    said = train(tmp_path, *words, "resume=run")
    assert "run: this run is finished; its results are in run/results.json" in said
    said = train(tmp_path, *words, "scheduler.lr=0.1", "resume=run", code=2)
    assert "scheduler.lr was 0.01 and is 0.1" in said
    assert "to resume it, type run.updates above 12" in said
    said = train(tmp_path, *words, "scheduler.lr=0.1", "resume=run", "run.updates=16")
    assert "scheduler.lr was 0.01 and is 0.1: the new value applies from update 13 on" in said
    assert rates(tmp_path) == {i: 0.01 if i < 12 else 0.1 for i in range(16)}


@pytest.mark.promise(
    "If a value has changed when a run resumes, the change is reported, and is either rejected or applied from the "
    "next update on"
)
class TestChanges:
    @pytest.fixture(scope="class")
    def begun(self, tmp_path_factory: pytest.TempPathFactory, text: list[str]) -> tuple[Path, list[str]]:
        """Return a run that was stopped after three updates, independently of the machine's speed."""
        folder = tmp_path_factory.mktemp("begun")
        words = [*text, *SMALL, *SHORT, "run.updates=200", "run.validate_every=50"]
        train(folder, *words, "run.folder=run", code=75, fault=Fault(15, update=3))
        return folder, words

    @pytest.mark.parametrize(
        "word",
        [
            "seed=5",
            "model.d_ff=32",
            "model.dropout=0.1",
            "model/residual=post_norm",
            "data.tokens_per_batch=160",
            "data.batches_per_update=2",
            "data.max_len=39",
            "data.vocab_size=310",
            "tokenizer.samples=1",
            "data.noise.upper=0.1",
            "tokenizer=bpe",
            "optimizer=adam",
            "search.max_len_b=6",
            "callbacks=[ema]",
            "trainer.precision=64-true",
            "data.clean.duplicates=true",
        ],
    )
    def test_another_run_is_refused(self, begun: tuple[Path, list[str]], word: str) -> None:
        folder, words = begun
        said = train(folder, *words, "resume=run", word, code=2)
        (line,) = [line for line in said.splitlines() if line.startswith("diglot-train: ")]
        assert "resume=run: these values cannot change in a run: " in line
        key = word.partition("=")[0].replace("/", ".")
        assert key in line or key in ("callbacks", "data.vocab_size", "model.residual")
        assert re.search(r"\S+ was .+ and is .+", line)

    def test_a_text_that_has_changed_is_refused(self, begun: tuple[Path, list[str]], tmp_path: Path) -> None:
        folder, words = begun
        (source,) = [word.partition("=")[2] for word in words if word.startswith("data.train.src=")]
        before = Path(source).read_text()
        try:
            Path(source).write_text(before.replace("a", "e", 1))
            said = train(folder, *words, "resume=run", code=2)
        finally:
            Path(source).write_text(before)
        assert "the training text is no longer the one that the run began with" in said

    def test_a_text_that_has_moved_is_the_same(self, begun: tuple[Path, list[str]], tmp_path: Path) -> None:
        folder, words = begun
        shutil.copytree(folder / "run", tmp_path / "run")
        done = container.read(folder / "run" / "last.ckpt")["global_step"]
        (source,) = [Path(word.partition("=")[2]) for word in words if word.startswith("data.train.src=")]
        shutil.copytree(source.parent, tmp_path / "moved")
        moved = [word.replace(str(source.parent), "moved") for word in words]
        said = train(tmp_path, *moved, "resume=run", f"run.updates={done}")
        assert f"data.train.src was {source} and is moved/{source.name}: its content is the same"[:60] in said
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        environment = json.loads((tmp_path / "run" / "environment.json").read_text())
        assert results["contents"] == environment["contents"]
        assert results["contents"].keys() >= {"train", "dev", "languages"}

    def test_fewer_updates_than_are_done_are_refused(self, begun: tuple[Path, list[str]]) -> None:
        folder, words = begun
        done = container.read(folder / "run" / "last.ckpt")["global_step"]
        said = train(folder, *words, "resume=run", f"run.updates={done - 1}", code=2)
        assert f"run.updates is {done - 1}, and {done} are done already" in said

    def test_as_many_updates_as_are_done_end_the_run(self, begun: tuple[Path, list[str]], tmp_path: Path) -> None:
        folder, words = begun
        shutil.copytree(folder / "run", tmp_path / "run")
        done = container.read(folder / "run" / "last.ckpt")["global_step"]
        train(tmp_path, *words, "resume=run", f"run.updates={done}")
        assert json.loads((tmp_path / "run" / "results.json").read_text())["best"]["update"] == done

    def test_what_takes_effect_is_told_and_does(self, begun: tuple[Path, list[str]]) -> None:
        folder, words = begun
        changed = ["scheduler.lr=0.02", "optimizer.weight_decay=0.5", "label_smoothing=0", "run.validate_every=100"]
        said = train(folder, *words, "resume=run", *changed, "data.n_workers=1", "logger=csv")
        (done,) = {int(number) for number in re.findall(r"the new value applies from update (\d+) on", said)}
        for change in ("scheduler.lr was 0.01 and is 0.02", "optimizer.weight_decay was 0.01 and is 0.5"):
            assert f"{change}: the new value applies from update {done} on" in said
        assert "n_workers" not in said
        assert rates(folder) == {i: 0.01 if i < done - 1 else 0.02 for i in range(200)}
        content = container.read(folder / "run" / "last.ckpt")
        (group,) = content["optimizer_states"][0]["param_groups"]
        assert group["weight_decay"] == 0.5
        assert (folder / "run" / f"config_until_{done - 1}.yaml").exists()


@pytest.mark.promise("Setting the clock back between two parts of a run changes nothing")
@pytest.mark.parametrize("logger", ["tensorboard", "csv"])
def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path, text: list[str], logger: str) -> None:
    words = [*text, *SMALL, *SHORT, f"logger={logger}"]
    whole = lives.whole(words, tmp_path / "whole")
    folder = tmp_path / "it"
    folder.mkdir()
    faults = [Fault(signal.SIGKILL, update=6), Fault(signal.SIGTERM, update=8, within="validation"), None]
    for fault, change in zip(faults, (None, an_hour_earlier, two_hours_earlier), strict=True):
        words = [*words, "run.folder=run"] if change is None else [*words[:-1], "resume=run"]
        life = lives.run(words, folder, fault, change)
        assert life.status == ((75 if fault.number == signal.SIGTERM else -fault.number) if fault else 0), life.said
    assert lives.differences(whole.left, lives.left(folder)) == []


def an_hour_earlier() -> None:
    real = time.time
    time.time = lambda: real() - 3600


def two_hours_earlier() -> None:
    an_hour_earlier()
    an_hour_earlier()
