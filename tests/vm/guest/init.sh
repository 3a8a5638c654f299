# The first process of the virtual machine once the host's files are its root; `share/command` is what it is for.
share=$(dirname "$0")
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
ln -sfn /proc/self/fd /dev/fd
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
ip link set lo up
. "$share/command"
# Where kernel headers were ever installed this is a folder of the host's, so a link would land inside it.
mkdir -p "/lib/modules/$(uname -r)"
mount --bind "$GPUPLUG_VM_MODULES" "/lib/modules/$(uname -r)"
cut -d' ' -f1 /proc/uptime > "$share/uptime"
if [ -n "$GPUPLUG_VM_INTERACTIVE" ]; then
    setsid -c "$@" < /dev/ttyS0 > /dev/ttyS0 2>&1
else
    "$@" < /dev/null > "$share/output.log" 2>&1
fi
echo $? > "$share/code"
sync
busybox poweroff -f
