"""The model card (README.md) of an export: what the model is, its scores with their signatures, and how to use it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diglot.checkpoint.file import Checkpoint, home
from diglot.config.meaning import meaning_of
from diglot.data.language import iso_639
from diglot.data.text import file_hash
from diglot.export.parity import language_pairs
from diglot.huggingface import hub_models
from diglot.huggingface.stock_tokenizer import StockTokenizer
from diglot.system.quoting import printable

SPLITS = ("dev", "test")
CERTIFICATE = "certificate.json"  # file that `make certify` writes into a run's folder
N_LISTED = 10  # the text names at most so many languages
_PIPE = r"\|"  # a pipe inside a table

_USE = """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = "."  # this folder
tokenizer = AutoTokenizer.from_pretrained(folder{src_lang})
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
batch = tokenizer([{example}], return_tensors="pt", padding=True)
found = model.generate(**batch{first})
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```"""


def model_card(loaded: Checkpoint, class_name: str, stock: StockTokenizer) -> str:
    """Return the text of a model card in the form of the Hugging Face Hub.

    Args:
        loaded: the checkpoint. Scores, command and versions come from the run's folder, if it is in one.
        class_name: the class of the exported model.
        stock: the exported tokenizer.
    """
    record, tokenizer = loaded.record, loaded.tokenizer
    scores = dict(_scores(loaded))
    n_parameters = sum(weight.numel() for weight in loaded.model.parameters())
    title = f"# {record['src_lang']}-{record['tgt_lang']}"
    parts = [
        _metadata(loaded, scores),
        title if _is_imported(loaded) else f"{title} ({record['corpus']})",
        f"A sequence-to-sequence Transformer {_translates(loaded)}, {_origin(loaded)} diglot and exported as "
        f"{class_name}. It has {n_parameters:,} parameters and {tokenizer.src_vocab_size:,} source pieces.",
        "## Use",
        _use(loaded, stock),
        *_limits(loaded),
        "## Scores",
        *_score_table(scores),
        *_certificate(loaded),
        "## Training",
        *_training(loaded),
        _licence(loaded),
    ]
    return printable("\n\n".join(parts), keep="\n") + "\n"


def _is_imported(loaded: Checkpoint) -> bool:
    """Return whether the checkpoint is a folder of transformers, which no run has trained."""
    return loaded.path.is_dir()


def _init_from(loaded: Checkpoint) -> str | None:
    """Return the name of the checkpoint that the run started with; None if it started with random weights."""
    name = loaded.record.get("config", {}).get("init_from")
    return name if isinstance(name, str) else None


def _base_model(loaded: Checkpoint) -> tuple[str, str] | None:
    """Return the name and the commit of the Hub's model that the run started with; None for any other start."""
    init_from = _init_from(loaded)
    if init_from is None or not hub_models.is_commit(init_from):
        return None
    name, _, commit = init_from.partition("@")
    return name, commit


def _origin(loaded: Checkpoint) -> str:
    """Return how a model came into being, in words that a preposition ends."""
    if _is_imported(loaded):
        return "read from a folder of the library transformers by"
    if _init_from(loaded) is None:
        return "trained with"
    base = _base_model(loaded)
    return "fine-tuned with" if base is None else f"fine-tuned from {base[0]} (commit {base[1][:12]}) with"


def _licence(loaded: Checkpoint) -> str:
    is_adapted = _is_imported(loaded) or _init_from(loaded) is not None
    others = ", and on that of the original model. They are not" if is_adapted else ", which is not"
    return f"The licence of the model depends on that of the training data{others} recorded here."


def _translates(loaded: Checkpoint) -> str:
    """Return from which languages into which a model translates, in words. `_use` names the tags of both sides."""
    tokenizer, record = loaded.tokenizer, loaded.record
    src, tgt = record["src_lang"], record["tgt_lang"]
    languages = tokenizer.languages
    if tokenizer.reads_src_lang and tokenizer.find_language(tgt) is None:
        return f"for {len(languages)} languages"
    if languages and not tokenizer.reads_src_lang:
        tgt = ", ".join(languages) if len(languages) <= N_LISTED else f"{len(languages)} languages"
    return f"from {src} to {tgt}"


def _use(loaded: Checkpoint, stock: StockTokenizer) -> str:
    """Return an example in Python, in the languages of the run if these have tags, or else in the first ones."""
    tokenizer, (languages, *_) = loaded.tokenizer, language_pairs(loaded.tokenizer, loaded.record)
    src, tgt = map(tokenizer.find_language, languages)
    spelt = {"src_lang": src, "tgt_lang": tgt}.get(next(iter(tokenizer.prefixes.src), ""))
    text = json.dumps(stock.spelt("text", spelt))
    src_lang = stock.language(src)
    words = {"src_lang": "" if src_lang is None else f", src_lang={json.dumps(src_lang)}", "first": ""}
    notes = ""
    if tgt is not None and "tgt_lang" in tokenizer.prefixes.tgt:
        token = json.dumps(stock.tags[tgt])
        words["first"] = f", forced_bos_token_id=tokenizer.convert_tokens_to_ids({token})"
        given = "the tag before the text" if src_lang is None else "`src_lang`"
        notes = (
            f"\n\nThe language of the text is given by {given}, and the language of the translation by "
            f"`forced_bos_token_id`, the id of its tag. The tags are `{'`, `'.join(stock.tags.values())}`."
        )
    return _USE.format(example=text, **words) + notes


def _metadata(loaded: Checkpoint, scores: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the YAML block at the start of the card. JSON is used for text, because each JSON string is also YAML."""
    record, tokenizer = loaded.record, loaded.tokenizer
    spelt = [record["src_lang"], *(tokenizer.languages or [record["tgt_lang"]])]
    codes = dict.fromkeys(code for code in map(iso_639, spelt) if code is not None)  # the Hub refuses any other
    lines = ["---", "library_name: transformers", "pipeline_tag: translation", "tags: [translation, diglot]"]
    lines += [f"base_model: {base[0]}"] if (base := _base_model(loaded)) else []
    lines += ["language:", *(f"- {json.dumps(code)}" for code in codes)] if codes else []
    if scores:
        lines += ["model-index:", f"- name: {json.dumps(record['corpus'])}", "  results:"]
    for split, values in scores.items():
        lines += ["  - task: {type: translation}"]
        lines += [f"    dataset: {{type: text, name: {json.dumps(record['corpus'])}, split: {split}}}", "    metrics:"]
        for score in values:
            name, signature = json.dumps(score["name"]), json.dumps(score["signature"])
            lines += [f"    - {{type: {name}, name: {name}, value: {score['value']:.2f}, args: {signature}}}"]
    return "\n".join([*lines, "---"])


def _limits(loaded: Checkpoint) -> Iterator[str]:
    """Yield what a user of the model must do to text, beyond what its tokenizer does."""
    tokenizer = loaded.tokenizer
    if tokenizer.placeholder:
        yield (
            "In training, placeholders were replaced by private-use characters from U+E000 on, in the order of the "
            "source. `diglot.json` has their regular expression. Text without placeholders needs nothing."
        )
    if tokenizer.marks_capitals:
        yield "A source in capitals must be put in lower case, with `<capitals>` before it: `<capitals>turn on`."
    yield (
        "`generate` ranks hypotheses by log P(Y) / |Y|^length_penalty, and diglot by log P(Y) / ((5 + |Y|) / "
        "6)^length_penalty. With one beam, both give the same translations."
    )


def _score_table(scores: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    if not scores:
        yield "None was recorded for this checkpoint."
        return
    rows = ["| text | metric | score | signature |", "|---|---|---:|---|"]
    rows += [
        f"| {split} | {score['name']} | {score['value']:.2f} | `{score['signature'].replace('|', _PIPE)}` |"
        for split, values in scores.items()
        for score in values
    ]
    yield "\n".join(rows)


def certificate_of(loaded: Checkpoint) -> dict[str, Any] | None:
    """Return the content of the certificate in a checkpoint's folder, if it covers this checkpoint."""
    content = _read(loaded.path.parent / CERTIFICATE)
    runs = content.get("runs")
    files = [run.get("files") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    hashes = [each.get(loaded.path.name) for each in files if isinstance(each, dict)]
    return content if any(hashes) and loaded.path.is_file() and file_hash(loaded.path) in hashes else None


def _certificate(loaded: Checkpoint) -> Iterator[str]:
    """Yield what a certificate states about this checkpoint's run and the runs with other seeds."""
    content = certificate_of(loaded)
    if content is None:
        return
    n_runs = len(content["runs"])
    runs = f"{n_runs} runs with different seeds, one of them this model's" if n_runs > 1 else "the training run"
    yield (
        f"`{CERTIFICATE}` in this folder certifies {runs}. It has hashes of data, tokenizer, weights and outputs, and "
        f"the losses of the first updates. `make verify certificate={CERTIFICATE}` in a checkout of diglot checks it."
    )
    rows = ["| text | metric | mean | standard deviation |", "|---|---|---:|---:|"]
    for split in SPLITS:
        for mean in content.get(split) or ():
            name, value, deviation = str(mean["name"]).replace("|", _PIPE), mean["mean"], mean["deviation"]
            rows.append(f"| {split} | {name} | {value:.2f} | {'' if deviation is None else f'{deviation:.2f}'} |")
    yield "\n".join(rows)


def _scores(loaded: Checkpoint) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the splits on which this checkpoint was evaluated, with their scores."""
    folder, update = home(loaded.path), loaded.record.get("update")
    for split in SPLITS:
        results = _read(folder / "evaluation" / split / "results.json")
        if results.get("update") == update and isinstance(results.get("scores"), list):
            yield split, results["scores"]


def _training(loaded: Checkpoint) -> Iterator[str]:
    if _is_imported(loaded):
        yield "The folder does not say how the model was trained."
        return
    environment = _read(home(loaded.path) / "environment.json")
    update = loaded.record.get("update")  # a mean, and an imported model, have none
    yield f"Corpus: {loaded.record['corpus']}." + ("" if update is None else f" Updates: {update:,}.")
    words = [word for word in environment.get("command", []) if isinstance(word, str) and not _names_a_path(word)]
    if environment:
        yield f"Command, without paths: `{' '.join(['make train', *words])}`"
        packages = environment.get("packages", {})
        versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "sentencepiece") if name in packages)
        yield f"Versions: diglot {environment.get('diglot')} (commit {environment.get('commit')}), {versions}."


def _names_a_path(word: str) -> bool:
    """Return whether an override has a path, which says nothing to others, or may be a secret."""
    key, _, value = word.partition("=")
    meaning = meaning_of(key.lstrip("+~"))
    return meaning.content is not None or meaning.on_resume == "ignore" or meaning.may_rotate or "/" in value


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; {} if there is none, or if it is not an object."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
