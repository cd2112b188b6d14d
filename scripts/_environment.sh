# Makes the project's own virtual environment, once a set of dependencies; sourced by the scripts.
# It lives in the user's cache directory, never in the checkout, and can be deleted at any time.
#
# usage: . scripts/_environment.sh EXTRA    (an optional-dependency group of pyproject.toml; "": no
# environment, only the functions)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# For what can be made again; empty where nothing names a place.
cache_directory=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
cache_directory=${SPS_CACHE_DIR:-${cache_directory:+$cache_directory/shared-pathways-service}}

can_keep_in() { { mkdir -p "$1" && [ -w "$1" ]; } 2>/dev/null; }

# A home may be one that cannot be written, as for users that a container gives an id only. Then what
# the package uses in its place is used here, too.
if [ -n "$cache_directory" ] && [ -z "${SPS_CACHE_DIR:-}" ] && ! can_keep_in "$cache_directory"; then
  stand_in=${TMPDIR:-/tmp}/sps-$(id -u)-cache
  echo "$cache_directory cannot be written: $stand_in is used instead, and may be lost (SPS_CACHE_DIR names another directory)." >&2
  (umask 077; can_keep_in "$stand_in") && [ -O "$stand_in" ] && cache_directory=$stand_in
fi

# Ends the script if there is no such directory.
need_cache_directory() {
  if [ -z "$cache_directory" ]; then
    echo "error: HOME is not set. hint: set it, or SPS_CACHE_DIR to a directory for what is downloaded." >&2
    exit 2
  elif ! can_keep_in "$cache_directory"; then
    echo "error: $cache_directory cannot be written. hint: set SPS_CACHE_DIR to a directory for what is downloaded." >&2
    exit 2
  fi
}

# From the oldest to the newest.
supported_pythons=(3.11 3.12 3.13 3.14)

# Prints each interpreter of some versions: on the PATH, in a distribution's usual place (which
# another on the PATH may hide) and in pyenv.
# usage: pythons_here VERSION...
pythons_here() {
  local version candidate pyenv_root=""
  if command -v pyenv >/dev/null; then
    pyenv_root=$(pyenv root)
  elif [ -d "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions" ]; then
    pyenv_root=${PYENV_ROOT:-${HOME:-}/.pyenv}
  fi
  for version in "$@"; do
    for candidate in "python$version" "/usr/bin/python$version" \
        ${pyenv_root:+"$pyenv_root/versions/$version".*"/bin/python$version"}; do
      ! is_python "$candidate" || echo "$candidate"
    done
  done
}

# Whether a command is a Python that this project runs on.
is_python() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# usage: oldest_python VERSION    (the oldest patch release of it that is here)
oldest_python() {
  local candidate
  while read -r candidate; do
    echo "$("$candidate" -c 'import platform; print(platform.python_version())') $candidate"
  done < <(pythons_here "$1") | sort --version-sort | head -n 1 | cut -d' ' -f2-
}

# usage: find_python [VERSION...]    (by default what PYTHON names, or the newest that CI tests)
find_python() {
  local found=""
  if [ $# != 0 ]; then
    read -r found < <(pythons_here "$@") \
      || echo "error: one of Python $* is needed, as pythonX.Y on the PATH or in pyenv." >&2
  elif [ -n "${PYTHON:-}" ]; then
    if is_python "$PYTHON"; then found=$PYTHON; else
      echo "error: PYTHON=$PYTHON is not Python 3.11 or newer." >&2
    fi
  else
    read -r found < <(pythons_here 3.13 3.12 3.11 3.14; ! is_python python3 || echo python3) \
      || echo "error: Python 3.11 or newer is needed. hint: set PYTHON to its path." >&2
  fi
  [ -n "$found" ] && echo "$found"
}

# usage: environment_at PYTHON EXTRA CONSTRAINTS    (prints where it is)
environment_at() {
  local python=$1 extra=$2 constraints=$3 key environment
  need_cache_directory
  # (Settings of the tools, which come last, change nothing in it.)
  key=$({ "$python" -c 'import sys; print(sys.version, sys.prefix)'; echo "$extra" "$root"
          sed '/^\[tool\.ruff\]/,$d' pyproject.toml; cat "$constraints"; } | cksum | cut -d' ' -f1)
  environment="$cache_directory/venv-$key"
  if [ ! -e "$environment/complete" ]; then
    set_up "$environment" "$@" || return 1
  fi
  echo "$environment"
}

# Two scripts that start at once set an environment up once: the second waits (where there is flock).
# usage: set_up ENVIRONMENT PYTHON EXTRA CONSTRAINTS
set_up() (
  environment=$1 python=$2 extra=$3 constraints=$4
  mkdir -p "$(dirname "$environment")"
  exec 9> "$environment.lock"
  ! command -v flock >/dev/null || flock 9
  [ ! -e "$environment/complete" ] || exit 0
  echo "Setting up $environment (once; a few minutes where nothing is cached) ..." >&2
  # (`set -e` does not hold in here where a caller looks at the exit status.)
  # (As is: a newer pip would install the same versions. Modules are compiled when they are imported.)
  rm -rf "$environment" \
    && make_venv "$python" "$environment" \
    && "$environment/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile \
      --constraint "$constraints" --editable ".${extra:+[$extra]}" >&2 \
    && touch "$environment/complete"
)

# Debian's Python has no ensurepip without the package python3-venv; its pip can stand in.
# usage: make_venv PYTHON DIRECTORY
make_venv() {
  if "$1" -c 'import ensurepip' 2>/dev/null; then
    "$1" -m venv "$2" >&2
  elif "$1" -m pip --version >/dev/null 2>&1; then
    "$1" -m venv --without-pip "$2" >&2 \
      && "$1" -m pip --disable-pip-version-check --python "$2/bin/python" install --quiet pip >&2
  else
    echo "error: $1 has no pip. hint: install it (Debian, Ubuntu: apt install python3-venv)." >&2
    return 1
  fi
}

# Prints the interpreter of an environment with one release of JAX, for what depends on it.
# usage: python_with_jax RELEASE EXTRA PYTHON-VERSION...
python_with_jax() {
  local python constraints environment
  python=$(find_python "${@:3}") || return 1
  constraints=$(mktemp)
  # (Flax's releases each name the oldest JAX that they run on.)
  { grep --invert-match --extended-regexp '^(jax|jaxlib|flax)==' constraints.txt
    echo "jax==$1"; echo "jaxlib==$1"; } > "$constraints"
  environment=$(environment_at "$python" "$2" "$constraints") || return 1
  rm "$constraints"
  echo "$environment/bin/python"
}

make_environment() {
  local python environment
  # One script that calls another, and a person with an environment of their own, need no second.
  if [ -n "${SPS_ENVIRONMENT:-}" ]; then
    export PATH="$SPS_ENVIRONMENT/bin:$PATH"
    return
  fi
  need_cache_directory
  python=$(find_python) || return 1
  environment=$(environment_at "$python" "$1" constraints.txt) || return 1
  export SPS_ENVIRONMENT="$environment" PATH="$environment/bin:$PATH"
}
# The scripts start Python often: without bytecode on disk, each start compiles all that it imports
# (ADR 132).
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] && [ -n "$cache_directory" ]; then
  unset PYTHONDONTWRITEBYTECODE
  export PYTHONPYCACHEPREFIX="$cache_directory/bytecode"
fi
[ -z "$1" ] || make_environment "$1"
