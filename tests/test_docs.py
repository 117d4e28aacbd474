"""Snippets in README and docs run, and links lead somewhere."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from unittest.mock import patch

import pytest
from conftest import ROOT, shared_data
from typer.main import get_command

from longtail.cli import app
from longtail.records import PARTS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
SNIPPETS = [(page, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)]


@pytest.mark.parametrize(("page", "code"), SNIPPETS, ids=lambda value: getattr(value, "name", None))
def test_python_snippets_run(page, code, tmp_path, monkeypatch):
    if "../shared/data" in code:
        code = code.replace("../shared/data", str(shared_data("LF-MDNSeeAlsoTitles-6K").parent))
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"snippet_{page.stem.lower()}_{abs(hash(code))}")  # parts that it registers are found there
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with patch.dict(PARTS):
        exec(compile(code, str(page), "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_docs_exist(page):
    root = get_command(app)
    for line in re.findall(r"^\s*(?:echo .*\| *)?longtail ([a-z]+(?: [a-z]+)?)", page.read_text(), re.M):
        first, *second = line.split()
        assert first in root.commands, line
        inner = root.commands[first]
        if second and hasattr(inner, "commands"):
            assert second[0] in inner.commands, line
