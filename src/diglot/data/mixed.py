"""Several corpora combined into one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diglot.data.corpus import Corpus, Files, Paths, reading_notes, refuse_equal_sides
from diglot.data.language import ambiguous_pair
from diglot.data.readers.reading import Reader
from diglot.data.readers.sides import Column
from diglot.data.text import MixedText, Parallel
from diglot.errors import UserError


class Mixed(Corpus):
    """Several corpora of files, each with a weight, of one language pair or of several.

    If the target languages differ, each source gets a tag that names its target language (Johnson et al., 2017).

    Args:
        corpora: corpora by name. Each has the keys of `Files.train` ({"src": ..., "tgt": ...}, {"file": ...}, ...) and
            optional keys: "weight", the number of times that a pass over the data holds the corpus (1
            by default); "src_lang" and "tgt_lang", if they are not the files' extensions.
        dev: as for `Files`; of one language pair.
        test: as for `Files`, or None.
        src_lang: language code of dev and test, and of the corpora without "src_lang"; None takes the files' extension,
            else "src".
        tgt_lang: the same for the target.
        columns: see `Files`.
        reader: see `Files`.
        name: name of the mixture.

    Raises:
        UserError: there is no corpus, a path is missing, a weight is not positive, or a language is ambiguous;
            the message names the key.
    """

    def __init__(
        self,
        *,
        corpora: Mapping[str, Mapping[str, Any]],
        dev: Paths,
        test: Paths | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        columns: Sequence[Column | Sequence[Column]] = (0, 1),
        reader: Reader | None = None,
        name: str = "mixed",
    ) -> None:
        super().__init__()
        self.name = name
        if not corpora:
            raise UserError("data.corpora is empty; type '+data.corpora.news={src: a.de, tgt: a.en}' to add one")
        self.weights: dict[str, float] = {}
        self.files: dict[str, Files] = {}
        own = ("weight", "src_lang", "tgt_lang")
        for corpus, paths in corpora.items():
            here = f"data.corpora.{corpus}"
            if not isinstance(paths, Mapping):
                raise UserError(f"{here}={paths}: must be a mapping, such as {{src: a.de, tgt: a.en}}")
            weight = paths.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
                raise UserError(f"{here}.weight={weight}: must be a positive number")
            self.weights[corpus] = float(weight)
            languages = {"src_lang": paths.get("src_lang", src_lang), "tgt_lang": paths.get("tgt_lang", tgt_lang)}
            for key, language in languages.items():
                if language is not None and not isinstance(language, str):
                    raise UserError(f"{here}.{key}={language}: must be a language code, in quotes")
            train = {key: value for key, value in paths.items() if key not in own}
            try:
                self.files[corpus] = Files(train=train, columns=columns, reader=reader, **languages)
            except UserError as error:
                told = str(error).replace("data.train", here)
                raise UserError(told.replace("the keys are ", f"the keys are {', '.join(own)}, ")) from None
            self._refuse_doubt(corpus, paths)
        try:
            self.held_out = Files(
                train={},
                dev=dev,
                test=test,
                src_lang=src_lang,
                tgt_lang=tgt_lang,
                columns=columns,
                reader=reader,
                name="dev",
            )
        except UserError as error:
            raise UserError(str(error).replace("data.train", "data.dev")) from None
        if not self.held_out.paths["dev"]:
            raise UserError("data.dev.src is missing: with several corpora, dev is not split off automatically")
        given = {"src_lang": src_lang, "tgt_lang": tgt_lang}
        self.src_lang, self.tgt_lang = self._language("src_lang"), self._language("tgt_lang")
        for corpus, files in self.files.items():
            _refuse_pairs(f"data.corpora.{corpus}", files.paths["train"], files, corpora[corpus])
        _refuse_pairs("data", self.held_out.paths["dev"], self, {key: code for key, code in given.items() if code})
        self.src_langs = {corpus: files.src_lang for corpus, files in self.files.items()}
        into = {corpus: files.tgt_lang for corpus, files in self.files.items()}
        self.tgt_langs = into if len(set(into.values())) > 1 else {}
        if self.tgt_lang not in into.values():
            raise UserError(
                f"data.tgt_lang: the target language of dev is {self.tgt_lang}, but those of the corpora are "
                f"{', '.join(sorted(set(into.values())))}"
            )

    def _language(self, key: str) -> str:
        """Return the language of a side of dev.

        A corpus whose files' names do not give its language gets the language of all others.
        """
        unknown = key.removesuffix("_lang")
        known = {getattr(files, key) for files in self.files.values()} - {unknown}
        of_dev = getattr(self.held_out, key)
        if not known and of_dev != unknown:
            known = {of_dev}
        for corpus, files in self.files.items():
            if getattr(files, key) == unknown and known:
                if len(known) > 1:
                    raise UserError(
                        f"data.corpora.{corpus}.{key} is missing: its file names do not contain it, and the other "
                        f"corpora have {', '.join(sorted(known))}"
                    )
                setattr(files, key, *known)
        if of_dev != unknown:
            return str(of_dev)
        if len(known) > 1:
            raise UserError(f"data.{key} is missing: the corpora have several languages; which one does dev have?")
        return known.pop() if known else unknown

    def _refuse_doubt(self, corpus: str, paths: Mapping[str, Any]) -> None:
        """Raise UserError if a corpus's files are named after another language than data.src_lang or data.tgt_lang."""
        files = self.files[corpus]
        called = Files(train=files.paths["train"]) if "src" in files.paths["train"] else files
        for key in ("src_lang", "tgt_lang"):
            name, taken = getattr(called, key), getattr(files, key)
            if key not in paths and name not in (taken, "src", "tgt"):
                raise UserError(
                    f"data.corpora.{corpus}: its file names say {key}={name}, but data.{key} is {taken}; "
                    f"type data.corpora.{corpus}.{key}=CODE"
                )

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        trains = {corpus: files.given()["train"] for corpus, files in self.files.items()}
        held_out = self.held_out.given()
        self.notes = [
            f"{name}: {note}" for name, pairs in {**trains, **held_out}.items() for note in reading_notes(pairs)
        ]
        for corpus, train in trains.items():
            train.name = corpus
            if self.files[corpus].src_lang != self.files[corpus].tgt_lang:
                refuse_equal_sides(f"data.corpora.{corpus}", train)
        return {"train": MixedText(trains, self.weights, self.tgt_langs), **held_out}

    def describe(self) -> str:
        parts = [
            f"{corpus} ({f'{files.src_lang}-{files.tgt_lang}, ' if self.tgt_langs else ''}weight {weight:g})"
            for (corpus, files), weight in zip(self.files.items(), self.weights.values())
        ]
        return f"{self.name}: {self.src_lang}-{self.tgt_lang} from {', '.join(parts)}"


def _refuse_pairs(key: str, paths: Mapping[str, Sequence[str]], corpus: Corpus, given: Mapping[str, Any]) -> None:
    """Raise UserError if a file's name may be two languages, or one and its region, and neither is the file's language.

    For example, fr-ca may be French and Catalan, or French of Canada, but not German.
    """
    for side in ("src", "tgt"):
        name, taken = f"{side}_lang", getattr(corpus, f"{side}_lang")
        if side not in paths or name in given or taken == side:
            continue
        if halves := ambiguous_pair(paths[side][0], taken):
            told = f"the name of {paths[side][0]} may mean {' and '.join(halves)}, or {'-'.join(halves)}"
            raise UserError(f"{key}: {told}, but its {name} would be {taken}; type {key}.{name}=CODE")
