"""examples/: each folder has a README, whose commands name files and methods that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(it for it in (ROOT / "examples").iterdir() if it.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_example_has_a_readme_whose_commands_exist(folder: Path) -> None:
    readme = (folder / "README.md").read_text("utf-8")
    commands = re.findall(r"^\$ (.*?)(?:    #.*)?$", readme, re.MULTILINE)
    assert commands, "the README starts nothing"
    files = [it for it in folder.iterdir() if it.is_file() and it.suffix != ".md"]
    sources = "".join(it.read_text("utf-8") for it in files)
    for command in commands:
        for path in re.findall(r"\bexamples/[\w./]+", command):
            assert (ROOT / path).exists(), f"{path} does not exist: $ {command}"
        if called := re.match(r"ucall (?:\w+\.)?(\w+)", command):
            assert re.search(rf"\b{called[1]}\b", sources), f"no method {called[1]}: $ {command}"
