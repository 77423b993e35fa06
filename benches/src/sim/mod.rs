//! `farcall-bench sim`: published figures on the simulated rack.

mod backends;
pub mod book;
mod bursts;
mod connectx5;
mod datagram;
mod dct;
mod durable;
mod echo;
mod fasst;
pub mod figure;
mod flows;
pub mod grid;
mod herd;
mod herd_calls;
mod kalia;
mod latency;
pub mod measured;
mod mesh_plans;
pub mod picture;
mod raw_write;
mod rfp;
mod rfp_calls;
mod rig;
mod scale_calls;
mod scale_priorities;
mod scale_studies;
mod scalerpc;
mod shared;
pub mod study;
mod verbs_calls;

use figure::Figure;
pub(crate) use latency::read_ns;
use study::Study;

/// All figures, in the order of the book.
pub fn figures() -> Vec<Figure> {
    let groups = [
        herd::figures(),
        rfp::figures(),
        kalia::figures(),
        fasst::figures(),
        scalerpc::figures(),
        connectx5::figures(),
        latency::figures(),
        vec![durable::figure()],
        scale_calls::figures(),
        rfp_calls::figures(),
    ];
    groups.into_iter().flatten().collect()
}

/// All studies of our own backends, in the order of the book.
pub fn studies() -> Vec<Study> {
    let groups = [
        backends::studies(),
        vec![mesh_plans::study(), dct::study(), durable::study()],
        scale_studies::studies(),
        datagram::studies(),
    ];
    groups.into_iter().flatten().collect()
}
