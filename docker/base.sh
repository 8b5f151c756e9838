#!/usr/bin/env bash
# A Debian base image made of Debian's packages, for machines that reach no image registry. Usage: base.sh [TAG [MADE_OF]]
# MADE_OF is a label of it, which psconform knows it by.
# Needs mmdebstrap, a Docker engine, and root (or user namespaces, which mmdebstrap uses then).
# PSCONFORM_SUITE and PSCONFORM_MIRROR: another release, or mirror; by default bookworm, and what apt of this machine has.
set -euo pipefail
tag=${1:-psconform/base:bookworm}
made_of=${2:-unknown}
suite=${PSCONFORM_SUITE:-bookworm}
packages=ca-certificates,iptables,libgomp1,python3,python3-venv
command -v mmdebstrap >/dev/null || { echo "base.sh: needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 4; }
docker version --format '{{.Server.Version}}' >/dev/null

# Nothing is mounted or executed that needs more than a plain machine has; what only a person reads is left out.
mmdebstrap --quiet --variant=minbase --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" - ${PSCONFORM_MIRROR:+"$PSCONFORM_MIRROR"} |
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'CMD ["python3"]' --change "LABEL psconform.made-of=$made_of" --message "Debian $suite with Python" - "$tag" >/dev/null
echo "$tag"
