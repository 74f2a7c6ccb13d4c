"""How long after a save everything has been read: the time from the rename to the end of the read, beside the settle time.

For 5 and for 1000 servers, none of which may connect, so that reading and deciding are all there is. The end of a read is
the sidecar's own time stamp, so that asking for it costs nothing.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request

SETTLE = 0.3


def settings(count, version):
    servers = {
        f"server-{n}": {"command": "node", "args": ["server.js", str(n)], "env": {"A": "${HOME}", "B": str(n)}, "timeout": 5000}
        for n in range(count)
    }
    return json.dumps({"mcp": {"allowed": []}, "theme": version, "mcpServers": servers}, indent=2)


def last_success(ops):
    with urllib.request.urlopen(f"http://{ops}/metrics") as answer:
        text = answer.read().decode()
    return float(re.search(r"^mcp_reconciler_config_last_success_timestamp_seconds (\S+)", text, re.M)[1])


def measure(binary, count, saves):
    with tempfile.TemporaryDirectory() as directory:
        base = pathlib.Path(directory)
        config, beside = base / "conf/settings.json", base / "new.json"
        config.parent.mkdir()
        config.write_text(settings(count, 0))
        command = [binary, "--workspace", directory, "--config", str(config), "--settings-home", str(base / "home")]
        command += ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--resync", "1h", "--settle", f"{SETTLE * 1000:.0f}ms"]
        environment = {**os.environ, "XDG_RUNTIME_DIR": directory, "HOME": directory}
        sidecar = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            runs = base / "mcp-reconciler"
            while not (found := list(runs.glob("*.json"))):
                time.sleep(0.02)
            ops = json.loads(found[0].read_text())["ops_listen"]
            while (seen := last_success(ops)) == 0:
                time.sleep(0.02)
            took = []
            for version in range(1, saves + 1):
                beside.write_text(settings(count, version))
                saved = time.time()
                beside.rename(config)
                while (now := last_success(ops)) == seen:
                    time.sleep(0.05)
                seen = now
                took.append(now - saved)
            return took
        finally:
            sidecar.send_signal(signal.SIGTERM)
            sidecar.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--saves", type=int, default=20)
    args = parser.parse_args()
    for count, allowed in ((5, 10), (1000, 30)):
        took = measure(str(pathlib.Path(args.binary).resolve()), count, args.saves)
        median = statistics.median(took)
        print(json.dumps({
            "servers": count,
            "settle_ms": SETTLE * 1000,
            "edit_to_read_ms_median": round(median * 1000, 1),
            "edit_to_read_ms_max": round(max(took) * 1000, 1),
            "beyond_settle_ms": round((median - SETTLE) * 1000, 1),
            "beyond_settle_ms_target": allowed,
            "ratio_to_settle": round(median / SETTLE, 3),
        }))


if __name__ == "__main__":
    main()
