# The wire, before anything of ours: RDMA WRITE from one machine to the other.
if [ "$FARCALL_NODE" = 1 ]; then
    ib_write_lat -d rxe0 -x 1 -s 32 -n 500 >/dev/null 2>&1 &
    listening 18515
    meet 7000
    wait $! || failures=1
else
    meet 7000
    check "RDMA WRITE to the other node" 60 \
        "quietly ib_write_lat -d rxe0 -x 1 -s 32 -n 500 $FARCALL_PEER"
fi
