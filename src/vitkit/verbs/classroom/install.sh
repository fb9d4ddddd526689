#!/bin/sh
# Install vitkit from this folder on macOS or Linux, without a network: sh install.sh [FOLDER]
here=$(cd "$(dirname "$0")" && pwd) || exit 2
for python in python3.13 python3.12 python3.11 python3 python; do
    if command -v "$python" >/dev/null 2>&1 && "$python" "$here/install.py" --check >/dev/null 2>&1; then
        exec "$python" "$here/install.py" "$@"
    fi
done
if command -v python3 >/dev/null 2>&1; then
    exec python3 "$here/install.py" "$@" # which says what is missing
fi
echo "error: there is no Python: install Python 3.11, 3.12 or 3.13 from python.org first" >&2
exit 2
