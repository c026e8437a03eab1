#!/bin/sh
# A day's dump: verify it, build its indexes, answer its questions. Cron calls it (see crontab).
#
#   daily.sh DUMP RESULTS
#
# Ends with the exit code of the step that failed, and with 0 after all of them. A step that ends
# with 3 (permission, disk, memory, network) or 137 (killed, as by the kernel out of memory) is tried
# again; all others stay what they are: 1 is damage in the data, and the report in RESULTS says where.
#
# KAFKA_INDEX_CONFIG names the server.properties of the brokers: the indexes are theirs only with their
# settings. Those of topics are in the metadata log, where the dump has it.
#
# All steps can run twice, but answers to other queries are not replaced: remove answers.csv first.
set -u

dump=${1:?"the usage is: daily.sh DUMP RESULTS"}
results=${2:?"the usage is: daily.sh DUMP RESULTS"}
kafka_index=${KAFKA_INDEX:-kafka-index}
config=${KAFKA_INDEX_CONFIG:-}
attempts=${KAFKA_INDEX_ATTEMPTS:-3}
pause=${KAFKA_INDEX_PAUSE:-300} # seconds

step() {
    name=$1
    shift
    attempt=1
    while :; do
        "$kafka_index" "$name" "$@" ${config:+--config "$config"} --summary "$results/$name.json"
        code=$?
        case $code in
        3 | 137) ;;
        *) break ;;
        esac
        if [ "$attempt" -ge "$attempts" ]; then
            break
        fi
        attempt=$((attempt + 1))
        sleep "$pause"
    done
    if [ "$code" -ne 0 ]; then
        echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $name of $dump ended with $code, see $results/$name.json" >&2
        exit "$code"
    fi
}

mkdir -p "$results" || exit 3
step verify --input "$dump" --report "$results/verify.csv"
step build --input "$dump" --output "$results/indexes" --report "$results/build.csv"
if [ -e "$results/queries.csv" ]; then
    step lookup --input "$dump" --indexes "$results/indexes" --by timestamp \
        --queries "$results/queries.csv" --output "$results/answers.csv"
fi
