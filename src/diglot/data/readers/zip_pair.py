"""Reading of a ZIP archive with a file per language, whose lines correspond, as OPUS distributes corpora."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, zip_longest

from diglot.data.readers.formats import Format, Pair, given
from diglot.data.readers.opening import opened, texts_in
from diglot.data.readers.sides import Languages, Side, listed
from diglot.data.text import line_blocks
from diglot.errors import UserError


class ZipPair(Format):
    """Files such as Tatoeba.de-en.de and Tatoeba.de-en.en in an archive; others, such as README, are ignored."""

    name = "two files in a ZIP archive"

    def detects(self, head: bytes) -> bool:
        return False  # `opened` decompresses an archive with one text; one with several has no head

    def languages(self, path: str) -> Languages:
        members = texts_in(path)
        endings = [member.rpartition(".")[2] for member in members]
        if len(set(endings)) < len(endings):
            raise UserError(f"{path}: several of its files end alike: {listed(members)}; unpack those that you want")
        return Languages(endings)

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        members = {member.rpartition(".")[2]: member for member in texts_in(path)}
        names = [members[str(side[0])] for side in sides]
        texts = [_lines(path, name) for name in names]
        for n_pairs, pair in enumerate(zip_longest(*texts)):
            if None in pair:
                shorter, longer = pair.index(None), [line is not None for line in pair].index(True)
                counts = {names[shorter]: n_pairs, names[longer]: n_pairs + 1 + sum(1 for _ in texts[longer])}
                told = " and ".join(f"{name} has {count} lines" for name, count in counts.items())
                raise UserError(f"{path}: {told}; both must have one line per pair")
            src, tgt, *more = pair
            yield src, tgt, *map(given, more)


def _lines(path: str, member: str) -> Iterator[str]:
    with opened(path, member) as file:
        yield from chain.from_iterable(line_blocks(file, f"{path}: {member}"))
