//! The suite on the simulated rack: with WRITEs that land at once, with WRITEs and READs piece by piece in any order and peers' atomics
//! that are not atomic with the CPU's, with READs word by word in any order, and with loss and delay.

use std::process::ExitCode;
use std::time::Duration;

use farcall_verbs::sim::{FaultRates, Landing, SimConfig};
use farcall_verbs_conformance::{Except, Harness, Simulated};

fn main() -> ExitCode {
    let lossy = Except::new(
        Simulated::new(3).config(loss_and_delay()),
        &[(
            "model::random_work_agrees_with_the_model",
            "a READ whose response was lost reads again, as on hardware, and sees later WRITEs",
        )],
    );
    Harness::new()
        .suite("at_once", Simulated::new(1))
        .suite("in_any_order", Simulated::new(2).config(any_order()))
        .suite(
            "words_in_any_order",
            Simulated::new(4).config(any_order().reads_words_in_any_order(true)),
        )
        .suite("loss_and_delay", lossy)
        .run()
}

fn any_order() -> SimConfig {
    SimConfig::default().landing(Landing::AnyOrder).atomic_gap(Duration::from_nanos(400))
}

/// Some messages of reliable connections are lost, and many are late. The seed must not lose a refusal: its sender would
/// then report that nobody answered, as on hardware.
fn loss_and_delay() -> SimConfig {
    let rates = FaultRates::default()
        .reliable_loss(0.002)
        .connected_delay(0.02)
        .delay(Duration::from_micros(10));
    SimConfig::default().landing(Landing::LeftToRight).faults(rates)
}
