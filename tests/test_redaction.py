"""Secrets do not reach a receipt; everything else does, and no text makes it slow."""

from __future__ import annotations

import time

import pytest
from clawstop.redaction import redact
from hypothesis import given
from hypothesis import strategies as st

SECRET = "Zx9-wQ77.kLm_31aa"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET.replace('-', '')}\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        f"mysql --password={SECRET} -e 'select 1'",
        f"mysql --password {SECRET}",
        f'{{"password":"{SECRET}"}}',
        f'{{"api_key": "{SECRET} with spaces"}}',
        f'{{\\"token\\": \\"{SECRET}\\"}}',
        f"OPENAI_API_KEY={SECRET} python run.py",
        f"export GITHUB_TOKEN='{SECRET}'",
        f"curl -H 'Authorization: Bearer {SECRET}' https://example.org",
        f"curl -u me:{SECRET} https://example.org",
        f"git clone https://me:{SECRET}@example.org/x.git",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"Cookie: sid={SECRET}",
        f"PGPASSWORD={SECRET} psql",
        f"STRIPE_SECRET_KEY={SECRET}",
        f'{{"accessToken":"{SECRET}"}}',
        f'{{"clientSecret": "{SECRET}"}}',
        f"dbPassword={SECRET}",
        f"X-Auth-Key: {SECRET}",
        f"sshpass -p {SECRET} ssh host",
        f"curl -uuser:{SECRET} https://example.org",
        f"https://{SECRET}@example.org/x.git",
        f'password="it\'s {SECRET}"',
        f"password=abc,def;{SECRET}",
        KEY,
    ],
)
def test_a_secret_is_taken_out_wherever_it_stands(text: str) -> None:
    clean = redact({"tools": [{"input": text}]})["tools"][0]["input"]
    assert SECRET not in clean
    assert SECRET.replace("-", "") not in clean
    assert "[redacted]" in clean


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrst",
        "github_pat_11ABCDEFG0abcdef",
        "xoxb-123456789012-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA-1234567890abcdefghijklmnopqrst",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "12345678:AAE-abcdefghijklmnopqrstuvwxyz012345",
    ],
)
def test_a_well_known_secret_needs_no_name(secret: str) -> None:
    assert secret not in redact(f"call with {secret} now")


@pytest.mark.parametrize(
    "text",
    [
        "sleep 4711",
        "git push origin main",
        "agent:main:telegram:direct:42",
        '{"command":"npm test","yieldMs":120000}',
        "send the report to 王 at 12:30",
        "python train.py --tokens-per-batch 4096",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists))
def test_anything_can_be_looked_at_twice(value: object) -> None:
    assert redact(redact(value)) == redact(value)


@pytest.mark.parametrize(
    "piece", ["password ", "a", '"token":"', "://a:", "-----BEGIN ", "eyJa.", "eyJ-"]
)
def test_no_text_is_slow(piece: str) -> None:
    begun = time.perf_counter()
    redact(piece * (20_000 // len(piece)))
    assert time.perf_counter() - begun < 2
