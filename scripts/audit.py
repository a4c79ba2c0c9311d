"""Known faults of what is installed, as pip-audit finds them: python -m scripts.audit

Where its index can't be asked, or knows none of our packages, the step is skipped by name: a check must not
depend on a network. Exit 1 when a fault is known.
"""

import json
import subprocess
import sys

SECONDS = 60


def main() -> int:
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--skip-editable",
        "--progress-spinner",
        "off",
        "--format",
        "json",
    ]
    try:
        done = subprocess.run(
            [*command, "--timeout", "5"], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        found = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        found = []
    audited = [each for each in found if "skip_reason" not in each]
    if not audited:
        print("check: pip-audit skipped: no index for it can be reached", file=sys.stderr)
        return 0
    faults = [(each["name"], each["version"], fault["id"]) for each in audited for fault in each["vulns"]]
    for name, version, fault in faults:
        print(f"check: {name} {version}: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
