#!/usr/bin/env bash
# Makes what each machine needs, on the server, once:
#   prepare.sh HOST NUM_DEVICES [PUBLIC_FOLDER]
# HOST is the name or address by which the devices reach the server. Writes server/ and
# device-0/, device-1/, ...: copy each of the latter to its device, and to nobody else.
set -euo pipefail
host=${1:?usage: prepare.sh HOST NUM_DEVICES [PUBLIC_FOLDER]}
devices=${2:?usage: prepare.sh HOST NUM_DEVICES [PUBLIC_FOLDER]}
public=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
[ ! -e server ] || { echo "prepare.sh: $PWD/server is there already: use an empty folder" >&2; exit 2; }
case $host in *[!0-9.]*) name="DNS:$host" ;; *) name="IP:$host" ;; esac

umask 077
mkdir server
openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj "/CN=fedal prototype CA" \
    -keyout server/ca.key -out server/ca.crt 2>/dev/null
openssl req -newkey rsa:3072 -nodes -subj "/CN=$host" \
    -keyout server/server.key -out server/server.csr 2>/dev/null
openssl x509 -req -days 365 -in server/server.csr -CA server/ca.crt -CAkey server/ca.key \
    -CAcreateserial -extfile <(echo "subjectAltName=$name") -out server/server.pem 2>/dev/null
echo "$devices" > server/devices
for ((k = 0; k < devices; k++)); do
    mkdir "device-$k"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "device-$k" -f "device-$k/key"
    cp "device-$k/key.pub" "server/device-$k.pub"
    cp server/ca.crt "$here/device.sh" "device-$k/"
    echo "$k $devices" > "device-$k/partition"
    [ -z "$public" ] || cp -R "$public" "device-$k/public"
done
echo "copy device-K to device K, then run server.sh here and device.sh there"
