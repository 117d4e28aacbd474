"""The service as processes: start, stop, reload, workers, and what goes wrong with them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from conftest import ROOT
from serve.conftest import until
from typer.testing import CliRunner

from longtail.cli import app
from longtail.serve.held import POSSIBLE
from longtail.whole import whole_file

CODE = """
import sys
from pathlib import Path
from longtail.serve.run import listen, serve
from longtail.serve.settings import Settings

if __name__ == "__main__":
    runs = tuple(Path(run) for run in sys.argv[2:])
    settings = Settings(runs, port=0, workers=int(sys.argv[1]), opener="serve.double:Double.load")
    listener = listen(settings)
    port = listener.getsockname()[1]
    sys.exit(serve(settings, listener, started=lambda: print(port, flush=True)))
"""


def write(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    with whole_file(folder / "config.json") as partial:
        partial.write_text("\n".join(lines))
    return folder


@contextmanager
def process(*runs: Path, workers: int = 1):
    """Serve folders of doubles in processes; yield (process, address)."""
    command = [sys.executable, "-c", CODE, str(workers), *map(str, runs)]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}",
        "TMPDIR": str(runs[0].parent),
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            yield running, f"http://127.0.0.1:{running.stdout.readline().strip()}"
        finally:
            running.kill()


def best(address: str, text: str) -> list[str]:
    answer = httpx.post(f"{address}/v1/predict", json={"texts": [text]}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [label["text"] for label in answer.json()["predictions"][0]["labels"]]


class Load:
    """Send requests all the time, on open and on new connections, and note every answer that is not a 200."""

    def __init__(self, address: str) -> None:
        self.address, self.answers, self.wrong, self.stop = address, 0, [], False
        self.threads = [threading.Thread(target=self.ask, args=(keep,)) for keep in (True, True, False)]

    def ask(self, keep: bool) -> None:
        with httpx.Client(timeout=10) as client:
            while not self.stop:
                try:
                    post = client.post if keep else httpx.post
                    status = post(f"{self.address}/v1/predict", json={"texts": ["red cat"]}).status_code
                    self.wrong += [] if status == 200 else [status]
                except httpx.HTTPError as reason:
                    self.wrong.append(repr(reason))
                self.answers += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        until(lambda: self.answers > 10)
        return self

    def __exit__(self, *_):
        self.stop = True
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_start_answer_reload_and_stop(tmp_path, workers):
    folder = write(tmp_path / "run", "first", "red cat")
    with process(folder, workers=workers) as (running, address):
        assert best(address, "cat") == ["red cat"]
        assert "uvicorn" not in str(httpx.get(f"{address}/").headers)
        with Load(address) as load:
            write(folder, "second", "blue cat", "red cat")
            until(lambda: all(best(address, "blue cat")[:1] == ["blue cat"] for _ in range(10)))
            (folder / "config.json").write_text("")  # cannot be opened: the old one stays
            time.sleep(1.2)
            assert best(address, "blue cat")[0] == "blue cat"
            write(folder, "third", "green cat", "red cat")
            until(lambda: all(best(address, "green cat")[:1] == ["green cat"] for _ in range(10)))
        assert load.wrong == []
        numbers = httpx.get(f"{address}/metrics").text
        assert re.search(r'longtail_reloads_total\{model="first",result="failed"\} [1-9]', numbers)
        assert float(re.search(r'requests_total\{path="/v1/predict",status="200"\} (\S+)', numbers)[1]) >= load.answers
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/healthz")


def test_sighup_opens_the_folder_again(tmp_path):
    folder = write(tmp_path / "run", "first", "red cat")
    with process(folder) as (running, address):
        assert httpx.post(f"{address}/v1/labels", json={"labels": [{"text": "lost bird"}]}).status_code == 200
        assert best(address, "bird") == ["lost bird"]  # the double keeps it in memory only
        running.send_signal(signal.SIGHUP)
        until(lambda: best(address, "bird") == [])
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 0


def children(pid: int) -> list[int]:
    """Find the worker processes of a supervisor."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    if not tasks.exists():
        pytest.skip("this system does not list the children of a process")
    pids = [int(child) for child in tasks.read_text().split()]
    return [child for child in pids if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_dead_worker_is_replaced_and_workers_do_not_outlive_their_supervisor(tmp_path):
    with process(write(tmp_path / "run", "first", "red cat"), workers=2) as (running, address):
        before = children(running.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(set(children(running.pid)) - set(before)) == 1)
        until(lambda: all(best(address, "cat") for _ in range(5)))
        workers = children(running.pid)
        running.kill()
        running.wait()
        until(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_that_cannot_be_opened_ends_the_start(tmp_path, workers):
    folder = write(tmp_path / "run", "")
    (folder / "config.json").write_text("")
    with process(folder, workers=workers) as (running, address):
        assert address.endswith(":")
        assert running.wait(10) != 0


def test_the_command_passes_everything_on(monkeypatch):
    seen = []

    def serve(settings, listener, started):
        seen.append(settings)
        listener.close()
        return 0

    monkeypatch.setattr("longtail.serve.run.serve", serve)
    arguments = ["serve", "a", "b", "c", "--port", "0", "--workers", "3", "--host", "0.0.0.0", "--feedback", "f.jsonl"]
    done = CliRunner().invoke(app, arguments, env={"LONGTAIL_API_KEY": "secret"})
    assert done.exit_code == 0, done.output
    assert seen[0].runs == (Path("a"), Path("b"), Path("c"))
    assert seen[0].feedback == Path("f.jsonl")
    assert (seen[0].workers, seen[0].host, seen[0].api_key, seen[0].insecure) == (3, "0.0.0.0", "secret", False)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", "from longtail.cli import main; main()", "serve", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "LONGTAIL_API_KEY"}
    return subprocess.run(call, capture_output=True, text=True, check=False, env=environment)


def test_what_the_command_refuses(tmp_path):
    open_to_all = command(str(tmp_path), "--host", "0.0.0.0")
    assert (open_to_all.returncode, open_to_all.stdout) == (3, "")
    assert "--api-key" in open_to_all.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = command(str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert busy.returncode == 5
    assert "another --port" in busy.stderr
    assert "Traceback" not in open_to_all.stderr + busy.stderr


def test_others_are_heard_only_when_they_warn():
    code = (
        "import logging; from longtail.serve.run import log, configure_logging; configure_logging(); log.info('own'); "
    )
    code += "other = logging.getLogger('faiss.loader'); other.info('chatter'); other.warning('care')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["own", "care"]


def test_a_host_that_does_not_exist_is_named(tmp_path):
    wrong = command(str(tmp_path), "--host", "no-such-host.invalid", "--insecure")
    assert wrong.returncode == 5 and "another --host" in wrong.stderr


def test_two_services_with_workers_do_not_share_a_port(tmp_path):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as the workers of another service
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = command(str(tmp_path), "--workers", "2", "--port", str(taken.getsockname()[1]))
    assert busy.returncode == 5 and "another --port" in busy.stderr


@pytest.mark.skipif(not POSSIBLE, reason="this system cannot hand connections over")
def test_what_a_worker_held_when_it_died_is_answered(tmp_path):
    folder = write(tmp_path / "run", "first", "red cat")
    with process(folder) as (running, address), httpx.Client(timeout=30) as idle:
        assert idle.get(f"{address}/healthz").status_code == 200
        (worker,) = children(running.pid)
        answers: list[object] = []

        def ask(path: str) -> None:
            try:
                answers.append(httpx.post(f"{address}{path}", json={"texts": ["sleep"]}, timeout=30))
            except httpx.HTTPError as reason:
                answers.append(reason)

        threads = [threading.Thread(target=ask, args=("/v1/predict",)) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        os.kill(worker, signal.SIGKILL)
        late = threading.Thread(target=ask, args=("/healthz",))  # nobody listens yet: it waits for the next worker
        late.start()
        for thread in (*threads, late):
            thread.join(60)
        assert [getattr(answer, "status_code", answer) for answer in answers] == [503, 503, 503, 405], answers
        assert "has ended; ask again" in answers[0].json()["detail"] and answers[0].headers["retry-after"] == "1"
        assert idle.get(f"{address}/healthz").status_code == 200  # on another connection: the idle one was closed
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGBUS])
def test_the_only_worker_is_replaced_when_it_dies(tmp_path, number):
    folder = write(tmp_path / "run", "first", "red cat")
    with process(folder) as (running, address):
        assert best(address, "cat") == ["red cat"]
        (worker,) = children(running.pid)
        os.kill(worker, number)

        def answers() -> bool:
            try:
                return best(address, "cat") == ["red cat"]
            except httpx.HTTPError:
                return False

        until(lambda: not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/exe").exists())
        until(answers)
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
