"""`longtail serve`: serve models over HTTP, with a web page to try them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from longtail.cli.console import say
from longtail.cli.options import Trusted
from longtail.errors import MissingExtra

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(serve)


def serve(
    runs: Annotated[
        list[Path], typer.Argument(help="Model folders that `longtail train` wrote; several stand beside each other.")
    ],
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen at; one that others can reach needs --api-key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Worker processes; they share the memory of the model.")
    ] = 1,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Requests to /v1 must carry this key. The environment keeps it out of the process list.",
            envvar="LONGTAIL_API_KEY",
            show_envvar=True,
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen at any address without a key: everybody may change labels.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Answer /metrics and /openapi.json without the key.")
    ] = False,
    access_log: Annotated[
        Path | None, typer.Option(help="Append a JSON line for each request, without texts; - is standard error.")
    ] = None,
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Keep the query and the body of each request in --access-log too.")
    ] = False,
    trusted_keys: Trusted = None,
    feedback: Annotated[
        Path | None,
        typer.Option(help="Append a JSON line when somebody says on the page that a label is right or wrong."),
    ] = None,
) -> None:
    """Serve predictions over HTTP, with a web page to try the model; Ctrl-C stops, SIGHUP reloads the model."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "serve")
    from longtail.serve.run import configure_logging, listen
    from longtail.serve.run import serve as run_service
    from longtail.serve.settings import Settings
    from longtail.signatures import trusted_keys as read_keys

    configure_logging()
    settings = Settings(
        tuple(runs), host=host, port=port, workers=workers, api_key=api_key, insecure=insecure, public=public,
        access_log=access_log, log_texts=log_texts, feedback=feedback,
        trusted=() if trusted_keys is None else read_keys(trusted_keys),
    )  # fmt: skip
    listener = listen(settings)
    address = f"[{host.strip('[]')}]" if ":" in host else host
    url = f"http://{address}:{listener.getsockname()[1]}"
    if insecure and not api_key:
        say("without a key: everybody who reaches this address may ask, and change labels")
    models = ", ".join(str(folder) for folder in runs)
    code = run_service(settings, listener, started=lambda: say(f"serving {models} at {url} (Ctrl-C stops)"))
    if code:
        sys.exit(code)
