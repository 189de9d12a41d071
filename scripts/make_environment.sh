#!/bin/sh
# Makes the environment that the Makefile works in: sh scripts/make_environment.sh DIRECTORY
# PYTHON names the interpreter; without it the first one on the path that serves is taken.
set -eu
environment=$1

serves() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

if [ -n "${PYTHON:-}" ]; then
    if ! serves "$PYTHON"; then
        found=$("$PYTHON" -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' 2>/dev/null || echo "not a Python")
        echo "Python 3.11, 3.12 or 3.13 is needed, and PYTHON=$PYTHON is $found: set PYTHON to another one." >&2
        exit 1
    fi
else
    for PYTHON in python3 python3.13 python3.12 python3.11 ''; do
        if [ -z "$PYTHON" ]; then
            found=$(python3 -c 'import sys; print("python3 is Python %d.%d" % sys.version_info[:2])' 2>/dev/null || echo "there is no python3")
            echo "Python 3.11, 3.12 or 3.13 is needed, and $found: install one, or name it with make PYTHON=/path/to/python." >&2
            exit 1
        fi
        if serves "$PYTHON"; then break; fi
    done
fi

if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "$PYTHON has no venv module: install it (python3-venv on Debian and Ubuntu), or name another one with make PYTHON=/path/to/python." >&2
    exit 1
fi

"$PYTHON" -m venv --clear "$environment"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
"$environment/bin/python" -m uv pip install --python "$environment/bin/python" --constraint constraints.txt \
    --compile-bytecode --editable '.[s3]' --group dev
# Also where Python itself is told to write no bytecode: importing from source takes seconds at every command.
"$environment/bin/python" -m compileall -q airflow_lake_provider
