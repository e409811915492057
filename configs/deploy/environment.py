"""Makes the image's Python environment on top of what the base image brings.

A base image for an accelerator brings a torch built for that accelerator (and triton, torch_musa, torchada) that no
index has. So the new environment sees the base's packages, and whatever belongs to torch is taken from there: pip is
neither asked for it nor allowed to replace it. Everything else is installed beside it from files with known hashes, at
the versions of constraints.txt, and hides an older copy in the base. Only then comes what the base lacks of torch and
Triton, and with `--extra cuda` of FlashAttention, at the pinned version, from the index that is given and no other.

Run by the base's own Python, with the standard library alone:
    python3 environment.py /opt/magi2/venv pyproject.toml constraints.txt hashes.txt --torch-index URL
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from importlib import metadata, util
from pathlib import Path

MINIMUM_PYTHON = (3, 11)
FROM_THE_BASE = re.compile(r"(torch|torchada|torchvision|torchaudio|torch-musa|triton.*|fa3-fwd|nvidia-.*|cuda-.*)")
DEPLOYMENT = ("apache-airflow-providers-celery", "apache-airflow-providers-postgres")


def main() -> None:
    """Check the base, then make the environment and install into it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("pyproject", type=Path)
    parser.add_argument("constraints", type=Path)
    parser.add_argument("hashes", type=Path)
    parser.add_argument("--torch-index", default="", help="index with a torch for bases that have none")
    parser.add_argument("--extra", default="", choices=["", "cuda"], help="optional dependencies of the project")
    arguments = parser.parse_args()
    check_base()
    base = torch_packages()
    make_environment(arguments.target)
    requirements, constraints = plan(
        arguments.pyproject.read_text(), arguments.constraints.read_text(), base, arguments.extra
    )
    torch = [line for line in requirements if FROM_THE_BASE.fullmatch(_name(line))]
    lists = {"hashes.txt": [arguments.hashes.read_text()], "torch.txt": torch, "constraints.txt": constraints}
    for name, lines in lists.items():
        (arguments.target / name).write_text("".join(f"{line}\n" for line in lines))
    for command in commands(
        arguments.target, arguments.torch_index if "torch" not in base else "", with_torch=bool(torch)
    ):
        subprocess.run(command, check=True)


def commands(target: Path, torch_index: str, *, with_torch: bool) -> list[list[str]]:
    """What installs the lists that lie in `target`: everything by its hash, then what belongs to torch."""
    pip = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "install", "--no-cache-dir"]
    hashed = [*pip, "--require-hashes", "--no-deps", "--requirement", str(target / "hashes.txt")]
    if not with_torch:
        return [hashed]
    torch = [*pip, "--requirement", str(target / "torch.txt"), "--constraint", str(target / "constraints.txt")]
    return [hashed, [*torch, *(("--index-url", torch_index) if torch_index else ())]]


def check_base() -> None:
    """End with one line when the base image cannot carry the project."""
    if sys.version_info < MINIMUM_PYTHON:
        sys.exit(f"base image: Python {sys.version.split()[0]}, at least 3.11 is needed; choose another BASE_IMAGE")
    missing = [name for name in ("pip", "venv") if util.find_spec(name) is None]
    if missing:
        sys.exit(f"base image: its Python has no {missing[0]}; choose another BASE_IMAGE")


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def torch_packages() -> dict[str, str]:
    """Versions by normal name of the installed packages that belong to torch."""
    found = {normal(item.metadata["Name"]): item.version for item in metadata.distributions()}
    return {name: version for name, version in found.items() if FROM_THE_BASE.fullmatch(name)}


def plan(pyproject: str, constraints: str, base: dict[str, str], extra: str = "") -> tuple[list[str], list[str]]:
    """Requirement and constraint lines: the project's, less what the base has, which is held at its version."""
    import tomllib  # not at the top: an older Python must get as far as check_base

    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["airflow"], *extras["c2pa"], *DEPLOYMENT]
    if "torch-musa" in base:
        wanted += extras["musa"]
    elif extra == "cuda" or "torch" in base:
        wanted += extras["cuda"]
    pins = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    return (
        [line for line in wanted if _name(line) not in base],
        [*(line for line in pins if _name(line) not in base), *(f"{name}=={base[name]}" for name in sorted(base))],
    )


def _name(requirement: str) -> str:
    return normal(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]


def make_environment(target: Path) -> None:
    """A virtual environment without pip, after whose packages come those of the Python that runs this.

    `--system-site-packages` would not do: when the base's Python is a virtual environment itself, it leads past it.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True)
    folders = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    own = Path(sysconfig.get_path("purelib", vars={"base": str(target), "platbase": str(target)}, scheme="venv"))
    lines = [f"import site; site.addsitedir({str(folder)!r})\n" for folder in folders if folder.is_dir()]
    (own / "base-image.pth").write_text("".join(lines))


if __name__ == "__main__":
    main()
