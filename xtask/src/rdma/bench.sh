# The programs alternate, so that all of them see the same load of the host.

figure() {
    [ -n "$2" ] || { echo "no figure of $1"; exit 1; }
    echo "figure $1 $2"
}

# perftest NAME TOOL OPTIONS: its time for 32 bytes under that name, both ends on this node.
perftest() {
    name=$1
    shift
    "$@" -d rxe0 -x 1 -s 32 -n 2000 >/dev/null 2>&1 &
    listening 18515
    figure "$name" "$("$@" -d rxe0 -x 1 -s 32 -n 2000 10.0.0.1 | awk '$1 == 32 { print $5 }')"
    wait $!
}

# echo_by BACKEND: the median round trip, in microseconds.
echo_by() {
    farcall-bench echo --device rxe0 --backend "$1" --size 32 --window 1 --threads --seconds 0.5 --json |
        sed 's/.*"p50_ns":\([0-9]*\).*/\1/' | awk '{ print $1 / 1000 }'
}

round=0
while [ $round -lt "$rounds" ]; do
    perftest ib_write_lat ib_write_lat
    figure write_latency "$(write_latency rxe0 2000 | sed 's/.*typical \([0-9.]*\) us.*/\1/')"
    figure echo "$(echo_by write_imm)"
    perftest ib_send_lat ib_send_lat -c UD
    figure datagrams "$(echo_by datagram)"
    perftest ib_send_lat_rc ib_send_lat -c RC
    figure send_recv "$(echo_by send_recv)"
    perftest ib_read_lat ib_read_lat
    figure rfp "$(echo_by rfp)"
    round=$((round + 1))
done

# All backends, by clients, by size and by window. Both ends of all clients are in one process.
ulimit -n 16384
farcall-bench compare --device rxe0 --clients 1,4,16,64 --sizes 32,256,1024,4096,16384,65536 --windows 1,8,32 \
    --one-at-a-time --seconds 0.5
