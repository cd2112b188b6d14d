# Makes the project's own virtual environment, once a set of dependencies; sourced by the scripts.
# It lives in the user's cache directory, never in the checkout, and can be deleted at any time.
#
# usage: . scripts/_environment.sh EXTRA    (an optional-dependency group of pyproject.toml)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# The newest that the tests ran with goes first: JAX from 0.11 on needs Python 3.12. pyenv's are found
# whether they are on the PATH or not.
find_python() {
  local candidate version pyenv_root=""
  if command -v pyenv >/dev/null; then pyenv_root=$(pyenv root); fi
  local candidates=("${PYTHON:-}")
  for version in 3.13 3.12 3.11; do
    candidates+=("python$version")
    [ -z "$pyenv_root" ] || candidates+=("$pyenv_root/versions/$version".*"/bin/python$version")
  done
  for candidate in "${candidates[@]}" python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.11 or newer is needed. hint: set PYTHON to its path." >&2
  return 1
}

make_environment() {
  local extra=$1 python key
  # One script that calls another, and a person with an environment of their own, need no second.
  if [ -n "${SPS_ENVIRONMENT:-}" ]; then
    export PATH="$SPS_ENVIRONMENT/bin:$PATH"
    return
  fi
  python=$(find_python) || return 1
  key=$({ "$python" -c 'import sys; print(sys.version, sys.prefix)'; echo "$extra" "$root"
          cat pyproject.toml constraints.txt; } | cksum | cut -d' ' -f1)
  environment="${SPS_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/shared-pathways-service}/venv-$key"
  if [ ! -e "$environment/complete" ]; then
    echo "Setting up $environment (once; a few minutes where nothing is cached) ..." >&2
    rm -rf "$environment"
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --upgrade pip
    "$environment/bin/python" -m pip install --quiet --constraint constraints.txt \
      --editable ".[$extra]"
    touch "$environment/complete"
  fi
  export SPS_ENVIRONMENT="$environment" PATH="$environment/bin:$PATH"
}
make_environment "$1"
