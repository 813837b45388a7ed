"""README.md and the pages of docs/ are true: their commands, links, examples and tables."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from conformance import promises
from diglot.choices import CONF, choices, groups, rows
from diglot.commands.schema import TrainKeys
from diglot.commands.start import COMMANDS
from diglot.config import build, build_corpus, check
from diglot.config.keys import known_keys
from diglot.data.text import ParallelText
from diglot.errors import NON_FINITE, READER_GONE, RESUME_ME, UserError
from diglot.runs.scoring import build_scorer
from support.made import checkpoint_content, write_checkpoint

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Words that a target of the Makefile reads itself, and no command.
OF_MAKE = {"tensorboard": {"LOGDIR"}, "soak": {"kills", "minutes", "seed"}}


class Call(NamedTuple):
    """A command of a page, as it is typed there."""

    page: str
    line: str
    is_make: bool
    name: str
    words: tuple[str, ...]


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language; shell blocks name no language."""
    return [text for found, text in FENCED.findall(PAGES[page]) if found == language]


def calls_in(page: str, line: str) -> Iterator[Call]:
    """Yield the commands of this project in a line."""
    words = shlex.split(line, comments=True)
    parts = " ".join("\0" if word == "|" else shlex.quote(word) for word in words).split("\0")
    for typed in map(shlex.split, parts):
        for i, word in enumerate(typed):
            own = re.fullmatch(r"(?:\S*/)?diglot-([a-z]+)", word)
            if word == "make" and i + 1 < len(typed):
                yield Call(page, line, True, typed[i + 1], tuple(expanded(typed[i + 2 :])))
            elif own or typed[i : i + 2] == ["-m", "diglot"]:
                name, rest = (own[1], typed[i + 1 :]) if own else (typed[i + 2], typed[i + 3 :])
                yield Call(page, line, False, name, tuple(rest))
            else:
                continue
            break


def expanded(words: list[str]) -> Iterator[str]:
    """Yield the words that make passes to a command; those of ARGS are passed one by one."""
    for word in words:
        yield from shlex.split(word.removeprefix("ARGS=")) if word.startswith("ARGS=") else [word]


def calls(page: str) -> list[Call]:
    """All commands of a page, in code blocks and in the text."""
    lines = [line for text in blocks(page, "") for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    inline = re.findall(r"`((?:make|diglot-[a-z]+) [^`\n]+)`", FENCED.sub("", PAGES[page]))
    return [call for line in [*lines, *inline] for call in calls_in(page, line)]


CALLS = [call for page in PAGES for call in calls(page)]


@cache
def keys(command: str) -> set[str]:
    """Return the keys of a command, including those of all choices."""
    name = "train" if command == "sweep" else command
    found = {*known_keys(name), *(row.key for group in groups() for row in rows(group))}
    sides = ("src", "tgt", "tsv", "file", "references", "reference_columns")
    return found | {f"data.{split}.{side}" for split in ("train", "dev", "test") for side in sides}


def own_choices(page: str) -> set[str]:
    """Return the choices, GROUP=CHOICE, that a page adds."""
    names = re.findall(r"^(?:\+\+\+ b/conf|# confs)/(.+)/(\w+)\.yaml$", PAGES[page], flags=re.MULTILINE)
    return {f"{group}={choice}" for group, choice in names}


def wrong(word: str, command: str, page: str) -> str | None:
    """Return what is wrong with an override, or None."""
    key, _, value = word.lstrip("+~").partition("=")
    group = key.partition("@")[0]
    if group in groups():
        named = [each.strip() for each in value.strip("[]").split(",")] if value else []
        known = {f"{group}={choice}" for choice in choices(group)} | own_choices(page) | {f"{group}=null"}
        return next((f"{group}={each}" for each in named if each and f"{group}={each}" not in known), None)
    if word.startswith("+"):  # what is new stands in a node that takes any number
        return None if re.match(r"(callbacks|logger|metric|watch|data\.corpora|trainer)\.\w+", key) else key
    is_of_own = re.fullmatch(r"(\w+\.)+_target_", key) is not None
    return None if key in keys(command) or is_of_own else key


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("model.n_heads=1,2", None),
        ("model.n_head=1", "model.n_head"),
        ("model/position=rotary,alibi", None),
        ("model/position=rotary,allibi", "model/position=allibi"),
        ("callbacks=[early_stopping,emma]", "callbacks=emma"),
        ("model/position@model.decoder_position=none", None),
        ("~watch.position", None),
        ("+modle.x=1", "modle.x"),
    ],
)
def test_a_wrong_override_is_found(word: str, found: str | None) -> None:
    assert wrong(word, "train", "README.md") == found


