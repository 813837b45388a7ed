"""diglot-translate: translate lines of text, N in and N out."""

import sys

from omegaconf import DictConfig, OmegaConf

from diglot import checkpoint as checkpoints
from diglot.config import build, command, mistakes, resolved
from diglot.data.text import read_lines, split_lines, write_lines
from diglot.errors import UserError
from diglot.translator import Translator


@command("translate")
def main(config: DictConfig) -> None:
    translator = load_translator(config, checkpoints.load(config.checkpoint), config.tgt_lang)
    if config.input is not None:
        lines = read_lines(config.input)
    else:
        if sys.stdin.isatty():
            print("Translating what you type; end with Ctrl-D.", file=sys.stderr)
        lines = split_lines(sys.stdin.buffer.read(), "standard input")
    if config.tokens_per_batch < 1:
        raise UserError(f"tokens_per_batch={config.tokens_per_batch}: must be positive")
    show = config.input is not None or len(lines) > 100
    translations = translator.translate_all(lines, tokens_per_batch=config.tokens_per_batch, show=show)
    cut = sum(t.cut for t in translations)
    if cut:
        told = f"{cut} of {len(lines)} outputs were cut by the length limit (search.max_len_a, search.max_len_b)"
        print(told, file=sys.stderr)
    texts = [t.text for t in translations]
    if config.output is not None:
        write_lines(config.output, texts)
        print(f"{len(texts):,} lines: {config.output}", file=sys.stderr)
    else:
        try:
            sys.stdout.buffer.write("".join(f"{text}\n" for text in texts).encode())
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            sys.stdout = None  # type: ignore[assignment]  # nothing more can be flushed into it
            raise UserError(f"standard output: cannot be written ({error.strerror})") from None


def load_translator(config: DictConfig, loaded: checkpoints.Checkpoint, tgt_lang: str | None) -> Translator:
    """The checkpoint's translator, with what the config says of the search instead of the checkpoint's own."""
    wanted = {key: value for key, value in resolved(config.search).items() if value is not None}
    search = {**({} if "_target_" in wanted else loaded.record["search"]), **wanted}
    found = list(mistakes(search, "search"))
    if found:
        raise UserError("; ".join(found))
    return Translator.of(loaded, config.device, build(OmegaConf.create(search), "search"), tgt_lang)


if __name__ == "__main__":
    main()
