"""`dspark doctor`: what this machine has, and what is slow and why."""

from typing import TYPE_CHECKING

from dspark.cli import console
from dspark.cli.options import JsonOption, examples

if TYPE_CHECKING:
    from rich.table import Table

    from dspark.doctor.report import Report

EPILOG = examples("dspark doctor", "dspark doctor --json")


def doctor(json: JsonOption = False) -> None:
    """Show versions, processor, memory, cache and models, time the matrix kernels, and say what is slow and why."""
    with console.status("Looking around ...", quiet=json):
        from dspark.doctor.report import examine

        report = examine()
    if json:
        console.print_json(report)
    else:
        console.print_table(_facts(report), _kernels(report), _findings(report))


def _facts(report: "Report") -> "Table":
    cpu = report.processor
    table = console.table("Machine", "", "")
    table.add_row("versions", "  ".join(f"{name} {version}" for name, version in report.versions.items() if version))
    table.add_row("not installed", "  ".join(name for name, version in report.versions.items() if not version) or "-")
    table.add_row("processor", f"{cpu.model}, {cpu.cores} cores, {cpu.threads} threads")
    table.add_row("instructions", f"{' '.join(cpu.features) or '-'} (torch: {cpu.torch_capability})")
    table.add_row("memory", f"{console.size(report.memory.available)} free of {console.size(report.memory.total)}")
    table.add_row("accelerators", ", ".join(f"{d.name} {console.size(d.memory)}" for d in report.devices) or "-")
    entries = ", ".join(f"{entry.name} {console.size(entry.bytes)}" for entry in report.cache) or "empty"
    table.add_row("cache", f"{report.cache_directory}: {entries}")
    target = report.embedded_target
    state = "converted" if target.converted else "not converted yet" if target.installed else "not installed"
    for chosen in report.chosen_kernels:
        table.add_row(f"kernel, {chosen.dtype}", f"{chosen.kernel}: {chosen.reason}")
    table.add_row("target", f"{target.name}: {state}")
    table.add_row("drafter", report.shipped_drafter or "none shipped")
    return table


def _kernels(report: "Report") -> "Table":
    table = console.table(
        "Kernels, one product with a 1536 x 576 matrix", "kernel", "activations", "tokens", "time", "speed"
    )
    for timing in report.kernels:
        table.add_row(
            timing.kernel,
            timing.dtype,
            str(timing.tokens),
            f"{timing.seconds * 1e6:.0f} µs",
            f"{timing.gigaflops:.3g} GFLOP/s",
        )
    return table


def _findings(report: "Report") -> "Table":
    marks = {"good": "[green]good[/green]", "slow": "[yellow]slow[/yellow]", "missing": "[red]missing[/red]"}
    table = console.table("What is slow, and why", "", "what", "why", "what to do")
    for finding in report.findings:
        table.add_row(marks[finding.kind], finding.what, finding.why, finding.cure)
    return table
