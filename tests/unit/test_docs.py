"""Docs that can rot are tests: commands and links exist, both READMEs agree, the licences are complete."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import click
import pytest

from daemon.cli.main import main

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
PAGES = sorted(
    page
    for folder in (ROOT, ROOT / "docs", ROOT / "docs/container", ROOT / "systemd", ROOT / "ansible")
    for page in folder.glob("*.md")
)
FAMILIES = {
    "Apache": r"apache",
    "LGPL": r"lgpl|lesser general",
    "GPL": r"(?<!l)gpl|gnu general",
    "MPL": r"mpl|mozilla",
    "BSD": r"\bbsd",
    "MIT": r"\bmit\b",
}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_lines(page: str) -> list[str]:
    """Indented and fenced code of a page, line by line."""
    fenced = re.findall(r"```\w*\n(.*?)```", page, flags=re.DOTALL)
    indented = re.findall(r"^ {4}(.*)$", page, flags=re.MULTILINE)
    return [line for block in fenced for line in block.splitlines()] + indented


@pytest.mark.parametrize("name", READMES)
def test_every_command_of_cosyd_is_in_the_readme_and_every_one_there_exists(name: str) -> None:
    assert isinstance(main, click.Group)
    context = click.Context(main)
    offered = set(main.list_commands(context))
    for command in offered:
        assert main.get_command(context, command) is not None
    block = set(re.findall(r"^    cosyd ([a-z][a-z-]*)", read(name), flags=re.MULTILINE))
    inline = set(re.findall(r"`cosyd ([a-z][a-z-]*)", read(name)))
    assert offered - {"admin"} == block
    assert inline <= offered


@pytest.mark.parametrize("name", READMES)
def test_the_commands_of_the_installer_exist(name: str) -> None:
    text = read(name)
    used = set(re.findall(r"\./install\.sh ([a-z]+)", text))
    options = set(re.findall(r"(--[a-z][a-z-]+)", " ".join(re.findall(r"\./install\.sh[^`\n]*", text))))
    usage = subprocess.run(
        ["bash", str(ROOT / "install.sh"), "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert used == {"try", "test", "install", "uninstall"}
    assert all(f"./install.sh {command}" in usage for command in used)
    assert all(option in usage for option in options)


def test_both_readmes_have_the_same_shape() -> None:
    shapes = []
    for name in READMES:
        text = read(name)
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        shapes.append(
            {
                "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, flags=re.MULTILINE)],
                "table rows": len(re.findall(r"^\|", text, flags=re.MULTILINE)),
                "commands": re.findall(r"^    (?:cosyd|\./install\.sh) [a-z-]+", text, flags=re.MULTILINE),
                "links": len(re.findall(r"\]\(([^)#]+)\)", text)),
            }
        )
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", READMES)
def test_the_first_screen_has_the_two_commands(name: str) -> None:
    first = read(name).splitlines()[:20]
    assert any("git clone" in line for line in first)
    assert any(line.strip() == "./install.sh try" for line in first)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", READMES)
def test_python_examples_are_python(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", read(name), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)


GUIDES = ("docs/backup-and-update.md", "docs/container/README.md", "docs/security.md")


@pytest.mark.parametrize("name", GUIDES)
def test_the_command_lines_of_a_guide_name_commands_and_options_that_exist(name: str) -> None:
    text = read(name)
    lines = [*code_lines(text), *re.findall(r"`((?:sudo )?cosyd [^`]+)`", text)]
    found = [re.search(r"(?:^|[ /])cosyd (?!cosyd )([a-z].*)$", line) for line in lines]
    commands = [words[1].split() for words in found if words is not None]
    assert len(commands) > 5
    for words in commands:
        command: click.Command = main
        rest = list(words)
        while isinstance(command, click.Group):
            known = command.get_command(click.Context(command), rest[0]) if rest else None
            if known is None:
                break
            command, rest = known, rest[1:]
        assert command is not main, words
        options = {option for param in command.params for option in param.opts}
        assert {word for word in rest if word.startswith("--")} <= options, words


def test_paths_named_in_the_provisioning_guide_and_the_installer_exist() -> None:
    for name in re.findall(r"docs/[\w./-]+\.md", read("install.sh")):
        assert (ROOT / name).exists(), name


def test_the_version_of_the_changelog_comes_first() -> None:
    assert re.search(r"^## (Unreleased|\d+\.\d+\.\d+)", read("CHANGELOG.md"), flags=re.MULTILINE)


# ---- licences ------------------------------------------------------------------------------------


def declared() -> set[str]:
    """Names of every dependency of pyproject.toml."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {re.split(r"[<>=!~,;\[ ]", line)[0] for group in lists for line in group}


def listed() -> dict[str, str]:
    """Package to licence, as docs/licences.md has it."""
    section = read("docs/licences.md").split("## Python packages")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| [\w, ]+ \| (.+) \|$", section, flags=re.MULTILINE)
    return {name: licence for name, licence in rows if name != "package"}


def families(licence: str) -> set[str]:
    return {name for name, pattern in FAMILIES.items() if re.search(pattern, licence, flags=re.IGNORECASE)}


def installed_licence(name: str) -> str | None:
    """The licence of an installed package (expression, old field or classifier); None if not installed."""
    try:
        data = metadata(name)
    except PackageNotFoundError:
        return None
    classifiers = [value for value in data.get_all("Classifier") or [] if value.startswith("License ::")]
    field = data.get("License-Expression") or (data.get("License") or "").strip().splitlines()[:1]
    return field if isinstance(field, str) else " ".join([*field, *classifiers])


def test_the_list_of_licences_is_complete_and_has_nothing_else() -> None:
    assert set(listed()) == declared()


@pytest.mark.parametrize("name", sorted(declared()))
def test_the_list_of_licences_agrees_with_what_is_installed(name: str) -> None:
    licence = installed_licence(name)
    if licence is None:  # an extra that is not installed here; the list was read from its wheel
        assert families(listed()[name])
        return
    main_part = listed()[name].split(";")[0]
    assert families(licence), licence
    assert families(main_part) == families(licence), f"{main_part} is listed, {licence} installed"


def test_a_wrong_licence_would_be_noticed() -> None:
    assert families("GNU Lesser General Public License v2 or later (LGPLv2+)") == {"LGPL"}
    assert families("GPL-3.0-or-later") == {"GPL"}
    assert families("Apache-2.0 AND BSD-2-Clause") == {"Apache", "BSD"}
    assert families("MIT License") == {"MIT"}
