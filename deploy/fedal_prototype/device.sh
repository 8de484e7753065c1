#!/usr/bin/env bash
# Joins the federation, on a device, in the folder that was copied to it:
#   FEDSUITE_DATA=/folder/of/data device.sh HOST PORT
# Stays until it is stopped; started again it goes on with the same name and models, which
# it keeps in state/ and sends to nobody.
set -euo pipefail
host=${1:?usage: device.sh HOST PORT} port=${2:?usage: device.sh HOST PORT}
here=$(cd "$(dirname "$0")" && pwd)
read -r partition total < "$here/partition"
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_TELEMETRY_ENABLED=0
export FEDSUITE_STATE=${FEDSUITE_STATE:-$here/state}
[ ! -d "$here/public" ] || export FEDSUITE_PUBLIC=${FEDSUITE_PUBLIC:-$here/public}
mkdir -p "$here/empty"
cd "$here/empty"
exec flower-supernode --root-certificates "$here/ca.crt" --superlink "$host:$port" \
    --auth-supernode-private-key "$here/key" --host 127.0.0.1 --port "${RUNTIME_PORT:-9094}" \
    --node-config "partition-id=$partition num-partitions=$total"
