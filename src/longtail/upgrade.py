"""FOLDER OF AN OLDER SCHEMA → FOLDER OF THIS ONE: written whole, and opened before it replaces the old one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longtail.errors import LongtailError, ModelError
from longtail.files import read_json
from longtail.folder import SCHEMA, check_seal, read_config, verify_files, write_config
from longtail.model import Model
from longtail.whole import held, whole_folder

Config = dict[str, Any]


def _with_voices(config: Config) -> Config:
    """Go from 3 to 4: the scores by words of a recipe became a list of voices."""
    recipe = dict(config["recipe"])
    lexical = recipe.pop("lexical", None)
    return config | {"recipe": recipe | {"voices": [] if lexical is None else [lexical]}}


STEPS: Mapping[int, Callable[[Config], Config]] = {3: _with_voices}  # from each schema to the next


def upgrade(path: str | Path) -> int:
    """Bring a model folder up to date and return the schema that it had; what cannot be done is a ModelError."""
    folder = Path(path)
    config = read_json(folder / "config.json")
    before = config.get("schema")
    if before == SCHEMA:
        read_config(folder)
        return SCHEMA
    if type(before) is not int or before not in STEPS:
        known = ", ".join(map(str, STEPS))
        raise ModelError(f"{folder}: its schema is {before!r}; only {known} can be brought to {SCHEMA}: train again")
    check_seal(folder, config)
    verify_files(folder, config["files"])
    for schema in range(before, SCHEMA):
        config = STEPS[schema](config) | {"schema": schema + 1}
    with held(folder), whole_folder(folder, force=True) as new:
        for file in sorted(folder.iterdir()):
            if file.name in config["files"] or file.name.endswith((".jsonl", ".csv")):  # the journal, the log
                shutil.copy2(file, new / file.name)
        write_config(new, config)
        try:
            Model.load(new).predict(["a text"])
        except LongtailError as reason:
            raise ModelError(f"{folder}: cannot be brought up to date, and stays as it is ({reason})") from None
    return before
