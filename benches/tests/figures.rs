//! Published figures on the simulated rack: fails if a change to the model breaks one.

use std::fs;
use std::path::Path;

use farcall_bench::sim::figure::{Axis, Drawn, Outcome, Use};
use farcall_bench::sim::measured::{self, Errors};
use farcall_bench::sim::study::StudyResult;
use farcall_bench::sim::{book, figures, studies};

/// The largest relative error of a simulated value.
const ERROR: f64 = 0.2;

/// Published values that differ by this factor must have the same order in the simulation.
const APART: f64 = 1.5;

/// A knee must be within this factor of the published one.
const KNEE: f64 = 1.3;

/// The median error of the measured configurations is at most this, of those that constants were fitted to and of the
/// others.
const MEASURED_MEDIAN: f64 = 0.08;

/// At least this share of them is within 15 %.
const MEASURED_NEAR: f64 = 0.85;

/// Figures with a knee: where half of the height is left.
const KNEES: [(&str, &str); 3] = [
    ("scalerpc-3a", "out of the server"),
    ("scalerpc-3b", "into the server"),
    ("herd-3b", "WRITE, UC"),
];

/// Published orders that are not reproduced; the figure's notes say why.
struct ReversedOrders {
    figure: &'static str,
    /// What should be above.
    above: &'static str,
    below: &'static str,
    /// Where in the first series, and where in the second.
    at: &'static [(f64, f64)],
}

impl ReversedOrders {
    const fn of(
        figure: &'static str,
        above: &'static str,
        below: &'static str,
        at: &'static [(f64, f64)],
    ) -> ReversedOrders {
        ReversedOrders { figure, above, below, at }
    }
}

const HERD_1: &str = "HERD, batch of 1";

const REVERSED_ORDERS: [ReversedOrders; 3] = [
    ReversedOrders::of("scalerpc-8", HERD_1, HERD_1, &[(240.0, 400.0), (320.0, 400.0)]),
    ReversedOrders::of("scalerpc-9", "RawWrite", "HERD", &[(2.0, 2.0)]),
    ReversedOrders::of(
        "scalerpc-10-pcie",
        "RawWrite",
        "RawWrite",
        &[(80.0, 160.0), (120.0, 160.0)],
    ),
];

/// All figures in one test, so that each is simulated only once. `cargo xtask figures`
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes where it is not optimized")]
fn figures_are_reproduced_and_the_book_shows_them() {
    let figures = figures();
    let drawn: Vec<_> = figures.iter().map(|figure| figure.draw().unwrap()).collect();
    let mut wrong = Vec::new();
    for drawn in &drawn {
        errors(drawn, &mut wrong);
        orders(drawn, &mut wrong);
    }
    for (figure, series) in KNEES {
        knees(&drawn, figure, series, &mut wrong);
    }
    let studies = studies();
    let results: Vec<_> = studies.iter().map(|study| study.evaluate().unwrap()).collect();
    results.iter().for_each(|result| goals(result, &mut wrong));
    let simulated = measured::simulate(&measured::configurations().unwrap()).unwrap();
    for (name, is_fitted) in [("fitted", true), ("tried", false)] {
        let errors = Errors::of(&simulated, |one| one.fitted == is_fitted).unwrap();
        if errors.median > MEASURED_MEDIAN || errors.near < MEASURED_NEAR {
            wrong.push(format!("measured configurations, {name}: {errors:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    assert_eq!(book::missing_figures(&figures), [""; 0], "figures that the book does not show");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../book/src");
    for (file, wanted) in book::files(&drawn, &results, &simulated).unwrap() {
        let there = fs::read_to_string(source.join(&file)).unwrap_or_default();
        assert!(
            there == wanted,
            "{file} is not what the rack gives now: \
             cargo run --release -p farcall-bench --features sim -- sim all --book book/src"
        );
    }
}

fn errors(drawn: &Drawn<'_>, wrong: &mut Vec<String>) {
    for (series, outcomes) in &drawn.series {
        for outcome in outcomes {
            let Outcome { x, published, simulated, used } = *outcome;
            let is_near = outcome.error().abs() <= ERROR;
            let point = format!("{}, {series}, {x}: {simulated:.2}", drawn.figure.name);
            match used {
                Use::Fitted | Use::HeldOut if !is_near => {
                    wrong.push(format!("{point}, and not {published} within {ERROR}"));
                }
                Use::Missed if is_near => {
                    wrong.push(format!("{point} meets {published}: it may be said so"));
                }
                _ => {}
            }
        }
    }
}

fn goals(told: &StudyResult<'_>, wrong: &mut Vec<String>) {
    for goal in &told.studied.goals {
        if !goal.is_met() {
            wrong.push(format!("{}: {}", told.study.name, goal.says()));
        }
    }
}

/// Checks the order of values within a series, and between series at each x.
fn orders(drawn: &Drawn<'_>, wrong: &mut Vec<String>) {
    let name = drawn.figure.name;
    let all: Vec<_> = drawn
        .series
        .iter()
        .flat_map(|(name, outcomes)| outcomes.iter().map(move |outcome| (*name, outcome)))
        .collect();
    for (one, a) in &all {
        for (other, b) in &all {
            let compared = one == other || a.x == b.x;
            if !compared || a.published <= APART * b.published {
                continue;
            }
            let turned = REVERSED_ORDERS.iter().any(|order| {
                let is_of = order.figure == name && order.above == *one && order.below == *other;
                is_of && order.at.contains(&(a.x, b.x))
            });
            if (a.simulated <= b.simulated) != turned {
                wrong.push(format!(
                    "{name}: {one} at {} is {} above {other} at {}: {:.2}, {:.2}",
                    a.x,
                    if turned { "now" } else { "not" },
                    b.x,
                    a.simulated,
                    b.simulated
                ));
            }
        }
    }
}

fn knees(drawn: &[Drawn<'_>], figure: &str, series: &str, wrong: &mut Vec<String>) {
    let drawn = drawn.iter().find(|drawn| drawn.figure.name == figure).unwrap();
    assert!(!matches!(drawn.figure.axis, Axis::Names(_)));
    let (_, outcomes) = drawn.series.iter().find(|(name, _)| *name == series).unwrap();
    let published = knee(outcomes, |outcome| outcome.published);
    let simulated = knee(outcomes, |outcome| outcome.simulated);
    let factor = simulated / published;
    if !(1.0 / KNEE..=KNEE).contains(&factor) {
        wrong.push(format!("{figure}: the knee lies at {simulated:.1}, and not at {published:.1}"));
    }
}

/// The x at which half of the height is left, with linear interpolation.
fn knee(outcomes: &[Outcome], y: fn(&Outcome) -> f64) -> f64 {
    let highest = outcomes.iter().map(y).fold(0.0, f64::max);
    let half = highest / 2.0;
    let crosses = |pair: &&[Outcome]| y(&pair[0]) > half && y(&pair[1]) <= half;
    let pair = outcomes.windows(2).rev().find(crosses).unwrap();
    let part = (y(&pair[0]) - half) / (y(&pair[0]) - y(&pair[1]));
    pair[0].x + part * (pair[1].x - pair[0].x)
}
