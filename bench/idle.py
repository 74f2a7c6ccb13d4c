"""What an idle sidecar costs: resident memory, CPU time, and reads of its files beyond the timer.

Starts the given binary with three stdio servers (server-everything, server-filesystem and mcp-server-time; --demo takes the
binary's own demo-server instead), waits until all are connected, and watches it do nothing. Fails when the sidecar alone
takes 15 MiB or more, or reads its file more often than its timer says.
"""

import argparse
import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_MIB = 15
RESYNC_SECONDS = 10
IN_OPEN = 0x20


def servers(binary, demo):
    if demo:
        return {f"demo{n}": {"command": binary, "args": ["demo-server"]} for n in range(3)}
    npm = ROOT / "tests/peers/node_modules/.bin"
    return {
        "everything": {"command": str(npm / "mcp-server-everything")},
        "files": {"command": str(npm / "mcp-server-filesystem"), "args": [str(ROOT / "tests")]},
        "clock": {"command": str(ROOT / "tests/.venv/bin/mcp-server-time"), "args": ["--local-timezone", "UTC"]},
    }


def memory(pid):
    """Resident memory of the process alone, in KiB: all of it, and with shared pages counted in part."""
    fields = {}
    for name in ("status", "smaps_rollup"):
        for line in pathlib.Path(f"/proc/{pid}/{name}").read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key, value.split()[0] if value.split() else "")
    return int(fields["VmRSS"]), int(fields["Pss"]), int(fields["Threads"])


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Opens:
    """Counts how often a file is opened, by inotify."""

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if libc.inotify_add_watch(self.fd, os.fsencode(path), IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")

    def during(self, seconds):
        count, deadline = 0, time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                # Events of one file itself carry no name: 16 bytes each.
                count += len(os.read(self.fd, 65536)) // 16
        return count


def converged(runs):
    for run in runs.glob("*.json"):
        ops = json.loads(run.read_text())["ops_listen"]
        with urllib.request.urlopen(f"http://{ops}/status", timeout=5) as answer:
            status = json.load(answer)
        return status["converged"] and all(server["state"] == "connected" for server in status["servers"])
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    binary = str(pathlib.Path(args.binary).resolve())
    with tempfile.TemporaryDirectory() as directory:
        base = pathlib.Path(directory)
        config = base / "settings.json"
        config.write_text(json.dumps({"mcpServers": servers(binary, args.demo)}))
        command = [binary, "--workspace", directory, "--config", str(config), "--settings-home", str(base / "home")]
        command += ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--resync", f"{RESYNC_SECONDS}s"]
        environment = {**os.environ, "XDG_RUNTIME_DIR": directory, "HOME": directory}
        sidecar = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            while not converged(base / "mcp-reconciler"):
                if sidecar.poll() is not None:
                    sys.exit("the sidecar ended")
                time.sleep(0.05)
            time.sleep(5)
            before = cpu_seconds(sidecar.pid)
            opens = Opens(config).during(args.seconds)
            cpu = cpu_seconds(sidecar.pid) - before
            rss, pss, threads = memory(sidecar.pid)
        finally:
            sidecar.send_signal(signal.SIGTERM)
            sidecar.wait(30)
    expected = args.seconds // RESYNC_SECONDS + 1
    result = {
        "rss_mib": round(rss / 1024, 2),
        "pss_mib": round(pss / 1024, 2),
        "threads": threads,
        "cpu_ms_per_minute": round(cpu * 1000 * 60 / args.seconds, 1),
        "reads": opens,
        "reads_by_timer_at_most": expected,
        "seconds": args.seconds,
    }
    print(json.dumps(result))
    if rss >= LIMIT_MIB * 1024:
        sys.exit(f"resident memory is not under {LIMIT_MIB} MiB")
    if opens > expected:
        sys.exit("it reads more often than its timer says")


if __name__ == "__main__":
    main()