def test_the_reader_of_commands_sees_all_forms_of_them() -> None:
    def read(line: str) -> list[tuple[bool, str, tuple[str, ...]]]:
        return [call[2:] for call in calls_in("README.md", line)]

    assert read("X=. make train 'a=b # c' d=1   # e") == [(True, "train", ("a=b # c", "d=1"))]
    assert read("echo 'some text' | make translate checkpoint=x") == [(True, "translate", ("checkpoint=x",))]
    assert read("make train ARGS='-m ~x' y=1") == [(True, "train", ("-m", "~x", "y=1"))]
    assert read("srun .venv/bin/diglot-train y=1") == [(False, "train", ("y=1",))]
    assert read("torchrun --x 2 -m diglot train y=1") == [(False, "train", ("y=1",))]
    assert read("pip install diglot") == []
    assert len(CALLS) > 150


def test_every_command_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert not [call.line for call in CALLS if call.name not in (targets if call.is_make else COMMANDS)]


def test_every_override_names_a_key_or_a_choice() -> None:
    found = []
    for call in CALLS:
        words = [word for word in call.words if "=" in word or word.startswith("~")]
        if call.is_make and call.name in OF_MAKE:
            found += [word for word in words if word.partition("=")[0] not in OF_MAKE[call.name]]
        elif call.name in COMMANDS:
            found += [(call.page, call.line, bad) for word in words if (bad := wrong(word, call.name, call.page))]
        else:
            found += [(call.page, call.line, word) for word in words]
    assert not found


def test_help_is_asked_for_groups() -> None:
    asked = [call.words[call.words.index("--help") + 1 :] for call in CALLS if "--help" in call.words]
    assert ("model",) in asked
    assert {group for each in asked for group in each} <= {*groups(), "GROUP"}


