#!/bin/sh
# Print the folder for the temporary files of tests: memory where there is enough of it, as the tests
# write, sync and remove many small files; else that of the environment.
#
# usage: sh tools/memory-folder.sh
set -eu

memory=/dev/shm
gigabyte=1000000 # in KiB, as df and /proc/meminfo count

# A container may have 64 MB of it, or mount it without the right to run programs.
if [ -w "$memory" ] &&
    [ "$(df -Pk "$memory" | awk 'NR == 2 { print $4 }')" -gt $((4 * gigabyte)) ] &&
    [ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -gt $((12 * gigabyte)) ] &&
    ! grep -q "^[^ ]* $memory tmpfs [^ ]*noexec" /proc/mounts
then
    echo "$memory"
else
    echo "${TMPDIR:-/tmp}"
fi
