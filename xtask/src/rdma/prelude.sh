# Shared by the scripts of the step `rdma`. Every wait here is bounded by the time limit of its check, or by the
# timeout of the run.

failures=0

# check NAME SECONDS COMMAND: runs COMMAND in a separate shell with this time limit, and prints the result.
check() {
    echo "-- $1"
    begun=$(cut -d ' ' -f 1 /proc/uptime)
    timeout -s KILL "$2" sh -c ". /tmp/prelude; $3"
    status=$?
    took=$(echo "$begun $(cut -d ' ' -f 1 /proc/uptime)" | awk '{ printf "%.1f", $2 - $1 }')
    case $status in
        0) echo "-- $1: ok, $took s" ;;
        137) echo "-- $1: FAILED, killed after $took s" ;;
        *) echo "-- $1: FAILED with status $status, $took s" ;;
    esac
    [ $status = 0 ] || failures=$((failures + 1))
}

# listening PORT: waits until a program of this node listens there. It asks the kernel, because a connection
# would be taken for a peer.
listening() {
    until netstat -ltn | grep -q ":$1 "; do usleep 20000; done
}

# meet PORT: a barrier of both nodes.
meet() {
    if [ "$FARCALL_NODE" = 1 ]; then
        nc -l -p "$1" </dev/null >/dev/null
    else
        until nc "$FARCALL_PEER" "$1" </dev/null >/dev/null 2>&1; do usleep 20000; done
    fi
}

# quietly COMMAND: shows its output only if it fails.
quietly() {
    "$@" >/tmp/out 2>&1 && return
    set -- $?
    cat /tmp/out
    return "$1"
}

# both_ends TOOL ARGUMENTS: runs both ends of a tool of perftest on this node.
both_ends() {
    "$@" -d rxe0 -x 1 >/dev/null 2>&1 &
    listening 18515
    quietly "$@" -d rxe0 -x 1 10.0.0.1 && wait $!
}

# wire NETEM: applies these faults to RDMA packets that leave this node. Other packets, such as a suite's messages
# to its processes on the other node, are not affected. The `tc` of busybox does not support this.
wire() {
    /bin/tc qdisc replace dev eth0 root handle 1: prio priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 &&
        /bin/tc qdisc replace dev eth0 parent 1:1 handle 10: netem "$@" &&
        /bin/tc filter replace dev eth0 parent 1: prio 1 protocol ip u32 match ip dport 4791 0xffff flowid 1:1
}
