"""Reading of a ZIP archive with a file per language, whose lines correspond, as OPUS distributes corpora."""

from collections.abc import Collection, Iterator
from itertools import chain, zip_longest

from diglot.data.language import language_of_file
from diglot.data.readers.formats import Format, Pair
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
        languages = [_language_of(member) for member in members]
        if len(set(languages)) < len(languages):
            raise UserError(f"{path}: several of its files end alike: {listed(members)}; unpack those that you want")
        return Languages(languages)

    def pairs(self, path: str, src: Side, tgt: Side, exact: Collection[str] = ()) -> Iterator[Pair]:
        members = {_language_of(member): member for member in texts_in(path)}
        sides = [_lines(path, members[str(side[0])]) for side in (src, tgt)]
        for n_pairs, pair in enumerate(zip_longest(*sides)):
            if None in pair:
                shorter = pair.index(None)
                counts = [n_pairs, n_pairs + 1 + sum(1 for _ in sides[1 - shorter])]
                names = [members[str(side[0])] for side in (src, tgt)]
                told = " and ".join(f"{names[i]} has {count} lines" for i, count in zip((shorter, 1 - shorter), counts))
                raise UserError(f"{path}: {told}; both must have one line per pair")
            yield pair[0], pair[1]


def _language_of(member: str) -> str:
    """Return the language in the name of a member, or else its ending."""
    return language_of_file(member) or member.rpartition(".")[2]


def _lines(path: str, member: str) -> Iterator[str]:
    with opened(path, member) as file:
        yield from chain.from_iterable(line_blocks(file, f"{path}: {member}"))
