"""The files of deploy/: linted here, and the steps of the Dockerfile run in an empty environment."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv

import pytest
import yaml
from conftest import ROOT
from typer.main import get_command

import longtail
from longtail.cli import app

DEPLOY = ROOT / "deploy"
SERVE = get_command(app).commands["serve"]
FLAGS = {option for parameter in SERVE.params for option in parameter.opts}


def steps() -> list[tuple[str, str]]:
    """List the instructions of the Dockerfile; a backslash joins lines."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def flags_of(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_the_dockerfile_follows_the_rules_of_hadolint():
    found = dict(steps())
    names = [name for name, _ in steps()]
    assert names[0] == "FROM" and re.fullmatch(r"python:3\.\d+-slim", found["FROM"])  # a tag, never latest
    assert names.index("USER") < names.index("ENTRYPOINT") and found["USER"] != "root"
    assert all(rest.startswith("[") for name, rest in steps() if name in ("ENTRYPOINT", "CMD"))
    for name, rest in steps():
        assert name in {
            "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"
        }  # fmt: skip
        if name == "RUN" and rest.startswith("pip"):
            assert "--no-cache-dir" in rest and "-c constraints.txt" in rest
        if name == "COPY":
            assert all((ROOT / source).exists() for source in shlex.split(rest)[:-1])
        if name == "WORKDIR":
            assert rest.startswith("/")
        assert "sudo" not in rest
    extras = {name for _, rest in steps() for group in re.findall(r"\.\[(.*)\]", rest) for name in group.split(",")}
    known = set(re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))
    assert "serve" in extras and extras <= known
    command = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
    assert command[:3] == ["longtail", "serve", "/model"] and flags_of(command) <= FLAGS
    port = command[command.index("--port") + 1]
    assert found["EXPOSE"] == port and f":{port}/readyz" in found["HEALTHCHECK"]


def test_compose_asks_for_a_key_and_a_model():
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["image"] == f"longtail:{longtail.__version__}"
    assert "?" in service["environment"]["LONGTAIL_API_KEY"] and service["volumes"][0].endswith(":/model")
    assert flags_of(service["command"]) <= FLAGS
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_unit_starts_what_there_is():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "longtail.service")
    service = unit["Service"]
    program, command, *rest = shlex.split(service["ExecStart"])
    assert (program.rpartition("/")[2], command) == ("longtail", "serve") and flags_of(rest) <= FLAGS
    assert "-HUP" in service["ExecReload"]
    assert rest[0].startswith(service["ReadWritePaths"])
    assert service["User"] != "root" and unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_finds_nothing_wrong(tmp_path):
    text = (DEPLOY / "longtail.service").read_text().replace("/opt/longtail/bin/longtail", sys.executable)
    (tmp_path / "longtail.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "longtail.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "longtail.service" not in done.stderr, done.stderr


def test_the_proxy_lets_through_what_the_service_takes():
    text = (DEPLOY / "nginx.conf").read_text()
    assert text.count("{") == text.count("}")
    for line in text.splitlines():
        assert not line.strip() or line.strip()[-1] in ";{}" or line.startswith("#"), line
    unit = (DEPLOY / "longtail.service").read_text()
    assert f"--port {re.search(r'proxy_pass http://127.0.0.1:([0-9]+);', text)[1]} " in unit


def test_the_citation_names_the_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["version"] == longtail.__version__
    assert len(cited["references"]) == 5
    for entry in (cited, *cited["references"]):
        assert entry["title"] and entry["type"] and entry["authors"]


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_run(tmp_path):
    home, model = tmp_path / "app", tmp_path / "model"
    home.mkdir()
    longtail.fit("knn", ["red cat", "old dog"] * 15, [["cat"], ["dog"]] * 15).save(model)
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept | {"PATH": f"{programs}{os.pathsep}{kept['PATH']}", "LONGTAIL_API_KEY": "secret"}
    for name, rest in steps():
        if name == "COPY":
            *sources, target = shlex.split(rest)
            for source in map(ROOT.joinpath, sources):
                shutil.copytree(source, home / target) if source.is_dir() else shutil.copy(source, home / target)
        elif name == "RUN" and rest.startswith("pip"):
            subprocess.run(["bash", "-c", f"exec {rest}"], cwd=home, env=environment, check=True)
        elif name == "ENV":
            key, _, value = rest.partition("=")
            environment[key] = value.replace("/tmp", str(tmp_path))
    found = dict(steps())
    command = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
    command = [{"/model": str(model), "8000": "0"}.get(word, word) for word in command]
    with subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.PIPE, text=True) as service:
        try:
            port = next(at[1] for line in service.stderr if (at := re.search(r"http://\S+?:(\d+)", line)))
            body = json.dumps({"texts": ["a red cat"]}).encode()
            headers = {"Content-Type": "application/json", "X-API-Key": "secret"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/predict", body, headers)
            with urllib.request.urlopen(request) as response:
                assert json.load(response)["predictions"][0]["labels"][0]["text"] == "cat"
            health = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
            check = [word.replace(":8000/", f":{port}/") for word in health]
            subprocess.run(check, env=environment, check=True)
        finally:
            service.send_signal(signal.SIGTERM)
