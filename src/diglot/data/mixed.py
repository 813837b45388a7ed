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
    """Several corpora of files, each with a weight, in one language pair or in several.

    If the target languages differ, each source gets a tag that names its target language (Johnson et al., 2017).

    Args:
        corpora: corpora by name. Each corpus has the keys of `Files.train` ({"src": ..., "tgt": ...}, {"file": ...},
            ...) and optional keys: "weight" is the number of times that a pass over the data contains the corpus
            (default: 1); "src_lang" and "tgt_lang" are its languages, if they are not the extensions of its files.
        dev: paths of dev, as for `Files`, in one language pair.
        test: paths of test, as for `Files`; None: there is no test.
        src_lang: code of the source language of dev and test, and of the corpora without "src_lang"; None: the
            extension of the files, or else "src".
        tgt_lang: code of the target language, in the same way; or else "tgt".
        columns: columns of source and target; see `Files`.
        reader: user-defined reader; see `Files`.
        name: name of the mixture.

    Raises:
        UserError: there is no corpus, a path is missing, a weight is not positive, or a language is ambiguous. The
            message names the key.
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
        option_keys = ("weight", "src_lang", "tgt_lang")
        for corpus, paths in corpora.items():
            node = f"data.corpora.{corpus}"
            if not isinstance(paths, Mapping):
                raise UserError(f"{node}={paths}: must be a mapping, such as {{src: a.de, tgt: a.en}}")
            weight = paths.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
                raise UserError(f"{node}.weight={weight}: must be a positive number")
            self.weights[corpus] = float(weight)
            languages = {"src_lang": paths.get("src_lang", src_lang), "tgt_lang": paths.get("tgt_lang", tgt_lang)}
            for key, language in languages.items():
                if language is not None and not isinstance(language, str):
                    raise UserError(f"{node}.{key}={language}: must be a language code, in quotes")
            train = {key: value for key, value in paths.items() if key not in option_keys}
            try:
                self.files[corpus] = Files(train=train, columns=columns, reader=reader, **languages)
            except UserError as error:
                message = str(error).replace("data.train", node)
                raise UserError(message.replace("the keys are ", f"the keys are {', '.join(option_keys)}, ")) from None
            self._refuse_contradiction(corpus, paths)
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
        given_languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
        self.src_lang, self.tgt_lang = self._language("src_lang"), self._language("tgt_lang")
        for corpus, files in self.files.items():
            _refuse_ambiguous_names(f"data.corpora.{corpus}", files.paths["train"], files, corpora[corpus])
        _refuse_ambiguous_names(
            "data", self.held_out.paths["dev"], self, {key: code for key, code in given_languages.items() if code}
        )
        self.src_langs = {corpus: files.src_lang for corpus, files in self.files.items()}
        tgt_langs = {corpus: files.tgt_lang for corpus, files in self.files.items()}
        self.tgt_langs = tgt_langs if len(set(tgt_langs.values())) > 1 else {}
        if self.tgt_lang not in tgt_langs.values():
            raise UserError(
                f"data.tgt_lang: the target language of dev is {self.tgt_lang}, but those of the corpora are "
                f"{', '.join(sorted(set(tgt_langs.values())))}"
            )

    def _language(self, key: str) -> str:
        """Return the language of a side of dev, and set that of corpora whose file names do not contain it.

        Such a corpus gets the language that all other corpora have.

        Args:
            key: side, as "src_lang" or "tgt_lang".
        """
        generic = key.removesuffix("_lang")
        languages = {getattr(files, key) for files in self.files.values()} - {generic}
        dev_language = getattr(self.held_out, key)
        if not languages and dev_language != generic:
            languages = {dev_language}
        for corpus, files in self.files.items():
            if getattr(files, key) == generic and languages:
                if len(languages) > 1:
                    raise UserError(
                        f"data.corpora.{corpus}.{key} is missing: its file names do not contain it, and the other "
                        f"corpora have {', '.join(sorted(languages))}"
                    )
                setattr(files, key, *languages)
        if dev_language != generic:
            return str(dev_language)
        if len(languages) > 1:
            raise UserError(f"data.{key} is missing: the corpora have several languages; type the language of dev")
        return languages.pop() if languages else generic

    def _refuse_contradiction(self, corpus: str, paths: Mapping[str, Any]) -> None:
        """Check that the files of a corpus are not named after another language than data.src_lang or data.tgt_lang.

        Raises:
            UserError: they are, and the corpus has no key for the language.
        """
        files = self.files[corpus]
        by_name = Files(train=files.paths["train"]) if "src" in files.paths["train"] else files
        for key in ("src_lang", "tgt_lang"):
            named_language, language = getattr(by_name, key), getattr(files, key)
            if key not in paths and named_language not in (language, "src", "tgt"):
                raise UserError(
                    f"data.corpora.{corpus}: its file names say {key}={named_language}, but data.{key} is {language}; "
                    f"type data.corpora.{corpus}.{key}=CODE"
                )

    def read(self, cache_dir: Path) -> Mapping[str, Parallel]:
        train_texts = {corpus: files.given()["train"] for corpus, files in self.files.items()}
        held_out = self.held_out.given()
        self.notes = [
            f"{name}: {note}" for name, pairs in {**train_texts, **held_out}.items() for note in reading_notes(pairs)
        ]
        for corpus, train in train_texts.items():
            train.name = corpus
            if self.files[corpus].src_lang != self.files[corpus].tgt_lang:
                refuse_equal_sides(f"data.corpora.{corpus}", train)
        return {"train": MixedText(train_texts, self.weights, self.tgt_langs), **held_out}

    def describe(self) -> str:
        parts = [
            f"{corpus} ({f'{files.src_lang}-{files.tgt_lang}, ' if self.tgt_langs else ''}weight {weight:g})"
            for (corpus, files), weight in zip(self.files.items(), self.weights.values())
        ]
        return f"{self.name}: {self.src_lang}-{self.tgt_lang} from {', '.join(parts)}"


def _refuse_ambiguous_names(
    key: str, paths: Mapping[str, Sequence[str]], corpus: Corpus, given: Mapping[str, Any]
) -> None:
    """Check that the name of a file does not consist of two languages, neither of which is that of the file.

    For example, fr-ca may be French and Catalan, or French of Canada, but not German.

    Args:
        key: config key of the corpus in errors.
        paths: paths of the corpus.
        corpus: the corpus.
        given: languages that the user typed, by key.

    Raises:
        UserError: the name of a file is ambiguous in this way.
    """
    for side in ("src", "tgt"):
        name, language = f"{side}_lang", getattr(corpus, f"{side}_lang")
        if side not in paths or name in given or language == side:
            continue
        if halves := ambiguous_pair(paths[side][0], language):
            message = f"the name of {paths[side][0]} may mean {' and '.join(halves)}, or {'-'.join(halves)}"
            raise UserError(f"{key}: {message}, but its {name} would be {language}; type {key}.{name}=CODE")
