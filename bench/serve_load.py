"""Load the service with wrk, on the same cores: requests per second, latency and memory, as JSON.

    python bench/serve_load.py [RUN] [--data LF-MSDocsSeeAlsoTitles-87K] [--workers 1] [--connections 16] [--seconds 10]

RUN is a model folder; without it `frugal` is trained once, which takes minutes, and kept in $LONGTAIL_CACHE. The
queries are the test texts of the data, one a request, five labels each. wrk is Debian's package of that name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fitted import NAME, frugal

from longtail.data.formats import load
from longtail.serve.settings import OPENER

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("LONGTAIL_DATA", ROOT.parent / "shared" / "data"))
SERVE = """
import sys
from pathlib import Path
from longtail.serve.run import listen, serve
from longtail.serve.settings import Settings

if __name__ == "__main__":
    settings = Settings((Path(sys.argv[1]),), port=0, workers=int(sys.argv[2]), opener=sys.argv[3])
    listener = listen(settings)
    port = listener.getsockname()[1]
    sys.exit(serve(settings, listener, started=lambda: print(port, flush=True)))
"""
ASK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local bodies, place = {}, 0
for line in io.lines("%s") do bodies[#bodies + 1] = line end
request = function()
  place = place %% #bodies + 1
  return wrk.format(nil, "/v1/predict", nil, bodies[place])
end
done = function(summary, latency)
  local wrong = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  print(string.format("FIGURES %%d %%d %%d %%d %%d", summary.requests, summary.duration, latency:percentile(50),
                      latency:percentile(99), wrong))
end
"""


def processes(pid: int) -> list[int]:
    """List a process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(other for child in children for other in processes(int(child)))]


def memory(pid: int) -> tuple[float, float]:
    """Return the resident MB of the largest process of the service, and of all with shared pages counted once."""
    rss, pss = [], []
    for each in processes(pid):
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        for name, into in (("Rss", rss), ("Pss", pss)):
            into.append(int(re.search(rf"^{name}:\s+(\d+)", rollup, re.M)[1]) / 1000)
    return max(rss), sum(pss)


def measured(port: int, script: Path, connections: int, seconds: int) -> dict[str, float]:
    """Run wrk once."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    requests, micros, p50, p99, errors = map(int, re.search(r"FIGURES (.*)", output)[1].split())
    per_second = round(requests / micros * 1e6, 1)
    return {"requests_per_second": per_second, "p50_ms": p50 / 1000, "p99_ms": p99 / 1000, "errors": errors}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--data", default=NAME, help="a name in $LONGTAIL_DATA, or a path")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--opener", default=OPENER, help="what opens the folder: module:attribute")
    args = parser.parse_args()
    path = DATA / args.data if (DATA / args.data).exists() else Path(args.data)
    for missing, what in ((shutil.which("wrk") is None, "wrk is not installed"), (not path.exists(), f"no {path}")):
        if missing:
            print(f"skipped: {what}", file=sys.stderr)
            return 0
    if args.run is None and args.data != NAME:
        parser.error(f"give RUN, a model of {args.data}")
    data = load(path)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = args.run or frugal(data.train)
        bodies, script = folder / "bodies.jsonl", folder / "ask.lua"
        texts = data.test.need_texts("the load")[:5000].tolist()
        bodies.write_text("".join(json.dumps({"texts": [text], "k": 5}) + "\n" for text in texts))
        script.write_text(ASK % bodies)
        command = [sys.executable, "-c", SERVE, str(run), str(args.workers), args.opener]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                line = service.stdout.readline()
                if not line:
                    print("the service did not start; its message is above", file=sys.stderr)
                    return 1
                port = int(line)
                measured(port, script, args.connections, 2)  # warm
                figures = measured(port, script, args.connections, args.seconds)
                rss, pss = memory(service.pid)
            finally:
                service.terminate()
    settings = {"data": args.data, "workers": args.workers, "connections": args.connections}
    print(json.dumps({**settings, **figures, "rss_mb": round(rss, 1), "all_mb": round(pss, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
