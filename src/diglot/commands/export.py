"""diglot-export: write a checkpoint's model for other programs: CTranslate2, or whatever reads safetensors."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("export")


from pathlib import Path

from omegaconf import DictConfig

from diglot.checkpoint import file as checkpoints
from diglot.commands.frame import command
from diglot.config import trusted
from diglot.errors import UserError
from diglot.export.folder import refuse_foreign
from diglot.export.writing import export
from diglot.system.quoting import printable


@command("export")
def main(config: DictConfig) -> None:
    path = checkpoints.find(config.checkpoint)
    if config.check < 0:
        raise UserError(f"check={config.check}: must not be negative")
    if config.format == "safetensors" and config.input is not None:
        raise UserError(f"input={config.input}: with format=safetensors nothing is compared")
    folder = Path(config.output).expanduser() if config.output else path.parent / config.format
    refuse_foreign(folder)
    loaded = checkpoints.load(path, trusted(config))
    print(printable("\n".join(export(loaded, config.format, folder, "format", config.check, config.input)), keep="\n"))
