//! The value of each optimization of `datagram`: disabled one at a time, and enabled one after the other as in
//! FaSST's table (OSDI 2016, section 4.3). Mechanisms that only cost time without losses are measured in the same
//! way.

mod report;

use anyhow::{Result, ensure};
use farcall_transports::datagram::Optimization;

use crate::compare::{self, Contender};

pub use self::report::{AblateReport, Measured, Part};

/// Mechanisms that handle losses and congestion: they make nothing faster.
const SAFETY: [&str; 2] = ["recovery", "congestion"];

fn is_safety(optimization: &Optimization) -> bool {
    SAFETY.contains(&optimization.name())
}

/// The optimizations in the order in which they are added. Batched polls come first, because calls that are
/// polled one by one never form a batch for one doorbell.
fn optimizations() -> Vec<Optimization> {
    let mut all: Vec<_> = Optimization::ALL.iter().copied().filter(|one| !is_safety(one)).collect();
    all.sort_by_key(|one| *one != Optimization::Polls);
    all
}

fn contender(name: String, without: &[Optimization]) -> Contender {
    let names: Vec<_> = without.iter().map(|one| one.name()).collect();
    let options = match names.is_empty() {
        true => String::new(),
        false => format!("&without={}", names.join(",")),
    };
    Contender { name, backend: "datagram", options }
}

/// All configurations: with everything; without one of each; from nothing to everything; without the safety
/// mechanisms.
fn contenders() -> Vec<(Part, Contender)> {
    let optimizations = optimizations();
    let mut all = vec![(Part::Whole, contender("all".into(), &[]))];
    for one in &optimizations {
        all.push((Part::Without, contender(format!("without {}", one.name()), &[*one])));
    }
    for added in 0..=optimizations.len() {
        let name = match added.checked_sub(1) {
            None => "none".to_owned(),
            Some(last) => format!("+ {}", optimizations[last].name()),
        };
        all.push((Part::Added, contender(name, &optimizations[added..])));
    }
    let safety: Vec<_> = Optimization::ALL.iter().copied().filter(is_safety).collect();
    for one in &safety {
        all.push((Part::Safety, contender(format!("without {}", one.name()), &[*one])));
    }
    if safety.len() > 1 {
        all.push((Part::Safety, contender("without both".into(), &safety)));
    }
    all
}

/// Measures all configurations. Ignores the contenders in `options`.
///
/// # Errors
/// More than one number of clients, size or window; or the bench itself fails.
pub fn run(options: compare::Options) -> Result<AblateReport> {
    let are_single = [options.clients.len(), options.sizes.len(), options.windows.len()] == [1; 3];
    ensure!(are_single, "one number of clients, one size and one window at a time");
    let (parts, contenders): (Vec<_>, _) = contenders().into_iter().unzip();
    let options = compare::Options { contenders, ..options };
    let report = compare::run(&options)?;
    Ok(AblateReport::new(&parts, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_added_configuration_is_the_whole() {
        let all = contenders();
        assert!(all[0].1.options.is_empty());
        let added: Vec<_> = all.iter().filter(|(part, _)| *part == Part::Added).collect();
        assert_eq!(added.len(), optimizations().len() + 1);
        assert!(added.last().is_some_and(|(_, last)| last.options.is_empty()));
        let left = |options: &str| match options {
            "" => 0,
            list => list.split(',').count(),
        };
        for pair in added.windows(2) {
            let (more, fewer) = (&pair[0].1.options, &pair[1].1.options);
            assert_eq!(left(more), left(fewer) + 1, "one at a time");
        }
    }

    #[test]
    fn safety_mechanisms_are_never_counted_as_optimizations() {
        assert!(optimizations().iter().all(|one| !SAFETY.contains(&one.name())));
        assert!(contenders().iter().any(|(part, _)| *part == Part::Safety));
    }
}
