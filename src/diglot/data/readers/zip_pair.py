"""Reading of ZIP archives with one file per language whose lines correspond. OPUS distributes corpora in this form."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, zip_longest

from diglot.data.readers.formats import Format, Pair, given
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

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        members = {member.rpartition(".")[2]: member for member in list_texts(path)}
        names = [members[str(side[0])] for side in sides]
        texts = [_member_lines(path, name) for name in names]
        for n_pairs, pair in enumerate(zip_longest(*texts)):
            if None in pair:
                shorter, longer = pair.index(None), [line is not None for line in pair].index(True)
                n_longer = n_pairs + 1 + sum(1 for _ in texts[longer])
                raise UserError(
                    f"{path}: {names[shorter]} has {n_pairs} lines and {names[longer]} has {n_longer} lines; "
                    "both must have one line per pair"
                )
            src, tgt, *more = pair
            yield src, tgt, *map(given, more)


def _member_lines(path: str, member: str) -> Iterator[str]:
    with open_file(path, member) as file:
        yield from chain.from_iterable(line_blocks(file, f"{path}: {member}"))
