# Makes the project's own virtual environment, once a set of dependencies; sourced by the scripts.
# It lives in the user's cache directory, never in the checkout, and can be deleted at any time.
#
# usage: . scripts/_environment.sh EXTRA    (an optional-dependency group of pyproject.toml; "": no
# environment, only the functions)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# pyenv's are found whether they are on the PATH or not.
# usage: find_python [VERSION...]    (by default all that the tests ran with)
find_python() {
  local candidate version pyenv_root=""
  local candidates=() versions=("$@")
  if [ $# = 0 ]; then
    candidates=("${PYTHON:-}")
    versions=(3.13 3.12 3.11)
  fi
  if command -v pyenv >/dev/null; then
    pyenv_root=$(pyenv root)
  elif [ -d "${PYENV_ROOT:-$HOME/.pyenv}/versions" ]; then
    pyenv_root=${PYENV_ROOT:-$HOME/.pyenv}
  fi
  for version in "${versions[@]}"; do
    candidates+=("python$version")
    [ -z "$pyenv_root" ] || candidates+=("$pyenv_root/versions/$version".*"/bin/python$version")
  done
  if [ $# = 0 ]; then candidates+=(python3); fi
  for candidate in "${candidates[@]}"; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  if [ $# = 0 ]; then
    echo "error: Python 3.11 or newer is needed. hint: set PYTHON to its path." >&2
  else
    echo "error: one of Python $* is needed, as pythonX.Y on the PATH or in pyenv." >&2
  fi
  return 1
}

# usage: environment_at PYTHON EXTRA CONSTRAINTS    (prints where it is)
environment_at() {
  local python=$1 extra=$2 constraints=$3 key environment
  key=$({ "$python" -c 'import sys; print(sys.version, sys.prefix)'; echo "$extra" "$root"
          cat pyproject.toml "$constraints"; } | cksum | cut -d' ' -f1)
  environment="${SPS_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/shared-pathways-service}/venv-$key"
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
  rm -rf "$environment" \
    && "$python" -m venv "$environment" \
    && "$environment/bin/python" -m pip install --quiet --upgrade pip >&2 \
    && "$environment/bin/python" -m pip install --quiet --constraint "$constraints" \
      --editable ".[$extra]" >&2 \
    && touch "$environment/complete"
)

# Prints the interpreter of an environment with one release of JAX, for what depends on it.
# usage: python_with_jax RELEASE PYTHON-VERSION...
python_with_jax() {
  local python constraints environment extra=compat,upstream
  # Upstream's library needs JAX 0.10.
  [[ $1 != 0.9.* ]] || extra=compat
  python=$(find_python "${@:2}") || return 1
  constraints=$(mktemp)
  # (Flax's releases each name the oldest JAX that they run on.)
  { grep --invert-match --extended-regexp '^(jax|jaxlib|flax)==' constraints.txt
    echo "jax==$1"; echo "jaxlib==$1"; } > "$constraints"
  environment=$(environment_at "$python" "$extra" "$constraints") || return 1
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
  python=$(find_python) || return 1
  environment=$(environment_at "$python" "$1" constraints.txt) || return 1
  export SPS_ENVIRONMENT="$environment" PATH="$environment/bin:$PATH"
}
[ -z "$1" ] || make_environment "$1"
