"""How many CPUs Ray counts on this machine, before Ray starts.

In a container ``os.cpu_count`` counts those of the whole machine, and Ray those of the
container. Ray tells its number only once it runs.

Seen in Ray 2.55. To delete when Ray has a public function for it.
"""

import os


def counted_cpus() -> int:
    """Return the CPUs that Ray counts; the machine's where Ray has no such function."""
    try:
        from ray._private.utils import get_num_cpus
    except ImportError:
        return os.cpu_count() or 1
    return int(get_num_cpus(override_docker_cpu_warning=True))
