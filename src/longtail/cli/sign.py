"""`longtail sign`, `keygen`: say who answers for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.console import say
from longtail.cli.models import Run


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (sign, keygen):
        app.command()(command)


def sign(
    run: Run,
    key: Annotated[Path, typer.Option("--key", help="A private key: Ed25519, in PEM, as `longtail keygen` writes it.")],
) -> None:
    """Sign a model folder as it is now, with the labels that were added and removed; `--trusted-keys` asks for that."""
    from longtail.signatures import FILE
    from longtail.signatures import sign as sign_folder

    public = sign_folder(run, key)
    say(f"wrote {run / FILE}: signed by {public}")


def keygen(
    key: Annotated[Path, typer.Argument(help="The file to write; the public key goes beside it, to KEY.pub.")],
) -> None:
    """Make a key to sign models with, and the public key that others trust."""
    from longtail.signatures import make_key

    public = make_key(key)
    say(f"wrote {key} (keep it secret) and {public} (give it to those who should trust your models)")


def say_stale(run: Path) -> None:
    """Say that a signature no longer covers a folder that was changed."""
    from longtail.signatures import FILE

    if (run / FILE).exists():
        say(f"the signature does not cover this change; sign it again: longtail sign {run} --key KEY")