def test_every_group_of_choices_is_named() -> None:
    section = PAGES["docs/training.md"].partition("## Choices")[2].partition("\n## ")[0]
    assert set(groups()) <= set(re.findall(r"`([a-z_/]+)`", section))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: str) -> Iterator[tuple[Path, str]]:
    """Yield the files, with anchors, that a page links to, without web addresses."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", PAGES[page])):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield ((ROOT / page).parent / path if path else ROOT / page).resolve(), anchor


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for path, anchor in links(page):
        assert path.exists(), path
        assert path.is_relative_to(ROOT.resolve())
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), (path, anchor)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_exists(page: str) -> None:
    named = re.findall(r"(?<![\w/.])(?:tests|benchmarks|src|conf|docs)/[\w/.-]*\w", PAGES[page])
    assert not [name for name in named if not (ROOT / name).exists()]


def test_tests_that_are_typed_select_a_promise() -> None:
    typed = {word for text in PAGES.values() for word in re.findall(r"test_promises\.py -k (\w+)", text)}
    names = [check.__name__ for check in promises.OF_ALL + promises.OF_TRANSFORMERS]
    assert typed
    assert all(any(word in name for name in names) for word in typed)


def test_anchors_are_those_of_github() -> None:
    text = "# A `b_c`, d/e: F-g\n```\n# none\n```\n## Why divide by sqrt(d_k)\n"
    assert anchors(text) == {"a-b_c-de-f-g", "why-divide-by-sqrtd_k"}


def test_every_file_is_reachable_from_the_index() -> None:
    reached, waiting = set(), [DOCS / "README.md"]
    while waiting:
        path = waiting.pop().resolve()
        if path not in reached and path.parent == DOCS.resolve():
            reached.add(path)
            page = path.relative_to(ROOT.resolve()).as_posix()
            waiting += [target for target, _ in links(page)] if page in PAGES else []
    assert {path.resolve() for path in DOCS.iterdir() if path.is_file()} == reached


def test_the_first_page_is_short_and_leads_to_every_page() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150
    assert {path for path, _ in links("README.md")} >= {path.resolve() for path in DOCS.glob("*.md")}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_examples_are_python(page: str) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)


def test_the_exit_statuses_are_those_of_the_code() -> None:
    section = PAGES["docs/training.md"].partition("## Exit statuses")[2].partition("\n## ")[0]
    statuses = re.findall(r"^\| ([\d, ]+) \|", section, flags=re.MULTILINE)
    assert {RESUME_ME, NON_FINITE, READER_GONE} <= {int(each) for row in statuses for each in row.split(",")}
    named = set(re.findall(r"`diglot-([a-z]+)`", section))
    assert named == set(COMMANDS) | {"doctor"}


def cells(page: str) -> Iterator[list[str]]:
    """Yield the rows of a page's tables."""
    for line in re.findall(r"^\| .* \|$", PAGES[page], flags=re.MULTILINE):
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_page_of_the_transformer_names_classes_where_they_are_and_keys_that_exist() -> None:
    package = ROOT / "src" / "diglot"
    known = keys("train") | keys("translate")
    n_names, text = 0, ""
    for _, where, key, _ in cells("docs/transformer.md"):
        if files := re.findall(r"\b[a-z]+/\w+\.py", where):
            text = "".join((package / file).read_text(encoding="utf-8") for file in files)
        elif where.startswith("`"):
            text = (package / "model/position.py").read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+(?:\.\w+)?)`", re.sub(r"\([^)]*\)", "", where)):
            n_names += 1
            owner, _, method = name.partition(".")
            assert re.search(rf"\b(class|def) {owner}\b|\b{owner}\b[:=]", text), name
            assert not method or f"def {method}(" in text, name
        for word in re.findall(r"`([^`]+)`", key):
            bad = wrong(word, "train", "docs/transformer.md")
            assert word in known or word in groups() or bad is None, word
    assert n_names > 40


PROMISES = """
from conformance import promises, variants
from diglot.config import CONF
for promise in promises.OF_ALL + promises.OF_TRANSFORMERS:  # those of compiling take half a minute
    model, config = variants.build_variant(variants.small("base") + ("model/residual=res_post_norm",))
    assert type(model.encoder[0].feed_forward).__name__ == "ResPostNorm"
    promise(model, config)
print(CONF, "kept")
"""


@pytest.mark.reliability
@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the change")
def test_the_variant_that_is_added_in_full_is_a_variant_that_keeps_promises(tmp_path: Path) -> None:
    if (CONF / "model" / "residual" / "res_post_norm.yaml").exists():
        pytest.skip("it has been added")
    for name in ("src", "conf", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    (change,) = blocks("docs/models.md", "diff")
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    # However much the lines around have changed since.
    subprocess.run(["git", "apply", "-C0"], input=change, cwd=tmp_path, env=environment, text=True, check=True)
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path / "src"), str(tmp_path / "tests")))
    subprocess.run([sys.executable, "tests/upkeep/test_choices_page.py"], cwd=tmp_path, env=environment, check=True)
    assert "| `res_post_norm` | Norm on the" in (tmp_path / "docs/choices.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROMISES], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'conf'} ")


