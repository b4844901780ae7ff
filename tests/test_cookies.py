"""The cookie stands for exactly one owner, and nothing else stands for any."""

import pytest
from clawstop import cookies
from clawstop.cookies import Owner
from hypothesis import given
from hypothesis import strategies as st

texts = st.text(st.characters(), min_size=1)
owners = st.builds(
    Owner,
    state=st.text("0123456789abcdef", min_size=1, max_size=64),
    session=texts,
    generation=st.integers(0, 10**18 - 1),
    lease=st.one_of(st.sampled_from(["run", "agent", "keep@2026-11-16T01:51:00Z"]), texts),
)


@given(owners)
def test_every_owner_comes_back_from_its_cookie(owner: Owner) -> None:
    assert cookies.parse(cookies.format(owner)) == owner


@given(owners)
def test_a_cookie_is_plain_ascii_that_any_environment_can_hold(owner: Owner) -> None:
    text = cookies.format(owner)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert "=" not in text


@given(st.one_of(st.text(st.characters()), st.from_regex(r"1:[0-9a-f]*:[0-9]*:.*:.*")))
def test_parsing_never_raises_and_accepts_only_what_formatting_gives(text: str) -> None:
    owner = cookies.parse(text)
    assert owner is None or cookies.format(owner) == text


def test_a_cookie_can_be_read_by_a_person() -> None:
    owner = Owner("5eed", "agent:dev1:main", 7)
    assert cookies.format(owner) == "1:5eed:7:run:agent%3Adev1%3Amain"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1",
        "1::::",
        "1:5eed:7:run:",
        "1:5eed:7::main",
        "1::7:run:main",
        "2:5eed:7:run:main",
        "1:5eed:07:run:main",
        "1:5eed:-7:run:main",
        "1:5eed:\u0667:run:main",
        "1:5EED:7:run:main",
        "1:5eed:7:run:main\n",
        "1:5eed:7:run:ma in",
        "1:5eed:7:run:agent:main",
        "1:5eed:7:run:%6dain",
        "1:5eed:7:run:%ff",
        "1:5eed:7:run:%",
        "1:5eed:" + "9" * 5000 + ":run:main",
    ],
)
def test_anything_else_stands_for_nobody(text: str) -> None:
    assert cookies.parse(text) is None


@pytest.mark.parametrize(
    "owner",
    [
        Owner("", "main", 1),
        Owner("xyz", "main", 1),
        Owner("5eed:1", "main", 1),
        Owner("5eed", "", 1),
        Owner("5eed", "main", -1),
        Owner("5eed", "main", 10**18),
        Owner("5eed", "main", 1, ""),
    ],
)
def test_an_owner_that_no_cookie_could_stand_for_is_refused(owner: Owner) -> None:
    with pytest.raises(ValueError, match=r"state id|generation|needs a session"):
        cookies.format(owner)
