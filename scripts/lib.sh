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

# set_up [EXTRA]: make the environment with the package and its EXTRA, unless it or a larger one is there:
# "dev" holds what "demo" does, and both hold the package itself.
set_up() {
    local extra="${1:-}" stamps stamp want python
    case "$extra" in
        "") stamps=".anvil .anvil-demo .anvil-dev" ;;
        demo) stamps=".anvil-demo .anvil-dev" ;;
        *) stamps=".anvil-$extra" ;;
    esac
    want="$(cksum "$root/pyproject.toml") $root"
    for stamp in $stamps; do
        if [ -f "$root/.venv/$stamp" ] && [ "$(cat "$root/.venv/$stamp")" = "$want" ]; then
            return
        fi
    done
    python="$(find_python)"
    echo "anvil: setting up $root/.venv (once)" >&2
    [ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv"
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --editable "$root${extra:+[$extra]}" >&2
    printf '%s' "$want" >"$root/.venv/.anvil${extra:+-$extra}"
}

