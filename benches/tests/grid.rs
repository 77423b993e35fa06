//! Rates on the simulated rack change smoothly, and do not depend on how the programs start.

use farcall_bench::sim::grid::{Grid, jumps};

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes where it is not optimized")]
fn rates_have_one_state() {
    let jumps = jumps(Grid::Coarse).unwrap();
    assert!(jumps.is_empty(), "{}", jumps.join("\n"));
}

#[test]
#[ignore = "takes minutes"]
fn rates_have_one_state_on_a_fine_grid() {
    let jumps = jumps(Grid::Fine).unwrap();
    assert!(jumps.is_empty(), "{}", jumps.join("\n"));
}
