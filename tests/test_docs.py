"""Snippets in README and docs run, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from types import ModuleType
from unittest.mock import patch

import pytest
from conftest import ROOT, shared_data
from typer.main import get_command

import longtail
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


def generator() -> ModuleType:
    """Import docs/generate.py."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date():
    for page, make in generator().PAGES.items():
        assert (ROOT / "docs" / page).read_text() == make(), f"docs/{page} is old: python docs/generate.py"


def test_a_setting_without_a_sentence_is_refused():
    class Bare:
        width: int = 3

        speed: int = 4  # of light

    assert generator().sentence_of(Bare, "speed") == "Speed of light"
    with pytest.raises(ValueError, match="has no sentence"):
        generator().sentence_of(Bare, "width")


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(name.rpartition(".")[2] for name in named) == sorted(longtail.__all__)


def test_every_page_is_in_the_site():
    listed = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_notebooks_are_kept_without_what_they_printed():
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), notebook.name


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install longtail[docs]")
    environment = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert (tmp_path / "search" / "search_index.js").is_file()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(https?:[^\"'\s>]+)", text)
        fetched += re.findall(r"<link\b(?![^>]*rel=[\"']?canonical)[^>]*href=[\"']?(https?:[^\"'\s>]+)", text)
        assert not fetched, (page.name, fetched)
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", style.read_text()), style.name


@pytest.mark.slow
def test_the_notebooks_run(tmp_path):
    pytest.importorskip("nbmake", reason="pip install longtail[docs]")
    names = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(names) == 2
    for name in names:
        (tmp_path / name.name).write_text(name.read_text())
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "LONGTAIL_CACHE": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbmake",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
