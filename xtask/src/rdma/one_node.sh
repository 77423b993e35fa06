# The device itself, before anything of ours.
check "rxe0 is there, and active" 10 "ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE"
check "RDMA WRITE" 30 "both_ends ib_write_lat -s 32 -n 500"
check "RDMA READ" 30 "both_ends ib_read_lat -s 32 -n 500"
check "fetch and add" 30 "both_ends ib_atomic_lat -A FETCH_AND_ADD -n 500"

# What farcall finds, and the shortest way to see that it works.
check "farcall info" 10 "farcall info | tee /tmp/info; grep -q '^rxe0: RDMA device' /tmp/info"
check "farcall ping" 30 "
    farcall-kv serve --listen 'rdma://10.0.0.1:7471?device=rxe0' &
    listening 7471
    farcall ping 'rdma://10.0.0.1:7471?device=rxe0' --count 1000 --interval 0
    status=\$?
    kill \$!
    exit \$status"
check "the verbs example" 30 "write_latency rxe0 500"

check "the device suite, each end a process" 200 "device-conformance run rxe0 processes"
