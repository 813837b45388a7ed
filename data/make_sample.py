"""Writes data/sample: a small parallel corpus of two invented languages, avi and bol.

Usage: python data/make_sample.py [--check]

A synchronous grammar makes both sides at once, so that a translation is right by construction and each source has
one translation only. What a model has to learn from it:

    ==================  ====================================  ===============================================
                        avi                                   bol
    ==================  ====================================  ===============================================
    order               subject, verb, objects, place         time, subject, place, objects, verb
    noun phrase         article, number, noun, adjectives     article, adjectives, noun, number
    noun classes        three, shown by the noun's ending     none
    agreement           article, adjective and verb with      none
                        class and number of their noun
    case                none (prepositions)                   suffixes; a word of its own after names
    number              the ending of the noun                suffix, but singular after a numeral
    tense               particle before the verb              suffix of the verb
    negation            particle before the tense             word after the verb
    question            particle at the start                 word at the end
    subordinate clause  after the main clause                 before the main clause, conjunction at its end
    relative clause     after its noun                        before its noun
    ==================  ====================================  ===============================================

The output depends on this file alone: standard library, one seeded generator.
"""

# ruff: noqa: SIM905 (a lexicon reads better as text than as a list of quoted words)

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEED = 20240229
SIZES = {"train": 4000, "dev": 200, "test": 200}
MIN_WORDS, MAX_WORDS = 3, 25
FOLDER = Path(__file__).parent / "sample"

# The lexicon is listed by meaning; the words themselves are drawn from the letters of each language.
NOUNS = """
    bird dog horse fish wolf bear king queen child teacher doctor farmer sailor baker singer hunter friend sister
    brother neighbour house tree river mountain garden stone flower boat door window table book letter song bread
    apple lamp key coat hat knife wheel bell star road bridge field wall basket rope drum mirror ring coin
""".split()
PLACES = "market forest village harbour school kitchen tower island castle valley".split()
ADJECTIVES = """
    big small old new red green white black good bad long short heavy light quick slow warm cold quiet loud brave
    clever happy strange
""".split()
TRANSITIVE = "see find carry hold love hate buy sell paint break hide wash follow hear remember lose open count".split()
INTRANSITIVE = "sleep laugh run fall sing wait swim dance return work".split()
DITRANSITIVE = "give show send bring".split()
SAYING = "say know believe hope".split()
ADVERBS = "today yesterday often never always soon here again".split()
NUMERALS = "two three four five six seven eight nine ten".split()
PRONOUNS = "I you we".split()
SUBORDINATORS = "because when if although".split()
# The grammar uses these as they are, so no stem may look like them.
PARTICLES = "ka ne ta su pe in ke et dal kin mu nok tek ul mo sa ker om eth agh".split()
# fmt: off
MEANINGS = [
    *NOUNS, *PLACES, *ADJECTIVES, *TRANSITIVE, *INTRANSITIVE, *DITRANSITIVE, *SAYING, *ADVERBS, *NUMERALS, *PRONOUNS,
    *SUBORDINATORS,
]
# fmt: on
# Names and placeholders stand unchanged on both sides.
NAMES = "Mira Tavo Lene Ruda Kelo Sorine Vanta Bordo Elise Nadia Pablo Gerte Olga Marko Irene".split()

# avi: one ending for each noun class and number; articles, adjectives and verbs repeat it.
CLASSES = "aoe"
ENDINGS = {("a", 1): "a", ("a", 2): "an", ("o", 1): "o", ("o", 2): "os", ("e", 1): "e", ("e", 2): "er"}
PERSON_ENDINGS = {"I": "im", "you": "it", "we": "iv"}
AVI_TENSES = {"present": [], "past": ["ta"], "future": ["su"]}
# bol: the cases of a noun (a suffix) and of a name (a word of its own).
NOUN_CASES = {"subject": "", "object": "um", "recipient": "et", "place": "ag"}
NAME_CASES = {"subject": [], "object": ["om"], "recipient": ["eth"], "place": ["agh"]}
BOL_PLURAL = "ik"
BOL_TENSES = {"present": "ar", "past": "ond", "future": "esk"}


@dataclass(frozen=True)
class Phrase:
    """The same phrase in both languages; `agreement` is the ending that a noun phrase asks of its avi verb."""

    avi: list[str]
    bol: list[str]
    agreement: str = ""


