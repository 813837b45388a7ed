"""Reading of ZIP archives with one file per language whose lines correspond. OPUS distributes corpora in this form."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, zip_longest

from diglot.data.language import language_of_file
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
        return Languages(list(_members_by_language(path)))

    def pairs(self, path: str, sides: Sequence[Side], exact: Collection[str] = ()) -> Iterator[Pair]:
        members = _members_by_language(path)
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


def _members_by_language(path: str) -> dict[str, str]:
    """Return the members of an archive by the language in their names, or by their extension.

    The extension counts if a name has no language, or if several have the same, such as `t.en.1` and `t.en.2`.

    Raises:
        UserError: members have the same language and extension.
    """
    members = list_texts(path)
    extensions = [member.rpartition(".")[2] for member in members]
    languages = [language_of_file(member) or extension for member, extension in zip(members, extensions)]
    for keys in (languages, extensions):
        if len(set(keys)) == len(keys):
            return dict(zip(keys, members))
    raise UserError(f"{path}: files with the same extension: {format_names(members)}; unpack those that you want")


def _member_lines(path: str, member: str) -> Iterator[str]:
    with open_file(path, member) as file:
        yield from chain.from_iterable(line_blocks(file, f"{path}: {member}"))
