#!/usr/bin/env bash
# Starts the SuperLink, lets the devices' keys in, and runs an experiment on them:
#   server.sh HOST PORT APP EXPERIMENT [flwr run options]
# in the folder in which prepare.sh was run. APP is the folder of fedsuite (with its
# pyproject.toml), EXPERIMENT a file of it. Ends when the run has ended.
set -euo pipefail
usage="usage: server.sh HOST PORT APP EXPERIMENT [flwr run options]"
host=${1:?$usage} port=${2:?$usage} app=${3:?$usage} experiment=${4:?$usage}
shift 4
[ -f server/server.pem ] || { echo "server.sh: no server/ here: run prepare.sh first" >&2; exit 2; }
app=$(cd "$app" && pwd)
experiment=$(cd "$(dirname "$experiment")" && pwd)/$(basename "$experiment")
secrets=$PWD/server
export FLWR_HOME=$secrets/flwr FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_TELEMETRY_ENABLED=0
# What lies in the SuperLink's folder would shadow the app.
mkdir -p "$FLWR_HOME" "$secrets/empty"
printf '[superlink]\ndefault = "prototype"\n\n[superlink.prototype]\naddress = "%s"\nroot-certificates = "%s"\n' \
    "$host:$port" "$secrets/ca.crt" > "$FLWR_HOME/config.toml"

cd "$secrets/empty"
flower-superlink --host "${BIND_ADDRESS:-0.0.0.0}" --port "$port" --ssl-ca-certfile "$secrets/ca.crt" \
    --ssl-certfile "$secrets/server.pem" --ssl-keyfile "$secrets/server.key" \
    --enable-supernode-auth --database "$secrets/state.db" > "$secrets/superlink.log" 2>&1 &
superlink=$!
trap 'kill "$superlink" 2>/dev/null; wait "$superlink" 2>/dev/null || true' EXIT

for ((k = 0; k < $(cat "$secrets/devices"); k++)); do
    [ ! -e "$secrets/device-$k.registered" ] || continue
    for ((try = 0; ; try++)); do
        kill -0 "$superlink" 2>/dev/null || { tail -n 3 "$secrets/superlink.log" >&2; exit 1; }
        if flwr supernode register "$secrets/device-$k.pub" prototype --name "device-$k" \
            > "$secrets/register.log" 2>&1; then break; fi
        ((try < 30)) || { tail -n 3 "$secrets/register.log" >&2; exit 1; }
        sleep 1
    done
    touch "$secrets/device-$k.registered"
done
echo "devices may connect to $host:$port; the run waits for all of them"
flwr run "$app" prototype --stream --run-config "$experiment" "$@"
# `flwr run` ends with 0 even where the run failed.
flwr ls prototype --format json | grep -q '"finished:completed"'
