//! `farcall-bench sim`: published figures, on the simulated rack.

mod fasst;
pub mod figure;
mod flows;
mod herd;
mod kalia;
mod rig;
mod scalerpc;

use figure::Figure;

/// All figures, in the order of the book.
pub fn figures() -> Vec<Figure> {
    [herd::figures(), scalerpc::figures(), fasst::figures(), kalia::figures()]
        .into_iter()
        .flatten()
        .collect()
}
