//! Calls, deadlines, dispatch and executors of farcall; knows no RDMA.
