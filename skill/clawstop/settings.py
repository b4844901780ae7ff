"""Settings: claw.json has every key with its type and default; the plugin's entry in the OpenClaw
config overrides it, and `CLAWSTOP_<KEY>` overrides both."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SettingsError

ENVIRONMENT = "CLAWSTOP_"


def resource(*parts: str) -> Path:
    """A file that ships with clawstop: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parent
    checkout = here.parent.parent
    base = checkout if (checkout / "claw.json").is_file() else here / "_data"
    return base.joinpath(*parts)


@functools.cache
def declared() -> dict[str, dict[str, Any]]:
    settings = json.loads(resource("claw.json").read_text(encoding="utf-8"))["settings"]
    return dict(settings)


@dataclass(frozen=True)
class Settings:
    engine_down: str
    grace_ms: int
    escalate: str
    max_run_minutes: int
    takeover: str
    fence: str
    language: str
    protocol: str
    recovery: str
    recovery_window_minutes: int
    rollback: Mapping[str, bool]
    flags: Mapping[str, bool]
    backups_keep: int
    backups_days: int
    receipts_keep: int
    receipts_days: int

    @classmethod
    def load(
        cls, configured: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> Settings:
        """Defaults, then the plugin's config, then the environment; SettingsError names the key."""
        values = {key: about["default"] for key, about in declared().items()}
        for key, value in (configured or {}).items():
            if key not in values:
                raise SettingsError(
                    f"plugins.entries.clawstop.config.{key}: there is no such setting; "
                    f"known: {', '.join(sorted(values))}"
                )
            values[key] = _checked(f"plugins.entries.clawstop.config.{key}", key, value)
        for key in values:
            name = ENVIRONMENT + key.upper()
            if name in environ:
                values[key] = _checked(name, key, _typed(environ[name], declared()[key]["type"]))
        return cls(**values)

    @classmethod
    def protocol_of(
        cls, configured: Mapping[str, Any], environ: Mapping[str, str] = os.environ
    ) -> str:
        """What is said of `protocol`, whatever is wrong with the rest; nothing where that is wrong
        itself: then files are left as they are."""
        name = f"{ENVIRONMENT}PROTOCOL"
        said = {"protocol": configured["protocol"]} if "protocol" in configured else {}
        try:
            return cls.load(said, {name: environ[name]} if name in environ else {}).protocol
        except SettingsError:
            return ""


def _typed(text: str, wanted: str) -> Any:
    """A value of the environment; one that is nothing of its kind stays text, and is refused."""
    if wanted == "object":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return int(text) if wanted == "integer" and text.isascii() and text.isdigit() else text


def _checked(where: str, key: str, value: Any) -> Any:
    about = declared()[key]
    if about["type"] == "integer":
        low, high = about["minimum"], about["maximum"]
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise SettingsError(f"{where}: expected a whole number from {low} to {high}, got {value!r}")
    if about["type"] == "object":
        known = about["properties"]
        given = value if isinstance(value, dict) else {"": None}
        for name, switch in given.items():
            if name not in known or not isinstance(switch, bool):
                switches = ", ".join(f'"{name}": true or false' for name in known)
                raise SettingsError(f"{where}: expected {{{switches}}}, got {value!r}")
        return {**about["default"], **given}
    if value in about["choices"]:
        return value
    raise SettingsError(f"{where}: expected one of {', '.join(about['choices'])}, got {value!r}")


def markdown() -> str:
    """docs/settings.md, from claw.json."""
    rows = []
    for key, about in declared().items():
        inside = about.get("properties", {})
        rows += [_row(key, about), *(_row(f"{key}.{name}", one) for name, one in inside.items())]
    return "\n".join(
        [
            "# Settings",
            "",
            "Set them in the OpenClaw config under `plugins.entries.clawstop.config`, or as the",
            "environment variable `CLAWSTOP_<KEY>` of the gateway, which wins. A change in the",
            "config holds at once; a skill update keeps it. This page is made from `claw.json`.",
            "",
            "| key | type | default | what it does |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(key: str, about: Mapping[str, Any]) -> str:
    default = json.dumps(about["default"]) if about["type"] != "string" else about["default"]
    return f"| `{key}` | {_type(about)} | `{default}` | {about['about']} |"


def _type(about: Mapping[str, Any]) -> str:
    if about["type"] in ("boolean", "object"):
        return "`true` or `false`" if about["type"] == "boolean" else "as below"
    if about["type"] == "integer":
        return f"whole number, {about['minimum']} to {about['maximum']}"
    return " or ".join(f"`{choice}`" for choice in about["choices"])
