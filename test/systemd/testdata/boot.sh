#!/bin/bash
# Becomes process 1 of a small system: boot.sh PROGRAM UNIT CONFIGURATION, in namespaces of its own for mounts, processes,
# cgroups, host name and IPC. Its root is this machine's, copied on write into memory.
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/up /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
root=/mnt/root
mkdir -p $root/etc/streamd $root/old
cp "$1" $root/usr/bin/streamd
cp "$2" "$root/etc/systemd/system/streamd@.service"
cp -r "$3"/. $root/etc/streamd/
chmod -R go+rX $root/etc/streamd
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount --rbind /dev $root/dev
mount -t tmpfs -o mode=755 tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
else
  mount -t tmpfs tmpfs $root/sys/fs/cgroup
  mkdir -p $root/sys/fs/cgroup/{unified,systemd,memory}
  mount -t cgroup2 cgroup2 $root/sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/systemd
  mount -t cgroup -o memory cgroup $root/sys/fs/cgroup/memory
fi
cd $root
# Not chroot: in one, the kernel refuses the user namespace that PrivateUsers= asks for.
pivot_root . old
umount -l /old
hostname streamd-test
# Without these, a clean-up of temporary files or a mount unit could reach beyond the root if a line above were ever lost.
systemctl mask --quiet systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service systemd-tmpfiles-clean.timer systemd-sysctl.service \
  systemd-modules-load.service systemd-binfmt.service systemd-random-seed.service systemd-udevd.service systemd-udev-trigger.service || true
container=other exec /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=no
