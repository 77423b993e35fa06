# What the scripts of the step `rdma` share. Every wait here is bounded by the bound of its check, or by the
# timeout of the run.

failures=0

# check NAME SECONDS COMMAND: runs COMMAND by a shell of its own, no longer than that, and says how it went.
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

# listening PORT: until a program of this node listens there. Asked of the kernel: a connection would be
# taken for a peer.
listening() {
    until netstat -ltn | grep -q ":$1 "; do usleep 20000; done
}

# meet PORT: both nodes come here, then both go on.
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

# both_ends TOOL ARGUMENTS: both ends of a tool of perftest on this node.
both_ends() {
    "$@" -d rxe0 -x 1 >/dev/null 2>&1 &
    listening 18515
    quietly "$@" -d rxe0 -x 1 10.0.0.1 && wait $!
}

# wire NETEM: so RDMA's packets leave this node from now on. Others, such as what a suite tells its processes
# over there, are spared. The shell has a `tc` of its own, which knows less.
wire() {
    /bin/tc qdisc replace dev eth0 root handle 1: prio priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 &&
        /bin/tc qdisc replace dev eth0 parent 1:1 handle 10: netem "$@" &&
        /bin/tc filter replace dev eth0 parent 1: prio 1 protocol ip u32 match ip dport 4791 0xffff flowid 1:1
}
