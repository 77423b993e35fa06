# The device itself, before farcall.
check "rxe0 is there, and active" 10 "ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE"
check "RDMA WRITE" 30 "both_ends ib_write_lat -s 32 -n 500"
check "RDMA READ" 30 "both_ends ib_read_lat -s 32 -n 500"
check "fetch and add" 30 "both_ends ib_atomic_lat -A FETCH_AND_ADD -n 500"

# What farcall finds, and a quick check that it works.
check "farcall info" 10 "farcall info | tee /tmp/info; grep -q '^rxe0: RDMA device' /tmp/info"
check "farcall ping" 30 "
    farcall-kv serve --listen 'rdma://10.0.0.1:7471?device=rxe0' &
    listening 7471
    farcall ping 'rdma://10.0.0.1:7471?device=rxe0' --count 1000 --interval 0
    status=\$?
    kill \$!
    exit \$status"
check "farcall ping by datagrams" 30 "
    farcall-kv serve --listen 'rdma://10.0.0.1:7472?device=rxe0&backend=datagram' &
    listening 7472
    farcall ping 'rdma://10.0.0.1:7472?device=rxe0&backend=datagram' --count 1000 --interval 0
    status=\$?
    kill \$!
    exit \$status"
check "farcall ping by send_recv" 30 "
    farcall-kv serve --listen 'rdma://10.0.0.1:7473?device=rxe0&backend=send_recv' &
    listening 7473
    farcall ping 'rdma://10.0.0.1:7473?device=rxe0&backend=send_recv' --count 1000 --interval 0
    status=\$?
    kill \$!
    exit \$status"
check "the verbs example" 30 "write_latency rxe0 500"

# The cases of the suite of lent memory, by a lane on the device.
check "lent memory, one-sided" 200 "memory_on_device 'rdma://10.0.0.1:0?device=rxe0' rxe0"

check "device faults" 60 "device-conformance faults rxe0 dummy0"

# Only a part of the suite: the same code under more load takes minutes here. The timeouts of its cases are for real machines.
check "the backend suite, servers in processes" 400 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0' processes \\
        sizes::messages refusals failures deadlines::a_ endings::a_ deaths::a_killed windows::a_window \\
        hostile_clients::writes_outside hostile_clients::lengths a_client_dials_again a_sleeping lanes:: 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

check "the backend suite by datagrams, servers in processes" 400 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=datagram' processes \\
        sizes::messages deadlines::a_deadline_ends endings::a_ deaths::a_killed deaths::a_stopped_server \\
        a_window_of_64 a_client_dials_again a_sleeping_client lanes:: 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

check "the backend suite by send_recv, servers in processes" 400 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=send_recv' processes \\
        sizes::messages deadlines::a_deadline_ends endings::a_ deaths::a_killed windows::a_window \\
        hostile_clients::writes_where hostile_clients::lengths a_client_dials_again a_sleeping_client lanes:: 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

check "the backend suite by rfp, servers in processes" 400 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=rfp' processes \\
        sizes::messages deadlines::a_deadline_ends endings::a_ deaths::a_killed windows::a_window \\
        hostile_clients::nonsense hostile_clients::lengths a_client_dials_again a_sleeping_client lanes:: 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

# Small groups and short slices: places change hands.
check "the backend suite by scale, servers in processes" 400 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=scale&group=2&slice=1ms' processes \\
        sizes::messages deadlines::a_deadline_ends endings::a_ deaths::a_killed windows::a_window \\
        hostile_clients::nonsense hostile_clients::lengths a_client_dials_again a_sleeping_client lanes:: 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

# Each case has lanes opened and moved while it runs.
check "the backend suite by hybrid, servers in processes" 400 "
    FARCALL_CONFORMANCE_PATIENCE=10 backend-conformance run 'rdma://10.0.0.1:0?device=rxe0&backend=hybrid' processes \\
        sizes::messages deadlines::a_deadline_ends endings::a_ deaths::a_killed windows::a_window \\
        a_client_dials_again a_sleeping_client lanes:: 2>/tmp/backend ||
        { cat /tmp/backend; false; }"

# Neither their thread nor the server's runs without calls.
check "idle clients of each backend are parked" 200 "
    for backend in write_imm send_recv rfp scale datagram hybrid; do
        farcall-bench idle --device rxe0 --backend \$backend --options window=4 --clients 40 --seconds 2 --json >/tmp/idle &&
            awk -v RS=, -F: '/cpu_ns/ && \$2 > 20000000 { exit 1 }' /tmp/idle || { cat /tmp/idle; exit 1; }
    done"

# What a layer of faults must pass on unchanged.
check "the device suite inside layers of faults" 200 "device-conformance run rxe0 layers"

# The whole suite.
check "the device suite, each end a process" 400 "device-conformance run rxe0 processes"
