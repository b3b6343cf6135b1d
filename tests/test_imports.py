"""Every module imports on its own, quietly, and without the optional packages."""

import subprocess
import sys
from pathlib import Path

import pytest

import dspark

SOURCE = Path(dspark.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.name != "__main__.py"
)

OPTIONAL = ("transformers", "huggingface_hub", "matplotlib", "scipy")
ADAPTER = "dspark.targets.transformers_adapter"  # the one module that is nothing without its package

IMPORT_ALL = """
import importlib, sys, warnings
warnings.simplefilter("error")
for name in {optional}:
    sys.modules[name] = None  # importing it raises ImportError
for name in {modules}:
    importlib.import_module(name)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)


def test_all_modules_import_without_the_optional_packages():
    result = run(IMPORT_ALL.format(optional=OPTIONAL, modules=[module for module in MODULES if module != ADAPTER]))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["dspark", "dspark.errors", "dspark.cli.main"])
def test_light_modules_do_not_import_torch(module):
    result = run(f"import sys, {module}; print('torch' in sys.modules)")
    assert result.stdout == "False\n", result.stderr


def test_the_engine_does_not_import_what_training_on_many_processors_needs():
    result = run("import sys, dspark.engine.llm; print('torch.distributed.fsdp' in sys.modules)")
    assert result.stdout == "False\n", result.stderr


def test_every_package_is_a_package():
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
