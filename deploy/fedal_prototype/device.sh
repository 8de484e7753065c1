#!/usr/bin/env bash
# Joins the federation, on a device, in the folder that was copied to it:
#   FEDSUITE_DATA=/folder/of/data device.sh
# Stays until it is stopped; started again it goes on with the same name and models, which
# it keeps in state/ and sends to nobody.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ ! -d "$here/public" ] || export FEDSUITE_PUBLIC=${FEDSUITE_PUBLIC:-$here/public}
# Apps read these folders, and nothing else of the device: policy.toml has the list.
read="${FEDSUITE_DATA:+$FEDSUITE_DATA, }${FEDSUITE_PUBLIC:-}" read=${read%, }
sed -i "s|^read = \"\"\$|read = \"${read//&/\\&}\"|" "$here/policy.toml"
exec fedsuite deploy supernode "$here" "$@"