@pytest.mark.reliability
def test_a_checkpoint_is_read_without_diglot_as_it_says(config, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "runs" / "NAME").mkdir(parents=True)
    content = checkpoint_content(config, tokenizer)
    write_checkpoint(tmp_path / "runs" / "NAME" / "best.ckpt", content)
    (code,) = (text for text in blocks("docs/training.md", "python") if "safe_open" in text)
    code += "\nimport sys\nassert 'diglot' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    weights = {tensor.data_ptr(): name.removeprefix("model.") for name, tensor in content["state_dict"].items()}
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(said) == len(weights) + 1
    assert said["diglot/tokenizer"].startswith("U8 [")
    width = config.model.d_model
    assert said["encoder.0.feed_forward.norm.weight"] == f"F32 [{width}]"


@pytest.fixture
def own_parts(tmp_path: Path) -> Path:
    """Write the files of docs/extending.md into a folder."""
    for language in ("python", "yaml"):
        for text in blocks("docs/extending.md", language):
            name = re.search(r"^# ([\w/]+\.(?:py|yaml))$", text, flags=re.MULTILINE)[1]
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    return tmp_path


def test_a_variant_of_ones_own_is_built(own_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own_parts)
    (words,) = (call.words for call in calls("docs/extending.md") if "model/position=none" in call.words)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [*words, "model.d_model=16", "model.n_heads=2"])
    check(config, TrainKeys)
    model = build(config.model, "model", src_vocab_size=9, tgt_vocab_size=9)
    assert type(model.encoder_position).__name__ == "Ramp"


def test_a_reader_of_ones_own_reads_a_file(own_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own_parts)
    monkeypatch.chdir(own_parts)
    (own_parts / "train.txt").write_text("eins\none\n\nzwei\ntwo\n")
    (words,) = (call.words for call in calls("docs/extending.md") if "data=files" in call.words)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [*words, "data.dev.file=train.txt", "data.test.file=train.txt"])
    check(config, TrainKeys)
    assert build_corpus(config.data).load(own_parts)["train"] == ParallelText(["eins", "zwei"], ["one", "two"])
    (own_parts / "train.txt").write_text("eins\none\n\nzwei\n")
    told = r"data\.reader: Blocks\.pairs\('train\.txt'\), after 1 pairs: ValueError: not enough values"
    with pytest.raises(UserError, match=told):
        build_corpus(config.data).load(own_parts)
    config.data.reader = {"_target_": "my_callback.WeightNorm"}
    with pytest.raises(UserError, match=r"data\.reader\._target_: my_callback\.WeightNorm is no Reader"):
        check(config, TrainKeys)


def test_a_metric_of_ones_own_is_computed_first(own_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own_parts)
    (words,) = (call.words for call in calls("docs/extending.md") if "run.monitor=brackets" in call.words)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", words)
    check(config, TrainKeys)
    scores = build_scorer(config, "en")(["a (b)", "(c"], ["a (b)", "c"])
    assert [score.name for score in scores] == ["brackets", "BLEU", "chrF++", "TER"]
    assert (scores[0].value, scores[0].signature) == (50.0, "nrefs:1|class:my_metric.Brackets")


@pytest.mark.reliability
def test_parts_of_ones_own_train_together(own_parts: Path) -> None:
    found = [call for call in calls("docs/extending.md") if call.name == "train" and "data=files" not in call.words]
    typed = [word for call in found for word in call.words]
    words = [word for word in typed if "=" in word and not word.startswith("model")]  # a test of its own builds that
    small = ["model.d_model=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1", "watch=none", "search=greedy"]
    short = ["search.max_len_a=0", "search.max_len_b=2", "trainer=cpu", "run.folder=run"]
    command = [
        sys.executable,
        "-m",
        "diglot",
        "train",
        "--config-dir",
        "confs",
        *words,
        *small,
        *short,
        "run.updates=1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(own_parts)}
    done = subprocess.run(command, cwd=own_parts, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "1 weights/norm " in (own_parts / "run/metrics.txt").read_text()
    config = (own_parts / "run/config.yaml").read_text()
    for name in ("my_callback.WeightNorm", "my_corpus.Reversed", "my_logger.Lines", "my_position.Ramp"):
        assert name in config
    assert "diglot.training.schedule.Cosine" in config
