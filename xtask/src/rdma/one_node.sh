# The device itself, before anything of ours.
check "rxe0 is there, and active" 10 "ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE"
check "RDMA WRITE" 30 "both_ends ib_write_lat -s 32 -n 500"
check "RDMA READ" 30 "both_ends ib_read_lat -s 32 -n 500"
check "fetch and add" 30 "both_ends ib_atomic_lat -A FETCH_AND_ADD -n 500"
