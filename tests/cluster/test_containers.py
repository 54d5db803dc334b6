"""Image, manifest for Kubernetes and Compose file, without Docker or a cluster: what they name is there, and what they
run runs here.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from packaging.specifiers import SpecifierSet

from runs import imported
from specrig.audit.toy_pair import PROMPT, build
from specrig.engines.http.launch import free_port

REPOSITORY = Path(__file__).parents[2]
RECIPE = (REPOSITORY / "containers/Dockerfile").read_text()
MANIFEST = list(yaml.safe_load_all((REPOSITORY / "containers/kubernetes.yaml").read_text()))


def container() -> dict[str, Any]:
    [job] = [each for each in MANIFEST if each["kind"] == "Job"]
    [only] = job["spec"]["template"]["spec"]["containers"]
    return only


def test_the_image_pins_what_it_installs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    [python] = re.findall(r"^FROM python:(\d+\.\d+\.\d+)-", RECIPE, flags=re.M)
    assert python in SpecifierSet(project["requires-python"])
    steps = [step.strip() for step in re.findall(r"pip install ([^&\\\n]+)", RECIPE)]
    assert steps == [
        "${PIP_ARGS} -r requirements.lock",
        "${PIP_ARGS} --no-deps -r requirements-quick.lock",
        "--no-deps -e .",
    ]
    [entry] = re.findall(r'^ENTRYPOINT \["(\w+)"\]', RECIPE, flags=re.M)
    assert entry in project["scripts"]


def test_kubernetes_takes_the_manifest() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for each in MANIFEST:
        schemas.validate(each, "1.33", strict=True)
    [claim] = [each for each in MANIFEST if each["kind"] == "PersistentVolumeClaim"]
    [job] = [each for each in MANIFEST if each["kind"] == "Job"]
    [volume] = job["spec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    [folder] = re.findall(r"^WORKDIR (\S+)", RECIPE, flags=re.M)
    kept = {Path(mount["mountPath"]).relative_to(folder).as_posix() for mount in container()["volumeMounts"]}
    assert kept == {"results", "reports", ".snakemake"}, "what the next pod needs to go on"


@pytest.mark.parametrize("size", ["cpu", "gpu"])
def test_what_the_pod_runs_can_be_planned(size: str, tmp_path: Path) -> None:
    for name in ("Snakefile", "workflow", "profiles", "configs", "weights"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    arguments = container()["args"]
    if size == "gpu":
        [message] = re.findall(r"args \[(.*?)\]", (REPOSITORY / "containers/kubernetes.yaml").read_text())
        arguments = shlex.split(message.replace(",", " "))
    result = subprocess.run(
        [sys.executable, "-m", "specrig", *arguments, "--dry-run"],
        cwd=tmp_path,
        env=imported(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "Measuring" in result.stderr + result.stdout


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=60).ok
    except requests.ConnectionError:
        return False


def test_what_compose_starts_answers(tmp_path: Path) -> None:
    """Its three commands as processes here, on a processor, at ports of this machine."""
    services = yaml.safe_load((REPOSITORY / "containers/compose.yaml").read_text())["services"]
    pair, ports = build(tmp_path), {name: str(free_port()) for name in services}
    here = {
        "/models/target": pair.target,
        "/models/draft": str(pair.draft),
        "0.0.0.0": "127.0.0.1",
        "cuda": "cpu",
        "bfloat16": "float32",
    }
    here |= {
        f"http://{name}:{port}": f"http://127.0.0.1:{ports[name]}" for name, port in (("target", 8001), ("draft", 8002))
    }
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, service in services.items():
            arguments = [here.get(word, word) for word in service["command"]]
            at = arguments.index("--port")
            assert arguments[at + 1] in str(service.get("healthcheck", service.get("ports"))), (
                "where it is asked how it is"
            )
            arguments[at + 1] = ports[name]
            command = [sys.executable, "-m", "specrig", *arguments]
            running.append(subprocess.Popen(command, env=imported() | {"SPECRIG_API_KEY": "a key"}))
            deadline = time.monotonic() + 120
            while not answers(f"http://127.0.0.1:{ports[name]}/health"):
                assert running[-1].poll() is None and time.monotonic() < deadline, name
                time.sleep(0.05)
        url, body = f"http://127.0.0.1:{ports['coordinator']}/v1/completions", {"prompt": list(PROMPT), "max_tokens": 8}
        assert requests.post(url, json=body, timeout=60).status_code == 401
        answer = requests.post(url, json=body, headers={"Authorization": "Bearer a key"}, timeout=60)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 8, answer.text
    finally:
        for process in running:
            process.kill()
            process.wait()
    gpus = [services[name]["deploy"]["resources"]["reservations"]["devices"][0] for name in ("target", "draft")]
    assert all(gpu["driver"] == "nvidia" and gpu["capabilities"] == ["gpu"] for gpu in gpus)
