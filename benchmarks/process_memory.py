"""Memory of a benchmark's own process."""

from __future__ import annotations


def status_bytes(field: str) -> int:
    """A size from this process' own status, such as `VmHWM`, the most memory that it had resident.

    `getrusage` would count its parent's before it started.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{field}:"))
