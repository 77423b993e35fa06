# One machine serves, the other asks.
kv="rdma://10.0.0.1:7471?device=rxe0"

if [ "$FARCALL_NODE" = 1 ]; then
    ib_write_lat -d rxe0 -x 1 -s 32 -n 500 >/dev/null 2>&1 &
    first=$!
    device-conformance serve rxe0 10.0.0.1:7001 &
    farcall-kv serve --listen "$kv" &
    for port in 18515 7001 7471; do listening $port; done
    meet 7000
    wait $first || failures=1
    meet 7002
    # Under load: node 2 is working since it came here.
    sleep 3
    ip link set eth0 down
    sleep 2
    ip link set eth0 up
    meet 7003
    exit $failures
fi

meet 7000
# The wire, before anything of ours.
check "RDMA WRITE to the other node" 60 "quietly ib_write_lat -d rxe0 -x 1 -s 32 -n 500 $FARCALL_PEER"
check "the device suite" 400 "device-conformance run rxe0 10.0.0.1:7001 | while read l; do echo \$(cut -d ' ' -f 1 /proc/uptime) \$l; done"
meet 7002
check "no acknowledged write is lost while the netdev of the store goes down and comes up again" 60 "
    farcall-kv ycsb --workload a --records 100 --timeout 5 --ride-out 30 --seconds 15 --connect '$kv' >/tmp/link
    status=\$?
    tail -2 /tmp/link
    [ \$status = 0 ] && grep -q 'The server was gone .*, 0 times with its store' /tmp/link"
meet 7003
