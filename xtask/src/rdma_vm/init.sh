#!/bin/sh
# The first process of the virtual machine: creates rxe0, tells the host that it is up, runs /command when
# the host allows it, and reports its status. FARCALL_NODE and FARCALL_NODES come from the kernel's command line.
export PATH=/bin HOME=/root TERM=dumb NO_COLOR=1

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
stty raw -echo
exec 3<>/dev/console

token=$(cat /token)
rm /token

tell() {
    echo "rdma-vm:$token:$1" >&3
}

# Repeated, because a kernel message may split the line. The host ends the machine.
tell_forever() {
    while :; do
        tell "$1"
        sleep 1
    done
}

check() {
    "$@" || tell_forever "broken \`$*\` failed with status $?"
}

while read -r module; do
    check insmod "/modules/$module"
done </modules/order

ulimit -l unlimited
check ip link set lo up
if [ "$FARCALL_NODES" = 2 ]; then
    netdev=eth0
    export FARCALL_PEER="10.0.0.$((3 - FARCALL_NODE))"
else
    # The module has created it already.
    netdev=dummy0
fi
check ip addr add "10.0.0.$FARCALL_NODE/24" dev "$netdev"
# Room for RDMA packets of 4096 bytes and their headers.
check ip link set "$netdev" mtu 4200 up
check rdma link add rxe0 type rxe netdev "$netdev"

until read -r -t 1 go && [ "$go" = go ]; do
    tell up
done <&3

sh /command </dev/null 3<&-
tell_forever "exit $?"
