# Sourced by the scripts beside it: finds the checkout and sets it up once.
#
# The virtual environment is made in .venv and made anew only when pyproject.toml has changed since;
# nothing is written outside the checkout.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

find_python() {
    local candidate
    for candidate in "${ANVIL_PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "anvil: Python 3.11 or newer is needed and was not found" >&2
    return 1
}

# set_up [EXTRA]: make the environment with the package and its EXTRA ("dev" for tests), unless it is there.
set_up() {
    local extra="${1:-}" stamp want python
    stamp="$root/.venv/.anvil${extra:+-$extra}"
    want="$(cksum "$root/pyproject.toml") $root"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        return
    fi
    python="$(find_python)"
    echo "anvil: setting up $root/.venv (once)" >&2
    [ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv"
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --editable "$root${extra:+[$extra]}" >&2
    printf '%s' "$want" >"$stamp"
}

