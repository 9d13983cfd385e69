#!/bin/sh
# Stops the pipelines at a removal, not at an upgrade ("upgrade" for dpkg, "failed-upgrade" if the old script failed; 1 for rpm). State in /var/lib/streamd stays.
set -e
case "$1" in *upgrade | 1) exit 0 ;; esac
if [ -d /run/systemd/system ]; then systemctl stop 'streamd@*.service' || true; fi
