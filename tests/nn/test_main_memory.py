from pathlib import Path

import pytest

from dspark.nn.main_memory import Memory, main_memory

MEMINFO = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Memory(None, None)),
        ({"proc/meminfo": MEMINFO}, Memory(1_024_000, 614_400)),
        ({"proc/meminfo": "MemTotal: 1000 kB\n"}, Memory(1_024_000, None)),
        ({"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max\n"}, Memory(1_024_000, 614_400)),
        ({"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "2000000\n"}, Memory(1_024_000, 614_400)),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": "800000\n",
                "sys/fs/cgroup/memory.current": "300000\n",
            },
            Memory(800_000, 500_000),
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": "800000\n",
                "sys/fs/cgroup/memory.current": "100000\n",
            },
            Memory(800_000, 614_400),
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": "800000\n",
                "sys/fs/cgroup/memory.current": "500000\n",
                "sys/fs/cgroup/memory.stat": "anon 300000\ninactive_file 200000\n",
            },
            Memory(800_000, 500_000),
        ),
    ],
    ids=[
        "unknown",
        "plain",
        "old kernel",
        "no limit",
        "limit beyond",
        "container",
        "container on a full machine",
        "files read once",
    ],
)
def test_what_the_system_says(tmp_path: Path, files: dict[str, str], expected: Memory) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert main_memory(tmp_path) == expected
