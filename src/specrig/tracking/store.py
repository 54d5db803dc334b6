"""Which MLflow a study is entered into, and in one sentence what is wrong with it: before anything is written, within
seconds.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from specrig.errors import first_line
from specrig.redaction import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
SQLITE = "sqlite:///"
PATIENCE_S = 15
"""How long a store may take to answer at all; making the tables of a new one may take longer."""
DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Module of a database's driver -> the package that has it, where the names differ."""


class StoreError(RuntimeError):
    """A store that cannot be used. The message is one sentence and says the fix."""


def tracking_uri(study_dir: Path) -> str:
    """The address of the store: `MLFLOW_TRACKING_URI`, or that of the SQLite store in the study's folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{study_dir.resolve() / 'mlflow.db'}"


def open_store(uri: str) -> MlflowClient:
    """A client of the store. Raises StoreError where it cannot be reached, read or written."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # A dead server must cost seconds, not MLflow's default minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    for name in ("alembic", "mlflow.store", "mlflow.tracking", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what they warn of is raised too
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file") or len(scheme) == 1:  # one letter: a drive of Windows
        _refuse_files(uri)
    address = "MLflow at " + redacted(uri)
    is_database = scheme.split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")
    if uri.startswith(SQLITE):
        _check_file(Path(uri.removeprefix(SQLITE)))
    elif is_database:
        _within(PATIENCE_S, lambda: _connect(uri), address)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=uri)
        if not is_database:
            _within(PATIENCE_S, lambda: client.search_experiments(max_results=1), address)
        return client
    except MlflowException as error:
        if schema := re.search(r"out-of-date database schema \(found version (\w+)", str(error)):
            raise StoreError(_other_schema(uri, schema[1])) from error
        raise StoreError(f"{address}: {first_line(error)}") from error


def _refuse_files(uri: str) -> None:
    folder = Path(uri.removeprefix("file://")).resolve()
    store = folder.parent / "mlflow.db"
    old = f" (its runs go along: mlflow migrate-filestore --source {shlex.quote(str(folder))} --target {SQLITE}{store})"
    raise StoreError(
        f"MLFLOW_TRACKING_URI={uri} is a folder of files, which MLflow no longer develops; this makes a store in SQLite: "
        f"export MLFLOW_TRACKING_URI={shlex.quote(f'{SQLITE}{store}')}{old if folder.is_dir() else ''}"
    )


def _check_file(path: Path) -> None:
    """MLflow retries for 100 seconds where SQLite says at once what is wrong."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as store:
            store.execute("begin immediate").connection.rollback()
            damage = store.execute("pragma quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
    except (sqlite3.OperationalError, OSError) as error:
        raise StoreError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{path} is damaged ({reason}): move it away, and the runs are entered into a new one"
        ) from error


def _connect(uri: str) -> None:
    """MLflow retries for 100 seconds, and does not say what a missing driver is called."""
    from sqlalchemy import create_engine

    try:
        engine = create_engine(uri)
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{error.name} is not installed: pip install {DRIVERS.get(str(error.name), error.name)}"
        ) from error
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _other_schema(uri: str, version: str) -> str:
    """What to do with a database of another MLflow. MLflow keeps one file for each version of its schema."""
    import mlflow

    path = uri.removeprefix(SQLITE)
    where, address = (path, shlex.quote(uri)) if path != uri else (redacted(uri), '"$MLFLOW_TRACKING_URI"')
    package = Path(mlflow.__file__).parent
    if not any(package.glob(f"store/db_migrations/versions/{version}_*.py")):
        return (
            f"{where} was written by a newer MLflow than {mlflow.__version__}: install that one, or name another store"
        )
    return f"{where} was written by an older MLflow: make a copy of it, then run: mlflow db upgrade {address}"


def _within(seconds: float, call: Callable[[], T], what: str) -> T:
    """The result of `call`. Raises StoreError, which begins with `what`, if it fails or takes longer.

    It runs in a thread that is left behind, since nothing interrupts a driver that waits for a machine that is gone.
    """
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StoreError(f"{what} does not answer within {seconds:g} s")
    if errors:
        raise (
            errors[0] if isinstance(errors[0], StoreError) else StoreError(f"{what}: {first_line(errors[0])}")
        ) from errors[0]
    return outcome[0]
