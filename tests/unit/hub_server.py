"""A real, small model hub for tests: the part of the hub's HTTP API that huggingface_hub and datasets speak, over
folders.

Repositories have commits, as on the hub: adding one again moves `main` on, and its older commits stay to be had by
their hash.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_member"
"""Opens gated repositories."""
API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)(?:/(?P<verb>revision|tree|paths-info)/(?P<revision>[^/]+)(?P<below>/.*)?)?"
)
RESOLVE = re.compile(r"/(?:(?P<kind>datasets)/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Repository:
    """commits: hash -> path -> content; refs: branch -> hash."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False

    def commit(self, revision: str) -> str | None:
        found = self.refs.get(revision, revision)
        return found if found in self.commits else None


class RefusalError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class HubServer(ThreadingHTTPServer):
    """Serves what `add` was given; `down`: answers everything with 503."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.forget()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def forget(self) -> None:
        """What it was given, and what it was asked."""
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.requests: list[str] = []
        self.down = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(
        self,
        repo: str,
        content: Path | Mapping[str, bytes],
        *,
        kind: str = "models",
        gated: bool = False,
        branch: str = "main",
    ) -> str:
        """Commit a folder (or paths with contents) to a branch; returns the commit's hash."""
        files = (
            {str(path.relative_to(content)): path.read_bytes() for path in sorted(content.rglob("*")) if path.is_file()}
            if isinstance(content, Path)
            else dict(content)
        )
        repository = self.repositories.setdefault((kind, repo), Repository())
        seen = sha1(f"{kind}{repo}{len(repository.commits)}".encode())
        for name, data in files.items():
            seen.update(name.encode() + data)
        commit = seen.hexdigest()
        repository.commits[commit], repository.refs[branch], repository.gated = files, commit, gated
        return commit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.serve()

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        self.server.requests.append(f"{self.command} {self.path}")
        try:
            if self.server.down:
                raise RefusalError(503, message="Service Unavailable")
            if found := API.fullmatch(address.path):
                answer = self.api(found, parse_qs(address.query), parse_qs(body.decode()))
                self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
            elif found := RESOLVE.fullmatch(address.path):
                content, headers = self.file(found)
                self.send(200, content, headers)
            else:
                raise RefusalError(404, message="no such page")
        except RefusalError as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self.send(refusal.status, b"", {name: value for name, value in headers.items() if value})

    def send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def repository(self, kind: str, repo: str) -> Repository:
        """As the hub answers: without a token one that is missing looks like one that is private."""
        if (kind, repo) not in self.server.repositories:
            if self.headers.get("Authorization"):
                raise RefusalError(404, "RepoNotFound", "Repository not found")
            raise RefusalError(401, message="Invalid username or password.")
        return self.server.repositories[kind, repo]

    def api(self, found: re.Match[str], query: dict[str, list[str]], form: dict[str, list[str]]) -> Any:
        """What is public of a gated repository, too, but for its files."""
        repository = self.repository(found["kind"], found["repo"])
        commit, files = self.commit(repository, unquote(found["revision"] or "main"))
        if found["verb"] == "tree":
            below = unquote(found["below"] or "").strip("/")
            recursive = query.get("recursive", ["false"])[0].lower() == "true"
            return entries(files, f"{below}/" if below else "", recursive)
        if found["verb"] == "paths-info":
            return [entry for entry in entries(files, "", True) if entry["path"] in form.get("paths", [])]
        return {
            "id": found["repo"], "sha": commit, "private": False, "gated": "manual" if repository.gated else False,
            "disabled": False, "tags": [], "downloads": 0, "likes": 0, "siblings": [{"rfilename": path} for path in files],
        }  # fmt: skip

    def file(self, found: re.Match[str]) -> tuple[bytes, dict[str, str]]:
        repository = self.repository(found["kind"] or "models", found["repo"])
        if repository.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status = 403 if self.headers.get("Authorization") else 401
            raise RefusalError(status, "GatedRepo", f"Access to {found['repo']} is restricted")
        commit, files = self.commit(repository, unquote(found["revision"]))
        path = unquote(found["path"])
        if path not in files:
            raise RefusalError(404, "EntryNotFound", "Entry not found")
        return files[path], {
            "X-Repo-Commit": commit,
            "ETag": f'"{sha256(files[path]).hexdigest()}"',
            "Accept-Ranges": "none",
        }

    def commit(self, repository: Repository, revision: str) -> tuple[str, dict[str, bytes]]:
        commit = repository.commit(revision)
        if commit is None:
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]


def entries(files: Mapping[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """Files below a folder (``, `a/`), and folders that are seen on the way. Raises RefusalError for a folder that is
    not there.
    """
    inside = {path: data for path, data in files.items() if path.startswith(folder)}
    if folder and not inside:
        raise RefusalError(404, "EntryNotFound", "no such folder")
    oids = {path: sha1(data).hexdigest() for path, data in inside.items()}
    parents = {"/".join(path.split("/")[:depth]) for path in inside for depth in range(1, path.count("/") + 1)}
    folders = [
        {"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode()).hexdigest()}
        for path in sorted(parents)
    ]
    found = [
        *folders,
        *({"type": "file", "path": path, "size": len(inside[path]), "oid": oid} for path, oid in oids.items()),
    ]
    below = [entry for entry in found if str(entry["path"]).startswith(folder) and f"{entry['path']}/" != folder]
    return below if recursive else [entry for entry in below if "/" not in str(entry["path"])[len(folder) :]]
