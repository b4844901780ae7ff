"""Which whole messages are an order to stop, in every language of the data file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent
MATCHER = ROOT / "hooks" / "openclaw" / "stopwords.js"
CASES = yaml.safe_load((Path(__file__).parent / "stopword_cases.yaml").read_text(encoding="utf-8"))
LANGUAGES = json.loads(MATCHER.with_suffix(".json").read_text(encoding="utf-8"))
NAMES = ["@scripted_bot", "Scripted", "小龙"]
DRIVER = """
const { stopWord } = await import(process.argv[1]);
let text = "";
for await (const chunk of process.stdin.setEncoding("utf8")) text += chunk;
const { messages, names } = JSON.parse(text);
console.log(JSON.stringify(messages.map((message) => stopWord(message, { names }) ?? null)));
"""


def match(messages: list[Any]) -> list[dict[str, str] | None]:
    """What the matcher says to each message, from one Node process."""
    node = shutil.which("node")
    assert node, "Node is needed: the matcher is JavaScript"
    done = subprocess.run(
        [node, "--input-type=module", "-e", DRIVER, MATCHER.as_uri()],
        input=json.dumps({"messages": messages, "names": NAMES}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, str] | None] = json.loads(done.stdout)
    return answers


def cases(kind: str) -> list[str]:
    return [str(text) for group in CASES[kind].values() for text in group]


def wrong(kind: str, expected: bool) -> list[str]:
    texts = cases(kind)
    return [t for t, found in zip(texts, match(texts), strict=True) if bool(found) != expected]


def test_every_order_to_stop_is_one() -> None:
    assert len(set(cases("stop"))) >= 300
    assert wrong("stop", True) == []


def test_nothing_else_is() -> None:
    assert len(set(cases("talk"))) >= 300
    assert wrong("talk", False) == []


def test_every_word_alone_in_capitals_with_a_mark_and_as_a_command() -> None:
    assert len(LANGUAGES) >= 30
    words = [word for language in LANGUAGES.values() for word in language["words"]]
    forms = [form for word in words for form in (word, f"{word}!", f"/{word}", f"{word} {word}")]
    # Capitals of a script that has them; German has no capital for every letter, Turkish two i.
    forms += [word.upper() for word in words if word.upper().lower() == word]
    missed = [f for f, found in zip(forms, match(forms), strict=True) if not found]
    assert missed == []


def test_politeness_alone_stops_nothing() -> None:
    polite = [word for language in LANGUAGES.values() for word in language["polite"]]
    pairs = polite + [f"{word} {word}" for word in polite]
    assert [p for p, found in zip(pairs, match(pairs), strict=True) if found] == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("中断", "zh"),
        ("停止", "zh"),
        ("やめて", "ja"),
        ("stop", "en"),
        ("стоп", "ru"),
        ("/取消", "zh"),
    ],
)
def test_the_language_of_the_word_is_known(text: str, language: str) -> None:
    [found] = match([text])
    assert found is not None
    assert found["language"] == language


def test_what_is_no_text_is_no_order() -> None:
    odd: list[Any] = [
        None,
        7,
        True,
        [],
        {},
        ["stop"],
        {"text": "stop"},
        "stop " * 10_000,
        "a" * 10**6,
    ]
    assert match(odd) == [None] * len(odd)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=50, max_size=50))
def test_no_text_breaks_it(texts: list[str]) -> None:
    match(texts)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stop", "cancel", "abort", "стоп", "arrête", "para", "dur"]),
            st.from_regex(r"[a-z]{5,9} [b-df-hj-np-tv-z]{5,8}", fullmatch=True),
        ),
        min_size=50,
        max_size=50,
    )
)
def test_words_that_nobody_knows_make_it_talk(pairs: list[tuple[str, str]]) -> None:
    texts = [f"{word} {rest}" for word, rest in pairs] + [f"{rest} {word}" for word, rest in pairs]
    assert [t for t, found in zip(texts, match(texts), strict=True) if found] == []
