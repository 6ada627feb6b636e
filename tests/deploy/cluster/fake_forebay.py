"""Stands in for the `forebay` command in tests of the cluster: parts that start fast, answer little and end when asked.

The variable FAKE_CRASH makes replica 1 die at its first question for loads; where replicas have a key of the admin
pages, loads are told to who shows it.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

NAME, WORDS = sys.argv[1], sys.argv[2:]


def option(name: str, default: str = "") -> str:
    """Return the word after an option."""
    return WORDS[WORDS.index(name) + 1] if name in WORDS else default


class Answers(BaseHTTPRequestHandler):
    """Says that two instances are well."""

    asked = 0

    def do_GET(self) -> None:
        """Answer with loads."""
        Answers.asked += 1
        if "FAKE_CRASH" in os.environ and Answers.asked == 1 and option("--name") == "replica-1":
            print("no water left", flush=True)
            os._exit(7)
        key_file = os.environ.get("FOREBAY_PROXY_ADMIN_KEY_FILE")
        if key_file and self.headers["authorization"] != f"Bearer {Path(key_file).read_text().strip()}":
            self.send_error(401)
            return
        instances = [{"pool": "default", "id": f"sim-{n}", "state": "ready", "selected": 5} for n in (1, 2)]
        answer = {"replica": option("--name"), "strategy": "fake", "instances": instances, "answers": {"200": 10}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def listen(host: str, port: str) -> None:
    """Serve on a port in the background."""
    server = HTTPServer((host, int(port)), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    """Be the part that is asked for until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if NAME == "worker" and option("--slots") == "13":
        sys.exit("13 slots bring bad luck")
    for host, port in (option("--host"), option("--port", "0")), ("127.0.0.1", option("--admin-port", "0")):
        if port != "0":
            listen(host, port)
    if NAME == "replay":
        Path(option("--progress-file")).write_text('{"done":9,"errors":1,"ttft_p50_ms":20,"ttft_p99_ms":30}\n')
        Path(option("--json")).write_text('{"ttft_ms":{"p50":21,"p99":31}}')
    signal.pause()


main()
