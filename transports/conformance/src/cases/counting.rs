//! The server counts what it does, for each method.

use crate::{setup::Setup, world::World};

/// The value of the first series whose name and labels contain all of these words.
pub(super) fn value(metrics: &str, words: &[&str]) -> f64 {
    let line = metrics
        .lines()
        .find(|line| !line.starts_with('#') && words.iter().all(|word| line.contains(word)));
    let text = line.and_then(|line| line.rsplit(' ').next());
    text.and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no series with {words:?} in:\n{metrics}"))
}

/// Each method's calls are counted by how they ended.
pub fn calls_are_counted_by_method_and_outcome(world: &World) {
    let server = world.serve(Setup::default());
    let mut client = world.client(&server);
    for id in 0..7 {
        world.call(&mut client, |c| c.start_tally(id)).expect("tally");
    }
    for _ in 0..3 {
        let _ = world.call(&mut client, |c| c.start_refuse(1));
        let _ = world.call(&mut client, |c| c.start_panic_in_place());
    }
    // A count may lag behind the answer by the end of the server's turn.
    world.until("the calls are counted", || {
        let metrics = server.metrics();
        let counted = value(&metrics, &["tally", "\"ok\""]) == 7.0
            && value(&metrics, &["refuse", "service_error"]) == 3.0
            && value(&metrics, &["panic_in_place", "handler_panicked"]) == 3.0;
        counted.then_some(())
    });
}
