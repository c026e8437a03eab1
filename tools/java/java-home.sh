#!/bin/sh
# Print the JAVA_HOME to use: a Java 17 or newer of the machine (JAVA_HOME, then PATH), else the
# runtime that tools/java/install.sh put into the virtual environment.
#
# usage: sh tools/java/java-home.sh VENV
set -eu

# Print the home of one `java`, if it runs and is new enough.
home_of() {
    properties=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$properties" | sed -n 's/^ *java\.specification\.version = //p')
    case $version in
        '' | 1.* | *[!0-9]*) return 1 ;;
    esac
    [ "$version" -ge 17 ] || return 1
    printf '%s\n' "$properties" | sed -n 's/^ *java\.home = //p'
}

# A wrapper of an earlier run is no Java of the machine: `$1/java` is asked for last, on its own.
if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && home_of "$JAVA_HOME/bin/java"; then
    exit 0
fi
if command -v java >/dev/null 2>&1 && home_of "$(command -v java)"; then
    exit 0
fi
if [ -x "$1/java/bin/java" ]; then
    (cd "$1/java" && pwd)
    exit 0
fi
echo "no Java 17 or newer found; run make install" >&2
exit 1
