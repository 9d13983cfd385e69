#!/bin/sh
# systemd forgets the unit when its file is gone. Pipelines in /etc/streamd and state in /var/lib/streamd stay, also at a purge.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
