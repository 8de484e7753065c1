"""The worlds that come with fedsuite, in the format of one's own files.

They are synthetic: each range is from the public sources that its comment names, and what
is drawn within a range is drawn evenly on a logarithmic scale. No device was measured here.
"""

from collections.abc import Mapping

_DATA_CENTRE = """
# Servers in one hall: alike, always there, on a fast network.
server-seconds = 0.1

[profiles.server]
# A core of a server processor does some 1e10 to 1e11 multiplications and additions in
# float32 a second when matrices are small: vendors' tables of AVX2 and AVX-512 peaks, of
# which small mini-batches reach a few per cent.
multiplications-per-second = [2e10, 4e10]
# 10 Gbit/s Ethernet, IEEE 802.3ae; latencies within a hall are below a millisecond (Google,
# "Jupiter rising", SIGCOMM 2015).
up-mbit = 10000
down-mbit = 10000
latency-seconds = 0.0005
memory-gb = 64
"""

_PHONES = """
# Phones that train while they charge at night, on a wireless network.
server-seconds = 1.0

# Speeds differ by about an order of magnitude between phones of one year: AI Benchmark
# (arXiv:1910.06663) and FedScale's device trace, which is made of it (arXiv:2105.11367,
# section 3.2). Rates are those of fixed and mobile lines in the M-Lab and Speedtest Global
# Index tables, where up-links have a fifth to a half of down-links.
# Charging and idle between about 22 and 6 o'clock: Yang et al., "Applied federated
# learning: Google keyboard query suggestions", arXiv:1812.02903, section 5.
[profiles.new-phone]
share = 0.25
multiplications-per-second = [2e9, 5e9]
up-mbit = [10, 40]
down-mbit = [40, 150]
latency-seconds = [0.02, 0.06]
memory-gb = 8
availability = "night"

[profiles.usual-phone]
share = 0.5
multiplications-per-second = [5e8, 2e9]
up-mbit = [4, 15]
down-mbit = [15, 60]
latency-seconds = [0.03, 0.1]
memory-gb = 4
availability = "night"

[profiles.old-phone]
share = 0.25
multiplications-per-second = [1e8, 5e8]
up-mbit = [1, 4]
down-mbit = [4, 15]
latency-seconds = [0.05, 0.3]
memory-gb = 2
availability = "night"

[availability.night]
kind = "daily"
from-hour = 21
spread-hours = 3
hours = 8
chance = 0.9
"""

_HOSPITALS = """
# Hospitals with a workstation each; the line of client 0 is slow.
server-seconds = 1.0

[profiles.hospital]
# A desktop processor: half to a tenth of a server's, by the same tables.
multiplications-per-second = [5e9, 1.5e10]
# Symmetric business lines and research networks: national research networks publish 100
# Mbit/s to 10 Gbit/s a member (GEANT Compendium).
up-mbit = [100, 1000]
down-mbit = [100, 1000]
latency-seconds = [0.01, 0.04]
memory-gb = 32

[profiles.slow-line]
clients = [0]
multiplications-per-second = [5e9, 1.5e10]
# ADSL2+, ITU-T G.992.5: up to 24 Mbit/s down and 1.4 up.
up-mbit = 1
down-mbit = 16
latency-seconds = 0.04
memory-gb = 32
"""

WORLDS: Mapping[str, str] = {
    "data-centre": _DATA_CENTRE,
    "phones-at-night": _PHONES,
    "hospitals": _HOSPITALS,
}
"""Name to the content of the world's file."""
