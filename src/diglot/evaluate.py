"""diglot-evaluate: score a checkpoint with BLEU, chrF++ and TER."""

from pathlib import Path

from omegaconf import DictConfig

from diglot import checkpoint as checkpoints
from diglot.config import build_corpus, command
from diglot.data.corpus import SPLITS, Corpus, Files
from diglot.errors import UserError
from diglot.evaluation import EvaluationSet, evaluate, kept_text, table
from diglot.training.metrics import Scorer
from diglot.translate import load_translator
from diglot.translator import Translator


@command("evaluate")
def main(config: DictConfig) -> None:
    path = checkpoints.find(config.checkpoint)
    if config.split not in SPLITS:
        raise UserError(f"split={config.split}: must be one of {', '.join(SPLITS)}")
    loaded = checkpoints.load(path)
    corpus = build_corpus(config.data) if config.get("data") is not None else None
    # Of a model for one language tgt_lang only says what its scores are computed by.
    wanted: str | None = config.tgt_lang or (corpus.tgt_lang if corpus else None)
    is_known = wanted in loaded.tokenizer.languages
    if config.tgt_lang and loaded.tokenizer.languages and not is_known:
        raise UserError(f"tgt_lang={wanted}: this model translates into {', '.join(loaded.tokenizer.languages)}")
    translator = load_translator(config, loaded, wanted if is_known else None)
    evaluated = text_to_score(config, corpus, translator, path)
    scorer = Scorer(config.tgt_lang or translator.tgt_lang or translator.record["tgt_lang"])
    folder = Path(config.output) if config.output else path.parent / "evaluation" / evaluated.split
    results = evaluate(translator, evaluated, scorer, folder)
    print("\n".join(table(results)))
    print(f"Hypotheses, references and results: {results['folder']}/")


def text_to_score(config: DictConfig, corpus: Corpus | None, translator: Translator, path: Path) -> EvaluationSet:
    """The text that the command line names, else the copy in the checkpoint's run folder."""
    if corpus is not None:
        languages = f"{corpus.src_lang}-{corpus.tgt_lang}"
        trained = f"{translator.record['src_lang']}-{translator.record['tgt_lang']}"
        # What files are called says little, and a model of several languages is told by them.
        free = isinstance(corpus, Files) or corpus.tgt_lang in translator.tokenizer.languages
        if not free and languages != trained:
            raise UserError(f"data={corpus.name} is {languages}, but the checkpoint translates {trained}")
        corpus.prepare(Path(config.data.cache_dir))
        splits = corpus.read(Path(config.data.cache_dir))
        if config.split not in splits:
            raise UserError(f"{corpus.name} has no {config.split} split; it has {', '.join(splits)}")
        return EvaluationSet(corpus.name, config.split, splits[config.split].load())
    found = kept_text(path.parent / "text", config.split, translator.record["src_lang"], translator.record["tgt_lang"])
    if found is None:
        raise UserError(
            f"there is no copy of the {config.split} text beside {path}: say what to score on, "
            f"data=files data.{config.split}.src=FILE data.{config.split}.tgt=FILE or data=NAME"
        )
    return found


if __name__ == "__main__":
    main()