def draw_lexicon(rng: random.Random) -> tuple[dict[str, str], dict[str, str]]:
    """Draws a stem in avi and one in bol for each meaning; no stem is drawn twice."""
    avi: dict[str, str] = {}
    bol: dict[str, str] = {}
    taken = set(PARTICLES)

    def draw(*alphabets: str) -> str:
        while (word := "".join(rng.choice(letters) for letters in alphabets)) in taken:
            pass
        taken.add(word)
        return word

    for meaning in MEANINGS:
        avi[meaning] = draw("bdfglmnprstv", "aeiou", "dlmnrsvz")
        bol[meaning] = draw("bdghjkprstw", "aeou", "dgkptrl")
    return avi, bol


class Grammar:
    """Draws sentences. Each method returns a phrase in both languages."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.avi, self.bol = draw_lexicon(rng)
        # Classes go round in turn, so that each has as many nouns.
        self.noun_class = {noun: CLASSES[i % len(CLASSES)] for i, noun in enumerate([*NOUNS, *PLACES])}

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def sentence(self) -> tuple[str, str]:
        """Return a whole sentence with capital letter and full stop."""
        kind = self.rng.choices(["plain", "question", "who", "adverbial", "said", "and"], [69, 16, 6, 3, 3, 3])[0]
        end = "!" if kind == "plain" and self.chance(0.08) else "?" if kind in ("question", "who") else "."
        if kind == "adverbial":
            main, subordinate = self.clause(), self.clause()
            word = self.rng.choice(SUBORDINATORS)
            avi = [*comma(main.avi), self.avi[word], *subordinate.avi]
            bol = [*comma([*subordinate.bol, self.bol[word]]), *main.bol]
        elif kind == "said":
            said = self.clause()
            speaker = self.noun_phrase("subject")
            verb = self.verb(self.rng.choice(SAYING), speaker.agreement)
            avi = [*speaker.avi, *comma(verb.avi), "dal", *said.avi]
            bol = [*comma([*said.bol, "tek"]), *speaker.bol, *verb.bol]
        elif kind == "and":
            first, second = self.clause(), self.clause()
            avi = [*comma(first.avi), "et", *second.avi]
            bol = [*comma(first.bol), "ul", *second.bol]
        elif kind == "who":
            clause = self.clause(subject=Phrase(["kin"], ["ker"], ENDINGS["e", 1]))
            avi, bol = clause.avi, clause.bol
        else:
            clause = self.clause()
            avi, bol = clause.avi, clause.bol
            if kind == "question":
                avi, bol = ["ka", *avi], [*bol, "mu"]
        return capitalised(avi) + end, capitalised(bol) + end

    def clause(self, subject: Phrase | None = None) -> Phrase:
        """Return a subject with its verb, objects, place and time."""
        subject = subject or self.noun_phrase("subject", rich=True)
        kind = self.rng.choices([TRANSITIVE, INTRANSITIVE, DITRANSITIVE], [5, 4, 1])[0]
        verb = self.verb(self.rng.choice(kind), subject.agreement)
        after: list[str] = []  # avi: what follows the verb
        before: list[str] = []  # bol: what stands between subject and verb
        if kind is not INTRANSITIVE:
            direct = self.noun_phrase("object", rich=True)
            after, before = [*after, *direct.avi], [*direct.bol]
        if kind is DITRANSITIVE:
            recipient = self.noun_phrase("recipient")
            after, before = [*after, "pe", *recipient.avi], [*recipient.bol, *before]
        if self.chance(0.15):
            place = self.place()
            after, before = [*after, "in", *place.avi], [*place.bol, *before]
        time = [self.rng.choice(ADVERBS)] if self.chance(0.2) else []
        avi = [*subject.avi, *verb.avi, *after, *(self.avi[t] for t in time)]
        return Phrase(avi, [*(self.bol[t] for t in time), *subject.bol, *before, *verb.bol])

    def verb(self, meaning: str, agreement: str) -> Phrase:
        """Return a verb with tense, perhaps negated."""
        tense = self.rng.choice(list(AVI_TENSES))
        negated = self.chance(0.2)
        avi = [*(["ne"] if negated else []), *AVI_TENSES[tense], self.avi[meaning] + agreement]
        return Phrase(avi, [self.bol[meaning] + BOL_TENSES[tense], *(["nok"] if negated else [])])

    def noun_phrase(self, case: str, rich: bool = False) -> Phrase:
        """Return a pronoun, a name, or a noun; only a rich one may hold a relative clause or a second noun."""
        kind = self.rng.choices(["pronoun", "name", "noun", "pair"], [14, 16, 67, 3 if rich else 0])[0]
        if kind == "pronoun":
            meaning = self.rng.choice(PRONOUNS)
            return Phrase([self.avi[meaning]], [self.bol[meaning] + NOUN_CASES[case]], PERSON_ENDINGS[meaning])
        if kind == "name":
            # A name's last letter shows its class, as a noun's does; {name} may stand for anyone.
            name = "{name}" if self.chance(0.15) else self.rng.choice(NAMES)
            ending = ENDINGS["e" if name == "{name}" else name[-1], 1]
            return Phrase([name], [name, *NAME_CASES[case]], ending)
        meaning = self.rng.choice(NOUNS)
        phrase = self.noun(meaning, case, relative=rich and self.chance(0.03))
        if kind == "pair":
            second = self.noun(self.rng.choice(NOUNS), case, relative=False)
            plural = ENDINGS[self.noun_class[meaning], 2]
            return Phrase([*phrase.avi, "et", *second.avi], [*phrase.bol, "ul", *second.bol], plural)
        return phrase

    def place(self) -> Phrase:
        """Where something happens."""
        if self.chance(0.1):
            return Phrase(["{place}"], ["{place}", *NAME_CASES["place"]])
        return self.noun(self.rng.choice(PLACES), "place", relative=False)

    def noun(self, meaning: str, case: str, relative: bool) -> Phrase:
        """Return a noun with article or numeral, adjectives and perhaps a relative clause."""
        numeral = self.numeral() if self.chance(0.15) else None
        number = 2 if numeral or self.chance(0.3) else 1
        definite = self.chance(0.65)
        ending = ENDINGS[self.noun_class[meaning], number]
        adjectives = self.rng.sample(ADJECTIVES, self.rng.choices([0, 1, 2], [64, 32, 4])[0])

        article = ("l" if definite else "un") + ending
        avi = [article, *(numeral.avi if numeral else []), self.avi[meaning] + ending]
        avi += [self.avi[adjective] + ending for adjective in adjectives]

        suffix = (BOL_PLURAL if number == 2 and not numeral else "") + NOUN_CASES[case]
        bol = ["sa" if definite else "mo", *(self.bol[adjective] for adjective in reversed(adjectives))]
        bol += [self.bol[meaning] + suffix, *(numeral.bol if numeral else [])]

        if relative:
            verb = self.verb(self.rng.choice(TRANSITIVE), ending)
            what = self.noun_phrase("object")
            avi += ["ke", *verb.avi, *what.avi]
            bol = [*what.bol, *verb.bol, "tek", *bol]
        return Phrase(avi, bol, ending)

    def numeral(self) -> Phrase:
        """Return a number as a word, in digits, or as a placeholder to be filled in."""
        kind = self.rng.choices(["word", "digits", "count"], [6, 3, 1])[0]
        if kind == "word":
            meaning = self.rng.choice(NUMERALS)
            return Phrase([self.avi[meaning]], [self.bol[meaning]])
        word = "{count}" if kind == "count" else str(self.rng.randrange(11, 31))
        return Phrase([word], [word])


def comma(words: list[str]) -> list[str]:
    return [*words[:-1], words[-1] + ","]


def capitalised(words: list[str]) -> str:
    text = " ".join(words)
    return text[0].upper() + text[1:]


def draw_corpus() -> dict[str, list[tuple[str, str]]]:
    """Draws all splits: no sentence twice on either side, and no word in dev or test that train lacks."""
    grammar = Grammar(random.Random(SEED))
    seen: set[str] = set()

    def fresh() -> Iterator[tuple[str, str]]:
        while True:
            avi, bol = grammar.sentence()
            lengths_fit = all(MIN_WORDS <= len(side.split()) <= MAX_WORDS for side in (avi, bol))
            if lengths_fit and avi not in seen and bol not in seen:
                seen.update((avi, bol))
                yield avi, bol

    pairs = fresh()
    corpus = {"train": [next(pairs) for _ in range(SIZES["train"])]}
    known = {word for pair in corpus["train"] for side in pair for word in side.split()}
    for split in ("dev", "test"):
        covered = (pair for pair in pairs if known.issuperset(" ".join(pair).split()))
        corpus[split] = [next(covered) for _ in range(SIZES[split])]
    return corpus


def render() -> dict[str, bytes]:
    """Return the files of data/sample: name -> content."""
    return {
        f"{split}.{language}": "".join(pair[side] + "\n" for pair in pairs).encode()
        for split, pairs in draw_corpus().items()
        for side, language in enumerate(("avi", "bol"))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the sample corpus of two invented languages.")
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the files are what it makes")
    check = parser.parse_args().check
    status = 0
    for name, content in render().items():
        path = FOLDER / name
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        elif not path.is_file() or path.read_bytes() != content:
            print(f"{path} is not what {Path(__file__).name} makes", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
