"""Who is meant by a name that a person typed.

Each agent goes by its id, its name, its identity's name, and what stands behind a mark in its id
(`dev1` is `zero_dev1`). A name is looked for on one rung after the other, the surest first, and
only the first rung that finds anybody counts. In a sentence (`plain`) the rungs end where a word
could be meant for something else: part of a word, or a typo, names nobody there. Who has only left
something behind (`rest`) is looked for when nobody else is meant.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import islice, product

from .agents import Agent

LONGEST = 100  # characters of what was said; nobody is called more
SHORTEST = 3  # letters that are a part of a name; of Chinese characters two, which are a word
SYLLABLES = 3  # of a name in pinyin, in a sentence
WORDS = frozenset({"it", "us", "me", "him", "her", "them", "you", "this", "that", "up", "on", "go"})
SPOKEN = 4  # letters of a whole name in pinyin
NEAREST = 3  # names that are proposed when nobody is meant
READINGS = 8  # of one Chinese name: some characters are read in several ways
MARKS = re.compile(r"[\s_\-.·・]+")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
ACCENTS = re.compile("[\u0300-\u036f]")
CHINESE = re.compile("[\u3400-\u9fff\U00020000-\U0003134f]")
ALIKE = 0.5  # how alike a name must be to be proposed

Found = dict[str, None]  # ids, in order, once each


def fold(said: str) -> str:
    """As it is compared: full-width forms, case, accents and what cannot be seen do not count."""
    bare = ACCENTS.sub("", unicodedata.normalize("NFKD", said))
    seen = "".join(
        c for c in unicodedata.normalize("NFKC", bare) if unicodedata.category(c) != "Cf"
    )
    return " ".join(seen.casefold().split())


def squeeze(folded: str) -> str:
    """Without the marks between words: `zero dev1` is `zero_dev1`."""
    return MARKS.sub("", folded)


class Names:
    def __init__(self, agents: Iterable[Agent], rest: Iterable[Agent] = ()) -> None:
        self._agents = {agent.id: agent for agent in agents}
        left = [agent for agent in rest if agent.id not in self._agents]
        self._rest = Names(left) if left else None
        self.ids = sorted(self._agents)
        self._ids: dict[str, Found] = {}
        self._names: dict[str, Found] = {}
        self._ends: dict[str, Found] = {}
        self._words: dict[str, Found] = {}
        self._chinese: list[tuple[str, str]] = []
        for agent in self._agents.values():
            id = fold(agent.id)
            _add(self._ids, squeeze(id), agent.id)
            words = MARKS.split(id)
            for first in range(1, len(words)):
                if len(end := "".join(words[first:])) > 1:  # one letter names nobody
                    _add(self._ends, end, agent.id)
            for word in words:
                _add(self._words, word, agent.id)
            for name in filter(None, map(fold, (agent.name, agent.identity))):
                _add(self._names, squeeze(name), agent.id)
                if CHINESE.search(name):
                    self._chinese.append((squeeze(name), agent.id))
            _add(self._names, squeeze(fold(agent.called)), agent.id)  # as our own lists have it

    @classmethod
    def ready(cls, agents: Iterable[Agent], rest: Iterable[Agent] = ()) -> Names:
        """With everything made that a name is looked for in."""
        names = cls(agents, rest)
        for word in ("zzzzz", "\u9f98\u9f98"):  # nobody's, in letters and in characters
            names.find(word)
        return names

    def find(self, said: str, *, plain: bool = False) -> list[str]:
        """The ids that are meant: none, one, or several that go by that name."""
        if len(said) > LONGEST or not (wanted := squeeze(fold(said))) or CONTROL.search(wanted):
            return []
        for rung in self._plain if plain else (*self._plain, *self._loose):
            with suppress(ImportError):  # a broken environment knows the rest
                if found := rung(wanted):
                    return sorted(found)
        return self._rest.find(said, plain=plain) if self._rest else []

    @property
    def everybody(self) -> list[str]:
        """The ids, also of who has only left something."""
        return [*self.ids, *(self._rest.ids if self._rest else ())]

    def called(self, id: str) -> str:
        """As a person knows it; what is no agent's id is as it is."""
        return self._agents[id].called if id in self._agents else id

    def nearest(self, said: str) -> list[str]:
        """Whom the person may have meant, where `find` knows nobody; the nearest first."""
        wanted = squeeze(fold(said[:LONGEST]))
        with suppress(ImportError):
            return list(dict.fromkeys(id for _, id in sorted(self._alike(wanted))))[:NEAREST]
        return []

    def _alike(self, wanted: str) -> Iterator[tuple[float, str]]:
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        for names in self._of_about(len(wanted), len(wanted) // 2):
            alike = OSA.normalized_similarity
            for name, score, _ in process.extract(
                wanted, list(names), scorer=alike, score_cutoff=ALIKE, limit=NEAREST
            ):
                yield from ((-score, id) for id in names[name])

    # -- the rungs, the surest first

    @property
    def _plain(self) -> tuple[Callable[[str], Found], ...]:
        return (self._by_id, self._by_name, self._by_clear_end, self._by_long_sound)

    @property
    def _loose(self) -> tuple[Callable[[str], Found], ...]:
        rungs = (self._by_end, self._by_sound, self._by_last_part, self._by_part)
        return (*rungs, self._by_initials, self._by_typo)

    def _by_id(self, wanted: str) -> Found:
        return self._ids.get(wanted, {})

    def _by_name(self, wanted: str) -> Found:
        return self._names.get(wanted, {})

    def _by_end(self, wanted: str) -> Found:
        return self._ends.get(wanted, {})

    def _by_clear_end(self, wanted: str) -> Found:
        """Not `kill it`: what everybody says names nobody."""
        return {} if wanted in WORDS else self._by_end(wanted)

    def _by_long_sound(self, wanted: str) -> Found:
        """Of three characters and more, also in traditional ones: of two it may be another word,
        or one of another language."""
        return _heard(wanted, self._long_sounds)

    def _by_sound(self, wanted: str) -> Found:
        """A whole Chinese name in pinyin, or in characters that sound the same."""
        return _heard(wanted, self._sounds)

    def _by_last_part(self, wanted: str) -> Found:
        return self._written.ending(wanted) if _is_part(wanted) else {}

    def _by_part(self, wanted: str) -> Found:
        found = self._written.having(wanted) if _is_part(wanted) else {}
        return found or (self._heard.having(wanted) if len(wanted) >= SPOKEN else {})

    def _by_initials(self, wanted: str) -> Found:
        return self._initials.get(wanted, {}) if _is_part(wanted) else {}

    def _by_typo(self, wanted: str) -> Found:
        """One slip in five letters, two in eight; in four, two letters in the wrong order. A digit
        is never a slip: dev2 is not dev1."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        length = len(wanted)
        allowed = 0 if length < 4 or not wanted.isalnum() else 1 if length < 8 else 2
        best: dict[int, Found] = {}
        for names in self._of_about(length, allowed) if allowed else ():
            for name, slips, _ in process.extract(
                wanted, list(names), scorer=OSA.distance, score_cutoff=allowed, limit=None
            ):
                same = sorted(name) == sorted(wanted) if length == 4 else True
                if same and _digits(name) == _digits(wanted):
                    best.setdefault(int(slips), {}).update(names[name])
        return best[min(best)] if best else {}

    # -- all names there are

    @cached_property
    def _written(self) -> Heap:
        return Heap([self._ids, self._names])

    @cached_property
    def _heard(self) -> Heap:
        return Heap([self._sounds])

    @cached_property
    def _by_length(self) -> dict[int, dict[str, Found]]:
        """Each name as it may be typed, with a slip or two."""
        lengths: dict[int, dict[str, Found]] = {}
        for table in (self._ids, self._names, self._ends, self._words, self._sounds):
            for name, ids in table.items():
                lengths.setdefault(len(name), {}).setdefault(name, {}).update(ids)
        return lengths

    def _of_about(self, length: int, more: int) -> list[dict[str, Found]]:
        lengths = range(length - more, length + more + 1)
        return [self._by_length[one] for one in lengths if one in self._by_length]

    @cached_property
    def _sounds(self) -> dict[str, Found]:
        """Chinese names in pinyin."""
        return _read(self._chinese)

    @cached_property
    def _long_sounds(self) -> dict[str, Found]:
        """Of those that are long enough to be nothing else."""
        long = [row for row in self._chinese if len(CHINESE.findall(row[0])) >= SYLLABLES]
        return _read(long)

    @cached_property
    def _initials(self) -> dict[str, Found]:
        return _read(self._chinese, initials=True)


class Heap:
    """Names in one text, a line each: looking through thousands is one search."""

    def __init__(self, tables: Iterable[Mapping[str, Found]]) -> None:
        rows = [(name, ids) for table in tables for name, ids in table.items()]
        self._whose = [ids for _, ids in rows]
        self._text = "".join(f"{name}\n" for name, _ in rows)
        self._ends = [place.end() for place in re.finditer("\n", self._text)]

    def ending(self, wanted: str) -> Found:
        return self.having(f"{wanted}\n")

    def having(self, wanted: str) -> Found:
        found: Found = {}
        for place in re.finditer(re.escape(wanted), self._text):
            if self._splits_a_number(place):
                continue
            found.update(self._whose[bisect_right(self._ends, place.start())])
        return found

    def _splits_a_number(self, place: re.Match[str]) -> bool:
        """dev1 is no part of dev10: a number is whole, or not meant."""
        start, end, text = place.start(), place.end(), self._text
        begins = text[start - 1 : start].isdigit() and text[start].isdigit()
        return begins or (text[end - 1].isdigit() and text[end : end + 1].isdigit())


@lru_cache(maxsize=20000)
def readings(text: str, *, initials: bool = False) -> tuple[str, ...]:
    """How Chinese is read aloud, in letters; the likeliest reading first."""
    from pypinyin import lazy_pinyin

    likely = lazy_pinyin(text)
    each = [likely, *islice(product(*map(_sounds_of, text)), READINGS)]
    return tuple(dict.fromkeys("".join(s[:1] if initials else s for s in one) for one in each))


@lru_cache(maxsize=10000)
def _sounds_of(character: str) -> tuple[str, ...]:
    from pypinyin import Style, pinyin

    return tuple(pinyin(character, style=Style.NORMAL, heteronym=True)[0])


def _heard(wanted: str, sounds: Mapping[str, Found]) -> Found:
    if not CHINESE.search(wanted):
        return sounds.get(wanted, {}) if len(wanted) >= SPOKEN else {}
    if not sounds:  # nothing is read aloud for nobody
        return {}
    return next((sounds[one] for one in readings(wanted) if one in sounds), {})


def _read(names: Iterable[tuple[str, str]], *, initials: bool = False) -> dict[str, Found]:
    spoken: dict[str, Found] = {}
    for name, id in names:
        for one in readings(name, initials=initials):
            _add(spoken, one, id)
    return spoken


def _add(table: dict[str, Found], name: str, id: str) -> None:
    table.setdefault(name, {})[id] = None


def _is_part(wanted: str) -> bool:
    """Long enough that it is not in half of all names."""
    return len(wanted) >= (2 if CHINESE.search(wanted) else SHORTEST)


def _digits(text: str) -> str:
    return "".join(c for c in text if c.isdigit())
