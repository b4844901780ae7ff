"""The agents, read from the config as the host reads it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from clawstop import agents, wrapping
from clawstop.agents import Agent
from clawstop.paths import Paths, default_paths
from wire import bridge, engine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "state").mkdir()
    return Paths(tmp_path / "state")


def write(home: Paths, config: object) -> None:
    (home.openclaw / "openclaw.json").write_text(json.dumps(config), encoding="utf-8")


def read(home: Paths, text: str, **environ: str) -> dict[str, Agent]:
    (home.openclaw / "openclaw.json").write_text(text, encoding="utf-8")
    config = agents.read(home, environ)
    assert not config.problem
    return {agent.id: agent for agent in config.agents}


def test_entries_with_names_and_folders(home: Paths, tmp_path: Path) -> None:
    found = read(
        home,
        """
        { // a person wrote this
          agents: { entries: {
            'Zero_Dev1': { name: '开发工程师', workspace: '~/dev', },
            pm: { identity: { name: "Anna" }, agentDir: "/srv/pm" },
          } },
        }
        """,
    )
    assert found["zero_dev1"] == Agent(
        "zero_dev1",
        "开发工程师",
        "",
        tmp_path / "dev",
    )
    assert found["pm"].workspace == home.openclaw / "workspace-pm"
    assert found["pm"].identity == "Anna"


@pytest.mark.parametrize(
    ("about", "workspaces"),
    [
        ({}, {"main": "workspace"}),
        ({"entries": {"dev1": {}}}, {"dev1": "workspace"}),
        ({"entries": {"a": {}, "b": {}}}, {"a": "workspace-a", "b": "workspace-b"}),
        ({"entries": {"a": {}, "b": {"default": True}}}, {"a": "workspace-a", "b": "workspace"}),
        ({"list": [{"id": "a"}, {"id": "b"}]}, {"a": "workspace", "b": "workspace-b"}),
        (
            {"list": [{"id": "a"}, {"id": "b", "default": True}]},
            {"a": "workspace-a", "b": "workspace"},
        ),
        ({"list": [{"name": "no id"}, 7, None]}, {"main": "workspace"}),
        (
            {"defaults": {"workspace": "/w"}, "entries": {"a": {}, "b": {}}},
            {"a": "/w/a", "b": "/w/b"},
        ),
        ({"defaults": {"workspace": "/w"}, "entries": {"a": {}}}, {"a": "/w"}),
        ({"entries": {"Neo Ünit 7": {}}}, {"neo-nit-7": "workspace"}),
    ],
)
def test_where_an_agent_works_when_it_does_not_say(
    home: Paths, about: object, workspaces: dict[str, str]
) -> None:
    found = read(home, json.dumps({"agents": about}))
    assert {id: agent.workspace for id, agent in found.items()} == {
        id: home.openclaw / folder for id, folder in workspaces.items()
    }


def test_includes_are_merged_and_variables_filled_in(home: Paths) -> None:
    inside = home.openclaw / "parts"
    inside.mkdir()
    (inside / "team.json5").write_text("{entries: {dev1: {$include: './dev1.json'}}}")
    (inside / "dev1.json").write_text('{"name": "Under", "workspace": "${TEAM_HOME}/dev1"}')
    (home.openclaw / ".env").write_text("TEAM_HOME=/from-dotenv\n# no\nexport OTHER='/quoted'\n")
    text = """{
        env: { vars: { THIRD: '/from-config', TEAM_HOME: '/never' } },
        agents: { $include: ['./parts/team.json5'], entries: {
            dev1: { name: 'Over' },
            dev2: { workspace: '${OTHER}' }, dev3: { workspace: '${THIRD}' },
            dev4: { workspace: '/lit/$${OTHER}' }, dev5: { workspace: '/un/${UNSET_NAME}' },
        } },
    }"""
    found = read(home, text)
    assert found["dev1"].name == "Over"
    assert [str(found[f"dev{n}"].workspace) for n in range(1, 6)] == [
        "/from-dotenv/dev1",
        "/quoted",
        "/from-config",
        "/lit/${OTHER}",
        "/un/${UNSET_NAME}",
    ]
    assert str(read(home, text, TEAM_HOME="/from-env")["dev1"].workspace) == "/from-env/dev1"
    files = agents.read(home, {}).files
    assert [file.name for file in files] == ["openclaw.json", "team.json5", "dev1.json"]


def test_what_an_agent_calls_itself(home: Paths) -> None:
    folder = home.openclaw / "workspace"
    folder.mkdir()
    file = folder / "IDENTITY.md"
    for text, name in (
        ("# Who\n- **Name:** 小助手\n- **Emoji:** x\n", "小助手"),
        ("- Name: Robin\n", "Robin"),
        ("- **Name:** (pick one)\n", ""),
        ("- **Name:** _(pick something you like)_\n", ""),
        ("no list", ""),
        ("- **Name:**\n- **Creature:** robot\n", ""),
    ):
        file.write_text(text, encoding="utf-8")
        assert read(home, "{}")["main"].identity == name
    file.write_bytes(b"\xff\xfe\x00")
    assert read(home, "{}")["main"].identity == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n "agents": {,}\n}', "line 2, column 14"),
        ("{a: [1, 2", "line 1, column 10"),
        ("", "openclaw.json is empty"),
        ("{$include: '../outside.json'}", "outside its folder"),
        ("{$include: './none.json'}", "does not exist"),
        ("{$include: './openclaw.json'}", "nested more than 10 deep"),
        ("{$include: 7}", "needs the name of a file"),
        ("[" * 100_000, "nested too deeply"),
        ("{a: '" + "x" * (2 << 20) + "'}", "larger than"),
    ],
)
def test_a_config_that_cannot_be_read_says_where(home: Paths, text: str, problem: str) -> None:
    (home.openclaw / "openclaw.json").write_text(text)
    config = agents.read(home, {})
    assert problem in config.problem
    assert "openclaw.json" in config.problem
    assert config.agents == []


@pytest.mark.parametrize("text", ["[]", "7", '{"agents": 7}', '{"agents": {"entries": []}}'])
def test_a_config_of_something_else_is_one_without_agents(home: Paths, text: str) -> None:
    assert list(read(home, text)) == ["main"]


def test_a_hostile_workspace_is_only_a_name(home: Paths) -> None:
    entries = {"a": {"workspace": "\0"}, "b": {"workspace": "~nobody/x"}, "c": {"workspace": 7}}
    found = read(home, json.dumps({"agents": {"entries": entries}}))
    assert found["a"].workspace == home.openclaw / "workspace-a"
    assert found["b"].workspace == Path("~nobody/x").absolute()
    assert found["c"].workspace == home.openclaw / "workspace-c"


def test_home_and_profile_are_what_the_host_makes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENCLAW_STATE_DIR", raising=False)
    for named, wanted in (
        (str(tmp_path / "svc"), "svc"),
        ("~/svc", "svc"),
        (" ", ""),
        ("undefined", ""),
        ("null", ""),
    ):
        monkeypatch.setenv("OPENCLAW_HOME", named)
        found = default_paths()
        assert found.openclaw == tmp_path / wanted / ".openclaw"
        assert wrapping.root() == str(found.root)
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path / "svc"))
    paths = default_paths()
    paths.openclaw.mkdir(parents=True)
    write(paths, {"agents": {"entries": {"a": {"default": True}, "b": {"workspace": "~/w"}}}})

    def spaces(paths: Paths, profile: str) -> list[Path | None]:
        environ = {**os.environ, "OPENCLAW_PROFILE": profile}
        return [agent.workspace for agent in agents.read(paths, environ).agents]

    home = tmp_path / "svc"
    assert spaces(paths, "work") == [home / ".openclaw-work" / "workspace", home / "w"]
    for profile in ("", "Default", "../x"):
        assert spaces(paths, profile)[0] == home / ".openclaw" / "workspace"
    assert spaces(Paths(tmp_path / "named"), "work") == [tmp_path / "named" / "workspace"]


def test_the_config_is_where_the_host_looks_for_it(home: Paths, tmp_path: Path) -> None:
    assert agents.config_file(home, {}) == home.openclaw / "openclaw.json"
    (home.openclaw / "clawdbot.json").write_text("{}")
    assert agents.config_file(home, {}) == home.openclaw / "clawdbot.json"
    named = {"OPENCLAW_CONFIG_PATH": "~/mine.json"}
    assert agents.config_file(home, named) == tmp_path / "mine.json"


# -- what must keep nobody from stopping an agent


@pytest.mark.parametrize("file", ["openclaw.json", "workspace/IDENTITY.md", ".env"])
def test_a_pipe_in_the_place_of_a_file_hangs_nobody(home: Paths, file: str) -> None:
    write(home, {"agents": {"entries": {"main": {}}}})
    place = home.openclaw / file
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    found = agents.read(home, {})
    assert bool(found.problem) == (file == "openclaw.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"x": ' + "1" * 5000 + "}",
        r'{"agents": {"entries": {"a": {"workspace": "/tmp/\ud800"}}}}',
        r'{"$include": "\ud800"}',
        r'{"agents": {"defaults": {"workspace": "\u0000"}, "entries": {"a": {}}}}',
        '{"agents": {"entries": {"a": 7, "": null, "b": []}, "list": {}}}',
        '{"env": [], "agents": []}',
    ],
)
def test_no_text_makes_it_fail(home: Paths, text: str) -> None:
    (home.openclaw / "openclaw.json").write_text(text)
    found = agents.read(home, {})
    assert found.problem or found.agents


def test_a_workspace_that_only_the_gateway_can_find_is_none(home: Paths) -> None:
    entries = {"a": {"workspace": "."}, "b": {"workspace": "${NOT_SET}/b"}, "c": {}}
    write(home, {"agents": {"defaults": {"workspace": "rel"}, "entries": entries}})
    assert [agent.workspace for agent in agents.read(home, {}).agents] == [None, None, None]


def test_an_empty_variable_does_not_swallow_the_next_line(home: Paths) -> None:
    (home.openclaw / ".env").write_text("KEY=\nWORK=/srv/ws\n")
    write(home, {"agents": {"entries": {"a": {"workspace": "${WORK}"}}}})
    assert agents.read(home, {}).agents[0].workspace == Path("/srv/ws")


def test_a_name_cannot_move_a_persons_cursor(home: Paths) -> None:
    space = home.openclaw / "workspace"
    space.mkdir()
    (space / "IDENTITY.md").write_text("- name: Bob\x1b]0;pwned\x07\x1b[2J\u202e\n")
    write(home, {"agents": {"entries": {"main": {"name": "A\x1b[1mB\u200b"}}}})
    (agent,) = agents.read(home, {}).agents
    assert (agent.name, agent.identity) == ("A[1mB", "Bob]0;pwned[2J")


def test_only_a_folder_with_an_id_for_a_name_was_left_by_an_agent(home: Paths) -> None:
    folder = home.openclaw / "agents"
    for name in ("stale", "A\x1b[1m", "Dev1", "no name"):
        (folder / name).mkdir(parents=True)
    (folder / ".DS_Store").touch()
    (folder / "file").touch()
    found = agents.left_behind(home, ["agent:gone:main", "agent:x\x1b:main", "global"])
    assert [agent.id for agent in found] == ["gone", "main", "stale"]


def test_who_is_meant_in_chat_is_looked_for_as_typed_first(home: Paths) -> None:
    names = {"c": "C", "sharp": "C#", "qa": "Anna (QA)", "fox": "\U0001f98a", "all": "Bob"}
    write(home, {"agents": {"entries": {id: {"name": name} for id, name in names.items()}}})

    async def scenario() -> list[str | None]:
        async with engine(home), bridge(home) as one:
            return [
                (await one.result("named", name=name, bare=bare, sure=sure)).get("name")
                for sure in (False, True)
                for name, bare in (
                    ("C#", "C#"),
                    ("C#!", "C#"),
                    ("C!", "C"),
                    ("Anna (QA)", "Anna (QA)"),
                    ("qa (Anna (QA))", "qa (Anna (QA))"),
                    ("\U0001f98a", "\U0001f98a"),
                    ("Bob now", "Bob"),
                    ("all now", "all"),
                    ("nobody", "nobody"),
                )
            ]

    wanted = ["sharp", "sharp", "c", "qa", "qa", "fox", "all"]
    assert asyncio.run(scenario()) == [*(f"agent:{id}" for id in wanted), "all", None] * 2


def test_without_a_config_there_is_the_hosts_one_agent(home: Paths) -> None:
    found = agents.read(home, {})
    assert ([agent.id for agent in found.agents], found.problem) == (["main"], "")


@pytest.mark.parametrize(
    ("config", "environ", "wanted"),
    [
        ({}, "", "file"),
        ({"protocol": "Off"}, "", ""),
        ({"protocol": "off"}, "", "off"),
        ({"protocol": "off", "fence": "none"}, "", "off"),
        ({"fence": "none"}, "", "file"),
        ({"protocol": "file"}, "off", "off"),
    ],
)
def test_the_protocol_is_what_the_engine_has(
    home: Paths, monkeypatch: pytest.MonkeyPatch, config: dict[str, str], environ: str, wanted: str
) -> None:
    if environ:
        monkeypatch.setenv("CLAWSTOP_PROTOCOL", environ)
    write(home, {"plugins": {"entries": {"clawstop": {"config": config}}}})
    assert agents.read(home, {}).protocol == wanted
