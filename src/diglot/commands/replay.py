"""diglot-replay: repeat a recorded update of a run, and show where its loss comes from."""

if __name__ == "__main__":  # before the imports, which take seconds
    from diglot.commands.start import start

    start("replay")


from diglot.commands.frame import command
from diglot.config import trusted
from diglot.errors import UserError
from diglot.runs.replay import Replay
from diglot.runs.replay_report import difference, is_same, report
from diglot.system.console import quiet
from diglot.system.glibc import keep_freed_memory
from diglot.system.gpu import exclude_cudnn_attention


@command("replay")
def main(*, record: str, data: str | None, pairs: int, trust: str | list[str]) -> None:
    if pairs < 1:
        raise UserError(f"pairs={pairs}: must be positive")
    quiet()
    keep_freed_memory()
    exclude_cudnn_attention()
    replay = Replay.of(record, trusted({"trust": trust}), data)
    repeated = replay.run()
    print(report(replay, repeated, pairs))
    if not is_same(replay, repeated):
        raise UserError(difference(replay, repeated))
