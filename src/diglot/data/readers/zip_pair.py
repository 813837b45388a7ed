"""Reading of ZIP archives with one file per language whose lines correspond. OPUS distributes corpora in this form."""

from collections.abc import Collection, Iterator
from itertools import chain, zip_longest

from diglot.data.readers.formats import Format, Pair
from diglot.data.readers.opening import list_texts, open_file
from diglot.data.readers.sides import Languages, Side, format_names
from diglot.data.text import line_blocks
from diglot.errors import UserError


class ZipPair(Format):
    """Archives of files such as Tatoeba.de-en.de and Tatoeba.de-en.en. Other files, such as README, are ignored."""

    name = "two files in a ZIP archive"

    def detects(self, head: bytes) -> bool:
        return False  # `detect_format` recognises an archive by its number of texts

    def languages(self, path: str) -> Languages:
        members = list_texts(path)
        endings = [member.rpartition(".")[2] for member in members]
        if len(set(endings)) < len(endings):
            names = format_names(members)
            raise UserError(f"{path}: files with the same extension: {names}; unpack those that you want")
        return Languages(endings)

    def pairs(self, path: str, src: Side, tgt: Side, exact: Collection[str] = ()) -> Iterator[Pair]:
        members = {member.rpartition(".")[2]: member for member in list_texts(path)}
        sides = [_member_lines(path, members[str(side[0])]) for side in (src, tgt)]
        for n_pairs, pair in enumerate(zip_longest(*sides)):
            if None in pair:
                shorter = pair.index(None)
                names = [members[str(side[0])] for side in (src, tgt)]
                n_longer = n_pairs + 1 + sum(1 for _ in sides[1 - shorter])
                raise UserError(
                    f"{path}: {names[shorter]} has {n_pairs} lines and {names[1 - shorter]} has {n_longer} lines; "
                    "both must have one line per pair"
                )
            yield pair[0], pair[1]


def _member_lines(path: str, member: str) -> Iterator[str]:
    with open_file(path, member) as file:
        yield from chain.from_iterable(line_blocks(file, f"{path}: {member}"))
