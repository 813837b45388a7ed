"""Where a run resumes: its inputs are identified by content, and one process at a time takes the run."""

import fcntl
import gzip
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from diglot.config import changes, config_hash, monitored, read_config, without_secrets, write_composed
from diglot.errors import UserError
from diglot.runs import contents as reads
from diglot.runs.folder import folder_lock, run_folder
from diglot.runs.resume import finished_line, newest_unfinished, refuse_other_contents, refuse_other_job
from diglot.sweeps.sweep import Objective, Sweep
from diglot.training.run import Budget

ALONE: Any = SimpleNamespace(is_first=True, has_group=True, shared=lambda value: value)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the overrides that name a corpus of files, below the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        for side in ("de", "en"):
            (folder / f"{split}.{side}").write_text("".join(f"{split} {side} {i}\n" for i in range(20)))
    return ["data=files", *of_folder("text")]


def of_folder(folder: str) -> list[str]:
    names = [(split, side, lang) for split in ("train", "dev", "test") for side, lang in (("src", "de"), ("tgt", "en"))]
    return [f"data.{split}.{side}={folder}/{split}.{lang}" for split, side, lang in names]


def begin(folder: Path, config: Any, *, finished: bool) -> None:
    """Write the files that a run leaves in its folder."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(without_secrets(config))))
    (folder / "environment.json").write_text(json.dumps({"contents": reads.contents_now(config)}))
    if finished:
        (folder / "results.json").write_text(json.dumps({"finished": True, "best": {"bleu": 1.0}}))


def said_of_finished(folder: Path, config: Any) -> str | None:
    return finished_line(folder, without_secrets(config), lambda: reads.contents_now(config))


def test_a_run_from_before_noise_existed_resumes_without_noise(compose_train):
    config = OmegaConf.to_container(compose_train("data=sample"))
    earlier = {**config, "data": {key: value for key, value in config["data"].items() if key != "noise"}}
    assert changes(earlier, config) == changes(config, earlier) == []
    assert config_hash(OmegaConf.create(earlier)) == config_hash(OmegaConf.create(config))
    for words in (["data/noise=light"], ["data.noise.upper=0.1"], ["data.noise.seed=2"]):
        noisy = OmegaConf.to_container(compose_train("data=sample", *words))
        for before in (earlier, config):
            found = changes(before, noisy)
            assert found
            assert not any(change.takes_effect for change in found)
            assert all(change.key.startswith("data.noise") for change in found)
        assert config_hash(OmegaConf.create(noisy)) != config_hash(OmegaConf.create(config))


def test_a_corpus_that_has_moved_is_the_same_corpus(words, compose_train, tmp_path):
    config = compose_train(*words)
    begin(Path("runs/a"), config, finished=True)
    begin(Path("runs/b"), config, finished=False)
    (tmp_path / "text").rename(tmp_path / "elsewhere")
    for folder in ("elsewhere", str(tmp_path / "elsewhere"), "./runs/../elsewhere"):
        moved = compose_train("data=files", *of_folder(folder))
        assert "this run is finished" in str(said_of_finished(Path("runs/a"), moved))
        now = reads.contents_now(moved)
        assert newest_unfinished(None, without_secrets(moved), now) == "runs/b"
        same = reads.same_contents(reads.contents_in(Path("runs/b")), now)
        found = changes(read_config(Path("runs/b/config.yaml")), without_secrets(moved), same)
        assert len(found) == 6
        assert all(change.takes_effect for change in found)
    assert config_hash(moved) == config_hash(compose_train("data=files", *of_folder("elsewhere")))
    assert config_hash(moved) != config_hash(config)


def test_a_length_in_passes_is_compared_once_the_data_are_there(words, compose_train):
    """The default of run.updates is not the length of a run that counts in passes."""
    begin(Path("runs/a"), compose_train(*words), finished=True)
    assert said_of_finished(Path("runs/a"), compose_train(*words, "run.passes=99")) is None
    settled = compose_train(*words, "run.passes=null")  # as a plan settles it, in updates
    assert "this run is finished" in str(said_of_finished(Path("runs/a"), settled))


def test_a_finished_run_that_is_to_be_exported_says_how(words, compose_train):
    begin(Path("runs/a"), compose_train(*words), finished=True)
    config = compose_train(*words, "export=safetensors")
    how = "make export checkpoint=runs/a format=safetensors"
    assert str(said_of_finished(Path("runs/a"), config)).endswith(f"The model was not exported; type {how}")
    Path("runs/a/safetensors").mkdir()
    assert "export" not in str(said_of_finished(Path("runs/a"), config))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_text_that_has_changed_is_named(words, compose_train, split):
    config = compose_train(*words)
    begin(Path("runs/a"), config, finished=True)
    begin(Path("runs/b"), config, finished=False)
    with Path(f"text/{split}.de").open("r+") as file:
        file.write("X")
    what = {"train": "the training text", "dev": "the dev text", "test": "the test text"}[split]
    with pytest.raises(UserError, match=f"runs/a: this run is finished, and {what} has changed since"):
        said_of_finished(Path("runs/a"), config)
    now = reads.contents_now(config)
    assert newest_unfinished(None, without_secrets(config), now) is None
    with pytest.raises(UserError, match=f"{what} is no longer the one that the run began with"):
        refuse_other_contents("resume=runs/b", reads.contents_in(Path("runs/b")), now)


def test_references_cannot_change_in_a_run(words, compose_train):
    Path("text/second.en").write_text("x\n" * 20)
    Path("text/third.en").write_text("y\n" * 20)
    with_second = [*words, "data.dev.references=text/second.en"]
    one, two = compose_train(*words), compose_train(*with_second)
    assert config_hash(one) != config_hash(two)
    begin(Path("runs/a"), two, finished=True)
    begin(Path("runs/b"), two, finished=False)
    assert newest_unfinished(None, without_secrets(two), reads.contents_now(two)) == "runs/b"
    for changed in (words, [*words, "data.dev.references=text/third.en"]):
        other = compose_train(*changed)
        assert newest_unfinished(None, without_secrets(other), reads.contents_now(other)) is None
        same = reads.same_contents(reads.contents_in(Path("runs/b")), reads.contents_now(other))
        (found,) = changes(read_config(Path("runs/b/config.yaml")), without_secrets(other), same)
        assert (found.key, found.takes_effect) == ("data.dev.references", False)
        with pytest.raises(UserError, match="runs/a: this run is finished, and the dev text has changed"):
            said_of_finished(Path("runs/a"), other)
    Path("text/second.en").rename("text/moved.en")
    moved = compose_train(*words, "data.dev.references=text/moved.en")
    assert newest_unfinished(None, without_secrets(moved), reads.contents_now(moved)) == "runs/b"
    Path("text/moved.en").write_text("z\n" * 20)
    with pytest.raises(UserError, match="the dev text is no longer the one that the run began with"):
        refuse_other_contents("resume=runs/b", reads.contents_in(Path("runs/b")), reads.contents_now(moved))


def test_a_config_from_before_references_is_the_same_without_them(words, compose_train):
    config = OmegaConf.to_container(compose_train(*words))
    earlier = {**config, "data": {**config["data"]}}
    for split in ("dev", "test"):
        node = config["data"][split]
        earlier["data"][split] = {key: value for key, value in node.items() if "reference" not in key}
    assert changes(earlier, config) == changes(config, earlier) == []
    assert config_hash(OmegaConf.create(earlier)) == config_hash(OmegaConf.create(config))


def test_a_text_that_is_compressed_now_counts_as_changed_and_the_message_says_why(words, compose_train):
    config = compose_train(*words)
    begin(Path("runs/a"), config, finished=True)
    Path("text/train.de.gz").write_bytes(gzip.compress(Path("text/train.de").read_bytes()))
    now = compose_train(*words, "data.train.src=text/train.de.gz")
    why = r"\(files are compared byte for byte: the same lines count as changed if they are compressed"
    with pytest.raises(UserError, match=f"the training text has changed since.*{why}"):
        said_of_finished(Path("runs/a"), now)
    with pytest.raises(UserError, match=f"the training text is no longer the one that the run began with {why}"):
        refuse_other_contents("resume=a", reads.contents_in(Path("runs/a")), reads.contents_now(now))


def test_a_moved_text_with_other_languages_in_its_file_names_counts_as_changed(words, compose_train):
    begin(Path("runs/a"), compose_train(*words), finished=True)
    for file in Path("text").iterdir():
        file.rename(file.with_suffix(f".{file.suffix[1:]}x"))
    moved = compose_train("data=files", *(f"{word}x" for word in of_folder("text")))
    with pytest.raises(UserError, match="the language pair has changed"):
        said_of_finished(Path("runs/a"), moved)


def test_a_tokenizer_s_file_is_identified_by_its_content(words, compose_train, tokenizer):
    Path("a.model").write_bytes(tokenizer.model)
    shutil.copy("a.model", "b.model")
    config, moved = (compose_train(*words, "tokenizer=files", f"tokenizer.model={name}.model") for name in "ab")
    begin(Path("runs/a"), config, finished=True)
    assert said_of_finished(Path("runs/a"), moved)
    Path("b.model").write_bytes(b"x")
    with pytest.raises(UserError, match=r"the file that tokenizer\.model names has changed"):
        said_of_finished(Path("runs/a"), moved)


def test_a_run_of_an_earlier_version_without_contents_is_identified_by_its_paths(words, compose_train):
    begin(Path("runs/a"), compose_train(*words), finished=True)
    Path("runs/a/environment.json").write_text("{}")
    assert said_of_finished(Path("runs/a"), compose_train(*words))
    shutil.copytree("text", "moved")
    with pytest.raises(UserError, match=r"data\.train\.src was text/train\.de and is moved/train\.de"):
        said_of_finished(Path("runs/a"), compose_train("data=files", *of_folder("moved")))


def test_a_job_whose_text_has_changed_is_set_aside_and_trained_anew(words, compose_train):
    config, sweep = compose_train(*words), Sweep(Path("all"), Objective("dev/bleu"))
    job = sweep.job(["seed=1"], ["seed=1"], config, "hash")
    (job.folder / "environment.json").write_text(json.dumps({"contents": reads.contents_now(config)}))
    results = {"finished": True, "best": {"bleu": 9.0}, "checkpoint": "best.ckpt"}
    (job.folder / "results.json").write_text(json.dumps(results))
    sweep.find_outdated()
    assert [(each.status, each.value("dev/bleu")) for each in sweep.jobs] == [("finished", 9.0)]
    before = Path("text/dev.de").read_text()
    Path("text/dev.de").write_text(f"X{before}")
    sweep.find_outdated()
    (outdated,) = sweep.jobs
    assert (outdated.status, outdated.message) == ("outdated", "outdated: the dev text has changed since")
    assert sweep.best(sweep.jobs) is None
    anew = sweep.job(["seed=1"], ["seed=1"], config, "hash")
    assert (anew.number, anew.folder) == (2, Path("all/02_seed-1"))
    Path("text/dev.de").write_text(before)
    sweep.find_outdated()
    assert [each.status for each in sweep.jobs] == ["finished", "not started"]
    assert sweep.job(["seed=1"], ["seed=1"], config, "hash").number == 1


@pytest.mark.parametrize("is_begun", [True, False])
def test_of_several_processes_at_once_one_takes_the_run(words, compose_train, is_begun):
    config = compose_train(*words)
    plain, now = without_secrets(config), reads.contents_now(config)
    if is_begun:
        begin(Path("runs/a"), config, finished=False)
    barrier = Barrier(3)

    def take(_: int) -> str:
        barrier.wait()
        try:
            with folder_lock(Budget(updates=1), ALONE):
                folder = run_folder(Budget(updates=1), "x", newest_unfinished(None, plain, now), ALONE)
                (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain)))
            return f"took {folder}"
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        *refused, took = sorted(pool.map(take, range(3)))
    (folder,) = Path("runs").iterdir()
    assert took == f"took {folder}"
    assert refused == [f"resume=auto: another process is training in {folder}/"] * 2


def test_checking_whether_a_folder_is_locked_keeps_no_process_out(tmp_path, monkeypatch):
    from diglot.runs import folder as folders

    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    release: Callable[[float], None] = lambda _: fcntl.flock(descriptor, fcntl.LOCK_UN)  # noqa: E731
    monkeypatch.setattr(folders.time, "sleep", release)
    folders.lock_folder(tmp_path)
    assert folders.is_folder_locked(tmp_path)
    with pytest.raises(UserError, match="another process is training in it"):
        folders.lock_folder(tmp_path)
    os.close(descriptor)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("word", "before", "now", "says"),
    [
        ("seed='${oc.decode:${oc.env:VALUE}}'", "1", "2", "seed was 1 and is 2"),
        ("label_smoothing='${oc.decode:${oc.env:VALUE}}'", "0.1", "0.2", "label_smoothing was 0.1 and is 0.2"),
        ("data.tokens_per_batch='${oc.decode:${oc.env:VALUE}}'", "512", "1024", "data.tokens_per_batch was 512"),
        ("bleu_tokenizer=${oc.env:VALUE}", "13a", "intl", "bleu_tokenizer was 13a and is ${oc.env:VALUE}"),
        (
            "bleu_tokenizer=${oc.env:VALUE}",
            "flores200",
            "flores101",
            "bleu_tokenizer was one text from the environment",
        ),
        (
            "optimizer.foreach='${oc.decode:${oc.env:VALUE}}'",
            "true",
            "false",
            "optimizer.foreach was True and is",
        ),
        ("trainer.accelerator=${oc.env:VALUE}", "auto", "cuda", "trainer.accelerator was one text from the environ"),
    ],
)
def test_a_value_from_the_environment_that_has_changed_is_noticed(
    words, compose_train, monkeypatch, word, before, now, says
):
    config = compose_train(*words, word.replace("optimizer", "+optimizer"))
    monkeypatch.setenv("VALUE", before)
    begin(Path("runs/a"), config, finished=True)
    begin(Path("runs/b"), config, finished=False)
    same, hash = without_secrets(config), config_hash(config)
    assert newest_unfinished(None, same, reads.contents_now(config)) == "runs/b"
    assert said_of_finished(Path("runs/a"), config)
    monkeypatch.setenv("VALUE", now)
    assert config_hash(config) != hash
    (change,) = changes(read_config(Path("runs/b/config.yaml")), without_secrets(config))
    assert says in str(change)
    assert change.takes_effect == word.startswith(("optimizer", "trainer", "label_smoothing"))
    assert newest_unfinished(None, without_secrets(config), reads.contents_now(config)) is None
    with pytest.raises(UserError, match="this run is finished, so the changed value would have no effect"):
        said_of_finished(Path("runs/a"), config)
    assert "flores200" not in Path("runs/b/config.yaml").read_text()


@pytest.mark.parametrize("key", ["logger.mine.token", "callbacks.mine.token"])
def test_a_password_may_change_before_a_run_resumes(words, compose_train, monkeypatch, key):
    config = compose_train(*words, f"+{key}=${{oc.env:TOKEN}}")
    monkeypatch.setenv("TOKEN", "hunter2")
    begin(Path("runs/b"), config, finished=False)
    hash = config_hash(config)
    monkeypatch.setenv("TOKEN", "hunter3")
    assert config_hash(config) == hash
    assert newest_unfinished(None, without_secrets(config), reads.contents_now(config)) == "runs/b"


def test_a_text_that_the_environment_places_elsewhere_is_the_same_text(words, compose_train, monkeypatch, tmp_path):
    config = compose_train("data=files", *of_folder("${oc.env:FOLDER}"))
    monkeypatch.setenv("FOLDER", str(tmp_path / "text"))
    begin(Path("runs/b"), config, finished=False)
    hash = config_hash(config)
    (tmp_path / "text").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("FOLDER", str(tmp_path / "elsewhere"))
    now = reads.contents_now(config)
    found = changes(
        read_config(Path("runs/b/config.yaml")),
        without_secrets(config),
        reads.same_contents(reads.contents_in(Path("runs/b")), now),
    )
    assert len(found) == 6
    assert all(change.is_path_only for change in found)
    assert config_hash(config) == hash
    assert newest_unfinished(None, without_secrets(config), now) == "runs/b"


def test_a_run_of_an_earlier_version_without_values_of_the_environment_resumes(words, compose_train, monkeypatch):
    monkeypatch.setenv("VALUE", "3")
    monkeypatch.setenv("NAME", "flores200")
    config = compose_train(*words, "seed='${oc.decode:${oc.env:VALUE}}'", "bleu_tokenizer=${oc.env:NAME}")
    before = without_secrets(config) | {"seed": "${oc.decode:${oc.env:VALUE}}"}
    del before["from_environment"]
    now = without_secrets(config)
    assert changes(before, now) == []
    assert changes(before, now | {"bleu_tokenizer": "flores101"})
    for value in ("13a", None, [1, 2], 3, False):  # values that are no secrets are stored resolved now, unlike before
        assert changes(before, now | {"bleu_tokenizer": value}) == []
        assert changes(before | {"bleu_tokenizer": ["${oc.env:NAME}"]}, now | {"bleu_tokenizer": value}) == []


@pytest.mark.parametrize("value", ["13a", None, 3])
def test_a_value_that_is_no_longer_a_secret_has_changed(words, compose_train, monkeypatch, value):
    monkeypatch.setenv("NAME", "flores200")
    before = without_secrets(compose_train(*words, "bleu_tokenizer=${oc.env:NAME}"))
    assert changes(before, without_secrets(compose_train(*words)) | {"bleu_tokenizer": value})


def test_a_job_starts_with_the_config_that_its_sweep_has_stored(
    tmp_path: Path, compose_train: Callable[..., DictConfig]
) -> None:
    """The process of a job has named the monitored metric before it compares the configs."""
    write_composed(tmp_path, compose_train("seed=2"))
    config = compose_train("seed=2").copy()
    config.run.monitor = monitored(config)
    refuse_other_job(tmp_path, config)
    for key, value in (("run.monitor", "chrf"), ("seed", 7)):
        changed = config.copy()
        OmegaConf.update(changed, key, value)
        with pytest.raises(UserError, match=rf"differs from that of the sweep's job: {key} was"):
            refuse_other_job(tmp_path, changed)
