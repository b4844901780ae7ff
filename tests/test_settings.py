"""Settings: every key is declared, read, and refused with its path when it is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from clawstop import __version__
from clawstop.errors import SettingsError
from clawstop.settings import Settings, declared, markdown, resource

ROOT = Path(__file__).parent.parent


def read(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def test_the_defaults_are_those_of_claw_json() -> None:
    assert vars(Settings.load({}, {})) == {k: v["default"] for k, v in declared().items()}


def test_the_environment_overrides_the_config_overrides_the_default() -> None:
    assert Settings.load({"grace_ms": 7}, {}).grace_ms == 7
    assert Settings.load({"grace_ms": 7}, {"CLAWSTOP_GRACE_MS": "9"}).grace_ms == 9
    kept = {"stop": True, "kill": False, "takeover": False}
    assert Settings.load({"rollback": {"kill": False}}, {}).rollback == kept
    assert Settings.load({}, {"CLAWSTOP_ROLLBACK": '{"kill": false}'}).rollback == kept


@pytest.mark.parametrize(
    ("config", "environ", "message"),
    [
        ({"grace": 1}, {}, r"plugins\.entries\.clawstop\.config\.grace: there is no such setting"),
        ({"grace_ms": "soon"}, {}, r"config\.grace_ms: expected a whole number from 0 to 60000"),
        ({"grace_ms": True}, {}, r"config\.grace_ms: expected a whole number"),
        ({"grace_ms": -1}, {}, r"config\.grace_ms: expected a whole number"),
        ({"engine_down": "open"}, {}, r"config\.engine_down: expected one of refuse"),
        ({"rollback": True}, {}, r'config\.rollback: expected {"stop": true or false, "kill"'),
        ({"rollback": {"stop": 1}}, {}, r"config\.rollback: expected"),
        ({"rollback": {"halt": True}}, {}, r"config\.rollback: expected"),
        ({}, {"CLAWSTOP_ROLLBACK": "no"}, r"CLAWSTOP_ROLLBACK: expected"),
        ({}, {"CLAWSTOP_GRACE_MS": "5s"}, r"CLAWSTOP_GRACE_MS: expected a whole number"),
        ({}, {"CLAWSTOP_GRACE_MS": "٣"}, r"CLAWSTOP_GRACE_MS: expected a whole number"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(
    config: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.load(config, environ)


def test_every_declared_setting_is_read_somewhere() -> None:
    assert {field.name for field in fields(Settings)} == set(declared())
    code = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("skill", "hooks")
        for pattern in ("*.py", "*.js")
        for file in (ROOT / folder).rglob(pattern)
    )
    for key in declared():
        assert re.search(rf"settings(\(\))?\??\.{key}\b", code), key


def test_the_plugins_manifest_declares_the_same_settings() -> None:
    schema = read("hooks/openclaw/openclaw.plugin.json")["configSchema"]
    assert declared_in(schema) == declared()


def declared_in(schema: Any) -> dict[str, Any]:
    assert schema["additionalProperties"] is False
    return {
        key: {
            "type": about["type"],
            "default": about["default"],
            "about": about["description"],
            **({"choices": about["enum"]} if "enum" in about else {}),
            **{bound: about[bound] for bound in ("minimum", "maximum") if bound in about},
            **({"properties": declared_in(about)} if "properties" in about else {}),
        }
        for key, about in schema["properties"].items()
    }


def test_all_manifests_agree_on_name_and_version() -> None:
    front = (ROOT / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
    skill = yaml.safe_load(front)
    claw = read("claw.json")
    manifest = read("hooks/openclaw/openclaw.plugin.json")
    package = read("hooks/openclaw/package.json")
    assert {skill["name"], claw["name"], manifest["id"]} == {"clawstop"}
    assert {claw["version"], manifest["version"], package["version"]} == {__version__}
    index = (ROOT / "hooks/openclaw/index.js").read_text(encoding="utf-8")
    assert f'const VERSION = "{__version__}"' in index


def test_what_ships_is_found_from_a_checkout() -> None:
    assert resource("hooks", "openclaw", "index.js").is_file()
    assert resource("agents_md_templates", "en.md").is_file()


def test_the_settings_page_is_made_from_claw_json() -> None:
    page = ROOT / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == markdown(), "write it anew: print(markdown())"
