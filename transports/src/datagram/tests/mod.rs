//! Two ends over the device `shm`, driven by hand.
