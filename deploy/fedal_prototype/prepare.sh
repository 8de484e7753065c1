#!/usr/bin/env bash
# Makes what each machine needs, on the server, once:
#   prepare.sh HOST NUM_DEVICES [PUBLIC_FOLDER]
# HOST is the name or address by which the devices reach the server. Makes prototype/ with
# superlink/, which stays, and nodes/device-0/, nodes/device-1/, ...: copy each of these to
# its device, and to nobody else.
set -euo pipefail
usage="usage: prepare.sh HOST NUM_DEVICES [PUBLIC_FOLDER]"
host=${1:?$usage} devices=${2:?$usage} public=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
[ "$devices" -ge 1 ] 2>/dev/null || { echo "prepare.sh: $devices devices: expected 1 or more" >&2; exit 2; }
[ -z "$public" ] || [ -d "$public" ] || { echo "prepare.sh: no folder $public" >&2; exit 2; }

names=$(seq -f "device-%.0f" -s , 0 "$((devices - 1))")
fedsuite deploy init --superlink "$host" --nodes "$names" --output prototype
for device in prototype/nodes/*; do
    cp "$here/device.sh" "$device/"
    [ -z "$public" ] || cp -R "$public" "$device/public"
    # What FedAL's clients send beside metrics, which the default policy keeps at home.
    sed -i -e '/^records = /s/hello"/hello, outputs"/' -e '/^arrays = /s/""/"logits"/' \
        "$device/policy.toml"
done
