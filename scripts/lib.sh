# Shared by the scripts beside this file: paths and messages. Sourced, never run.
# shellcheck shell=bash

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd -- "$root"

venv="$root/.venv"
# shellcheck disable=SC2034  # used by the scripts that source this file
python="$venv/bin/python"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
# Programs that tests start have other working directories.
CARGO_TARGET_DIR=$(realpath -m -- "$CARGO_TARGET_DIR")
# Where the package is installed that the Python tests run against.
# shellcheck disable=SC2034
test_site="$CARGO_TARGET_DIR/test-site"

say() { printf '\n== %s\n' "$*"; }

# Ends the script. The first argument says what is wrong, the others what to do.
die() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

# Only one process builds or replaces the installed package; tests hold the lock together while they run.
# package_lock -x | -s
package_lock() {
    mkdir -p -- "$CARGO_TARGET_DIR"
    exec 9>"$CARGO_TARGET_DIR/package.lock"
    flock "$1" 9
}

have() { command -v "$1" >/dev/null 2>&1; }

# version_at_least HAVE WANT
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Prints a line that changes when any of the given files or folders does: names, sizes, times.
state_of() {
    find "$@" \( -name __pycache__ -o -name '*.so' -o -name 'tests' \) -prune -o -type f -printf '%p %s %T@\n' |
        LC_ALL=C sort | sha256sum | cut -d ' ' -f 1
}

# Installs what the lists pin, and nothing else.
# install_pinned VENV LIST...
install_pinned() {
    local into=$1
    shift
    "$into/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-compile \
        --only-binary :all: "${@/#/--requirement=}" ||
        die "pip could not install the packages named in $*." \
            "Is the network up, and does pip reach a package index? Then run the same command again."
}

# Lets the PyTorch of an environment do without CUDA.
# without_cuda VENV
without_cuda() {
    "$python" -B scripts/without_cuda.py \
        "$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    "$1/bin/python" -c 'import torch; assert not torch.cuda.is_available()' ||
        die "PyTorch cannot be imported in $1 without CUDA: correct scripts/without_cuda.py."
}
