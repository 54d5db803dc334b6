"""The image's recipe and the manifest for Kubernetes, without a cluster: what they name is there, Kubernetes takes it, and it plans."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

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
    steps = re.findall(r"pip install (.*?)(?: \\)?$", RECIPE, flags=re.M)
    assert steps == ["${PIP_ARGS} -r requirements.lock", "--no-deps -e ."]
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
    for name in ("Snakefile", "workflow", "profiles", "configs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    arguments = container()["args"]
    if size == "gpu":
        [said] = re.findall(r"args \[(.*?)\]", (REPOSITORY / "containers/kubernetes.yaml").read_text())
        arguments = shlex.split(said.replace(",", " "))
    result = subprocess.run(
        [sys.executable, "-m", "specrig", *arguments, "--dry-run"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "Measuring" in result.stderr + result.stdout
