"""Other engines may calibrate without our models: the package loads numpy and safetensors, nothing larger."""

import subprocess
import sys
from pathlib import Path

import dspark.calibration

MODULES = sorted(path.stem for path in Path(dspark.calibration.__file__).parent.glob("*.py") if path.stem != "__init__")


def test_importing_calibration_loads_no_model_library():
    imports = "; ".join(f"import dspark.calibration.{module}" for module in MODULES)
    script = f"import sys; {imports}; print({{'torch', 'transformers', 'scipy', 'sklearn'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout, result.stderr) == ("set()\n", "")
