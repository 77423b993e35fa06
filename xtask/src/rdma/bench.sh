# Each program in turn, so that all see the same moments of the computer below.

figure() {
    [ -n "$2" ] || { echo "no figure of $1"; exit 1; }
    echo "figure $1 $2"
}

round=0
while [ $round -lt "$rounds" ]; do
    ib_write_lat -d rxe0 -x 1 -s 32 -n 2000 >/dev/null 2>&1 &
    listening 18515
    figure ib_write_lat "$(ib_write_lat -d rxe0 -x 1 -s 32 -n 2000 10.0.0.1 | awk '$1 == 32 { print $5 }')"
    wait $!
    figure write_latency "$(write_latency rxe0 2000 | sed 's/.*typical \([0-9.]*\) us.*/\1/')"
    figure echo "$(farcall-bench echo --device rxe0 --size 32 --window 1 --threads --seconds 0.5 --json |
        sed 's/.*"p50_ns":\([0-9]*\).*/\1/' | awk '{ print $1 / 1000 }')"
    round=$((round + 1))
done
