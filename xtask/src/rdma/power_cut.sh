# Stores run on node 1, their clients on node 2. The power of node 1 is cut while they work, and comes back. A client
# without --ride-out ends with an error soon; one with it redials until its store is back, and finds no wrong answer.
store() {
    backend=write_imm
    [ "$1" = 7473 ] && backend=datagram
    echo "rdma://10.0.0.1:$1?device=rxe0&backend=$backend"
}

if [ "$FARCALL_NODE" = 1 ]; then
    farcall-kv serve --listen "$(store 7471)" &
    farcall-kv serve --listen "$(store 7472)" &
    farcall-kv serve --listen "$(store 7473)" &
    wait
    exit
fi

for port in 7471 7472 7473; do
    check "the store at port $port is there" 60 "
        until farcall-kv put --timeout 2 --connect '$(store $port)' there yes 2>/dev/null; do usleep 50000; done"
done

# Far longer than the time until the power cut.
(
    farcall-kv ycsb --workload a --records 20 --window 1 --timeout 5 --seconds 1000 --connect "$(store 7472)" 2>&1
    echo "status $?"
) >/tmp/no-wait &
(
    farcall-kv ycsb --workload a --records 100 --timeout 5 --ride-out 90 --seconds 20 --connect "$(store 7473)" 2>&1
    echo "status $?"
) >/tmp/datagrams &
check "a client that waits goes on after the power cut, with no wrong answer" 120 "
    farcall-kv ycsb --workload a --records 100 --timeout 5 --ride-out 90 --seconds 20 --connect '$(store 7471)' >/tmp/waits
    status=\$?
    tail -2 /tmp/waits
    [ \$status = 0 ] && grep -q 'The server was gone' /tmp/waits"
check "a client of datagrams that waits too" 60 "
    until grep -q '^status' /tmp/datagrams; do usleep 50000; done
    tail -3 /tmp/datagrams
    grep -q '^status 0' /tmp/datagrams && grep -q 'The server was gone' /tmp/datagrams"
# The silence of the server, the deadline of the call and the timeout of the client are all 5 s: any of them may be first.
check "a client that does not wait has ended in an error" 10 "
    until grep -q '^status' /tmp/no-wait; do usleep 50000; done
    tail -2 /tmp/no-wait
    grep -q '^status 2' /tmp/no-wait && grep -q 'the server is gone\|deadline\|not answered within' /tmp/no-wait"
