# One machine serves, the other calls.
kv="rdma://10.0.0.1:7471?device=rxe0"
datagrams="rdma://10.0.0.1:7472?device=rxe0&backend=datagram"

# With 10 % loss, duplication and reordering.
bad_wire="loss 10% duplicate 5% delay 500us 500us"

if [ "$FARCALL_NODE" = 1 ]; then
    ib_write_lat -d rxe0 -x 1 -s 32 -n 500 >/dev/null 2>&1 &
    first=$!
    device-conformance serve rxe0 10.0.0.1:7001 &
    backend-conformance serve 10.0.0.1:7004 2>/dev/null &
    farcall-kv serve --listen "$kv" &
    farcall-kv serve --listen "$datagrams" &
    for port in 18515 7001 7004 7471 7472; do listening $port; done
    meet 7000
    wait $first || failures=1
    # Node 2 gets here when the faults of the wire are to begin, and when they are to end.
    meet 7005
    check "this end of the wire is a bad one" 10 "wire $bad_wire"
    meet 7006
    meet 7007
    /bin/tc qdisc del dev eth0 root
    # Node 2 gets here when its clients are running.
    meet 7002
    sleep 1
    ip link set eth0 down
    sleep 2
    ip link set eth0 up
    meet 7003
    exit $failures
fi

meet 7000
# The wire itself, before farcall.
check "RDMA WRITE to the other node" 60 "quietly ib_write_lat -d rxe0 -x 1 -s 32 -n 500 $FARCALL_PEER"

# Cases that depend on the wire; the whole suite runs within one machine.
for family in operations datagram receiving shared_receive completions protection errors; do
    check "the device suite over the wire: $family" 120 "device-conformance run rxe0 10.0.0.1:7001 $family::"
done

check "the backend suite over the wire" 200 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0' 10.0.0.1:7004 \\
        refusals failures endings::a_ deaths::a_killed cancellation::thousands 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

check "the backend suite over the wire by datagrams" 200 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=datagram' \\
        10.0.0.1:7004 sizes::messages windows::a_window endings::a_ deaths::a_killed 2>/tmp/backend ||
        { cat /tmp/backend; false; }"
meet 7005
check "this end of the wire is a bad one" 10 "wire $bad_wire"
meet 7006
check "the backend suite over the bad wire by datagrams" 200 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=datagram' \\
        10.0.0.1:7004 sizes::messages_at large_and_small windows::a_window answers_in_any_order deaths::a_killed \\
        cancellation::a_whole_window deadlines::a_deadline_ends 2>/tmp/backend ||
        { cat /tmp/backend; false; }"
/bin/tc -s qdisc show dev eth0 | grep netem -A1
/bin/tc qdisc del dev eth0 root
meet 7007

work() {
    farcall-kv ycsb --workload a --records 100 --timeout 5 --ride-out 30 --seconds 8 --connect "$1"
    echo "status $?"
}
work "$kv" >/tmp/link-write_imm 2>&1 &
work "$datagrams" >/tmp/link-datagram 2>&1 &
for backend in write_imm datagram; do
    until grep -q ' load .* wrong\|^status' /tmp/link-$backend 2>/dev/null; do usleep 20000; done
done
meet 7002
for backend in write_imm datagram; do
    check "no acknowledged write is lost while the netdev goes down and comes up again, by $backend" 90 "
        until grep -q '^status' /tmp/link-$backend; do usleep 50000; done
        cat /tmp/link-$backend
        grep -q '^status 0' /tmp/link-$backend && ! grep -q ', [1-9][0-9]* times with its store' /tmp/link-$backend"
done
# Connections break immediately; some datagrams may only be lost.
check "the store of write_imm was gone meanwhile" 5 "grep -q 'The server was gone' /tmp/link-write_imm"
meet 7003
