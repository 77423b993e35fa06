//! RDMA devices behind one vocabulary: shared memory, libibverbs, a simulated rack.
