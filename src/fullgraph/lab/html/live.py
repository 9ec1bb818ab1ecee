"""The pages of runs while they train, for a browser on this machine: read-only, on loopback, until the runs end."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import ceil
from pathlib import Path
from typing import ClassVar

from fullgraph.errors import InputError
from fullgraph.lab.html.many import page as page_of_many
from fullgraph.lab.html.one import page as page_of_one
from fullgraph.lab.html.past import PastRun, read_run
from fullgraph.report import EpochRecord
from fullgraph.storage import in_use

HOST = "127.0.0.1"
REFRESH_S = 5  # from one load of the page to the next, at least
SHARE = 0.01  # of one core that making pages may take
LAST_S = 3 * REFRESH_S  # after the last run ended, for a browser to load the final page
POLL_S = 1.0
PATIENCE_S = 5.0  # for a client that opens a connection and says nothing


class Pages:
    """The current page of some runs; it is made again only if their files changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._seen: object = None
        self._known: dict[str, EpochRecord] = {}
        self.refresh_s = REFRESH_S
        self._text, self._made = "", 0.0
        self.going_on = True

    def text(self) -> str:
        seen = [_state(folder) for folder in self.folders]
        if seen != self._seen or self._old():
            start = time.process_time()
            runs = [read_run(folder, known=self._known) for folder in self.folders]
            self._text = page_of_one(runs[0]) if len(runs) == 1 else page_of_many(runs)
            self.going_on = any(run.going_on for run in runs)
            self._seen, self._made = seen, time.monotonic()
            self.refresh_s = max(REFRESH_S, ceil((time.process_time() - start) / SHARE))
        return self._text

    def _old(self) -> bool:
        """Whether a run may have ended without a trace in its files, since the page was made."""
        return self.going_on and time.monotonic() - self._made > REFRESH_S


def _state(folder: Path) -> list[tuple[int, int]]:
    found = []
    for name in ("metrics.jsonl", "result.json", "profile.json"):
        with suppress(OSError):
            about = (folder / name).stat()
            found.append((about.st_mtime_ns, about.st_size))
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers GET of one address with the page; everything else is refused."""

    pages: ClassVar[Pages]
    place: ClassVar[str]
    timeout = PATIENCE_S
    server_version, sys_version = "fullgraph", ""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        port = self.server.server_port
        known = self.headers.get("Host", "") in (f"{HOST}:{port}", f"localhost:{port}")  # not a name that leads here
        if self.path != self.place or not known:
            self.send_error(404)
            return
        text = self.pages.text().encode()
        self.send_response(200)
        headers = {
            "Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(text)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin",
            **({"Refresh": str(self.pages.refresh_s)} if self.pages.going_on else {}),
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)
        self.server.shown_last = not self.pages.going_on

    def log_message(self, format: str, *words: object) -> None:
        """Print nothing."""


class Server(HTTPServer):
    """One client at a time; a broken connection ends nothing."""

    shown_last = False  # the page of the ended runs was loaded
    timeout = POLL_S

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that goes away."""


def watch(folders: Sequence[Path], port: int = 0, told: Callable[[str], None] = print) -> None:
    """Serve the page of these runs until all have ended; port 0: any free one."""
    runs = [read_run(folder) for folder in folders]
    if not any(run.going_on for run in runs):
        raise InputError(f"{_named(runs)} not training now; `fullgraph report` writes the page of runs that ended")
    os.nice(10)  # training goes first
    secret = f"/{secrets.token_urlsafe(9)}/"  # other users of this machine do not know it
    pages = Pages(folders)
    handler = type("RunHandler", (Handler,), {"pages": pages, "place": secret})
    try:
        server = Server((HOST, port), handler)
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; leave it out to take a free one") from None
    with server:
        told(f"watch at http://{HOST}:{server.server_port}{secret} until training ends, or Ctrl-C")
        until = None
        while not server.shown_last and (until is None or time.monotonic() < until):
            server.handle_request()
            if until is None and not any(read_going_on(folder) for folder in folders):
                until = time.monotonic() + LAST_S + pages.refresh_s
    for folder in folders:
        told(f"{folder} has ended; its page: {folder / 'report.html'}")


def read_going_on(folder: Path) -> bool:
    """Whether a process trains the run; unlike `read_run` it reads no epochs."""
    return in_use(folder) and not (folder / "result.json").is_file()


def _named(runs: Sequence[PastRun]) -> str:
    return f"{runs[0].folder} is" if len(runs) == 1 else "these runs are"
