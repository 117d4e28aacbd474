"""RECORDS AND COMMANDS → docs/tuning.md AND docs/cli.md: `python docs/generate.py` writes them, a test compares."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from typer.main import get_command

from longtail.cli import app
from longtail.parts import (
    Augmentation,
    BatchOrder,
    Classifier,
    Encoder,
    Head,
    Loss,
    Objective,
    Sampler,
    Stage,
    Voice,
)
from longtail.recipe import Recipe
from longtail.records import PARTS, Part, imported

HERE = Path(__file__).parent
WRITTEN = "<!-- written by docs/generate.py: change the code, then `make docs` -->"
KINDS: dict[str, tuple[type[Part], ...]] = {
    "The recipe": (Recipe, Objective),
    "Encoders": (Encoder,),
    "Heads": (Head,),
    "Samplers: the labels that a step scores": (Sampler,),
    "Classifiers": (Classifier,),
    "Losses": (Loss,),
    "Stages": (Stage,),
    "Loop and order of batches": (Part, BatchOrder),
    "Voices": (Voice,),
    "Augmentations": (Augmentation,),
}
STARTS_WITHOUT = re.compile(r"(?:of|by|in|to|that|before|behind|between|beside|below)\b")  # the name of the setting
INTRO = """# Tuning

Every setting of every part, with its default and what it is. Change one with `--set path=value`, or in Python with
`find_recipe("frugal").override("encoder.dim", 512)`. The path begins with the place of the part in the recipe:
`encoder.dim`, `sampler.hard`, `training.epochs`, `lexical.neighbours`, `augment.0.threshold`; what stands in the first
objective is reached directly. `longtail recipes --json` prints the settings of each recipe, which often differ from the
defaults here. Choose on held-out points, never on test points. [Training](training.md) names the settings that are
worth knowing first.

```python
from longtail import find_recipe

recipe = find_recipe("frugal").override("encoder.dim", 128).override("training.epochs", 3)
assert recipe.encoder.dim == 128
```
"""


def tuning() -> str:
    """Describe every setting of every part."""
    lines, done = [WRITTEN, "", INTRO], set[str]()
    for title, kinds in KINDS.items():
        lines += [f"## {title}", ""]
        for name in PARTS:
            cls: type[Part] = imported(PARTS, name, "part")
            if name not in done and any(_is_of(cls, kind) for kind in kinds):
                done.add(name)
                lines += _part(name, cls)
    if missing := set(PARTS) - done:
        raise ValueError(f"parts of no kind: {sorted(missing)}")
    return "\n".join(lines).rstrip() + "\n"


def _is_of(cls: type[Part], kind: type[Part]) -> bool:
    """Return whether a part is of a kind; Part itself stands for those of no other."""
    others = [one for kinds in KINDS.values() for one in kinds if one is not Part]
    return issubclass(cls, kind) if kind is not Part else not any(issubclass(cls, one) for one in others)


def _part(name: str, cls: type[Part]) -> Iterator[str]:
    """Describe one part."""
    about = inspect.cleandoc(cls.__doc__ or "").partition("\n>>>")[0].strip()
    yield from (f"### `{name}`", "", re.sub(r"\s*References: .*?\.(?=\s|$)", "", about, flags=re.S).strip(), "")
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if not fields:
        yield from ("It has no settings.", "")
        return
    yield from ("| setting | default | what it is |", "|---|---|---|")
    for field in fields:
        sentence = sentence_of(cls, field.name)
        yield f"| `{field.name}` | {_default(field)} | {sentence.replace('|', chr(92) + '|')} |"
    yield ""


def sentence_of(cls: type[Part], name: str) -> str:
    """Return the comment that stands behind or above a setting, in the class that declares it."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
    (body,) = (node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef))
    node = next(
        node for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
    )  # fmt: skip
    behind = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
    above = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().removeprefix("#").strip())
    found = re.sub(r"^noqa\S*( \S+)?\s*", "", behind) or " ".join(above)
    if not found:
        raise ValueError(f"{owner.__name__}.{name} in {owner.__module__} has no sentence: write a comment behind it")
    if STARTS_WITHOUT.match(found):
        found = f"{name.replace('_', ' ')} {found}"
    return found[0].upper() + found[1:]


def _default(field: Any) -> str:
    """Write the default of a setting."""
    default, factory = field.default, field.default_factory
    if isinstance(default, FieldInfo):
        default, factory = default.get_default(call_default_factory=False), default.default_factory
    if factory not in (None, dataclasses.MISSING):
        default = factory()
    if default is dataclasses.MISSING or repr(default) == "PydanticUndefined":
        return "–"
    return f"`{_plain(default)}`"


def _plain(value: Any) -> str:
    """Write a value as `--set` takes it."""
    if isinstance(value, Part):
        return value.part
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(entry) for entry in value) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def cli() -> str:
    """Describe every command, as `--help` does."""
    lines = [WRITTEN, "", "# Command line", ""]
    lines += ["Data goes to standard output, words and progress to standard error. Exit codes: 0 ok, 2 usage, 3 data,"]
    lines += ["4 recipe, 5 resources, 130 stopped by Ctrl-C.", ""]
    return "\n".join([*lines, *_commands(get_command(app), "longtail")]).rstrip() + "\n"


def _commands(command: Any, name: str) -> Iterator[str]:
    """Describe the commands below a command."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield from _command(command, name)
        return
    for own in inner:
        yield from _commands(inner[own], f"{name} {own}")


def _command(command: Any, name: str) -> Iterator[str]:
    """Describe one command."""
    parameters = [one for one in command.params if not one.hidden and one.name != "help"] if command.params else []
    given = [one for one in parameters if one.param_type_name == "argument"]
    words = [one.name.upper() if one.required else f"[{one.name.upper()}]" for one in given]
    yield from (f"## {name}", "", _prose(command.help or ""), "")
    yield from ("```", " ".join([name, *words, *(["[OPTIONS]"] if len(parameters) > len(given) else [])]), "```", "")
    if not parameters:
        return
    yield from ("| | | default |", "|---|---|---|")
    for one in parameters:
        names = one.name.upper() if one in given else ", ".join([*one.opts, *one.secondary_opts])
        default = "required" if one.required else "" if one.default in (None, False, (), "") else f"`{one.default}`"
        yield f"| `{names}` | {_prose(one.help or '')} | {default} |"
    yield ""


def _prose(text: str) -> str:
    """Write the words of a help as one paragraph of Markdown."""
    text = re.sub(r"\[/?bold\]", "`", " ".join(inspect.cleandoc(text).split()))
    return text.replace("|", "\\|").replace("<", "&lt;")


PAGES = {"tuning.md": tuning, "cli.md": cli}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (HERE / page).write_text(make(), encoding="utf-8")
